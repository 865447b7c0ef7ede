"""Heartbeat of a rank: a thread emits the rank's position and resource use at intervals."""

import math
import threading
import time
from collections.abc import Callable

import psutil

from ...storage.ledger import Ledger
from ...storage.queue.base import MinibatchQueue
from .events import Emit, Event, Pulse, StepDone
from .timers import Clock
from .usage import own_bytes

FIRST_S = 0.25
"""Interval between the first beats."""
STEADY_BEATS = 80
"""Beats after which the interval doubles: short runs are recorded in detail, long ones take little room."""
SHOWN_S = 1.0
"""Longest interval between the beats that a dashboard shows."""


class Heartbeat:
    """Context manager that emits a `Pulse` at the start, at intervals, and at the end: any run has two, and a figure
    over time. Call it with the rank's events; it passes them on."""

    def __init__(
        self,
        rank: int,
        clock: Clock,
        ledger: Ledger,
        queue: MinibatchQueue | None,
        emit: Emit,
        show: Callable[[Pulse], None] | None = None,
    ) -> None:
        """
        Args:
            rank: number of the rank.
            clock: counts the rank's seconds.
            ledger: counts the rank's bytes.
            queue: the queue that the rank fills, if it does.
            emit: called with events, also from the thread.
            show: called every `SHOWN_S`, once the interval is longer, with pulses that are not recorded.
        """
        self._rank, self._clock, self._ledger, self._emit = rank, clock, ledger, emit
        self._queue, self._show = queue, show
        self._process = psutil.Process()
        self._interval_s, self._beats = FIRST_S, 0
        self._last: StepDone | None = None
        self._steps = self._edges = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self._last, self._steps, self._edges = event, self._steps + 1, self._edges + event.edges
        self._emit(event)

    def __enter__(self) -> "Heartbeat":
        self._beat(self._emit)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._beat(self._emit)

    def _run(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._over.wait(max(0.0, min(due - time.monotonic(), SHOWN_S if self._show else math.inf))):
            if self._show and time.monotonic() < due:
                self._beat(self._show)
                continue
            self._beat(self._emit)
            self._beats += 1
            if self._beats % STEADY_BEATS == 0:
                self._interval_s *= 2
            due = time.monotonic() + self._interval_s

    def _beat(self, tell: Callable[[Pulse], None]) -> None:
        seconds, stage = self._clock.running_snapshot()
        last, queue = self._last, self._queue
        tell(
            Pulse(
                rank=self._rank,
                stage=stage,
                epoch=last.epoch if last else -1,
                step=last.step if last else -1,
                loss=last.loss if last and last.seeds else None,
                steps=self._steps,
                edges=self._edges,
                seconds={name: round(value, 4) for name, value in seconds.items()},
                bytes={c: {k: n for k, n in kinds.items() if n} for c, kinds in self._ledger.as_record().items()},
                sent_to=self._ledger.sent_to(),
                rss_bytes=self._process.memory_info().rss,
                queue=queue.level if queue is not None else {},
                hot=last.hot if last else {},
                own_bytes=own_bytes(self._process),
            )
        )


METRIC = "millrace"
"""Name of the Dask worker metric: a record for each rank that the worker holds, with ``run``, ``rank``, ``generation``,
its number of ``beats``, the last ``pulse``, and how it ``ended``.

A rank that has ended is reported for some seconds more, so that its last pulse is not lost.
"""
