"""Reading of a run's folder, finished or not: configuration, result, events and partition quality."""

import json
import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...stages.partition.quality import PartitionQuality
from ...stages.partition.stage import KIND as PARTITIONING
from ...stages.partition.stage import quality_of
from ...storage.errors import InputError, StoreError
from ...storage.store.regular import opened_file
from ...storage.store.store import open_store
from ..config.load import Job, read_any_run_table, resolve
from ..config.named_code import check_code
from ..setup.result import read_result
from ..setup.run_folder import JOB, METRICS, PARTS, check_holds_run, flat, is_locked
from ..telemetry.main_metric import main_metric_of_epoch
from .plain import MOST_RANKS, integer, number, ranks, table

COUNTED = ("forward_backward", "fetch", "exchange", "queue_wait", "reduce", "evaluate", "partition")
"""Stages that a rank goes through one after the other; the rest of its time is ``other``."""


@dataclass
class RankLog:
    """One rank's pulses in the order in which the driver received them: columns of n numbers."""

    time: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds since 1970 by the driver's clock, at which a pulse was written."""
    total: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds by the rank's clock."""
    seconds: "dict[str, array[float]]" = field(
        default_factory=lambda: {name: array("d") for name in (*COUNTED, "sample")}
    )
    trains: "array[int]" = field(default_factory=lambda: array("b"))
    """1 once training has begun, in this generation of the rank or in one that it resumes."""
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    """Steps in this generation of the rank."""
    rss_bytes: "array[int]" = field(default_factory=lambda: array("q"))
    queue: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Time, bulks, bytes, bound, if the rank fills its own queue."""
    lives: list[dict[str, Any]] = field(default_factory=list)
    """The last pulse of each generation."""

    def add(self, at: float, pulse: dict[str, Any]) -> None:
        """Add a pulse. Raises KeyError, TypeError or ValueError for anything else."""
        seconds, steps = {name: number(s) for name, s in table(pulse["seconds"]).items()}, integer(pulse["steps"])
        row = {name: seconds.get(name, 0.0) for name in self.seconds}
        total, rss = seconds["total"], integer(pulse["rss_bytes"])
        level = _level(at, pulse["queue"]) if pulse["queue"] else None
        last = {
            "stage": str(pulse["stage"]),
            "bytes": {
                str(k): {str(n): integer(b) for n, b in table(kinds).items()}
                for k, kinds in table(pulse["bytes"]).items()
            },
            "sent_to": {
                str(k): {str(n): [integer(b) for b in ranks(to)] for n, to in table(kinds).items()}
                for k, kinds in table(pulse["sent_to"]).items()
            },
            "seconds": seconds,
            "hot": {str(name): integer(n) for name, n in table(pulse["hot"]).items()},
            "epoch": integer(pulse["epoch"], -1),
            "step": integer(pulse["step"], -1),
        }
        if not self.time or steps < self.steps[-1] or total < self.total[-1]:
            self.lives.append(last)
        self.lives[-1] = last
        if level:
            self.queue.append(level)
        self.time.append(at)
        self.total.append(total)
        self.trains.append("train" in seconds)
        self.steps.append(steps)
        self.rss_bytes.append(rss)
        for name, value in row.items():
            self.seconds[name].append(value)


@dataclass(frozen=True)
class StageSpan:
    """A stage of the whole run, from begin to end; seconds since 1970."""

    stage: str
    text: str
    begin: float
    end: float


@dataclass
class EventHistory:
    """Events in ``metrics.jsonl``."""

    ranks: dict[int, RankLog] = field(default_factory=dict)
    steps: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    """By epoch and step: time, place (in epochs), loss. A repeated step counts as it was the last time."""
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By epoch: ``train_loss``, ``validation`` (the value of `metric`), ``seconds``, ``best`` and ``time``; of a
    repeated epoch, the last ones."""
    levels: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Time, bulks, bytes, bound of the queue that sampling tasks fill."""
    spans: list[StageSpan] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    first: float | None = None
    last: float | None = None
    """Times of the first and the last event."""
    silences: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of times without activity, between one generation of the run and the next."""
    metric: str = "accuracy"
    """Name of the metric of validations: see `telemetry.main_metric`."""
    unreadable: int = 0
    """Lines that are not events."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run, as read from its folder."""

    folder: Path
    name: str
    """Short name, unique among the runs of a report."""
    config: dict[str, Any]
    """Resolved configuration by dotted key."""
    changed: frozenset[str]
    """Keys that differ from the system's defaults."""
    result: dict[str, Any] | None
    """Contents of ``result.json``; None if the run has not finished."""
    running: bool
    history: EventHistory
    quality: PartitionQuality | None
    """Quality of the partitioning; None if the run has no parts, or some are missing."""
    partitioner: str

    @property
    def status(self) -> str:
        """``done``, ``running`` or ``not finished``."""
        return (
            "running"
            if self.running
            else "not finished"
            if self.result is None
            else str(self.result.get("status", "done"))
        )

    @property
    def has_pulses(self) -> bool:
        """True if there are pulses of ranks."""
        return any(len(log.time) > 1 for log in self.history.ranks.values())


