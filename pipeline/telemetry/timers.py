"""Wall-clock seconds by stage."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Accumulates wall-clock seconds by name. Blocks may overlap. One thread measures; any thread may read."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(seconds or {})
        self._start = time.perf_counter()
        self._running: dict[str, float] = {}
        """Start of each block in progress, the outermost first."""
        self._followed: dict[str, Callable[[], float]] = {}
        self._lock = threading.Lock()

    def snapshot(self) -> dict[str, float]:
        """Seconds so far; ``total`` includes the clocks that this one continues."""
        with self._lock:
            return self._so_far(time.perf_counter())

    def _so_far(self, now: float) -> dict[str, float]:
        return {**self.seconds, "total": self.seconds.get("total", 0.0) + now - self._start}

    def running_snapshot(self) -> tuple[dict[str, float], str]:
        """`snapshot` including blocks in progress, and the name of the innermost one."""
        with self._lock:
            now = time.perf_counter()
            seconds = self._so_far(now)
            under_way = [(name, now - start) for name, start in self._running.items()]
            for name, more in (*under_way, *((name, count()) for name, count in self._followed.items())):
                seconds[name] = seconds.get(name, 0.0) + more
            return seconds, next(reversed(self._running), "")

    def add(self, name: str, seconds: float) -> None:
        """Count seconds measured elsewhere."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def following(self, **counts: Callable[[], float]) -> Iterator[None]:
        """Count seconds measured elsewhere: each function returns those since the block began, in any thread."""
        with self._lock:
            self._followed |= counts
        try:
            yield
        finally:
            with self._lock:
                for name, count in counts.items():
                    del self._followed[name]
                    self.seconds[name] = self.seconds.get(name, 0.0) + count()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time of the block. A block within one of the same name is part of that one."""
        if name in self._running:
            yield
            return
        start = time.perf_counter()
        with self._lock:
            self._running[name] = start
        try:
            yield
        finally:
            with self._lock:
                del self._running[name]
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
