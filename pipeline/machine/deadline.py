"""The end of a command that a signal has not ended: within seconds, whatever this process and its children wait for."""

import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...storage.store.committed_folder import held, sweep_own

END_S = 8.5
"""Seconds from a signal to the end. ``MILLRACE_STOP_S`` sets another number."""
WRITING_S = 3.0
"""Seconds without a byte after which a checkpoint no longer counts as being written."""
_folders = set[str]()
"""Temporary folders that would be left."""
_checkpoints: list[Path] = []
"""Folders in which checkpoints of the runs at hand are written."""


@contextmanager
def removed_at_end(folder: str) -> Iterator[str]:
    """Context in which a temporary folder goes with a process that is ended at its deadline."""
    _folders.add(folder)
    try:
        yield folder
    finally:
        _folders.discard(folder)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Context with a temporary folder. Those of this prefix that killed commands left are removed."""
    sweep_own(Path(tempfile.gettempdir()), prefix)
    temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    with temporary as folder, removed_at_end(folder), held(Path(folder)):
        yield folder


def remove_at_end(folder: str) -> str:
    """See `removed_at_end`; for a folder that stays until the process ends."""
    _folders.add(folder)
    return folder


@contextmanager
def checkpoints_in(folder: Path) -> Iterator[None]:
    """Context in which a deadline waits for a checkpoint that is being written in a folder."""
    _checkpoints.append(folder)
    try:
        yield
    finally:
        _checkpoints.remove(folder)


@contextmanager
def ended_in_time(signals: Collection[int]) -> Iterator[None]:
    """Context that ends this process, and those that it started, some seconds after one of the signals.

    Python runs a signal's handler between two of its own instructions; a kernel may work for minutes on one. So the
    signal is also read by a thread. Use it in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before, owner = signal.set_wakeup_fd(writing, warn_on_full_buffer=False), os.getpid()
    thread = threading.Thread(target=_watch, args=(reading, frozenset(signals)), name="deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if os.getpid() == owner:
            signal.set_wakeup_fd(before)
            os.write(writing, b"\0")
            thread.join()
        os.close(writing)
        os.close(reading)


def _watch(reading: int, signals: frozenset[int]) -> None:
    limit = float(os.environ.get("MILLRACE_STOP_S", END_S))
    end, sizes, changed = float("inf"), -1, 0.0
    while True:
        left = end - time.monotonic()
        ready, _, _ = select.select([reading], [], [], None if left == float("inf") else max(0.0, min(left, 0.5)))
        numbers = os.read(reading, 4096) if ready else b""
        if b"\0" in numbers:
            return
        if end == float("inf") and signals & set(numbers):
            end = time.monotonic() + limit
        if end < float("inf") and (written := _bytes_written()) != sizes:
            sizes, changed = written, time.monotonic()
        if time.monotonic() >= end and not (sizes > 0 and time.monotonic() - changed < WRITING_S):
            end_now()


def _bytes_written() -> int:
    """Bytes of checkpoints that are being written."""
    total = 0
    for folder in _checkpoints:
        for file in folder.glob(".writing-*/*"):
            with suppress(OSError):
                total += file.stat().st_size
    return total


def end_now() -> None:
    """End all processes that this one has started, and this one. Nothing is cleaned up but temporary folders."""
    import psutil

    children = list[psutil.Process]()
    with suppress(psutil.Error):
        children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.Error):
            child.kill()
    for folder in list(_folders):
        shutil.rmtree(folder, ignore_errors=True)
    which = f"; {len(children)} of its processes did not end by themselves" if children else ""
    os.write(2, f"millrace: interrupted{which}; what was committed stays\n".encode())
    os._exit(130)
