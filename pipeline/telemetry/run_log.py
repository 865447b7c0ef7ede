"""The log of a run: its events by rank, epoch and stage. The report reads all of ``metrics.jsonl``; the page keeps one
for each run that it hears of, in bounded memory."""

import json
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...storage.store.regular import opened_file
from .main_metric import main_metric_of_epoch
from .plain import MOST_RANKS, integer, number, ranks, table

COUNTED = ("forward_backward", "fetch", "exchange", "queue_wait", "reduce", "evaluate", "partition")
"""Stages that a rank goes through one after the other; the rest of its time is ``other``."""
SILENCE_S = 30.0
SILENCE_SHARE = 0.05
"""A gap between events of so many seconds, and of this share of the time before, counts as inactivity."""
RECENT_S = 15.0
"""Length of the recent past that a bounded series keeps in full."""
STAGES, NOTES = 50, 30
"""Most stages and notes of a bounded log."""


class Series:
    """Rows of numbers over time. With a limit every second row is dropped when there are too many, and later ones are
    taken half as often; those of the last `RECENT_S` are kept besides."""

    def __init__(self, names: Iterable[str], most: float = math.inf) -> None:
        self._most, self._gap_s = most, 0.0
        self._columns = {name: array("d") for name in ("time", *names)}
        self.recent: deque[dict[str, float]] = deque()
        """Rows of the recent past; empty without a limit."""

    def add(self, at: float, row: Mapping[str, float]) -> None:
        """Add a row of so many seconds since 1970."""
        times = self._columns["time"]
        if self._most < math.inf:
            self.recent.append({"time": at, **row})
            while len(self.recent) > 2 and self.recent[1]["time"] <= at - RECENT_S:
                self.recent.popleft()
            if times and at - times[-1] < self._gap_s:
                return
        for name, column in self._columns.items():
            column.append(at if name == "time" else row[name])
        if len(times) > self._most:
            for column in self._columns.values():
                del column[1::2]
            self._gap_s = (times[-1] - times[0]) / len(times)

    def __getitem__(self, name: str) -> "array[float]":
        return self._columns[name]

    def __len__(self) -> int:
        return len(self._columns["time"])

    def ends(self, window_s: float) -> tuple[dict[str, float], dict[str, float]] | None:
        """The latest row that is `window_s` older than the last one, or else the oldest recent one; and the last one.
        None if they are the same."""
        if not self.recent or (last := self.recent[-1])["time"] <= self.recent[0]["time"]:
            return None
        old = (row for row in reversed(self.recent) if last["time"] - row["time"] >= window_s)
        return next(old, self.recent[0]), last


def _levels(most: float) -> Series:
    return Series(("bulks", "bytes", "bound"), most)


def _level(event: Mapping[str, object]) -> dict[str, int]:
    return {name: integer(event[name]) for name in ("bulks", "bytes", "bound")}


def _by_kind(channels: object, read: Callable[[object], object]) -> dict[str, dict[str, object]]:
    """Values by channel and kind, each read by a check."""
    tables = {str(channel): table(kinds) for channel, kinds in table(channels).items()}
    return {channel: {str(kind): read(v) for kind, v in kinds.items()} for channel, kinds in tables.items()}


class RankLog:
    """One rank's pulses, in the order in which they came."""

    def __init__(self, most: float = math.inf) -> None:
        self.beats = Series(("total", "trains", "steps", "rss_bytes", "own_bytes", *COUNTED, "sample"), most)
        """Seconds by the rank's clock in all and by stage; 1 once training has begun, in this generation of the rank or
        in one that it resumes; steps of this generation; resident bytes, and those that are not pages of files."""
        self.queue = _levels(most)
        """Contents of the queue, if the rank fills its own."""
        self.lives: list[dict[str, Any]] = []
        """The last pulse of each generation."""

    def add(self, at: float, pulse: Mapping[str, Any], *, is_new_life: bool = False) -> None:
        """Add a pulse. Raises KeyError, TypeError or ValueError for anything else."""
        seconds = {name: number(s) for name, s in table(pulse["seconds"]).items()}
        level = _level(pulse["queue"]) if pulse["queue"] else {}
        loss = pulse.get("loss")
        last: dict[str, Any] = {
            "stage": str(pulse["stage"]),
            "bytes": _by_kind(pulse["bytes"], integer),
            "sent_to": _by_kind(pulse["sent_to"], lambda to: [integer(b) for b in ranks(to)]),
            "seconds": seconds,
            "hot": {str(name): integer(n) for name, n in table(pulse["hot"]).items()},
            **{name: integer(pulse[name], -1) for name in ("epoch", "step")},
            **{name: integer(pulse.get(name, 0)) for name in ("steps", "edges", "rss_bytes", "own_bytes")},
            "loss": loss if isinstance(loss, float) and math.isfinite(loss) else None,
            "queue": level,
        }
        row = {name: float(last[name]) for name in ("steps", "rss_bytes", "own_bytes")}
        row |= {"total": seconds["total"], "trains": "train" in seconds}
        row |= {name: seconds.get(name, 0.0) for name in (*COUNTED, "sample")}
        before = self.lives[-1] if self.lives else None
        went_back = before and (last["steps"] < before["steps"] or seconds["total"] < before["seconds"]["total"])
        if not before or is_new_life or went_back:
            self.lives.append(last)
        self.lives[-1] = last
        if level:
            self.queue.add(at, level)
        self.beats.add(at, row)

    def in_all(self, name: str) -> int:
        """Steps or edges of all generations."""
        return sum(life[name] for life in self.lives)

    def most_bytes(self, channel: str, kind: str) -> int:
        """Largest count of bytes: a rank that starts again counts from zero until it has read its checkpoint."""
        return max((life["bytes"].get(channel, {}).get(kind, 0) for life in self.lives), default=0)


