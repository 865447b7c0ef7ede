"""Rows of a file that are read where the file has them: ascending, neighbours together, many reads under way.

The system is told the ranges of a window of reads ahead of reading them, so that a disk works on all of them at once.
"""

import errno
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import RunError

Bytes = npt.NDArray[np.uint8]
GAP_BYTES = 8 << 10
"""Rows that are not asked for are read on the way to the next one up to this distance: about what the bandwidth of an
NVMe disk moves in the time of a read."""
READ_BYTES = 1 << 20
"""Most bytes of a read."""
WINDOW_BYTES = 64 << 20
"""Bytes of reads that are announced ahead of reading them."""
PIECE_BYTES = 2 << 20
"""Bytes that are read before their rows are taken: what was read is still in the processor's cache then."""
SAMPLES = 128
"""Rows of a request that are looked for in the system's cache of pages."""
PAUSE = "the file system there may have gone, or another process has cut the file short"


@dataclass
class Reads:
    """What a thread has read of a file."""

    bytes: int = 0
    count: int = 0
    seconds: float = 0.0


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
        self._own = threading.local()
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Otherwise each read in this order reads ahead of itself.
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    @property
    def reads(self) -> Reads:
        """What this thread has read."""
        if not hasattr(self._own, "reads"):
            self._own.reads = Reads()
        return self._own.reads

    def is_cached(self, ids: npt.NDArray[np.integer]) -> bool:
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

    def announce(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
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

    def read(self, ids: npt.NDArray[np.integer], out: Bytes, places: npt.NDArray[np.integer] | None) -> None:
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
        start = time.perf_counter()
        windows = list(self._windows(np.asarray(ids, np.int64)))
        buffer, announced = np.empty(0, np.uint8), 1
        self._announce(windows[0])
        # Announcing takes the system about as long as reading what is there: of many windows a thread does it.
        with ThreadPoolExecutor(1) as other:
            for k, window in enumerate(windows):
                while announced < min(len(windows), k + 1 + WINDOW_BYTES // PIECE_BYTES):
                    other.submit(self._announce, windows[announced])
                    announced += 1
                own = slice(window.begin, window.end)
                size = int(window.lengths.sum())
                if places is None and size == (window.end - window.begin) * self.row_bytes:
                    # No row is skipped or repeated.
                    self._fill(window, out[own].reshape(-1))
                    continue
                if len(buffer) < size:
                    buffer = np.empty(size, np.uint8)
                self._fill(window, buffer[:size])
                rows = buffer[:size].reshape(-1, self.row_bytes)
                if places is None:
                    np.take(rows, window.places, axis=0, out=out[own], mode="clip")
                else:
                    out[places[own]] = rows[window.places]
        reads = self.reads
        reads.bytes += sum(int(w.lengths.sum()) for w in windows)
        reads.count += sum(len(w.lengths) for w in windows)
        reads.seconds += time.perf_counter() - start

    def _windows(self, ids: npt.NDArray[np.int64]) -> Iterator["_Window"]:
        """The reads of ascending ids, some after the other."""
        row = self.row_bytes
        step = np.diff(ids)
        is_new = np.concatenate([[True], (step - 1) * row > GAP_BYTES])
        # A range that is longer than a read is cut at multiples of its length from its own start.
        start = ids[is_new][np.cumsum(is_new) - 1]
        number = (ids - start) // max(1, READ_BYTES // row)
        is_new[1:] |= (np.diff(number) > 0) & ~is_new[1:]
        begins = np.flatnonzero(is_new)
        lasts = np.append(begins[1:], len(ids)) - 1
        firsts, counts = ids[begins], ids[lasts] - ids[begins] + 1
        rows_before = np.cumsum(counts) - counts
        cut = np.flatnonzero(np.diff(rows_before * row // PIECE_BYTES)) + 1
        for a, b in zip([0, *cut.tolist()], [*cut.tolist(), len(begins)]):
            begin, end = int(begins[a]), int(lasts[b - 1]) + 1
            in_range = np.repeat(np.arange(a, b), np.diff(np.append(begins[a:b], end)))
            places = rows_before[in_range] - rows_before[a] + ids[begin:end] - firsts[in_range]
            yield _Window(begin, end, self.first + firsts[a:b] * row, counts[a:b] * row, places)

    def _announce(self, window: "_Window") -> None:
        for at, size in zip(window.offsets.tolist(), window.lengths.tolist()):
            os.posix_fadvise(self._handle, at, size, os.POSIX_FADV_WILLNEED)

    def _fill(self, window: "_Window", into: Bytes) -> None:
        view, done = into.data, 0
        for at, size in zip(window.offsets.tolist(), window.lengths.tolist()):
            end = done + size
            while done < end:
                try:
                    got = os.preadv(self._handle, [view[done:end]], at)
                except OSError as e:
                    raise self._failed(e.strerror or str(e), (at - self.first) // self.row_bytes) from e
                if not got:
                    raise self._failed("it ends there", (at - self.first) // self.row_bytes)
                done, at = done + got, at + got

    def _failed(self, why: str, row: int) -> RunError:
        return RunError(
            f"{self.path} cannot be read at row {row} of {self.num_rows} ({why}): {PAUSE}; write the store again, then "
            "--resume"
        )


@dataclass(frozen=True, eq=False)
class _Window:
    """Some reads, and the rows to take from them."""

    begin: int
    end: int
    """Positions of the ids."""
    offsets: npt.NDArray[np.int64]
    """Byte in the file that each read begins with."""
    lengths: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """[end - begin], row of each id among those read."""
