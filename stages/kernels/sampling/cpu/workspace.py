"""Memory that sampling reuses: fresh pages from the operating system cost as much as half the sampling itself."""

import sys

import numpy as np
import numpy.typing as npt

from .....storage.array_kinds import AnyArray

ALIGN = 64
POOL = 16
"""Output buffers kept for reuse."""


class Workspace:
    """Buffers for one sampling thread: scratch arrays, and output buffers that are recycled automatically.

    An output buffer is reused once nothing views it any more (by its reference count), so callers simply drop their
    minibatches, and no live minibatch can change.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}
        self._outputs: list[npt.NDArray[np.uint8]] = []

    def rows(self, name: str, shape: tuple[int, int], dtype: npt.DTypeLike, keep: int = 0) -> AnyArray:
        """An uninitialised [k, n] scratch array of *at least* that shape; the first `keep` columns survive a growth.

        It may be larger in both dimensions: a kernel takes sizes from its arguments, never from the array's shape.
        """
        old = self._arrays.get(name)
        if old is not None and old.dtype == dtype:
            if old.shape[0] >= shape[0] and old.shape[1] >= shape[1]:
                return old
            # Grown with slack, so that slowly growing sizes do not pay each time; untouched pages cost nothing.
            columns = old.shape[1] if old.shape[1] >= shape[1] else shape[1] * 5 // 4
            new = np.empty((max(shape[0], old.shape[0]), columns), dtype)
            new[: old.shape[0], :keep] = old[:, :keep]
        else:
            new = np.empty(shape, dtype)
        self._arrays[name] = new
        return new

    def output(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """uint8 [>= num_bytes], aligned, uninitialised; views keep it from being reused."""
        for i in range(len(self._outputs)):
            # Two references: the list's and the argument's. Views hold the buffer as their base and would add theirs.
            if len(self._outputs[i]) >= num_bytes and sys.getrefcount(self._outputs[i]) == 2:
                return self._outputs[i]
        raw = np.empty(num_bytes * 9 // 8 + ALIGN, np.uint8)
        if len(self._outputs) >= POOL:
            self._outputs.pop(0)
        self._outputs.append(raw)
        return raw

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for a in self._arrays.values()) + sum(a.nbytes for a in self._outputs)


class Cutter:
    """Allocates arrays from an output buffer, each on a cache line of its own."""

    def __init__(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self._at = -buffer.ctypes.data % ALIGN

    def cut(self, count: int, dtype: npt.DTypeLike) -> AnyArray:
        """An array of `count` elements."""
        size = count * np.dtype(dtype).itemsize
        part = self._buffer[self._at : self._at + size].view(dtype)
        self._at += -(-size // ALIGN) * ALIGN
        return part


def padded(count: int, dtype: npt.DTypeLike) -> int:
    """Bytes that `Cutter.cut` takes for `count` elements."""
    return -(-count * np.dtype(dtype).itemsize // ALIGN) * ALIGN
