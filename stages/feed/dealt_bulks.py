"""Bulks that a store of minibatches lacks, dealt to ranks that hold blocks of rows and draw them together."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...storage.minibatch import Bulk
from ...storage.queue.base import MinibatchQueue
from ..assignment import BulkRequest, SeedPlan
from ..comm.base import Group
from ..placement.row_owners import Owners
from ..sample.base import Sampler

Round = tuple[tuple[int, int], ...]
"""Epoch and number of the bulks that ranks draw at the same time: that of rank r is the r-th, if there are as many."""


@dataclass(frozen=True, eq=False)
class DealtBulks:
    """Whole bulks, as one process would draw them, of which each rank draws every P-th with the help of the owners of
    the rows."""

    plan: SeedPlan
    """Seeds of all ranks' minibatches."""
    sampler: Sampler
    owners: Owners
    rank: int

    def rounds(self, queue: MinibatchQueue, group: Group, first: tuple[int, int], last_epoch: int) -> list[Round]:
        """What the queue lacks, from the bulk of minibatch `first`, (epoch, index), to the end of the epoch before
        `last_epoch`. All ranks call this at the same time, before any of them adds to the queue."""
        lacking = list(self._lacking(queue, first, last_epoch))
        group.all_reduce(torch.zeros(1, dtype=torch.int64), "control")
        return [tuple(lacking[i : i + group.size]) for i in range(0, len(lacking), group.size)]

    def _lacking(self, queue: MinibatchQueue, first: tuple[int, int], last_epoch: int) -> Iterator[tuple[int, int]]:
        for epoch in range(first[0], last_epoch):
            begin = first[1] // self.plan.bulk_size if epoch == first[0] else 0
            yield from ((epoch, n) for n in sorted({*range(begin, self.plan.num_bulks)} - queue.committed(epoch)))

    def draw(self, round_: Round) -> Bulk | None:
        """This rank's bulk of a round; None: it has none, and has drawn for the others. All ranks call this at the same
        time."""
        epoch, number = round_[min(self.rank, len(round_) - 1)]
        mine = self.rank < len(round_)
        request = self.plan.request(epoch, number) if mine else BulkRequest(self.plan.seed, epoch, number, 0, ())
        bulk = self.sampler.sample_by_owners(self.owners, request)
        return bulk if mine else None
