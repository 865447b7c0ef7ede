"""`collective_feed` on GPUs: the thread that trains draws bulk after bulk together with the other ranks, ahead of the
steps that need them.

After each step it goes on with the next bulk up to where a size is on its way to the host, which it reads after the
next step. So draws run beside the training, and all ranks that draw together begin the same messages at the same steps.
A bulk that is not ready when the first of its minibatches is due is finished then. Bulks stay on the GPU, or go to a
queue on disk that all ranks share, to which a thread writes them. See `placement.row_owners_cuda` for the messages.
"""

import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch

from ...storage.minibatch import Bulk
from ..messages import RankJob
from .draws import Draw, FilledFeed
from .queue_feed import WAIT_S, CheckedFeed


class OwnersFeedOnDevice(FilledFeed):
    """A rank's own minibatches, drawn on a stream of their own by `release` and `expect`, which all ranks that draw
    together call at the same steps, in the thread that trains."""

    def _begin(self, draws: Iterator[Draw], job: RankJob) -> None:
        """`owners` are for this thread, and bytes those of the rank with the most."""
        self._coming, self._minibatches_per_step = draws, job.minibatches_per_step
        there = self._owners.device
        self._stream = torch.cuda.Stream(there) if there.type == "cuda" else None
        self._due = next(draws, None)
        """The bulks that are drawn next, or under way."""
        self._under_way: Coroutine[None, None, None] | None = None
        self._stages = self._largest = 0
        """Stages done of the bulk under way, and the bytes of the largest bulk so far."""
        self._per_step = 0
        """Stages of a bulk to be done after each step; 0: not known yet."""

    def expect(self, epoch: int, index: int) -> None:
        """See `QueueFeed.expect`: draws all bulks up to that of the minibatch."""
        while self._due is not None and self._due.first <= (epoch, index):
            self._go_on()

    def release(self, epoch: int, index: int) -> None:
        """See `Feed.release`: goes on with the next bulk."""
        super().release(epoch, index)
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
