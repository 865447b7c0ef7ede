"""Whether processes that were killed have ended, as tests ask: a killed process needs a moment to die."""

import time
from collections.abc import Iterable

import psutil

_PATIENCE_S = 60


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ended(pids: Iterable[int]) -> bool:
    """Whether each is gone, or only waits for whoever has to collect it, before a minute is over."""
    left = set(pids)
    until = time.monotonic() + _PATIENCE_S
    while left := {pid for pid in left if _runs(pid)}:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
