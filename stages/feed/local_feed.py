"""Sampling within one rank's view: each rank samples minibatches from its own seeds and its own piece of the graph."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ...storage.errors import InputError
from ...storage.minibatch import Block, MiniBatch
from ...storage.queue.base import MemoryQueue
from ..assignment import SeedPlan, isolated_plan
from ..comm.survivors import Survivors
from ..kernels.runtime.device_memory import wait_for_copies
from ..messages import Phase, Placement, RankJob
from .queue_feed import BulkDraws, BulkSpan, BySampler, Producer, QueueFeed, on_job_device

QUIET = ("features", "activations", "graph")
"""Kinds of bytes that must not be on the network while a phase is trained."""


@dataclass(frozen=True)
class Local(BySampler):
    """Runs `sampler` in isolation. In every step each rank trains on one minibatch of its own. There are as many steps
    as the rank with the most seeds needs; the others use smaller minibatches. A rank without seeds takes part with
    empty work."""

    max_bytes: int = 512 << 20
    """Sampled minibatches that may wait, in bytes of structure."""

    uses_queue: ClassVar[bool] = False
    is_isolated: ClassVar[bool] = True
    by_owners: ClassVar[bool] = False

    def record(self) -> dict[str, Any]:
        return {"local": True, **super().record()}

    def num_minibatches(self, placement: Placement, job: RankJob) -> int:
        """See `SamplePolicy.num_minibatches`: one for each rank and step. All ranks call this at the same time.

        Raises:
            InputError: a step is not made of exactly one minibatch of each rank.
        """
        if job.minibatches_per_step != job.group.size:
            raise InputError(
                f"train.minibatches_per_step is {job.minibatches_per_step}, but here each of the {job.group.size} "
                "ranks trains on one "
                "minibatch of its own in every step; leave it out"
            )
        return self._steps(placement, job) * job.group.size

    def _steps(self, placement: Placement, job: RankJob) -> int:
        wanted = np.zeros(job.group.size)
        wanted[job.group.rank] = -(-len(placement.seeds) // job.batch_size)
        table = torch.from_numpy(wanted)
        job.group.all_reduce(table, "control")
        return int(table.max())

    def plan(self, placement: Placement, job: RankJob) -> SeedPlan:
        """Plan of this rank's seeds. All ranks call this at the same time."""
        steps = self._steps(placement, job)
        return isolated_plan(placement.seeds, job.batch_size, job.bulk_size, job.seed, steps, job.group.rank)

    def feed(self, placement: Placement, phase: Phase, job: RankJob, first: tuple[int, int]) -> "LocalFeed":
        """See `SamplePolicy.feed`. All ranks call this at the same time."""
        plan = self.plan(placement, job)
        queue = MemoryQueue(
            bulk_size=job.bulk_size,
            max_bytes=self.max_bytes,
            keep="none",
            minibatches_per_epoch=max(1, plan.num_minibatches),
        )
        producer = None
        step = first[1] // job.group.size
        if plan.num_minibatches:
            # This rank's epoch may be over while others go on.
            late = step >= plan.num_minibatches
            draws = BulkDraws(placement.graph, on_job_device(self.sampler, job), plan, job.kernel)
            begin = 0 if late else step // job.bulk_size
            producer = Producer(queue, draws, BulkSpan(range(first[0] + late, phase.last_epoch), plan.num_bulks, begin))
        return LocalFeed(queue, producer, plan.num_minibatches, self.num_layers, job)


class LocalFeed(QueueFeed):
    """A rank's own minibatches."""

    def __init__(
        self, queue: MemoryQueue, producer: Producer | None, minibatches: int, layers: int, job: RankJob
    ) -> None:
        """
        Args:
            queue: this rank's minibatches by their own numbers.
            producer: see `QueueFeed`.
            minibatches: number in an epoch.
            layers: L.
            job: of this rank.
        """
        super().__init__(queue, producer, job.ledger, lambda: True)
        self._minibatches, self._layers, self._job = minibatches, layers, job
        self._isolation = Isolation(job)

    def get(self, epoch: int, index: int) -> MiniBatch:
        """See `Feed.get`: empty work once the rank's own is used up."""
        own = index // self._job.group.size
        if own >= self._minibatches:
            return nothing(epoch, index, self._layers)
        return super().get(epoch, own).renumbered(index)

    def peek(self, epoch: int, index: int) -> MiniBatch | None:
        """See `Feed.peek`: for the rank's own minibatches."""
        own = index // self._job.group.size
        work = super().peek(epoch, own) if own < self._minibatches else None
        return None if work is None else work.renumbered(index)

    def release(self, epoch: int, index: int) -> None:
        own = index // self._job.group.size
        if own < self._minibatches:
            super().release(epoch, own)

    def close(self) -> None:
        """See `Feed.close`. A phase has moved nothing but gradients and statistics."""
        super().close()
        self._isolation.end()


class Isolation:
    """A phase of an isolated rank, in which nothing but gradients and statistics may travel."""

    def __init__(self, job: RankJob) -> None:
        """Begin the phase.

        Args:
            job: of this rank.
        """
        self._job, self._before = job, self._moved(job)
        self._bear(True)

    def end(self) -> None:
        """End the phase. Raises AssertionError if anything else has travelled."""
        if self._job.device is not None:
            # The next phase puts other data where streams of this one may still read.
            wait_for_copies(self._job.device)
        self._bear(False)
        moved = self._moved(self._job)
        assert moved == self._before, f"an isolated phase moved {QUIET} between ranks: {self._before} -> {moved}"

    def _bear(self, losses: bool) -> None:
        """Tell the group that sums make sense without lost ranks."""
        if isinstance(self._job.group, Survivors):
            self._job.group.bears = losses

    @staticmethod
    def _moved(job: RankJob) -> list[int]:
        return [job.ledger.get("network", kind) for kind in QUIET]


def nothing(epoch: int, index: int, layers: int) -> MiniBatch:
    """Minibatch without seeds."""
    ids = np.empty(0, np.int64)
    return MiniBatch(
        epoch, index, (Block(0, ids, np.zeros(1, np.int64), np.empty(0, np.int32)),) * layers, nested=False
    )
