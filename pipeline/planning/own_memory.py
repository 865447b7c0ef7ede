"""Peak of a process's memory without the pages of mapped files, which the system can take back."""

import threading
from typing import Self

import psutil

from ..telemetry.usage import own_bytes

EVERY_S = 0.01


class OwnMemory:
    """Samples `own_bytes` every `EVERY_S` seconds inside a ``with`` block, since the system keeps no peak of it."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.start_bytes = self.peak_bytes = own_bytes(self._process)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="millrace-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        done = False
        while not done:
            done = self._done.wait(EVERY_S)
            self.peak_bytes = max(self.peak_bytes, own_bytes(self._process))