@dataclass
class StageSpan:
    """A stage of the whole run, from begin to end; seconds since 1970."""

    stage: str
    text: str
    begin: float
    end: float = math.inf
    """Infinite while it goes on."""
    done: int = 0
    total: int | None = None
    """Units of its work, so far and in all."""
    has_begin: bool = True
    """False while it is known by its progress alone."""


@dataclass
class RunLog:
    """Events of a run."""

    most: float = math.inf
    """Most rows of a series and epochs; with a limit, stages and notes are bounded too."""
    ranks: dict[int, RankLog] = field(default_factory=dict)
    steps: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    """By epoch and step: time, place (in epochs), loss. A repeated step counts as it was the last time."""
    steps_per_epoch: int | None = None
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By epoch: ``epoch``, ``epochs`` asked for, ``train_loss``, ``validation`` (the value of `metric`), ``metrics`` of
    the validation by name, ``seconds``, ``lr``, ``best`` and ``time``; of a repeated epoch, the last ones."""
    latest: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    """The last epoch, and the last best one; empty before."""
    level: dict[str, Any] = field(default_factory=dict)
    """The last level of the queue that sampling tasks fill."""
    levels: Series = field(init=False)
    sampled: dict[str, float] = field(default_factory=lambda: {"bulks": 0, "seconds": 0.0})
    """Bulks that sampling tasks drew, and their seconds, in all generations."""
    spans: list[StageSpan] = field(default_factory=list)
    notes: deque[tuple[float, str]] = field(init=False)
    first: float | None = None
    last: float | None = None
    """Times of the first and the last event."""
    silences: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of times without activity, between one generation of the run and the next."""
    metric: str = "accuracy"
    """Name of the metric of validations: see `telemetry.main_metric`."""
    unreadable: int = 0
    """Lines that are not events."""

    def __post_init__(self) -> None:
        self.levels = _levels(self.most)
        self.notes = deque(maxlen=NOTES if self.is_bounded else None)
        self._every = 1

    def take(self, kind: str, at: float, event: Mapping[str, Any]) -> None:
        """Take an event. Raises KeyError, TypeError or ValueError for anything else.

        Args:
            kind: name of its class in `events`.
            at: seconds since 1970.
            event: its fields.
        """
        match kind:
            case "Pulse":
                rank = integer(event["rank"], most=MOST_RANKS - 1)
                log = self.ranks.get(rank) or RankLog(self.most)
                log.add(at, event)
                self.ranks[rank] = log
            case "QueueLevel":
                level: dict[str, Any] = {**_level(event), "sampled": integer(event.get("sampled", 0))}
                level["seconds"] = number(event.get("seconds", 0.0))
                began = not self.level or level["sampled"] < self.level["sampled"]
                for name, key in (("bulks", "sampled"), ("seconds", "seconds")):
                    self.sampled[name] += level[key] - (0 if began else self.level[key])
                self.level = level
                self.levels.add(at, level)
            case "StepDone":
                epoch, step = (integer(event[k]) for k in ("epoch", "step"))
                self.steps_per_epoch = integer(event["steps_per_epoch"], 1)
                loss = math.nan if event["loss"] is None else number(event["loss"], negative=True)
                if not self.is_bounded:
                    self.steps[epoch, step] = at, epoch + (step + 1) / self.steps_per_epoch, loss
            case "EpochDone":
                self._take_epoch(at, event)
            case "Note":
                self.notes.append((at, str(event["text"])))
            case "StageStarted" | "StageAdvanced" | "StageEnded":
                self._take_stage(kind, at, event)
        if self.first is None or self.last is None:
            self.first = self.last = at
        silent = sum(b - a for a, b in self.silences)
        # Without pulses a run may be silent while it works.
        if self.ranks and at - self.last > max(SILENCE_S, SILENCE_SHARE * (self.last - self.first - silent)):
            self.silences.append((self.last, at))
        self.last = max(self.last, at)

    def _take_epoch(self, at: float, event: Mapping[str, object]) -> None:
        loss, accuracy, lr = (
            None if event.get(k) is None else number(event[k], negative=True)
            for k in ("train_loss", "val_accuracy", "lr")
        )
        metrics = {"val_accuracy": accuracy, "metrics": table(event.get("metrics") or {})}
        self.metric, value = main_metric_of_epoch(metrics) or (self.metric, None)
        validation = None if value is None else number(value, negative=True)
        found = {**({} if accuracy is None else {"accuracy": accuracy}), **metrics["metrics"]}
        done: dict[str, Any] = {"epoch": integer(event["epoch"]), "epochs": event.get("epochs")}
        done |= {"train_loss": loss, "lr": lr, "validation": validation, "metrics": found, "time": at}
        done |= {"best": bool(event["best"]), "seconds": number(event["seconds"])}
        self.latest, self.best = done, done if done["best"] else self.best
        if done["epoch"] % self._every == 0:
            self.epochs[done["epoch"]] = done
        if len(self.epochs) > self.most:
            self._every *= 2
            self.epochs = {n: e for n, e in self.epochs.items() if n % self._every == 0}

    def _take_stage(self, kind: str, at: float, event: Mapping[str, Any]) -> None:
        stage = str(event["stage"])
        known = next((s for s in reversed(self.spans) if s.stage == stage), None)
        span = known if known and known.end == math.inf else None
        if kind == "StageStarted" and span:
            span.end = at
        if kind == "StageStarted" or not span:
            if self.is_bounded and not known and len(self.spans) >= STAGES:
                return
            begin = at - number(event.get("seconds", 0.0))
            total = integer(event["total"]) if event.get("total") else None
            text = str(event["text"]) if kind == "StageStarted" else stage
            span = StageSpan(stage, text, begin, total=total, has_begin=kind != "StageAdvanced")
            if self.is_bounded and known:
                self.spans[self.spans.index(known)] = span
            else:
                self.spans.append(span)
        if kind == "StageAdvanced":
            span.done, span.total = integer(event["done"]), event.get("total") or span.total
        elif kind == "StageEnded":
            span.begin = span.begin if span.has_begin else at - number(event.get("seconds", 0.0))
            span.end, span.has_begin = at, True

    @property
    def is_bounded(self) -> bool:
        """True if there is a limit."""
        return self.most < math.inf

    @property
    def doing(self) -> str:
        """The stage that began last, if it goes on, in words."""
        last = max((span for span in self.spans if span.has_begin), key=lambda s: s.begin, default=None)
        return last.text if last and last.end == math.inf else ""

    def columns(self) -> dict[str, list[Any]]:
        """Columns of the epochs: ``epoch``, from 1 on, ``train_loss``, metrics of the validation as ``val_`` and their
        name, ``seconds``, ``lr`` where a schedule changes it, and ``best``."""
        rows = sorted(self.epochs.items())
        names = dict.fromkeys(name for _, row in rows for name in row["metrics"])
        found = {"epoch": [n + 1 for n, _ in rows], "train_loss": [row["train_loss"] for _, row in rows]}
        found |= {f"val_{name}": [row["metrics"].get(name) for _, row in rows] for name in names}
        keys = ("seconds", "lr", "best") if any(row["lr"] is not None for _, row in rows) else ("seconds", "best")
        return found | {key: [row[key] for _, row in rows] for key in keys}


def read_events(path: Path) -> RunLog:
    """Read the events of a run. A line that is cut off, or is not an event, is counted and skipped."""
    log = RunLog()
    try:
        f = opened_file(path)
    except FileNotFoundError:
        return log
    with f:
        log.unreadable = take_each(f, log.take)
    log.spans = sorted((span for span in log.spans if span.has_begin), key=lambda s: s.begin)
    for span in log.spans:
        span.end = min(span.end, log.last or span.begin)
    return log


def take_each(lines: Iterable[str | bytes], take: Callable[[str, float, dict[str, object]], None]) -> int:
    """Give the events in lines of JSON to a function like `RunLog.take`. Returns how many lines are none."""
    unreadable = 0
    for line in lines:
        try:
            event = table(json.loads(line))
            take(str(event["event"]), number(event["time"]), event)
        except (ValueError, KeyError, TypeError, RecursionError):
            unreadable += 1
    return unreadable
