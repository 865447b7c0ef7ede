"""Bulks that ranks which hold blocks of rows draw together: each rank's own minibatches, or whole bulks that a store of
minibatches lacks, dealt to them."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...storage.queue.base import MinibatchQueue
from ..assignment import BulkRequest, SeedPlan
from ..comm.base import Group
from ..messages import RankJob
from .queue_feed import BulkSpan, QueueFeed

Round = tuple[tuple[int, int], ...]
"""Epoch and number of the bulks that ranks draw at the same time: that of rank r is the r-th, if there are as many."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Bulks that ranks draw at the same time, at most one each."""

    first: tuple[int, int]
    """Epoch and index of the first of their minibatches, by which they are due."""
    last: tuple[int, int]
    """Of the last one."""
    request: BulkRequest
    """This rank's; it is empty if the rank only draws for the others."""
    minibatches: list[int]
    """Of each rank."""


def own_draws(plan: SeedPlan, span: BulkSpan, ranks: int) -> Iterator[Draw]:
    """Each rank's own minibatches, by the plan of this one."""
    assert plan.steps is not None
    plans = [plan.of_rank(plan.steps.per_step, ranks, rank) for rank in range(ranks)]
    for epoch, number in span:
        of_all = plan.minibatches(number)
        sizes = [len(p.indices(number)) for p in plans]
        yield Draw((epoch, of_all[0]), (epoch, of_all[-1]), plan.request(epoch, number), sizes)


def dealt_draws(plan: SeedPlan, rounds: Iterable[Round], group: Group) -> Iterator[Draw]:
    """Whole bulks, as one process would draw them by this plan, of which each rank draws every P-th."""
    for round_ in rounds:
        spans = [(epoch, plan.minibatches(number)) for epoch, number in round_]
        (begin, first), (end, last) = spans[0], spans[-1]
        request = plan.no_request(*round_[-1]) if group.rank >= len(round_) else plan.request(*round_[group.rank])
        sizes = [len(span) for _, span in spans] + [0] * (group.size - len(round_))
        yield Draw((begin, first[0]), (end, last[-1]), request, sizes)


def lacking_rounds(
    plan: SeedPlan, queue: MinibatchQueue, group: Group, first: tuple[int, int], last_epoch: int
) -> list[Round]:
    """What the queue lacks, from the bulk of minibatch `first`, (epoch, index), to the end of the epoch before
    `last_epoch`. All ranks call this at the same time, before any of them adds to the queue."""
    every = BulkSpan(range(first[0], last_epoch), plan.num_bulks, first[1] // plan.bulk_size)
    lacking = [*every.missing(queue)]
    group.all_reduce(torch.zeros(1, dtype=torch.int64), "control")
    return [tuple(lacking[i : i + group.size]) for i in range(0, len(lacking), group.size)]


class FilledFeed(QueueFeed, ABC):
    """A rank's own minibatches, which it draws together with other ranks. It begins what is due, or has room."""

    def __init__(
        self,
        queue: MinibatchQueue,
        draws: Iterator[Draw],
        sampler: Any,
        owners: Any,
        max_bytes: int,
        job: RankJob,
    ) -> None:
        """
        Args:
            queue: is filled; it has no bound of its own.
            draws: to be done.
            sampler: draws by owners.
            owners: of the rows, for whoever draws.
            max_bytes: of bulks that are not released, for another one to be begun before it is due.
            job: of this rank.
        """
        super().__init__(queue, None, job.ledger, lambda: True)
        self._sampler, self._owners, self._max_bytes, self._ranks = sampler, owners, max_bytes, job.group.size
        self._sample_s = 0.0
        self._held: deque[tuple[tuple[int, int], int]] = deque()
        """Bulks that are not released: the last minibatch's epoch and index, and bytes."""
        self._begin(draws, job)

    @abstractmethod
    def _begin(self, draws: Iterator[Draw], job: RankJob) -> None:
        """Make ready for these draws."""

    @property
    def sample_s(self) -> float:
        return self._sample_s

    def release(self, epoch: int, index: int) -> None:
        super().release(epoch, index)
        while self._held and self._held[0][0] <= (epoch, index):
            self._held.popleft()
