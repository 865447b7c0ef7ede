"""Full disks: their error message, files that are written whole or not at all, and new files whose space is reserved
before they are mapped."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..array_kinds import FileArray
from ..errors import RunError
from .own_files import new_file

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without space, of a quota, and of a file that may not grow."""


def is_full(error: OSError) -> bool:
    """True for the error of a full disk. NumPy's writers raise one without a number."""
    return error.errno in FULL or (error.errno is None and "requested and" in str(error))


def no_space(where: object, more: str = "") -> RunError:
    """The error for a disk that is full, with the end of its sentence."""
    return RunError(f"no space is left for {where}; free some and give the same command again{more}")


@contextmanager
def needing_space(where: object, more: str = "") -> Iterator[None]:
    """Context whose errors of a full disk become a RunError that names what was written."""
    try:
        yield
    except OSError as e:
        if not is_full(e):
            raise
        raise no_space(where, more) from e


def system_error(error: BaseException) -> BaseException:
    """The first error of the system in a chain of errors, such as torch's, which speak of positions in a file; else the
    error itself."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return error if found is None else found


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the name of a file to write, which takes the place of `path` if the block ends without an error.

    Raises:
        OSError: it cannot be written; also where `torch.save` says so by an error of its own.
    """
    aside = path.with_name(f".writing-{path.name}")
    try:
        yield new_file(aside)
        os.replace(aside, path)
    except RuntimeError as e:
        if isinstance(found := system_error(e), OSError):
            raise found from e
        raise
    finally:
        aside.unlink(missing_ok=True)


def new_npy(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> FileArray:
    """A new ``.npy`` file as a map to write to.

    Raises:
        OSError: the disk has no space for it. Without its blocks, writing to the map would end the process by a signal.
    """
    mapped = np.lib.format.open_memmap(new_file(path), "w+", np.dtype(dtype), shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return mapped
