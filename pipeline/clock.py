"""Seconds by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Accumulates wall-clock seconds by name; parts that overlap need not add up. Used by one thread."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(seconds or {})
        self._start = time.perf_counter()

    def snapshot(self) -> dict[str, float]:
        """Seconds so far; ``total`` is the life of this clock on top of the lives before it."""
        return {**self.seconds, "total": self.seconds.get("total", 0.0) + time.perf_counter() - self._start}

    def add(self, name: str, seconds: float) -> None:
        """Count seconds measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)
