"""A queue on disk that ranks fill together, beside the training that reads it: a thread of each draws bulk after bulk
with the help of the owners of the rows."""

import time
from collections import deque

import torch

from ...storage.errors import QueueTimeoutError
from ...storage.minibatch import Bulk, Expected, MiniBatch
from ...storage.queue.bulk_codec import packed_bytes
from ..comm.lockstep import Lockstep
from ..memory.arena import give_back
from ..messages import Phase, RankJob
from .dealt_bulks import DealtBulks, Round
from .queue_feed import WAIT_S, CheckedFeed, QueueFeed


class DrawnAhead(QueueFeed):
    """A feed whose thread draws ahead of what is asked for, in lockstep with those of other ranks."""

    _thread: Lockstep
    _sample_s = 0.0
    _expected_until: tuple[int, int] = (-1, -1)

    def _wake(self) -> None:
        assert self._thread.error is not None
        self._queue.fail(self._thread.error)

    @property
    def sample_s(self) -> float:
        return self._sample_s

    def expect(self, epoch: int, index: int) -> None:
        self._expected_until = max(self._expected_until, (epoch, index))
        self._thread.notify()

    def get(self, epoch: int, index: int) -> MiniBatch:
        try:
            return super().get(epoch, index)
        except Exception:
            self._thread.check()
            raise

    def release(self, epoch: int, index: int) -> None:
        super().release(epoch, index)
        self._thread.notify()

    def close(self) -> None:
        """See `Feed.close`. All ranks call it."""
        self._thread.close()


class SharedOwnersFeed(DrawnAhead, CheckedFeed):
    """All ranks' minibatches in one queue, and the thread that draws this rank's share of the bulks.

    Bytes that wait are bounded by the rounds that this rank has not released; all ranks begin a round together, so the
    slowest decides.
    """

    def __init__(
        self, expected: Expected, dealt: DealtBulks, max_bytes: int, phase: Phase, job: RankJob, first: tuple[int, int]
    ) -> None:
        """
        Args:
            expected: properties of the minibatches.
            dealt: draws the bulks.
            max_bytes: of bulks that wait.
            phase: to draw for.
            job: of this rank; its queue is the shared one.
            first: epoch and index of the minibatch to begin with.
        """
        super().__init__(expected, job.queue, None, job.ledger, lambda: True)
        self._dealt, self._max_bytes, self._ranks = dealt, max_bytes, job.group.size
        self._column = dealt.owners.group
        self._held: deque[tuple[tuple[int, int], int]] = deque()
        """Rounds that this rank has not released: their last minibatch, and bytes."""
        rounds = dealt.rounds(job.queue, job.group, first, phase.last_epoch)
        self._thread = Lockstep("sampling", self._column, iter(rounds), self._has_room, self._sample, self._wake)
        self._thread.start()

    def _has_room(self, round_: Round) -> bool:
        epoch, number = round_[0]
        if (epoch, number * self._dealt.plan.bulk_size) <= self._expected_until:
            return True
        return sum(size for _, size in self._held) <= self._max_bytes

    def _sample(self, round_: Round) -> None:
        start = time.perf_counter()
        bulk = self._dealt.draw(round_)
        self._sample_s += time.perf_counter() - start
        size = torch.tensor([0 if bulk is None else packed_bytes(bulk)])
        if bulk is not None:
            self._put(bulk)
        del bulk
        self._column.all_reduce(size, "control")
        epoch, number = round_[-1]
        last = epoch, (number + 1) * self._dealt.plan.bulk_size - 1
        # Of all grid columns, which draw alike.
        self._held.append((last, int(size) * self._ranks // self._column.size))
        give_back()

    def _put(self, bulk: Bulk) -> None:
        while not self._thread.is_closing:
            try:
                return self._queue.put(bulk, WAIT_S)
            except QueueTimeoutError:
                # One rank's own queue, which has a bound: it trains on.
                continue
        return None

    def release(self, epoch: int, index: int) -> None:
        while self._held and self._held[0][0] <= (epoch, index):
            self._held.popleft()
        super().release(epoch, index)
