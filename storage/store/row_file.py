"""Rows of a file that are read where the file has them: ascending, neighbours together, many reads under way.

The system is told the ranges of a window of reads ahead of reading them, so that a disk works on all of them at once.
"""

import errno
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from ..array_kinds import IdArray, IntArray
from ..errors import RunError
from .bytes_left import bytes_left

if TYPE_CHECKING:
    from .row_reads import Ring

Bytes = npt.NDArray[np.uint8]
GAP_BYTES = 8 << 10
"""Rows that are not asked for are read on the way to the next one up to this distance: about what the bandwidth of an
NVMe disk moves in the time of a read."""
READ_BYTES = 1 << 20
"""Most bytes of a read."""
WINDOW_BYTES = 64 << 20
"""Bytes of reads that are announced ahead of reading them."""
CALL_BYTES = 256 << 20
"""Bytes of rows that are read by one call, which no signal interrupts."""
LARGE_BYTES = 8 << 20
"""Bytes of rows from which on a request passes the cache of pages, if the file has no room there."""
RING_SHARE = 32
"""Part of the memory left that such reads of a thread take, at most."""
SAMPLES = 128
"""Rows of a request that are looked for in the system's cache of pages."""
PAUSE = "the file system there may have gone, or another process has cut the file short"


@dataclass
class Reads:
    """What a thread has read of a file."""

    bytes: int = 0
    count: int = 0
    under_way: int = 0
    """Sum over reads, of those under way when each was done."""
    seconds: float = 0.0

    def add(self, num_bytes: int, count: int, under_way: int = 0, seconds: float = 0.0) -> None:
        """Add what was read."""
        self.bytes, self.count = self.bytes + num_bytes, self.count + count
        self.under_way, self.seconds = self.under_way + under_way, self.seconds + seconds


class _OfThread(threading.local):
    """What a thread has of a file."""

    def __init__(self) -> None:
        self.reads = Reads()
        self.has_tried, self.ring = False, cast("Ring | None", None)
        """None where none can be had, or nobody has tried."""


class RowFile:
    """Rows of one size in a file. Reading is thread-safe."""

    def __init__(self, path: Path, first: int, row_bytes: int, num_rows: int) -> None:
        """
        Args:
            path: the file, opened here.
            first: bytes before the rows.
            row_bytes: of each row.
            num_rows: V.

        Raises:
            OSError: it cannot be opened.
        """
        self.path, self.first, self.row_bytes, self.num_rows = path, first, row_bytes, num_rows
        self._own = _OfThread()
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Otherwise each read in this order reads ahead of itself.
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    @property
    def reads(self) -> Reads:
        """What this thread has read."""
        return self._own.reads

    def is_cached(self, ids: IntArray) -> bool:
        """True if the system has all rows of a sample of `ids` in its cache of pages, so that reading takes no disk.

        Raises:
            RunError: the file has become shorter.
        """
        if not len(ids) or not self.row_bytes:
            return True
        self.require_whole()
        step = -(-len(ids) // SAMPLES)
        # An odd offset: ids may begin with the seeds of a minibatch, and end in order.
        sample = ids[(len(ids) - 1) % step :: step].tolist()
        one = [bytearray(1)]
        try:
            return all(
                os.preadv(self._handle, one, self.first + i * self.row_bytes, os.RWF_NOWAIT)
                and os.preadv(self._handle, one, self.first + (i + 1) * self.row_bytes - 1, os.RWF_NOWAIT)
                for i in sample
            )
        except OSError as e:
            if e.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return False
            raise self._failed(e.strerror or str(e), sample[0]) from e

    def announce(self, starts: IdArray, stops: IdArray) -> None:
        """Tell the system that these ranges of rows are read soon, unless it has a sample of them in its cache.

        Args:
            starts: [n] first row of each range, ascending.
            stops: [n] row behind its last.

        Raises:
            RunError: the file has become shorter.
        """
        some = stops > starts
        starts, stops = starts[some], stops[some]
        if self.is_cached(starts):
            return
        first = np.concatenate([[True], (starts[1:] - stops[:-1]) * self.row_bytes > GAP_BYTES])
        begins, ends = starts[first], stops[np.append(first[1:], True)]
        sizes = ((ends - begins) * self.row_bytes).tolist()
        for at, size in zip((self.first + begins * self.row_bytes).tolist(), sizes):
            os.posix_fadvise(self._handle, at, size, os.POSIX_FADV_WILLNEED)

    def require_whole(self) -> None:
        """Raises RunError if the file has become shorter."""
        try:
            size = os.fstat(self._handle).st_size
        except OSError as e:
            raise self._failed(e.strerror or str(e), 0) from e
        if size < self.first + self.num_rows * self.row_bytes:
            there = max(0, size - self.first) // max(1, self.row_bytes)
            raise self._failed(f"it has {there} rows now; expected {self.num_rows}", there)

    def read(self, ids: IntArray, out: Bytes, places: IntArray | None) -> None:
        """Read rows.

        Args:
            ids: [n] in [0, V), ascending; may repeat.
            out: [n, `row_bytes`], C-contiguous: row i is that of ``ids[i]``.
            places: [n], rows of `out` to write to; None: 0, 1, ...

        Raises:
            RunError: the file has become shorter, or the disk fails.
        """
        if not len(ids) or not self.row_bytes:
            return
        # Needs numba.
        from .row_reads import read_rows

        start, ids, at = time.perf_counter(), np.asarray(ids, np.int64), 0
        places = np.arange(len(ids)) if places is None else np.asarray(places, np.int64)
        seen, buffer = np.zeros(3, np.int64), np.empty(max(READ_BYTES, self.row_bytes), np.uint8)
        ring = self._ring() if len(ids) * self.row_bytes >= LARGE_BYTES else None
        step = max(1, CALL_BYTES // self.row_bytes)
        while at < len(ids):
            end = min(at + step, len(ids))
            if ring and ring.read(ids[at:end], out, places[at:end], GAP_BYTES, seen):
                at = end
                continue
            self._own.ring, ring = None if ring else self._own.ring, None
            mine, of_file = (ids[at:end], out, places[at:end], buffer), (self._handle, self.first, self.row_bytes)
            at += read_rows(*of_file, *mine, GAP_BYTES, READ_BYTES, WINDOW_BYTES, seen)
            if at < end:
                self._require(int(ids[at]))
        num_bytes, count, under_way = seen.tolist()
        self.reads.add(num_bytes, count, under_way, time.perf_counter() - start)

    def _ring(self) -> "Ring | None":
        """For reads of this thread past the cache of pages; None where the file has room there, or the system has no
        such reads."""
        # Needs numba.
        from .row_reads import Ring

        if self.num_rows * self.row_bytes <= (left := bytes_left()):
            return None
        if not self._own.has_tried:
            self._own.has_tried = True
            with suppress(OSError):
                self._own.ring = Ring(self._handle, self.first, self.row_bytes, left // RING_SHARE)
        return self._own.ring

    def _require(self, row: int) -> None:
        """Raises RunError unless a row can be read."""
        self.require_whole()
        at, end = (self.first + r * self.row_bytes for r in (row, row + 1))
        try:
            # A read is short up to where the disk fails: the next one says so.
            while at < end and (got := os.preadv(self._handle, [bytearray(end - at)], at)):
                at += got
        except OSError as e:
            raise self._failed(e.strerror or str(e), row) from e

    def _failed(self, why: str, row: int) -> RunError:
        return RunError(
            f"{self.path} cannot be read at row {row} of {self.num_rows} ({why}): {PAUSE}; write the store again, then "
            "--resume"
        )
