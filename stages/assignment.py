"""The assignment of seeds to minibatches, of minibatches to steps, and of a step's minibatches to ranks.

* `SeedPlan`: an epoch is a permutation of the train seeds, cut into minibatches. Several consecutive minibatches make a
  bulk, which is sampled in one go.
* `Steps`: step s trains on minibatches s M to (s + 1) M - 1, where M is `train.minibatches_per_step`; rank r of P takes
  the r-th of them and every P-th from there on.

Bulk sampling shares one plan between all ranks (`SeedPlan`, with `of_rank` where each rank samples its own
minibatches). Isolated ranks cut their own seeds (`isolated_plan`): minibatch s P + r is the s-th of rank r. Full-batch
ranks take one piece of work each, so that M = P and an epoch is one step.

All of it is pure arithmetic, the same in every process, and used by the loop, the feeds, the fetchers that work ahead,
and the sampling tasks of a cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from ..storage.array_kinds import IdArray, NumberArray, WordArray
from ..storage.errors import InputError
from .random import Purpose, permutation, stream


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch, and this rank's minibatches in each."""

    minibatches: int
    """In an epoch, over all ranks."""
    per_step: int
    """M, over all ranks; the last step of an epoch may have fewer."""
    ranks: int = 1
    rank: int = 0

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-self.minibatches // self.per_step)

    def step_of(self, index: int) -> int:
        """The step that trains on minibatch `index`."""
        return index // self.per_step

    def minibatches_of(self, step: int) -> range:
        """The minibatches of a step, over all ranks."""
        return range(step * self.per_step, min((step + 1) * self.per_step, self.minibatches))

    def is_mine(self, index: int) -> bool:
        """True if this rank trains on minibatch `index`."""
        return index % self.per_step % self.ranks == self.rank

    def spans(self) -> Iterator[range]:
        """The minibatches of each round of the epoch: at most one for each rank."""
        for step in range(len(self)):
            span = self.minibatches_of(step)
            for first in range(span.start, span.stop, self.ranks):
                yield range(first, min(first + self.ranks, span.stop))

    def rounds(self, step: int) -> Iterator[int | None]:
        """This rank's minibatches of a step. None stands for a round in which only other ranks have one: all ranks go
        through as many rounds, since fetching may be collective."""
        span = self.minibatches_of(step)
        for first in range(span.start, span.stop, self.ranks):
            yield first + self.rank if first + self.rank < span.stop else None


class Sizes(Protocol):
    """Numbers that cut the seeds of an epoch into minibatches and bulks."""

    @property
    def batch_size(self) -> int:
        """Seeds of a minibatch."""

    @property
    def bulk_size(self) -> int:
        """k, minibatches of a bulk."""

    @property
    def seed(self) -> int:
        """Seed of permutations and draws."""


