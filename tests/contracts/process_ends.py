"""Processes as tests ask for them: a killed one needs a moment to die, and others end while they are listed."""

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

_PATIENCE_S = 60


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> str:
    """The words of a process's command; empty if it has ended meanwhile."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def ended(pids: Iterable[int]) -> bool:
    """Whether each is gone, or only waits for whoever has to collect it, before a minute is over."""
    left = set(pids)
    until = time.monotonic() + _PATIENCE_S
    while left := {pid for pid in left if _runs(pid)}:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
