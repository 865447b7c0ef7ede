"""Minibatch queue: the only link between producers of bulks and the ranks that train on them.

Producers put whole bulks, in any order; consumers get minibatches by (epoch, index) and release them when they are done
with them. The queue is bounded by the bytes of bulks that not every consumer has released. Every wait has a timeout.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, get_args, runtime_checkable

from ..errors import InputError, QueueTimeoutError, RunError, StoreError, one_of
from ..minibatch import Bulk, MiniBatch
from .bulk_codec import packed_bytes

if TYPE_CHECKING:
    from .packed_rows import PackedRows

Keep = Literal["none", "epoch", "all"]
"""When bulks are dropped: "none" as soon as every consumer has released them, "epoch" when every consumer has released
the last minibatch of the epoch (or anything of a later one), "all" never."""
BulkKey = tuple[int, int]
"""(epoch, number of the bulk in the epoch)."""


@runtime_checkable
class MinibatchQueue(Protocol):
    """A bounded, replayable queue of bulks. Every method may be called from any thread."""

    @property
    def bulk_size(self) -> int:
        """k; minibatch i of an epoch is in bulk i // k."""

    @property
    def stored(self) -> bool:
        """True if minibatches travel through a store, rather than through this process's memory."""

    @property
    def packed(self) -> "PackedRows | None":
        """The `PackedRows` of features beside the bulks; None: there are none."""

    @property
    def level(self) -> dict[str, int]:
        """Bulks put here and not released: ``bulks`` and ``bytes``, and the ``bound`` of the bytes."""

    def put(self, bulk: Bulk, timeout_s: float) -> None:
        """Add a bulk, once there is room for it. A bulk that is there already, or was dropped already, is ignored.

        There is room while the bytes that are not released yet and this bulk's stay within `max_bytes`; also in an
        empty queue, and for a bulk that a `get` is waiting for (producers run ahead of each other, and later bulks must
        not block it).

        Raises:
            QueueTimeoutError: no room within `timeout_s` seconds: the consumers are behind.
            RunError: the queue is closed, a producer failed, or the bulk cannot be written.
        """

    def get(self, epoch: int, index: int, timeout_s: float) -> MiniBatch:
        """Minibatch `index` of `epoch`, once its bulk is there. Gets do not consume: the same one can be read again.

        Raises:
            QueueTimeoutError: not there within `timeout_s` seconds: the producers are behind.
            RunError: the queue is closed, or a producer failed (the cause is its error).
            StoreError: it was dropped already, there is no such minibatch, or its bulk is damaged.
        """

    def release(self, epoch: int, index: int, consumer: int = 0) -> None:
        """Record that `consumer` no longer needs minibatches up to and including `index` of `epoch`."""

    def committed(self, epoch: int) -> set[int]:
        """Numbers of the epoch's bulks that are there."""

    def fail(self, error: BaseException) -> None:
        """Fail the queue: every `get` and `put`, waiting or to come, raises RunError from `error`."""

    def close(self) -> None:
        """End every wait with RunError, and refuse further calls."""


