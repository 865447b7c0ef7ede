"""The folder that an ingest works in, beside the store that it makes: locked, and kept when the ingest is killed."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...storage.errors import InputError
from ...storage.store.committed_folder import fsync_tree, require_name
from ...storage.store.own_files import own_folder
from .tasks import record_in

PREFIX = ".ingest-"
STORE = "store"
PLAN = "plan.json"


def scratch_of(out: Path) -> Path:
    """The folder of the ingest that makes `out`. Raises InputError if that has no name."""
    require_name(out)
    return out.with_name(f"{PREFIX}{out.name}")


@contextmanager
def scratch(out: Path, plan: Mapping[str, Any]) -> Iterator[tuple[Path, bool]]:
    """Context with the folder of an ingest, and whether it goes on with one that was killed and had the same plan.

    The folder is removed if the ingest ends, or the input is refused; it stays if the ingest is stopped or fails.
    Raises InputError: another process makes `out`, or its folder cannot be written."""
    folder = scratch_of(out)
    try:
        descriptor = os.open(own_folder(folder), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as e:
        raise InputError(f"cannot write {out}: {e.strerror or e}; choose another --out") from e
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is converting into {out}; wait, or choose another --out") from None
        except OSError:
            pass  # a file system without locks
        resumed = record_in(folder / PLAN) == plan
        if not resumed:
            _empty(folder)
            (folder / PLAN).write_text(json.dumps(plan))
        (folder / STORE).mkdir(exist_ok=True)
        try:
            yield folder, resumed
        except InputError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def commit(folder: Path, out: Path) -> None:
    """Put the finished store in its place."""
    fsync_tree(folder / STORE)
    os.rename(folder / STORE, out)


def sweep_committed(out: Path) -> None:
    """Remove the folder of an ingest that was killed when `out` was in its place."""
    folder = scratch_of(out)
    if folder.is_dir() and not folder.is_symlink() and not (folder / STORE).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
