"""`collective_feed` on GPUs: the thread that trains draws bulk after bulk together with the other ranks.

A bulk is drawn when the first of its minibatches is due, which is at the same step on all ranks of a grid column. It
stays on the GPU. See `placement.row_owners_cuda` for the messages.
"""

import time
from typing import Any

import torch

from ..assignment import SeedPlan
from ..messages import Phase, RankJob
from ..placement.row_blocks import BlockRows
from ..placement.row_owners_cuda import OwnersOnDevice
from .queue_feed import QueueFeed, bulks_of, own_queue


class OwnersFeedOnDevice(QueueFeed):
    """A rank's own minibatches, drawn by `expect`, on a stream of their own."""

    def __init__(
        self, plan: SeedPlan, sampler: Any, placement: BlockRows, phase: Phase, job: RankJob, first: tuple[int, int]
    ) -> None:
        """
        Args:
            plan: seeds of this rank's minibatches.
            sampler: draws by owners on devices.
            placement: this rank's rows.
            phase: the phase.
            job: of this rank.
            first: epoch and index of the minibatch to begin with.
        """
        assert placement.column is not None and job.device is not None
        self._plan, self._sampler, self._sample_s = plan, sampler, 0.0
        super().__init__(own_queue(plan), None, job.ledger, lambda: True)
        self._owners = OwnersOnDevice(placement, placement.column, job.device)
        self._stream = torch.cuda.Stream(job.device) if job.device.type == "cuda" else None
        self._coming = bulks_of(plan, phase, first)
        self._due = next(self._coming, None)

    def expect(self, epoch: int, index: int) -> None:
        """See `QueueFeed.expect`: draws all bulks up to that of the minibatch. All ranks of a column call this at the
        same steps, in the thread that trains."""
        start = time.perf_counter()
        while self._due is not None and (self._due[0], self._due[1] * self._plan.bulk_size) <= (epoch, index):
            with torch.cuda.stream(self._stream):
                drawn = self._sampler.sample_by_owners_on_device(self._owners, self._plan.request(*self._due))
            if drawn.minibatches:
                self._queue.put(drawn, timeout_s=1.0)
            self._due = next(self._coming, None)
        self._sample_s += time.perf_counter() - start

    @property
    def sample_s(self) -> float:
        """See `Feed.sample_s`."""
        return self._sample_s
