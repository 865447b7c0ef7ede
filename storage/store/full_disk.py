"""Full disks: their error message, and new files whose space is reserved before they are mapped."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RunError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without space, of a quota, and of a file that may not grow."""


def no_space(where: object, more: str = "") -> RunError:
    """The error for a disk that is full, with the end of its sentence."""
    return RunError(f"no space is left for {where}; free some and give the same command again{more}")


@contextmanager
def needing_space(where: object, more: str = "") -> Iterator[None]:
    """Context whose errors of a full disk become a RunError that names what was written."""
    try:
        yield
    except OSError as e:
        if e.errno not in FULL:
            raise
        raise no_space(where, more) from e


def new_npy(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """A new ``.npy`` file as a map to write to.

    Raises:
        OSError: the disk has no space for it. Without its blocks, writing to the map would end the process by a signal.
    """
    mapped = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return mapped
