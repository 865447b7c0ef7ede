"""Folders that appear whole or not at all: written aside, synced where they must outlast the machine,
renamed into place."""

import errno
import fcntl
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import InputError, StoreError

ASIDE = ".writing-"
"""Prefix of folders that are being written, or that a killed writer left."""
_REMOVED = ".removed-"
HELD = ".held"
"""File in a temporary folder that its process has locked."""


def require_name(path: Path) -> None:
    """Raise InputError for ``.`` or ``/``, beside which nothing can be written."""
    if not path.name:
        raise InputError(f"the folder to make is '{path}'; expected the name of a new one, such as ./store")


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{_REMOVED}{uuid.uuid4().hex}")
    os.rename(path, aside)
    return aside


def remove_tree(path: Path) -> None:
    """Remove a folder, or a file in its place. It is renamed aside first, so that no reader sees part of it."""
    if path.is_dir():
        shutil.rmtree(_set_aside(path), ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_leftovers(folder: Path, of: str = "") -> int:
    """Remove what killed writers left directly in `folder`. Returns the number of folders removed.

    A live writer locks its folder, if the file system has locks, and is left alone. Without locks it loses its work,
    unless it has committed: a folder is renamed before anything in it is removed.

    Args:
        folder: where stores are written.
        of: only of a store with this name; of all by default.
    """
    removed = 0
    for p in list(folder.glob(".*")):
        meant = (
            re.fullmatch(re.escape(f"{ASIDE}{of}-") + "[0-9a-f]{8}", p.name)
            if of
            else p.name.startswith((ASIDE, _REMOVED))
        )
        if meant and not _is_held(p):
            with suppress(OSError):  # removed meanwhile, or somebody else's
                shutil.rmtree(_set_aside(p), ignore_errors=True)
                removed += 1
    return removed


def _hold(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed or the process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Context in which `sweep_own` leaves a folder alone."""
    holding = _hold(folder)
    (folder / HELD).touch()
    try:
        yield
    finally:
        os.close(holding)


def sweep_own(folder: Path, prefix: str) -> None:
    """Remove this user's temporary folders of a prefix that no living process holds."""
    for p in folder.glob(f"{prefix}*"):
        with suppress(OSError):
            seen = p.lstat()
            own = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()
            if own and (p / HELD).is_file() and not _is_held(p):
                shutil.rmtree(p, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return False


def fsync_tree(path: Path) -> None:
    """Flush every file below `path` to disk before it is renamed into place."""
    for folder, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                os.fsync(f.fileno())
        _fsync_folder(folder)


def _fsync_folder(folder: str | Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, in which to make what is to appear there. It is removed at the end; that of a killed
    process by `sweep_leftovers`.

    Raises:
        InputError: the parent cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{ASIDE}{path.name}-{uuid.uuid4().hex[:8]}")
        aside.mkdir()
        holding = _hold(aside)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror or e}; choose another folder") from e
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(holding)


@contextmanager
def committed_folder(path: Path, *, overwrite: bool = False, durable: bool = True) -> Iterator[Path]:
    """Write a folder that appears at `path` when the block ends without an error, and never otherwise. Yields the
    folder to write into.

    Raises:
        StoreError: `path` exists, or is made meanwhile, and `overwrite` is false.
        InputError: the parent cannot be written.
    """
    if os.path.lexists(path) and not overwrite:
        raise StoreError(f"{path} exists already; choose another path, or remove it first")
    with folder_aside(path) as aside:
        yield aside
        if durable:
            fsync_tree(aside)
        # The old store is removed only after the new one is in place: nothing slow happens between the two renames.
        old = _set_aside(path) if overwrite and path.exists() else None
        try:
            os.rename(aside, path)
        except OSError as e:
            if overwrite or e.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise StoreError(f"{path} was made by another process meanwhile; choose another path") from e
        if durable:
            _fsync_folder(path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
