"""`collective_feed` on GPUs: the thread that trains draws bulk after bulk together with the other ranks, ahead of the
steps that need them.

After each step it goes on with the next bulk up to where a size is on its way to the host, which it reads after the
next step. So draws run beside the training, and all ranks of a grid column begin the same messages at the same steps. A
bulk that is not ready when the first of its minibatches is due is finished then. Bulks stay on the GPU. See
`placement.row_owners_cuda` for the messages.
"""

import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

import torch

from ..assignment import SeedPlan
from ..messages import Phase, RankJob
from ..placement.row_blocks import BlockRows, Grid
from ..placement.row_owners_cuda import OwnersOnDevice
from .queue_feed import BulkSpan, QueueFeed, own_queue


class OwnersFeedOnDevice(QueueFeed):
    """A rank's own minibatches, drawn on a stream of their own by `release` and `expect`, which all ranks of a column
    call at the same steps, in the thread that trains."""

    def __init__(
        self,
        plan: SeedPlan,
        sampler: Any,
        max_bytes: int,
        placement: BlockRows,
        phase: Phase,
        job: RankJob,
        first: tuple[int, int],
    ) -> None:
        """
        Args:
            plan: seeds of this rank's minibatches.
            sampler: draws by owners on devices.
            max_bytes: of bulks that are not released, on any rank, for another one to be begun before it is due.
            placement: this rank's rows.
            phase: the phase.
            job: of this rank.
            first: epoch and index of the minibatch to begin with.
        """
        column = placement.column
        assert column is not None and job.device is not None and plan.steps is not None
        self._plan, self._sampler, self._max_bytes, self._sample_s = plan, sampler, max_bytes, 0.0
        super().__init__(own_queue(plan), None, job.ledger, lambda: True)
        ranks = Grid(job.group.size, job.group.size // column.size).column(job.group.rank)
        plans = [plan.of_rank(plan.steps.per_step, job.group.size, rank) for rank in ranks]
        self._owners = OwnersOnDevice(
            placement, column, job.device, lambda number: [len(p.indices(number)) for p in plans]
        )
        self._stream = torch.cuda.Stream(job.device) if job.device.type == "cuda" else None
        self._coming = iter(BulkSpan.of_phase(plan, phase, first))
        self._due = next(self._coming, None)
        """The bulk that is drawn next, or under way."""
        self._under_way: Coroutine[None, None, None] | None = None
        self._stages = self._largest = 0
        """Stages done of the bulk under way, and the bytes of the largest bulk so far."""
        self._per_step = 0
        """Stages of a bulk to be done after each step; 0: not known yet."""
        self._held: deque[tuple[tuple[int, int], int]] = deque()
        """Bulks that are not released: the last minibatch's epoch and index, and bytes on the rank with the most."""

    def expect(self, epoch: int, index: int) -> None:
        """See `QueueFeed.expect`: draws all bulks up to that of the minibatch."""
        while self._due is not None and (self._due[0], self._due[1] * self._plan.bulk_size) <= (epoch, index):
            self._go_on()

    def release(self, epoch: int, index: int) -> None:
        """See `Feed.release`: goes on with the next bulk."""
        super().release(epoch, index)
        while self._held and self._held[0][0] <= (epoch, index):
            self._held.popleft()
        for _ in range(self._per_step):
            if self._due is not None and (self._under_way is not None or self._has_room()):
                self._go_on()

    def _has_room(self) -> bool:
        """True if another bulk may be begun: the same on all ranks."""
        return sum(size for _, size in self._held) + self._largest <= self._max_bytes

    def _go_on(self) -> None:
        """Do the next stage of the bulk that is due."""
        assert self._due is not None
        start = time.perf_counter()
        if self._under_way is None:
            self._under_way, self._stages = self._draw(*self._due), 0
        self._stages += 1
        try:
            with torch.cuda.stream(self._stream):
                self._under_way.send(None)
        except StopIteration:
            self._under_way, self._due = None, next(self._coming, None)
        self._sample_s += time.perf_counter() - start

    async def _draw(self, epoch: int, number: int) -> None:
        drawn = await self._sampler.sample_by_owners_on_device(self._owners, self._plan.request(epoch, number))
        if drawn.minibatches:
            self._queue.put(drawn, timeout_s=1.0)
        # On the device, so that no host waits for another.
        most = await self._owners.most(sum(m.nbytes for m in drawn.minibatches))
        self._held.append(((epoch, self._plan.minibatches(number)[-1]), most))
        self._largest = max(self._largest, most)
        assert self._plan.steps is not None
        # As many as finish a bulk while another one is trained on.
        steps = min(self._plan.bulk_size // self._plan.steps.per_step, len(self._plan.steps))
        self._per_step = -(-self._stages // max(1, steps))

    @property
    def sample_s(self) -> float:
        return self._sample_s

    def close(self) -> None:
        """See `Feed.close`: a bulk under way is dropped."""
        if self._under_way is not None:
            self._under_way.close()
