"""Compiled kernels that several test processes share."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.caching import IndexDataCacheFile


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Holds the lock of a cache folder."""
    handle = os.open(Path(folder) / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def share() -> None:
    """Lets processes that call this keep their compiled kernels in one place.

    Numba's cache reads a function's index, takes the next free number for a new version, and writes index and code one
    after the other. Two processes that keep two versions at once take the same number, and one's code then passes for
    the other's. Here one process at a time reads or writes the kernels of a folder.
    """
    load, save = IndexDataCacheFile.load, IndexDataCacheFile.save
    if getattr(save, "shared", False):
        return

    def load_alone(self: Any, key: Any) -> Any:
        if not os.path.exists(self._index_path):
            return None
        with _alone(self._cache_path):
            return load(self, key)

    def save_alone(self: Any, key: Any, data: Any) -> None:
        with _alone(self._cache_path):
            save(self, key, data)

    save_alone.shared = True  # pyright: ignore[reportFunctionMemberAccess]
    IndexDataCacheFile.load, IndexDataCacheFile.save = load_alone, save_alone
