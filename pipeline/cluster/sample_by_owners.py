"""A rank's share in sampling a store of minibatches where each rank holds a block of rows: its own bulks, with the
help of the rows' owners."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...stages.assignment import BulkRequest, SeedPlan
from ...stages.comm.base import Group
from ...stages.feed.collective_feed import SampledByOwners
from ...stages.placement.row_blocks import BlockRows
from ...storage.errors import Interrupted
from ...storage.ledger import Ledger
from ...storage.queue.zarr import ZarrQueue
from ..setup.prepare import Prepared
from ..telemetry.events import Emit, StageAdvanced
from ..telemetry.timers import Clock
from ..training.progress import Progress
from ..training.trainer import RankReport, rank_job_of, report_of

PUT_S = 60.0
"""Longest wait of a put: the store has no bound, so only the disk can delay it."""


def sample_by_owners(
    prepared: Prepared,
    out: Path,
    store: dict[str, Any],
    *,
    group: Group,
    ledger: Ledger,
    emit: Emit,
    stop: Callable[[], bool],
    clock: Clock,
) -> RankReport:
    """Sample the bulks that a store lacks, in each round one on each rank. All ranks call this at the same time.

    Args:
        prepared: the job with this rank's part.
        out: folder of the parts.
        store: ``out``, and the arguments of `ZarrQueue.create`.
        group: the ranks.
        ledger: counts this rank's bytes.
        emit: called with events.
        stop: asked between rounds; true on any rank ends all.
        clock: counts this rank's seconds.

    Raises:
        Interrupted: `stop` said so on some rank; bulks that are there stay.
    """
    policy, queue = prepared.system.sample, ZarrQueue.create(**store, sweep=False)
    assert isinstance(policy, SampledByOwners)
    model = prepared.build_model()
    job = rank_job_of(prepared, out, None, group=group, ledger=ledger, emit=emit, model=model)
    phase = prepared.system.schedule.phases(job.epochs, model)[0]
    placement = prepared.system.partition.place(prepared.data, phase, job)
    assert isinstance(placement, BlockRows) and placement.column is not None
    owners = policy.meet(placement, job, placement.column, placement.row)
    plan = SeedPlan(placement.seeds, job.batch_size, queue.bulk_size, job.seed)
    total, progress = job.epochs * plan.num_bulks, Progress()
    lacking = [
        (epoch, number)
        for epoch in range(job.epochs)
        for number in sorted({*range(plan.num_bulks)} - set(queue.committed(epoch)))
    ]
    # All ranks have looked before one of them adds to the store.
    group.all_reduce(torch.zeros(1, dtype=torch.int64), "control")
    for first in range(0, len(lacking), group.size):
        batch = lacking[first : first + group.size]
        mine = group.rank < len(batch)
        with clock.measure("sample"):
            epoch, number = batch[min(group.rank, len(batch) - 1)]
            # Without a bulk of its own a rank draws for the others.
            request = plan.request(epoch, number) if mine else BulkRequest(job.seed, epoch, number, 0, ())
            bulk = policy.sampler.sample_by_owners(owners, request)
        if mine:
            queue.put(bulk, PUT_S)
            progress.minibatches += len(bulk.minibatches)
            progress.sampled_edges += sum(m.num_edges for m in bulk.minibatches)
        del bulk
        emit(StageAdvanced("sample", total - len(lacking) + first + len(batch), total))
        asked = torch.tensor([int(stop())])
        group.all_reduce(asked, "control")
        if asked.item():
            done = total - len(lacking) + first + len(batch)
            raise Interrupted(
                f"interrupted with {done} of {total} bulks committed; the same command goes on from there"
            )
    queue.close()
    return report_of(progress, group.rank, ledger, clock, "", None)
