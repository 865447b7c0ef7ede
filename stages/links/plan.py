"""The assignment of pairs to minibatches, whose seeds are the ends of the pairs and of their negatives."""

from dataclasses import dataclass, field

import numpy as np

from ...storage.array_kinds import IdArray, NumberArray
from ...storage.links.pairs import PairArray
from ..assignment import BulkRequest, SeedPlan
from ..random import Purpose, stream
from .train_pairs import TrainPairs


@dataclass(frozen=True, eq=False)
class LinkRequest(BulkRequest):
    """k minibatches of pairs to be sampled together."""

    positives: tuple[PairArray, ...] = ()
    """k arrays int64 [b, 2]: pairs whose edges, and their reverses, are left out of the samples."""
    relations: tuple[IdArray, ...] = ()
    """k arrays int64 [b], the relation of each; empty where pairs are of one."""


@dataclass(frozen=True, eq=False)
class Ends:
    """The seeds of a minibatch of pairs."""

    nodes: IdArray
    """int64 [B], the ends of the pairs, ascending; with times, ascending at each moment."""
    moments: NumberArray | None
    """[B], the last moment before the pair, where pairs have times: the pair and all else at its time are not seen."""
    positions: IdArray
    """int64, of the shape of the pairs: positions of their ends in `nodes`."""

    @classmethod
    def from_pairs(cls, pairs: PairArray, time: NumberArray | None, num_nodes: int) -> "Ends":
        """
        Args:
            pairs: int64 [b, ..., 2].
            time: [b], of each row of pairs; None: there are no times.
            num_nodes: V.
        """
        if time is None and pairs.size > num_nodes:
            # A pass over the nodes costs less than a sort of the pairs.
            there = np.zeros(num_nodes, np.bool_)
            there[pairs] = True
            return cls(np.flatnonzero(there), None, (np.cumsum(there) - 1)[pairs])
        if time is None:
            nodes, positions = np.unique(pairs, return_inverse=True)
            return cls(nodes, None, positions.reshape(pairs.shape))
        distinct, rank = np.unique(before(time), return_inverse=True)
        keys = rank.reshape(-1, *[1] * (pairs.ndim - 1)) * max(1, num_nodes) + pairs
        found, positions = np.unique(keys, return_inverse=True)
        moment, nodes = np.divmod(found, max(1, num_nodes))
        return cls(nodes, distinct[moment], positions.reshape(pairs.shape))


def before(time: NumberArray) -> NumberArray:
    """The last moment before each time."""
    if np.issubdtype(time.dtype, np.floating):
        return np.nextafter(time, -np.inf)
    return np.maximum(time, np.iinfo(np.int64).min + 1) - 1


@dataclass(frozen=True, eq=False)
class LinkPlan(SeedPlan):
    """A `SeedPlan` over numbers of pairs, `batch_size` of them in a minibatch: positive pairs, or labelled ones.

    The negatives of a minibatch depend on the seed, the epoch and its index, and on nothing else.
    """

    links: TrainPairs = field(kw_only=True)

    def numbers(self, index: int, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """int64 [b], numbers of the pairs of a minibatch."""
        return self.order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]

    def pairs(self, index: int, epoch: int) -> PairArray:
        """int64 [b, 1 + k, 2], the pairs of a minibatch: see `TrainPairs.with_negatives`."""
        key = stream(self.seed, Purpose.NEGATIVE, epoch, index)
        return self.links.with_negatives(self.numbers(index, epoch), key)

    def ends(self, pairs: PairArray, index: int, epoch: int) -> Ends:
        """The seeds of a minibatch, by its `pairs`. A negative has the time of its pair."""
        time = self.links.time
        return Ends.from_pairs(pairs, None if time is None else time[self.numbers(index, epoch)], self.links.num_nodes)

    def no_request(self, epoch: int, number: int) -> LinkRequest:
        return LinkRequest(self.seed, epoch, number, 0, ())

    def request(self, epoch: int, number: int) -> LinkRequest:
        """See `SeedPlan.request`: the distinct ends of all pairs, at their moments."""
        given = super().request(epoch, number)
        indices = given.indices if given.seeds else ()
        # Negatives of one minibatch at a time: there may be very many.
        ends = [self.ends(self.pairs(index, epoch), index, epoch) for index in indices]
        seeds = tuple(e.nodes for e in ends)
        positives = tuple(self.links.pairs[self.numbers(index, epoch)] for index in indices)
        moments = tuple(e.moments for e in ends if e.moments is not None)
        relations: tuple[IdArray, ...] = ()
        if (of_pairs := self.links.relations) is not None:
            relations = tuple(of_pairs[0][self.numbers(index, epoch)] for index in indices)
        where = (self.seed, epoch, number, given.first_index, seeds, given.indices, moments)
        return LinkRequest(*where, positives, relations)
