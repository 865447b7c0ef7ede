"""Memory that one training step leaves to the next.

Fresh pages from the operating system cost up to half a millisecond a megabyte, and a step makes hundreds of megabytes:
gathered rows, aggregates, activations, gradients. Here they lie in buffers that are reused once nothing refers to them.
"""

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.array_kinds import FloatArray

ALIGN = 64
SMALL = 1 << 16
"""Bytes below which the allocator is used instead: it keeps such blocks anyway."""
IDLE_STEPS = 8
"""See `Arena`: enough for steps of several kinds in turns."""

_NUMPY: dict[torch.dtype, npt.DTypeLike] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
}


def give_back() -> None:
    """Return freed memory to the system.

    Call it before work with tensors of other sizes: ranks keep freed memory (``cluster.keep_freed_bytes``), and larger
    tensors do not fit into the pieces that smaller ones have left.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's constant
        trim(0)


class _Buffer:
    def __init__(self, size: int, huge_pages: bool) -> None:
        # NumPy asks the system for huge pages; torch does not.
        self.raw = np.empty(size, np.uint8) if huge_pages else torch.empty(size, dtype=torch.uint8).numpy()
        self.idle = 0
        self.used = 0
        """Largest number of bytes used so far: pages beyond were never touched."""

    @property
    def free(self) -> bool:
        # Two references: this object's and the argument's. Every tensor and every view in it holds one more, through
        # its base.
        return sys.getrefcount(self.raw) == 2


class Arena:
    """Buffers for the tensors of one rank. A tensor from here is like any other: its memory is reused only when no
    tensor and no array views it any more."""

    def __init__(self, small: int = SMALL, idle_steps: int = IDLE_STEPS, huge_pages: bool = True) -> None:
        """
        Args:
            small: smaller tensors, in bytes, come from the allocator.
            idle_steps: a buffer that was unused for this many steps goes back to the system.
            huge_pages: faster where memory is free. Where files fill it, the system moves pages to make room for one.
        """
        self._buffers: list[_Buffer] = []
        self._lock = threading.Lock()
        self.small, self._idle_steps, self._huge_pages = small, idle_steps, huge_pages
        self.peak_bytes = 0
        """Largest `nbytes` so far."""

    @property
    def nbytes(self) -> int:
        """Bytes held, in use or kept for reuse."""
        return sum(b.used for b in self._buffers)

    def holds(self, address: int) -> bool:
        """True if memory at this address belongs to the arena."""
        return any(0 <= address - b.raw.ctypes.data < len(b.raw) for b in self._buffers)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous tensor, aligned to 64 bytes."""
        kind = np.dtype(_NUMPY[dtype])
        size = prod(shape) * kind.itemsize
        with self._lock:
            # Best fit, but never a buffer twice as large: a small tensor must not take the buffer of a large one.
            fits = [
                b for b in self._buffers if size + ALIGN <= len(b.raw) <= 2 * (size + ALIGN) + self.small and b.free
            ]
            buffer = min(fits, key=lambda b: len(b.raw), default=None)
            if buffer is None:
                # With slack, since the next minibatch is a little larger or smaller.
                buffer = _Buffer(size * 9 // 8 + ALIGN, self._huge_pages)
                self._buffers.append(buffer)
            if size > buffer.used:
                buffer.used = size
                self.peak_bytes = max(self.peak_bytes, self.nbytes)
            buffer.idle = 0
            raw = buffer.raw
            first = -raw.ctypes.data % ALIGN
            return torch.from_numpy(raw[first : first + size].view(kind).reshape(shape))

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> FloatArray:
        """An uninitialised array, as `empty` of NumPy."""
        kind = np.dtype(dtype)
        return self.empty((prod(shape) * kind.itemsize,), torch.uint8).numpy().view(kind).reshape(shape)

    def step(self) -> None:
        """End a step: buffers that were unused for longer than `idle_steps` are freed."""
        with self._lock:
            for b in self._buffers:
                b.idle = b.idle + 1 if b.free else 0
            self._buffers = [b for b in self._buffers if b.idle <= self._idle_steps]


_active = threading.local()


@contextmanager
def reusing(arena: Arena) -> Iterator[None]:
    """Context in which `empty` in this thread takes memory from `arena`."""
    before = getattr(_active, "arena", None)
    _active.arena = arena
    try:
        yield
    finally:
        _active.arena = before


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An uninitialised contiguous tensor: from the arena of the enclosing `reusing`, else a new one. On a device it is
    a new one: torch keeps the memory of freed ones there."""
    if device is not None and device.type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    arena: Arena | None = getattr(_active, "arena", None)
    if arena is None or dtype not in _NUMPY or prod(shape) * dtype.itemsize < arena.small:
        return torch.empty(tuple(shape), dtype=dtype)
    return arena.empty(shape, dtype)
