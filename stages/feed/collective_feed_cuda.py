"""`collective_feed` on GPUs: the thread that trains draws bulk after bulk together with the other ranks, ahead of the
steps that need them.

After each step it goes on with the next bulk up to where a size is on its way to the host, which it reads after the
next step. So draws run beside the training, and all ranks that draw together begin the same messages at the same steps.
A bulk that is not ready when the first of its minibatches is due is finished then. Bulks stay on the GPU, or go to a
queue on disk that all ranks share, to which a thread writes them. See `placement.row_owners_cuda` for the messages.
"""

import time
from collections import deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch

from ...storage.minibatch import Bulk
from ...storage.queue.base import MinibatchQueue
from ..messages import RankJob
from ..placement.row_owners_cuda import OwnersOnDevice
from .draws import Draw
from .queue_feed import WAIT_S, CheckedFeed, QueueFeed


class OwnersFeedOnDevice(QueueFeed):
    """A rank's own minibatches, drawn on a stream of their own by `release` and `expect`, which all ranks that draw
    together call at the same steps, in the thread that trains."""

    def __init__(
        self,
        queue: MinibatchQueue,
        draws: Iterator[Draw],
        sampler: Any,
        owners: OwnersOnDevice,
        max_bytes: int,
        job: RankJob,
    ) -> None:
        """See `OwnersFeed`; `owners` is for this thread, and `max_bytes` are of the rank with the most."""
        super().__init__(queue, None, job.ledger, lambda: True)
        self._coming, self._sampler, self._owners, self._max_bytes = draws, sampler, owners, max_bytes
        self._sample_s, self._minibatches_per_step, self._ranks = 0.0, job.minibatches_per_step, job.group.size
        self._stream = torch.cuda.Stream(owners.device) if owners.device.type == "cuda" else None
        self._due = next(draws, None)
        """The bulks that are drawn next, or under way."""
        self._under_way: Coroutine[None, None, None] | None = None
        self._stages = self._largest = 0
        """Stages done of the bulk under way, and the bytes of the largest bulk so far."""
        self._per_step = 0
        """Stages of a bulk to be done after each step; 0: not known yet."""
        self._held: deque[tuple[tuple[int, int], int]] = deque()
        """Bulks that are not released: the last minibatch's epoch and index, and bytes on the rank with the most."""

    def expect(self, epoch: int, index: int) -> None:
        """See `QueueFeed.expect`: draws all bulks up to that of the minibatch."""
        while self._due is not None and self._due.first <= (epoch, index):
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
            self._under_way, self._stages = self._draw(self._due), 0
        self._stages += 1
        try:
            with torch.cuda.stream(self._stream):
                self._under_way.send(None)
        except StopIteration:
            self._under_way, self._due = None, next(self._coming, None)
        self._sample_s += time.perf_counter() - start

    async def _draw(self, due: Draw) -> None:
        self._owners.minibatches = due.minibatches
        drawn = await self._sampler.sample_by_owners_on_device(self._owners, due.request)
        # On the device, so that no host waits for another.
        most = self._waiting(await self._owners.most(sum(m.nbytes for m in drawn.minibatches)))
        if drawn.minibatches:
            self._put(drawn)
        self._held.append((due.last, most))
        self._largest = max(self._largest, most)
        # As many as finish a bulk while another one is trained on.
        self._per_step = -(-self._stages // max(1, sum(due.minibatches) // self._minibatches_per_step))

    def _put(self, bulk: Bulk) -> None:
        self._queue.put(bulk, WAIT_S)

    def _waiting(self, most: int) -> int:
        """Bytes that wait when ranks have drawn, of bulks of at most so many each."""
        return most

    @property
    def sample_s(self) -> float:
        return self._sample_s

    def close(self) -> None:
        """See `Feed.close`: a bulk under way is dropped."""
        if self._under_way is not None:
            self._under_way.close()


class SharedFeedOnDevice(CheckedFeed, OwnersFeedOnDevice):
    """All ranks' minibatches in one queue on disk, to which a thread writes this rank's share, meanwhile."""

    @cached_property
    def _writer(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "queue")

    def _put(self, bulk: Bulk) -> None:
        self._writer.submit(self._write, bulk)

    def _write(self, bulk: Bulk) -> None:
        try:
            super()._put(bulk)
        except BaseException as e:
            self._queue.fail(e)

    def _waiting(self, most: int) -> int:
        return most * self._ranks

    def close(self) -> None:
        """See `Feed.close`. What is drawn is written."""
        super().close()
        self._writer.shutdown()
