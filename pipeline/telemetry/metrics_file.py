"""The record of a run's events, a line of JSON each: what the report is made of."""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...storage.urls import without_secrets
from .events import Emit, Event, Pulse, QueueLevel, StepDone

KEPT = 100_000
"""Events of a kind that are all written down; of the next so many every second one, then every fourth, and so on."""
OFTEN = (StepDone, Pulse, QueueLevel)
"""Events that go on as long as a run does, several a second. All others are few."""


@contextmanager
def recorded(path: Path, emit: Emit, resume: bool) -> Iterator[Emit]:
    """Write events to a file, and pass on those that are for people: pulses come from threads, several a second.

    The file grows with the logarithm of a run's length, once it has had `KEPT` events of a kind.

    Args:
        path: the file.
        emit: called with all but pulses and levels of the queue.
        resume: add to what is there.
    """
    lock = threading.Lock()
    seen: Counter[type] = Counter()

    with path.open("a" if resume else "w", buffering=1) as f:

        def tell(event: Event) -> None:
            with lock:
                kind = type(event)
                if kind not in OFTEN or is_kept(seen[kind]):
                    values = {
                        key: without_secrets(v) if isinstance(v, str) else finite(v) for key, v in vars(event).items()
                    }
                    f.write(json.dumps({"event": kind.__name__, "time": time.time(), **values}) + "\n")
                seen[kind] += 1
            if not isinstance(event, Pulse | QueueLevel):
                emit(event)

        yield tell


def is_kept(number: int) -> bool:
    """Whether the event of this number, from 0 on, is written down: all of the first `KEPT`, then `KEPT` / 2 of each
    next doubling."""
    return number % (1 << (number // KEPT).bit_length()) == 0


def finite(value: Any) -> Any:
    """The value, or None where JSON has no word for it: NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
