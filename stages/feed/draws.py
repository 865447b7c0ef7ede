"""Bulks that ranks which hold blocks of rows draw together: each rank's own minibatches, or whole bulks that a store of
minibatches lacks, dealt to them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ...storage.queue.base import MinibatchQueue
from ..assignment import BulkRequest, SeedPlan
from ..comm.base import Group
from .queue_feed import BulkSpan

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
