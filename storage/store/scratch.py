"""Arrays that a process makes for itself, in memory or in unnamed files that it maps.

The system writes the pages of such a file back and takes them when memory is short. The file goes with the last array
that maps it, however the process ends.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import psutil

from ..array_kinds import AnyArray
from ..errors import RunError
from .full_disk import FULL

LEAST_BYTES = 1 << 20
"""Smaller arrays are in memory: each map keeps a file open."""


def takes_memory(folder: Path) -> bool:
    """True if files of this folder lie in memory, as those of ``/dev/shm`` do."""
    mounted = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    around = (mounted.get(str(each), "") for each in (folder.resolve(), *folder.resolve().parents))
    return next(filter(None, around), "") in ("tmpfs", "ramfs")


class Empty(Protocol):
    """Makes arrays, writable and C-contiguous, with any contents."""

    def __call__(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, /) -> AnyArray:
        """An array."""


def in_memory(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
    """`numpy.empty`. See `Empty`."""
    return np.empty(shape, dtype)


@dataclass(frozen=True)
class InFiles:
    """Makes arrays that map unnamed files. See `Empty`."""

    folder: Path
    """Folder of the files; not in a file system that is in memory."""

    def __call__(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
        """Raises RunError if the disk is full."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size < LEAST_BYTES:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                # Without its blocks, a full disk would end the process by a signal.
                os.posix_fallocate(file.fileno(), 0, size)
                return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
        except OSError as e:
            if e.errno not in FULL:
                raise
            raise RunError(
                f"{self.folder} has no room for {size / 2**20:,.0f} MiB of a graph ({e.strerror}); free some, or leave "
                'graph = "mapped" out and give the process more memory'
            ) from e


def copied(array: AnyArray, empty: Empty) -> AnyArray:
    """A copy in an array that `empty` makes."""
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


@dataclass(frozen=True)
class Arrays:
    """Makers of a rank's large arrays."""

    graph: Empty = in_memory
    """For neighbour lists and what belongs to their edges."""
    features: Empty = in_memory
    """For rows of features."""
