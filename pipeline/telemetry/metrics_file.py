"""The record of a run's events, a line of JSON each, from which reports are made."""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ...storage.store.own_files import own_file
from ...storage.urls import without_secrets
from .events import Emit, Event, Pulse, QueueLevel, StepDone

KEPT = 100_000
"""Number of events of a kind that are all written; then every second one of as many, every fourth, and so on."""
OFTEN = (StepDone, Pulse, QueueLevel)
"""Kinds of events that come several times a second for the whole run. All others are few."""


@contextmanager
def recorded(path: Path, emit: Emit, resume: bool) -> Iterator[Emit]:
    """Write events to a file, and pass on those that are for people.

    The file grows with the logarithm of a run's length, once it has had `KEPT` events of a kind.

    Args:
        path: the file.
        emit: called with all events but pulses and queue levels.
        resume: append to the file.
    """
    lock = threading.Lock()
    seen: Counter[type] = Counter()
    # The clock of the machine may be set while the run goes on.
    began = time.time() - time.monotonic()

    with own_file(path, append=resume) as f:

        def forward(event: Event) -> None:
            try:
                # First: whoever reads of a step in the file may send a signal, which `emit` must have prepared for.
                if not isinstance(event, Pulse | QueueLevel):
                    emit(event)
            finally:
                write(event)

        def write(event: Event) -> None:
            with lock:
                kind = type(event)
                if kind not in OFTEN or is_kept(seen[kind]):
                    values = {
                        key: without_secrets(v) if isinstance(v, str) else finite(v) for key, v in vars(event).items()
                    }
                    # A thread sends these, in which an error of a full disk would be lost; the next event raises it.
                    with suppress(OSError) if isinstance(event, Pulse | QueueLevel) else nullcontext():
                        line = {"event": kind.__name__, "time": began + time.monotonic(), **values}
                        f.write(json.dumps(line) + "\n")
                seen[kind] += 1

        yield forward


def is_kept(number: int) -> bool:
    """True if the event of this number, from 0 on, is written: the first `KEPT`, then `KEPT` / 2 of each doubling."""
    return number % (1 << (number // KEPT).bit_length()) == 0


def finite(value: Any) -> Any:
    """The value, or None for NaN and infinity, which JSON lacks; also within a dict."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
