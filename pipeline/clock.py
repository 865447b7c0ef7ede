"""Seconds by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Accumulates wall-clock seconds by name; parts that overlap need not add up. Used by one thread."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(seconds or {})

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
