"""Reads of rows of a file without Python between them: the system's own calls, while other threads have the
interpreter. Where the file has no room in the cache of pages, reads pass it, many at a time."""

import ctypes
import os
import platform

import numpy as np
import numpy.typing as npt
from numba import njit, types

from ..array_kinds import IdArray

_int, _at = types.int32, types.intp
_advise = types.ExternalFunction("posix_fadvise", _int(_int, types.int64, types.int64, _int))
_read = types.ExternalFunction("pread", _at(_int, _at, _at, types.int64))
_copy = types.ExternalFunction("memcpy", _at(_at, _at, _at))
_call = types.ExternalFunction("syscall", _at(_at, _at, _at, _at, _at, _at))
WILL_NEED = 3
"""As Linux defines it."""
CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of ``io_setup``, ``io_destroy``, ``io_getevents``, ``io_submit``."""
PAGE = 4096
"""Reads past the cache begin and end at multiples of this."""
DEPTH, SLOT_BYTES = 128, 256 << 10
"""Most reads under way, and bytes of each."""
PATIENCE = 1000
"""Waits that signals may interrupt before reading is given up."""


@njit(nogil=True, cache=True, error_model="numpy")
def _end(ids, at, row, gap, most):
    """Behind the last id of the read that begins with id number `at`."""
    end = at + 1
    while end < len(ids) and (
        ids[end] == ids[end - 1]
        or ((ids[end] - ids[end - 1] - 1) * row <= gap and (ids[end] - ids[at] + 1) * row <= most)
    ):
        end += 1
    return end


@njit(nogil=True, cache=True, error_model="numpy")
def read_rows(handle, first, row, ids, out, places, buffer, gap, most, ahead, seen):
    """Read rows of ascending ids, neighbours together; `ahead` bytes of reads are announced before they are done.

    Args:
        handle: of the file.
        first: bytes before the rows.
        row: bytes of a row.
        ids: [n].
        out: [m, row], gets them.
        places: [n], where in `out`.
        buffer: [max(most, row)], memory of a read.
        gap: most bytes between two rows that are read on the way.
        most: bytes of a read.
        ahead: bytes.
        seen: [3], bytes read, reads, and those under way when each is done are added.

    Returns:
        n, or the number of the first id whose row was not read.
    """
    told = at = coming = asked = 0
    to, space = out.ctypes.data, buffer.ctypes.data
    while at < len(ids):
        while told < len(ids) and coming < ahead:
            end = _end(ids, told, row, gap, most)
            size = (ids[end - 1] - ids[told] + 1) * row
            _advise(handle, first + ids[told] * row, size, WILL_NEED)
            told, coming, asked = end, coming + size, asked + 1
        end = _end(ids, at, row, gap, most)
        low, done = ids[at], 0
        size = (ids[end - 1] - low + 1) * row
        while done < size:
            got = _read(handle, space + done, size - done, first + low * row + done)
            if got <= 0:
                break
            done += got
        while at < end and (ids[at] - low + 1) * row <= done:
            _copy(to + places[at] * row, space + (ids[at] - low) * row, row)
            at += 1
        if at < end:
            break
        seen[0] += size
        seen[1] += 1
        seen[2] += asked
        coming, asked = coming - size, asked - 1
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def read_past_cache(calls, context, handle, first, row, ids, out, places, space, gap, most, depth, seen):
    """`read_rows`, with up to `depth` reads of the context under way, in any order, to slots of `space`.

    Returns:
        True if all rows were read. Nothing is under way any more.
    """
    slot, base = (max(most, row) + 3 * PAGE - 1) // PAGE * PAGE, (space.ctypes.data + PAGE - 1) // PAGE * PAGE
    # As the system wants them: data, flags, handle and kind, address, bytes, position.
    asked, events, pointers = np.zeros((depth, 8), np.int64), np.zeros((depth, 4), np.int64), np.zeros(depth, np.int64)
    begin, stop, free = np.zeros(depth, np.int64), np.zeros(depth, np.int64), np.arange(depth)
    unused, at, failed, waits, to = depth, 0, False, 0, out.ctypes.data
    while waits < PATIENCE and (unused < depth or (at < len(ids) and not failed)):
        new = sent = 0
        while at < len(ids) and unused > 0 and not failed:
            end, unused = _end(ids, at, row, gap, most), unused - 1
            s = free[unused]
            low = (first + ids[at] * row) // PAGE * PAGE
            size = (first + (ids[end - 1] + 1) * row + PAGE - 1) // PAGE * PAGE - low
            asked[s, 0], asked[s, 2], asked[s, 3] = s, handle << 32, base + s * slot
            asked[s, 4], asked[s, 5] = size, low
            begin[s], stop[s], pointers[new] = at, end, asked.ctypes.data + s * 64
            new, at = new + 1, end
            seen[0] += size
            seen[1] += 1
        while sent < new:
            got = _call(calls[1], context, new - sent, pointers.ctypes.data + sent * 8, 0, 0)
            if got <= 0:
                failed, unused = True, unused + new - sent
                break
            sent += got
        if unused == depth:
            break
        count = _call(calls[0], context, max(1, (depth - unused) // 4), depth, events.ctypes.data, 0)
        waits = waits + 1 if count < 0 else 0
        seen[2] += (depth - unused) * max(0, count)
        for k in range(count):
            s = events[k, 0]
            for i in range(begin[s], stop[s]):
                inside = first + ids[i] * row - asked[s, 5]
                if inside + row > events[k, 2]:
                    failed = True
                    break
                _copy(to + places[i] * row, asked[s, 3] + inside, row)
            free[unused] = s
            unused += 1
    return not failed and at == len(ids) and unused == depth


class Ring:
    """Reads of a file's rows, of one thread, past the cache of pages."""

    def __init__(self, handle: int, first: int, row_bytes: int, most: int) -> None:
        """
        Args:
            handle: of the file, as it is open.
            first: bytes before the rows.
            row_bytes: of each row.
            most: bytes of memory for what is under way.

        Raises:
            OSError: the system does not allow them.
        """
        self._handle, self._context = -1, ctypes.c_long(0)
        slot = (max(SLOT_BYTES, row_bytes) + 3 * PAGE - 1) // PAGE * PAGE
        self._first, self._row = first, row_bytes
        self._depth = max(4, min(DEPTH * (SLOT_BYTES + 2 * PAGE), most) // slot)
        self._calls = CALLS.get(platform.machine(), (-1,) * 4)
        self._call = ctypes.CDLL(None).syscall
        self._handle = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        if self._call(ctypes.c_long(self._calls[0]), ctypes.c_long(self._depth), ctypes.byref(self._context)):
            raise OSError("the system has no such reads")
        self._space = np.empty(self._depth * slot + PAGE, np.uint8)

    def __del__(self) -> None:
        if self._context.value:
            self._call(ctypes.c_long(self._calls[1]), self._context)
        if self._handle >= 0:
            os.close(self._handle)

    def read(self, ids: IdArray, out: npt.NDArray[np.uint8], places: IdArray, gap: int, seen: IdArray) -> bool:
        """Read rows, see `read_rows`. False if some could not be read, and the ring can no longer be used."""
        before, of_file = seen.copy(), (self._handle, self._first, self._row)
        system = self._calls[2:], self._context.value
        limits = self._space, gap, SLOT_BYTES, self._depth
        is_read = read_past_cache(*system, *of_file, ids, out, places, *limits, seen)
        seen[:] = seen if is_read else before
        return is_read
