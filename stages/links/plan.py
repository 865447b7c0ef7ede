"""The assignment of positive pairs to minibatches, whose seeds are the ends of the pairs and of their negatives."""

from dataclasses import dataclass, field

import numpy as np

from ...storage.links.pairs import PairArray
from ..assignment import BulkRequest, SeedPlan
from ..random import Purpose, stream
from .train_pairs import TrainPairs


@dataclass(frozen=True, eq=False)
class LinkRequest(BulkRequest):
    """k minibatches of pairs to be sampled together."""

    positives: tuple[PairArray, ...] = ()
    """k arrays int64 [b, 2]: pairs whose edges, and their reverses, are left out of the samples."""


@dataclass(frozen=True, eq=False)
class LinkPlan(SeedPlan):
    """A `SeedPlan` over numbers of positive pairs, `batch_size` of them in a minibatch.

    The negatives of a minibatch depend on the seed, the epoch and its index, and on nothing else.
    """

    links: TrainPairs = field(kw_only=True)

    def numbers(self, index: int, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """int64 [b], numbers of the positive pairs of a minibatch."""
        return self.order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]

    def pairs(self, index: int, epoch: int) -> PairArray:
        """int64 [b, 1 + k, 2], the pairs of a minibatch: see `TrainPairs.with_negatives`."""
        key = stream(self.seed, Purpose.NEGATIVE, epoch, index)
        return self.links.with_negatives(self.numbers(index, epoch), key)

    def request(self, epoch: int, number: int) -> LinkRequest:
        """See `SeedPlan.request`: the distinct ends of all pairs, ascending."""
        given = super().request(epoch, number)
        pairs = [self.pairs(index, epoch) for index in given.indices] if given.seeds else []
        seeds = tuple(np.unique(p) for p in pairs)
        positives = tuple(p[:, 0] for p in pairs)
        return LinkRequest(self.seed, epoch, number, given.first_index, seeds, given.indices, positives)