SILENCE_S = 30.0
SILENCE_SHARE = 0.05
"""A gap between events of so many seconds, and of this share of the time before, counts as a time without activity:
pulses come far more often."""


def read_run(folder: Path, name: str) -> RunRecord:
    """Read a run's folder.

    Raises:
        InputError: the folder holds no run.
        StoreError: the result is damaged.
    """
    check_holds_run(folder)
    config, changed = _config(folder / JOB)
    quality, partitioner = _quality(folder / PARTS)
    return RunRecord(
        folder,
        name,
        config,
        changed,
        read_result(folder),
        is_locked(folder),
        history=read_events(folder / METRICS),
        quality=quality,
        partitioner=partitioner,
    )


def names(folders: list[Path]) -> list[str]:
    """The shortest path endings that differ from each other."""
    parts = [f.absolute().parts for f in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(p[-depth:]).lstrip("/") for p in parts]
        if len(set(ends)) == len(ends):
            return ends
    raise InputError("a run is named twice; name each run once")


def _config(path: Path) -> tuple[dict[str, Any], frozenset[str]]:
    table = read_any_run_table(path)
    try:
        check_code(table, path)
        job = resolve(table)
        usual = flat(resolve({"system": job.system}).model_dump(mode="json"))
    except InputError:
        # Another version's file is shown as it is, and one that names code.
        usual, shown = flat(Job().model_dump(mode="json")), flat(table)
    else:
        shown = flat(job.model_dump(mode="json", exclude_none=True))
    return shown, frozenset(key for key, value in shown.items() if value != usual.get(key))


def _quality(folder: Path) -> tuple[PartitionQuality | None, str]:
    try:
        store = open_store(folder, PARTITIONING)
        return quality_of(store), store.value("partitioner", str)
    except StoreError:
        return None, ""


def read_events(path: Path) -> EventHistory:
    """Read the events of a run. A line that is cut off, or is not an event, is counted and skipped."""
    history = EventHistory()
    open_spans: dict[str, tuple[str, float]] = {}
    try:
        f = opened_file(path)
    except FileNotFoundError:
        return history
    with f:
        for line in f:
            try:
                event = table(json.loads(line))
                _take(history, open_spans, str(event["event"]), number(event["time"]), event)
            except (ValueError, KeyError, TypeError, RecursionError):
                history.unreadable += 1
    for stage, (text, begin) in open_spans.items():
        history.spans.append(StageSpan(stage, text, begin, history.last or begin))
    history.spans.sort(key=lambda s: s.begin)
    return history


def _level(at: float, queue: dict[str, Any]) -> tuple[float, int, int, int]:
    return at, integer(queue["bulks"]), integer(queue["bytes"]), integer(queue["bound"])


def _take(
    history: EventHistory, open_spans: dict[str, tuple[str, float]], kind: str, at: float, event: dict[str, Any]
) -> None:
    match kind:
        case "Pulse":
            rank = integer(event["rank"], most=MOST_RANKS - 1)
            log = history.ranks.get(rank) or RankLog()
            log.add(at, event)
            history.ranks[rank] = log
        case "QueueLevel":
            history.levels.append(_level(at, event))
        case "StepDone":
            epoch, step, steps, loss = (
                *(integer(event[k]) for k in ("epoch", "step")),
                integer(event["steps_per_epoch"], 1),
                event["loss"],
            )
            history.steps[epoch, step] = (
                at,
                epoch + (step + 1) / steps,
                math.nan if loss is None else number(loss, negative=True),
            )
        case "EpochDone":
            loss, accuracy = (
                None if event[k] is None else number(event[k], negative=True) for k in ("train_loss", "val_accuracy")
            )
            name, value = main_metric_of_epoch(
                {"val_accuracy": accuracy, "metrics": table(event.get("metrics") or {})}
            ) or (history.metric, None)
            history.metric = name
            done = {
                "train_loss": loss,
                "validation": None if value is None else number(value, negative=True),
                "seconds": number(event["seconds"]),
                "best": bool(event["best"]),
            }
            history.epochs[integer(event["epoch"])] = done | {"time": at}
        case "Note":
            history.notes.append((at, str(event["text"])))
        case "StageStarted" | "StageEnded":
            stage = str(event["stage"])
            text, begin = open_spans.pop(stage, (stage, at - number(event.get("seconds", 0.0))))
            if kind == "StageEnded" or begin < at:
                history.spans.append(StageSpan(stage, text, begin, at))
            if kind == "StageStarted":
                open_spans[stage] = str(event["text"]), at
    if history.first is None or history.last is None:
        history.first = history.last = at
    silent = sum(b - a for a, b in history.silences)
    # Without pulses a run may be silent while it works.
    if history.ranks and at - history.last > max(SILENCE_S, SILENCE_SHARE * (history.last - history.first - silent)):
        history.silences.append((history.last, at))
    history.last = max(history.last, at)
