"""Listens to a run's events and tells its trackers of them, in a thread, so that none can stop or slow the training."""

import json
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ...storage.errors import first_line
from ...storage.ledger import KINDS
from ...storage.store.regular import file_text
from ..config.load import Job
from ..setup.result import Result
from ..setup.run_folder import JOB, MODEL, RESULT, flat, write_atomically
from ..telemetry.events import Emit, EpochDone, Event, Logged, Note, Pulse, StepDone
from .base import TRACKERS, Axis, Tracked, Tracker

STATE = "trackers.json"
"""File in the run's folder with what names the run in each service."""
STEP_S = 1.0
"""Interval between losses of single steps."""
MOST_WAITING = 10_000
"""Events that may wait; further ones are left out."""
END_S = 30.0
"""Seconds that a run waits in the end for its trackers."""

Values = dict[str, float]
Told = tuple[Axis, int, Values] | str
"""Numbers at a place of an axis, or a sentence."""


def numbers_of(event: Event, seconds: float) -> Told | None:
    """The part of an event that trackers are told; None: nothing.

    Args:
        event: of the run.
        seconds: since the tracker began.
    """
    match event:
        case EpochDone():
            found: dict[str, float | None] = {"train_loss": event.train_loss, "epoch_seconds": event.seconds}
            found |= {"val_accuracy": event.val_accuracy, "lr": event.lr}
            found |= {f"val_{name}": value for name, value in event.metrics.items()}
            return "epoch", event.epoch + 1, _finite(found)
        case StepDone():
            return "step", event.epoch * event.steps_per_epoch + event.step + 1, _finite({"step_loss": event.loss})
        case Logged():
            numbers = {k: v for k, v in event.values.items() if not isinstance(v, str)}
            return "epoch", event.epoch + 1, _finite(numbers)
        case Pulse():
            kinds = {(c, k): event.bytes.get(c, {}).get(k, 0) for c, ks in KINDS.items() for k in ks}
            moved = {f"rank_{event.rank}/{c}_mib": sum(n for (d, _), n in kinds.items() if d == c) for c in KINDS}
            values = {name: n / 2**20 for name, n in moved.items()}
            return "second", int(seconds), _finite({**values, f"rank_{event.rank}/rss_mib": event.rss_bytes / 2**20})
        case Note(text):
            return text
    return None


def _finite(values: Mapping[str, float | None]) -> Values:
    return {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}


class _Beside:
    """One tracker in a thread of its own."""

    def __init__(self, name: str, tracker: Tracker, run: Tracked, emit: Emit) -> None:
        self.name, self._tracker, self._run, self._emit = name, tracker, run, emit
        self.identity: Any = run.before
        self._waiting: queue.Queue[Told | tuple[str, list[Path]]] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._failed = False
        self._thread.start()

    def send(self, told: Told) -> None:
        """Hand something over, unless too much is waiting."""
        if not self._failed:
            with suppress(queue.Full):
                self._waiting.put_nowait(told)

    def end(self, status: str, files: list[Path], until: float) -> None:
        """Wait until all is told, but not for longer than `until` on the monotonic clock."""
        with suppress(queue.Full):
            self._waiting.put((status, files), timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() and not self._failed:
            self._failed = True
            self._emit(Note(f"tracker '{self.name}' has not taken all within {END_S:g} s; the run ends without it"))

    def _work(self) -> None:
        try:
            self.identity = self._tracker.start(self._run)
            while not self._failed:
                told = self._waiting.get()
                if isinstance(told, str):
                    self._tracker.note(told)
                elif len(told) == 3:
                    axis, at, values = told
                    if values:
                        self._tracker.log(values, axis, at)
                else:
                    # pyrefly: ignore[bad-argument-type]
                    self._tracker.end(told[0], told[1])
                    return
        # Whatever a library raises, also SystemExit: the run goes on.
        except BaseException as e:
            if not self._failed:
                self._failed = True
                text = f"{type(e).__name__}: {first_line(Exception(str(e)))}"
                self._emit(Note(f"tracker '{self.name}' failed, and the run goes on without it ({text})"))


class Tracking:
    """The trackers of a run; a context that they are told the end of. Without any, nothing happens."""

    def __init__(self, names: Sequence[str], folder: Path, job: Job, resume: bool, emit: Emit) -> None:
        """
        Args:
            names: of the trackers.
            folder: the run's, which exists.
            job: resolved.
            resume: go on with what an earlier process began.
            emit: gets notes of trackers that fail.
        """
        self._names, self._folder, self._job, self._emit = list(dict.fromkeys(names)), folder, job, emit
        self._state = folder / STATE
        self._before: dict[str, Any] = {}
        if resume and self._names and os.path.lexists(self._state):
            try:
                self._before = {**json.loads(file_text(self._state))}
            except (OSError, ValueError, TypeError, RecursionError) as e:
                emit(Note(f"{self._state} is damaged ({first_line(e)}), so trackers begin another run"))
        self._beside: list[_Beside] = []
        self._status, self._start, self._step_at = "failed", time.monotonic(), -math.inf

    def __enter__(self) -> "Tracking":
        config = flat(self._job.model_dump(mode="json", exclude_none=True)) if self._names else {}
        for name in self._names:
            run = Tracked(self._folder.name, self._folder, config, self._before.get(name))
            self._beside.append(_Beside(name, TRACKERS.find(name)(), run, self._note))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._beside:
            return
        until = time.monotonic() + END_S
        files = [self._folder / name for name in (JOB, RESULT, MODEL) if (self._folder / name).is_file()]
        for tracker in self._beside:
            tracker.end(self._status, files if self._status != "failed" else [], until)
        found = {t.name: t.identity for t in self._beside if t.identity is not None}
        write_atomically(self._state, json.dumps({**self._before, **found}) + "\n")

    @contextmanager
    def beside(self, emit: Emit) -> Iterator[Emit]:
        """A listener that passes events on to `emit` and tells the trackers; notes of theirs go there too."""
        if not self._beside:
            yield emit
            return
        before, self._emit = self._emit, emit

        def forward(event: Event) -> None:
            emit(event)
            now = time.monotonic()
            if isinstance(event, StepDone):
                if now - self._step_at < STEP_S:
                    return
                self._step_at = now
            told = numbers_of(event, now - self._start)
            if told is not None:
                for tracker in self._beside:
                    tracker.send(told)

        try:
            yield forward
        finally:
            self._emit = before

    def finish(self, result: Result) -> None:
        """The run has ended well, with this result."""
        self._status = result.status
        values = {"test_accuracy": result.test_accuracy} | {f"test_{k}": v for k, v in result.test_metrics.items()}
        for tracker in self._beside:
            tracker.send(("epoch", result.epochs, _finite(values)))

    def _note(self, event: Event) -> None:
        self._emit(event)