class BoundedQueue(ABC):
    """Base of the queues: bounds, waits and releases. A subclass stores the bulks.

    Args:
        bulk_size: k, minibatches in a bulk; the last bulk of an epoch may have fewer.
        max_bytes: the bound, in bytes of packed bulks.
        keep: when bulks are dropped.
        consumers: how many consumers must release a bulk.
        minibatches_per_epoch: if known, a `get` beyond the end of an epoch is refused at once.
    """

    stored = False
    """See `MinibatchQueue.stored`."""
    _poll_s: float | None = None
    """Interval at which waits poll; None if only this process changes the queue."""
    keeps_all: ClassVar[bool] = True
    """True if bulks may be kept for good."""

    def __init__(
        self,
        *,
        bulk_size: int,
        max_bytes: int,
        keep: Keep = "none",
        consumers: int = 1,
        minibatches_per_epoch: int | None = None,
    ) -> None:
        for name, value in (("bulk_size", bulk_size), ("max_bytes", max_bytes), ("consumers", consumers)):
            if value < 1:
                raise InputError(f"queue {name}={value}; expected at least 1")
        if keep not in get_args(Keep):
            raise InputError(f"queue keep='{keep}'; {one_of(keep, get_args(Keep))}")
        if keep == "all" and not self.keeps_all:
            raise InputError(
                "queue keep='all' with a queue in memory; expected 'none' or 'epoch': use the Zarr queue to keep "
                "every minibatch"
            )
        self.bulk_size = bulk_size
        self.max_bytes = self.bound = max_bytes
        """`bound` is what `level` reports."""
        self.keep = keep
        self.minibatches_per_epoch = minibatches_per_epoch
        self._changed = threading.Condition()
        self._passed = [(-1, -1)] * consumers
        self._unreleased: dict[BulkKey, tuple[int, int]] = {}
        """(last index, bytes) of the bulks that count against the bound. A bulk counts from the moment its `put` is
        admitted."""
        self._last: dict[BulkKey, int] = {}
        """Index of the last minibatch of each bulk that is there and will be dropped."""
        self._held_bytes = 0
        self._wanted: Counter[BulkKey] = Counter()
        self._error: BaseException | None = None
        self._closed = False

    @abstractmethod
    def committed(self, epoch: int) -> set[int]:
        """Numbers of the epoch's bulks that are there."""

    @abstractmethod
    def _has(self, key: BulkKey) -> bool:
        """True if the bulk is there. Called with the lock held."""

    @abstractmethod
    def _save(self, bulk: Bulk) -> None:
        """Make the bulk visible, whole. Called without the lock."""

    @abstractmethod
    def _load(self, key: BulkKey, row: int) -> MiniBatch:
        """One minibatch of a bulk that is there. Called without the lock."""

    @abstractmethod
    def _drop(self, key: BulkKey) -> None:
        """Remove the bulk. Called without the lock."""

    def _size(self, bulk: Bulk) -> int:
        """Bytes that the bulk counts against the bound."""
        return packed_bytes(bulk)

    def put(self, bulk: Bulk, timeout_s: float) -> None:
        key = (bulk.epoch, bulk.number)
        assert {m.index // self.bulk_size for m in bulk.minibatches} == {bulk.number}, (
            "bulks cut the epoch at multiples of bulk_size"
        )
        last, size = bulk.minibatches[-1].index, self._size(bulk)
        with self._changed:
            self._require_running()
            if key in self._unreleased or self._has(key) or self._is_done(key, last):
                return
            # A bulk that every consumer has passed is kept for replay only, so it need not wait for room.
            needed = (bulk.epoch, last) > min(self._passed)
            if needed and not self._wait(lambda: self._has_room(key, size), timeout_s):
                raise QueueTimeoutError(
                    f"no room for bulk {bulk.number} of epoch {bulk.epoch} ({size} bytes) within {timeout_s:g} s: the "
                    f"consumers (ranks) hold {self._held_bytes} of {self.max_bytes} bytes unreleased; see why they are "
                    "behind, or raise the bound"
                )
            if key in self._unreleased or self._has(key):
                return
            if needed:
                self._unreleased[key] = (last, size)
                self._held_bytes += size
        try:
            self._save(bulk)
        except BaseException:
            with self._changed:
                self._uncount(key)
            raise
        with self._changed:
            if self.keep != "all":
                self._last[key] = last
            self._changed.notify_all()
        self._drop_done()

    def get(self, epoch: int, index: int, timeout_s: float) -> MiniBatch:
        assert epoch >= 0
        assert index >= 0
        n = self.minibatches_per_epoch
        if n is not None and index >= n:
            raise StoreError(f"minibatch {index} of epoch {epoch} asked for; an epoch of this queue has {n}")
        key = (epoch, index // self.bulk_size)
        with self._changed:
            self._wanted[key] += 1
            self._changed.notify_all()
            try:
                found = self._wait(lambda: self._has(key) or self._is_final(key, index), timeout_s)
            finally:
                self._wanted[key] -= 1
            if not found:
                raise QueueTimeoutError(
                    f"minibatch {index} of epoch {epoch} did not come within {timeout_s:g} s: the producer (sampling) "
                    f"has not committed bulk {key[1]}; see whether it still runs, or wait longer"
                )
            if not self._has(key):
                raise StoreError(self._why_absent(key, index))
        return self._load(key, index % self.bulk_size)

    def adopt(self, epoch: int, number: int, last_index: int, num_bytes: int) -> None:
        """Count a bulk that another process has put, as if it had been put here."""
        key = (epoch, number)
        with self._changed:
            if self.keep != "all":
                self._last[key] = last_index
            if key not in self._unreleased and (epoch, last_index) > min(self._passed):
                self._unreleased[key] = (last_index, num_bytes)
                self._held_bytes += num_bytes
        self._drop_done()

    @property
    def packed(self) -> "PackedRows | None":
        return None

    @property
    def level(self) -> dict[str, int]:
        with self._changed:
            return {"bulks": len(self._unreleased), "bytes": self._held_bytes, "bound": self.bound}

    def release(self, epoch: int, index: int, consumer: int = 0) -> None:
        with self._changed:
            self._passed[consumer] = max(self._passed[consumer], (epoch, index))
            passed = min(self._passed)
            for key in [k for k, (last, _) in self._unreleased.items() if (k[0], last) <= passed]:
                self._uncount(key)
        self._drop_done()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _uncount(self, key: BulkKey) -> None:
        _, size = self._unreleased.pop(key, (0, 0))
        self._held_bytes -= size
        self._changed.notify_all()

    def _has_room(self, key: BulkKey, size: int) -> bool:
        return not self._held_bytes or self._held_bytes + size <= self.max_bytes or self._wanted[key] > 0

    def _is_done(self, key: BulkKey, last: int) -> bool:
        """True if a bulk whose last minibatch is `last` is no longer needed."""
        passed = min(self._passed)
        if self.keep == "none":
            return (key[0], last) <= passed
        if self.keep == "epoch":
            n = self.minibatches_per_epoch
            return passed[0] > key[0] or (n is not None and passed >= (key[0], n - 1))
        return False

    def _is_final(self, key: BulkKey, index: int) -> bool:
        """True if a bulk that is absent will never come."""
        return self._is_done(key, index)

    def _why_absent(self, key: BulkKey, index: int) -> str:
        return (
            f"minibatch {index} of epoch {key[0]} was released by every consumer and dropped (keep='{self.keep}'); "
            "keep more to replay"
        )

    def _drop_done(self) -> None:
        with self._changed:
            done = [k for k, last in self._last.items() if self._is_done(k, last)]
            for key in done:
                del self._last[key]
        for key in done:
            self._drop(key)

    def _require_running(self) -> None:
        if self._error is not None:
            raise RunError(
                f"the producer of minibatches failed: {type(self._error).__name__}: {self._error}"
            ) from self._error
        if self._closed:
            raise RunError("the minibatch queue is closed: the run is ending")

    def _wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait, with the lock held, until ready (True) or until the time is over (False)."""
        end = time.monotonic() + timeout_s
        while True:
            self._require_running()
            if ready():
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(left if self._poll_s is None else min(left, self._poll_s))


class MemoryQueue(BoundedQueue):
    """Bulks in this process's memory: no disk, no replay by others; a resumed run samples again (the same bits).

    Raises:
        InputError: `keep="all"`: memory is bounded; use a Zarr queue to keep every minibatch.
    """

    keeps_all = False

    @cached_property
    def _bulks(self) -> dict[BulkKey, Bulk]:
        return {}

    def committed(self, epoch: int) -> set[int]:
        """Numbers of the epoch's bulks that are there."""
        with self._changed:
            return {number for e, number in self._bulks if e == epoch}

    def _size(self, bulk: Bulk) -> int:
        # Packing would copy minibatches from the device, where they are to stay.
        return (
            packed_bytes(bulk) if all(m.on_host for m in bulk.minibatches) else sum(m.nbytes for m in bulk.minibatches)
        )

    def _has(self, key: BulkKey) -> bool:
        return key in self._bulks

    def _save(self, bulk: Bulk) -> None:
        with self._changed:
            self._bulks[bulk.epoch, bulk.number] = bulk

    def _load(self, key: BulkKey, row: int) -> MiniBatch:
        # Search by index: a rank's own bulks lack the minibatches of other ranks.
        index = key[1] * self.bulk_size + row
        for m in self._bulks[key].minibatches:
            if m.index == index:
                return m
        held = [m.index for m in self._bulks[key].minibatches]
        raise StoreError(
            f"bulk {key[1]} of epoch {key[0]} has {len(held)} minibatches, {held[0]} to {held[-1]}; {index} asked for, "
            "which is beyond the epoch or another rank's"
        )

    def _drop(self, key: BulkKey) -> None:
        with self._changed:
            self._bulks.pop(key, None)