@dataclass(frozen=True, eq=False)
class BulkRequest:
    """k minibatches to be sampled together."""

    seed: int
    epoch: int
    number: int
    """Position among the bulks of the epoch."""
    first_index: int
    """Index of the first minibatch in the epoch."""
    seeds: tuple[IdArray, ...]
    """k vectors of distinct node ids."""
    indices: Sequence[int] = ()
    """Positions of the k minibatches in the epoch, ascending; by default they follow `first_index` without gaps."""
    moments: tuple[NumberArray, ...] = ()
    """k vectors of times, those of the seeds, where samples go by time. Empty: a seed has the time of its node. A node
    may be a seed at several times."""

    def __post_init__(self) -> None:
        if not self.indices:
            object.__setattr__(self, "indices", range(self.first_index, self.first_index + len(self.seeds)))

    def keys(self, hops: int, shared_by: int = 1) -> WordArray:
        """uint64 [k, hops]: random stream of each minibatch and hop. It does not depend on bulks, ranks or threads.

        Each `shared_by` minibatches of an epoch, from the first on, have the same.
        """
        groups = [index // shared_by for index in self.indices]
        return np.array(
            [[stream(self.seed, Purpose.SAMPLE, self.epoch, group, h) for h in range(hops)] for group in groups],
            np.uint64,
        ).reshape(len(self.seeds), hops)


@dataclass(frozen=True, eq=False)
class SeedPlan:
    """The seeds of each minibatch of each epoch.

    An epoch is a permutation of the seeds, cut into minibatches. The last one may be smaller and is kept.
    """

    seeds: IdArray
    """[N] distinct node ids."""
    batch_size: int
    bulk_size: int
    seed: int
    shuffle: bool = True
    steps: Steps | None = None
    """Set if bulks hold one rank's minibatches only; None: all."""
    local: bool = False
    """Deal the seeds of each round in the order of their ids, so that rank r of P gets the r-th P-th of them: mostly
    its own, if ranks own ranges. A step trains on the same seeds either way. Needs `steps`."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "bulk_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")

    @property
    def num_minibatches(self) -> int:
        """Minibatches in an epoch."""
        return -(-len(self.seeds) // self.batch_size)

    @property
    def num_bulks(self) -> int:
        """Bulks in an epoch."""
        return -(-self.num_minibatches // self.bulk_size)

    def of_rank(self, per_step: int, ranks: int, rank: int) -> "SeedPlan":
        """The same plan without other ranks' minibatches in its bulks."""
        return replace(self, steps=Steps(self.num_minibatches, per_step, ranks, rank))

    def order(self, epoch: int) -> IdArray:
        """The epoch's permutation of the seeds."""
        if not self.shuffle:
            return self.seeds
        return _order(self, epoch)

    def minibatches(self, number: int) -> range:
        """The minibatches of bulk `number` of an epoch, over all ranks."""
        first = number * self.bulk_size
        last = min(first + self.bulk_size, self.num_minibatches)
        assert 0 <= first < last
        return range(first, last)

    def indices(self, number: int) -> tuple[int, ...]:
        """The minibatches that bulk `number` holds; of one rank's plan there may be none."""
        return tuple(j for j in self.minibatches(number) if self.steps is None or self.steps.is_mine(j))

    def no_request(self, epoch: int, number: int) -> BulkRequest:
        """`request` of a rank that only draws for others."""
        return BulkRequest(self.seed, epoch, number, 0, ())

    def request(self, epoch: int, number: int) -> BulkRequest:
        """Request for bulk `number` of `epoch`. That of one rank may be empty."""
        order, indices = self.order(epoch), self.indices(number)
        cuts = tuple(order[j * self.batch_size : (j + 1) * self.batch_size] for j in indices)
        return BulkRequest(self.seed, epoch, number, number * self.bulk_size, cuts, indices)


@lru_cache(maxsize=4)
def _order(plan: SeedPlan, epoch: int) -> IdArray:
    order = permutation(stream(plan.seed, Purpose.SHUFFLE, epoch), plan.seeds)
    if plan.local:
        assert plan.steps is not None
        for span in plan.steps.spans():
            order[span.start * plan.batch_size : span.stop * plan.batch_size].sort()
    return order


def isolated_plan(seeds: IdArray, batch_size: int, bulk_size: int, seed: int, steps: int, rank: int) -> SeedPlan:
    """The plan of a rank that trains on its own seeds in every step.

    Args:
        seeds: seeds of this rank, as local ids.
        batch_size: batch size of the rank with the most seeds; the others use smaller ones, so that all have the same
            number of steps.
        bulk_size: minibatches that are sampled together.
        seed: of the run.
        steps: in an epoch, the same on all ranks.
        rank: number of this rank: local ids coincide between ranks, but draws must not.
    """
    own = -(-len(seeds) // batch_size)
    size = batch_size if own == steps else max(1, -(-len(seeds) // max(1, steps)))
    return SeedPlan(seeds, size, bulk_size, stream(seed, Purpose.SAMPLE, rank) if rank else seed)
