"""Reports what a rank is waiting for when a wait lasts: a peer that stops answering would otherwise look like
silence."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watch:
    """Reports waits longer than `after_s`, again each time the duration has doubled. One wait at a time."""

    def __init__(self, tell: Callable[[str], None], after_s: float = 10.0) -> None:
        """
        Args:
            tell: called with a sentence, from a thread of this object's own.
            after_s: seconds of silence before the first one.
        """
        self._tell, self._after_s = tell, after_s
        self._wait: tuple[str, float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Context of a wait for `what`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._report, name="watch", daemon=True)
            self._thread.start()
        self._wait = what, time.monotonic()
        try:
            yield
        finally:
            self._wait = None

    def close(self) -> None:
        """Stop reporting. May be called twice."""
        self._closed.set()

    def _report(self) -> None:
        message: tuple[str, float] | None = None
        due = self._after_s
        while not self._closed.wait(self._after_s / 4):
            wait = self._wait
            if wait is not message:
                due = self._after_s
            if wait is not None and (lasted := time.monotonic() - wait[1]) >= due:
                self._tell(f"waiting for {lasted:.0f} s already: {wait[0]}")
                message, due = wait, 2 * lasted
