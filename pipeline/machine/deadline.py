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
_end = [float("inf")]
"""Time on the monotonic clock at which this process ends, since it got a signal."""


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
    _end[0] = float("inf")
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
    sizes, changed = -1, 0.0
    while True:
        left = _end[0] - time.monotonic()
        ready, _, _ = select.select([reading], [], [], None if left == float("inf") else max(0.0, min(left, 0.5)))
        numbers = os.read(reading, 4096) if ready else b""
        if b"\0" in numbers:
            return
        if signals & set(numbers):
            _end[0] = min(_end[0], time.monotonic() + limit_s())
        if _end[0] < float("inf") and (written := _bytes_written()) != sizes:
            sizes, changed = written, time.monotonic()
        if time.monotonic() >= _end[0] and not (sizes > 0 and time.monotonic() - changed < WRITING_S):
            end_now()


def limit_s() -> float:
    """Seconds from a signal to the end."""
    with suppress(ValueError):
        return float(os.environ.get("MILLRACE_STOP_S", END_S))
    return END_S


def leave_in_time(code: int) -> None:
    """Let this process, whose command is done, end in time with an exit code: Python waits for processes that it has
    started, and one may be stopped. After a signal, the time is what that has left."""

    def leave() -> None:
        time.sleep(max(0.0, min(_end[0] - time.monotonic(), limit_s())))
        end_now(code)

    threading.Thread(target=leave, name="leaving", daemon=True).start()


def _bytes_written() -> int:
    """Bytes of checkpoints that are being written."""
    total = 0
    for folder in _checkpoints:
        with suppress(OSError):  # a checkpoint is committed by a rename: it may be gone while it is listed
            for file in folder.glob(".writing-*/*"):
                total += file.stat().st_size
    return total


def end_now(code: int = 130) -> None:
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
    which = f"ended {len(children)} of its processes" if children else ""
    if code == 130:
        which = f"interrupted{'; ' * bool(which)}{which}; what was committed stays"
    if which:
        os.write(2, f"millrace: {which}\n".encode())
    os._exit(code)
