"""Memory that one training step leaves to the next.

Fresh pages from the operating system cost up to half a millisecond a megabyte, and a step makes hundreds of megabytes:
gathered rows, aggregates, activations, gradients. Here they lie in buffers that are handed out again once nobody holds
them.
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

ALIGN = 64
SMALL = 1 << 16
"""Bytes below which the allocator is left to itself: it keeps such blocks anyway."""
IDLE_STEPS = 8
"""A buffer that nobody wanted for so many steps goes back to the system."""

_NUMPY: dict[torch.dtype, npt.DTypeLike] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int32: np.int32,
    torch.int64: np.int64,
}


def give_back() -> None:
    """Give memory that nobody holds any more back to the system.

    Before work that takes tensors of other sizes: ranks keep freed memory (``cluster.keep_freed_bytes``), and larger
    tensors find no place among the pieces that smaller ones have left.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's
        trim(0)


class _Buffer:
    def __init__(self, size: int) -> None:
        # NumPy asks the system for huge pages; torch does not.
        self.raw = np.empty(size, np.uint8)
        self.idle = 0
        self.used = 0
        """The most that a tensor has taken of it: pages beyond that were never touched."""

    @property
    def free(self) -> bool:
        # Two references: this object's and the argument's. Every tensor and every view in it holds one more, through
        # its base.
        return sys.getrefcount(self.raw) == 2


class Arena:
    """Buffers for the tensors of one rank. A tensor from here is like any other: its memory is used again only when no
    tensor and no array views it any more."""

    def __init__(self, small: int = SMALL) -> None:
        """
        Args:
            small: bytes below which a tensor is no matter of the arena's.
        """
        self._buffers: list[_Buffer] = []
        self._lock = threading.Lock()
        self.small = small
        self.peak_bytes = 0
        """Largest `nbytes` so far."""

    @property
    def nbytes(self) -> int:
        """Bytes held, by tensors or for them."""
        return sum(b.used for b in self._buffers)

    def holds(self, address: int) -> bool:
        """Whether memory at this address is the arena's."""
        return any(0 <= address - b.raw.ctypes.data < len(b.raw) for b in self._buffers)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous tensor, aligned to 64 bytes."""
        kind = np.dtype(_NUMPY[dtype])
        size = prod(shape) * kind.itemsize
        with self._lock:
            # Best fit, but never a buffer twice as large: a small tensor must not keep a large one from its buffer.
            fits = [
                b for b in self._buffers if size + ALIGN <= len(b.raw) <= 2 * (size + ALIGN) + self.small and b.free
            ]
            buffer = min(fits, key=lambda b: len(b.raw), default=None)
            if buffer is None:
                # With slack: the next minibatch is a little larger or smaller.
                buffer = _Buffer(size * 9 // 8 + ALIGN)
                self._buffers.append(buffer)
            if size > buffer.used:
                buffer.used = size
                self.peak_bytes = max(self.peak_bytes, self.nbytes)
            buffer.idle = 0
            raw = buffer.raw
            first = -raw.ctypes.data % ALIGN
            return torch.from_numpy(raw[first : first + size].view(kind).reshape(shape))

    def step(self) -> None:
        """A step is over: buffers that none of the last `IDLE_STEPS` steps wanted are given back."""
        with self._lock:
            for b in self._buffers:
                b.idle = b.idle + 1 if b.free else 0
            self._buffers = [b for b in self._buffers if b.idle <= IDLE_STEPS]


_active = threading.local()


@contextmanager
def reusing(arena: Arena) -> Iterator[None]:
    """Within, `empty` in this thread takes memory from `arena`."""
    before = getattr(_active, "arena", None)
    _active.arena = arena
    try:
        yield
    finally:
        _active.arena = before


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous tensor: from the arena of the enclosing `reusing`, else a new one."""
    arena: Arena | None = getattr(_active, "arena", None)
    if arena is None or dtype not in _NUMPY or prod(shape) * dtype.itemsize < arena.small:
        return torch.empty(tuple(shape), dtype=dtype)
    return arena.empty(shape, dtype)
