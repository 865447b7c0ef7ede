"""Memory and traffic of this process and of those that it starts on this machine, now."""

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOOK_S = 0.1
"""Seconds for which this process is taken to have the same children: to find them, all processes are looked at."""


@dataclass
class Usage:
    """Call `read` now and then: a process that has ended keeps the traffic that was last seen of it."""

    _moved: dict[tuple[int, float], tuple[int, int]] = field(default_factory=dict)
    _before: tuple[int, int] | None = None
    _family: list[psutil.Process] = field(default_factory=list)
    _looked: float = -math.inf

    def read(self) -> dict[str, int]:
        """Bytes: ``memory``, anonymous and shared (on Linux, else resident), summed over processes; ``read`` and
        ``written``, by system calls since the first reading: files, also those that were in memory, and sockets."""
        memory, now = 0, time.monotonic()
        if now - self._looked >= LOOK_S:
            own = psutil.Process()
            self._looked, self._family = now, [own, *own.children(recursive=True)]
        for process in self._family:
            with suppress(psutil.Error, OSError, AttributeError):
                memory += own_bytes(process)
                moved = process.io_counters()
                self._moved[process.pid, process.create_time()] = (
                    getattr(moved, "read_chars", moved.read_bytes),
                    getattr(moved, "write_chars", moved.write_bytes),
                )
        read, written = (sum(n[k] for n in self._moved.values()) for k in (0, 1))
        self._before = self._before or (read, written)
        return {"memory": memory, "read": read - self._before[0], "written": written - self._before[1]}


def own_bytes(process: psutil.Process) -> int:
    """Anonymous and shared memory of a process, without pages of files; where the system does not say, all of it."""
    with suppress(OSError, ValueError):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem") if name in fields)
    return process.memory_info().rss
