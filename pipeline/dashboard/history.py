"""State of the runs on a scheduler, in bounded memory, without Dask or drawing.

Ranks report through the metrics of their workers; what only a driver knows comes in its messages (`publisher`).
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...storage.ledger import KINDS
from ..telemetry.main_metric import main_metric_of_epoch

RUNS = 6
"""Most runs that are remembered."""
POINTS = 300
"""Most points of a curve over the life of a run."""
RECENT_S = 15.0
"""Length of the recent past that is kept in full."""
STAGES = 50
"""Most stages of a run's driver."""
NOTES = 30
"""Most notes of a run."""

Bytes = tuple[int, ...]
"""A number for each (channel, kind), in the order of `KINDS`."""
BYTES = [(channel, kind) for channel, kinds in KINDS.items() for kind in kinds]


class Curve:
    """Points over the life of a run. When there are too many, every second one is dropped and later ones are taken half
    as often."""

    def __init__(self, most: int = POINTS) -> None:
        self._most, self._gap_s = most, 0.0
        self.points: list[tuple[float, Any]] = []
        """(seconds, value)."""

    def add(self, at: float, value: Any) -> None:
        """Add a point, unless the last one is too recent."""
        if self.points and at - self.points[-1][0] < self._gap_s:
            return
        self.points.append((at, value))
        if len(self.points) > self._most:
            del self.points[1::2]
            self._gap_s = (self.points[-1][0] - self.points[0][0]) / len(self.points)


@dataclass(frozen=True)
class Sums:
    """Sums over all ranks of a run at one moment. All of them only grow, except `loss` and the queue's."""

    steps: int
    edges: int
    sampled: int
    """Bulks made by sampling tasks."""
    sample_s: float
    """Seconds of making them, over all tasks."""
    bytes: Bytes
    loss: float | None
    """Loss of the last step, a mean over ranks."""
    queue_bulks: int
    queue_bytes: int


@dataclass
class RankState:
    """State of one rank, as last reported."""

    worker: str
    generation: int
    began: float
    heard: float
    """Time of its last pulse with progress; `began` before the first."""
    pulse: dict[str, Any] = field(default_factory=dict)
    """Fields of `events.Pulse`; empty before the first."""
    ended: str = ""
    """Reason of its end; empty while it runs."""
    recent: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)
    """(time, seconds of its pulse)."""
    memory: Curve = field(default_factory=lambda: Curve(POINTS // 3))
    """Resident bytes."""
    most: Bytes = (0,) * len(BYTES)
    """Largest bytes that it has counted: a restarted rank counts from zero until it has read its checkpoint."""

    def record(self, pulse: Mapping[str, Any], now: float, run_s: float) -> None:
        """Record a pulse; `run_s` is the run's age."""
        self.pulse, self.heard = dict(pulse), now
        self.recent.append((now, pulse["seconds"]))
        _forget(self.recent, now)
        self.memory.add(run_s, pulse["rss_bytes"])
        self.most = tuple(max(b, pulse["bytes"].get(c, {}).get(k, 0)) for b, (c, k) in zip(self.most, BYTES))


@dataclass
class RunState:
    """State of one run. Times are seconds since its first report."""

    name: str
    began: float
    about: dict[str, Any] = field(default_factory=dict)
    """Description by its driver: see `publisher`."""
    ranks: dict[int, RankState] = field(default_factory=dict)
    level: dict[str, Any] = field(default_factory=dict)
    """The last `events.QueueLevel`, if any."""
    doing: str = ""
    """Activity of its driver, or of the first rank."""
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Stages of its driver: ``text``, ``done``, ``total``, ``began`` and ``ended`` (None while it runs)."""
    steps_per_epoch: int | None = None
    epoch: dict[str, Any] = field(default_factory=dict)
    """The last `events.EpochDone`."""
    best: dict[str, Any] = field(default_factory=dict)
    """The last `events.EpochDone` of a best epoch so far."""
    epochs: Curve = field(default_factory=Curve)
    """(train loss, main metric of the validation) of each epoch."""
    notes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NOTES))
    ended: str = ""
    """Reason of its end; empty while it runs."""
    ended_at: float | None = None
    before: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Steps and edges of each rank in earlier generations."""
    sampled_before: tuple[int, float] = (0, 0.0)
    """Bulks and seconds of sampling in earlier generations."""
    sums: Curve = field(default_factory=Curve)
    recent: deque[tuple[float, Sums]] = field(default_factory=deque)

    def end(self, how: str, now: float) -> None:
        """Record how the run ended, unless that is known already."""
        if not self.ended:
            self.ended, self.ended_at = how, now

    def stage(self, said: Mapping[str, Any], now: float) -> None:
        """Record an event of a stage."""
        at, name = now - self.began, said["stage"]
        if said["event"] == "StageStarted" or name not in self.stages:
            if name not in self.stages and len(self.stages) == STAGES:
                return
            began = at - said.get("seconds", 0.0)
            fresh = {"text": name, "done": 0, "total": None, "began": began, "ended": None}
            self.stages[name] = fresh | {key: said[key] for key in ("text", "total") if said.get(key)}
        seen = self.stages[name]
        if said["event"] == "StageAdvanced":
            seen |= {"done": said["done"], "total": said["total"] or seen["total"]}
        elif said["event"] == "StageEnded":
            seen["ended"] = at

    def restart(self, rank: int, worker: str, generation: int, now: float) -> RankState:
        """State of a rank in its next generation; its earlier work still counts."""
        seen = self.ranks[rank]
        if seen.pulse:
            steps, edges = self.before.get(rank, (0, 0))
            self.before[rank] = steps + seen.pulse["steps"], edges + seen.pulse["edges"]
        return RankState(worker, generation, now, now, memory=seen.memory, most=seen.most)

    def totals(self) -> Sums:
        """Sums over all ranks now."""
        pulses = {rank: seen.pulse for rank, seen in self.ranks.items() if seen.pulse}
        heard = {rank: (p["steps"], p["edges"]) for rank, p in pulses.items()}
        every = [tuple(map(sum, zip(heard.get(r, (0, 0)), self.before.get(r, (0, 0))))) for r in self.ranks]
        losses = [p["loss"] for p in pulses.values() if p["loss"] is not None]
        level = [self.level] if self.level else [p["queue"] for p in pulses.values() if p["queue"]]
        return Sums(
            # Ranks take steps together, so the furthest one has the number of steps.
            steps=max((steps for steps, _ in every), default=0),
            edges=sum(edges for _, edges in every),
            sampled=self.sampled_before[0] + self.level.get("sampled", 0),
            sample_s=self.sampled_before[1] + self.level.get("seconds", 0.0),
            bytes=tuple(map(sum, zip(*(seen.most for seen in self.ranks.values())))),
            loss=sum(losses) / len(losses) if losses else None,
            queue_bulks=sum(q["bulks"] for q in level),
            queue_bytes=sum(q["bytes"] for q in level),
        )


class History:
    """All runs that a scheduler has heard of. Used from one thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            clock: seconds since the epoch.
        """
        self._clock = clock
        self.runs: dict[str, RunState] = {}
        """Runs by name, the latest last."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock()

    def _run(self, name: str) -> RunState:
        if name not in self.runs:
            self.runs[name] = RunState(name, self.now())
            while len(self.runs) > RUNS:
                # Ended runs are dropped first.
                del self.runs[next((n for n, r in self.runs.items() if r.ended), next(iter(self.runs)))]
        return self.runs[name]

    def record_worker(self, worker: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Record a worker's report on its ranks: see `heartbeat.METRIC`."""
        for record in records:
            run, rank, now = self._run(record["run"]), record["rank"], self.now()
            seen = run.ranks.get(rank)
            if seen is not None and record["generation"] < seen.generation:
                continue
            if seen is None:
                seen = run.ranks[rank] = RankState(worker, record["generation"], now, now)
            elif record["generation"] > seen.generation:
                seen = run.ranks[rank] = run.restart(rank, worker, record["generation"], now)
            pulse = record["pulse"]
            if pulse and pulse["seconds"] != seen.pulse.get("seconds"):
                seen.record(pulse, now, now - run.began)
            seen.ended = seen.ended or record["ended"]

    def end_worker(self, worker: str) -> None:
        """End the ranks of a worker that is gone."""
        for run in self.runs.values():
            for seen in run.ranks.values():
                if seen.worker == worker:
                    seen.ended = seen.ended or "its worker is gone"

    def record_driver(self, message: Mapping[str, Any]) -> None:
        """Record a driver's message: see `publisher`."""
        run, now = self._run(message["run"]), self.now()
        if "about" in message:
            run.about = dict(message["about"])
        if "ended" in message:
            run.end(message["ended"], now)
        said = message.get("said", {})
        if str(said.get("event")).startswith("Stage"):
            run.stage(said, now)
        match said.get("event"):
            case "QueueLevel":
                if said["sampled"] < run.level.get("sampled", 0):
                    bulks, seconds = run.sampled_before
                    run.sampled_before = bulks + run.level["sampled"], seconds + run.level["seconds"]
                run.level = said
            case "EpochDone":
                run.epoch = said
                run.best = said if said["best"] else run.best
                run.epochs.add(now - run.began, (said["train_loss"], (main_metric_of_epoch(said) or ("", None))[1]))
            case "StageStarted":
                run.doing = said["text"]
            case "StageEnded":
                run.doing = ""
            case "StepDone":
                run.steps_per_epoch = said["steps_per_epoch"]
            case "Note":
                run.notes.append((now - run.began, said["text"]))

    def end_client(self, client: str) -> None:
        """End the runs of a driver that is gone."""
        for run in self.runs.values():
            if run.about.get("client") == client:
                run.end("its driver is gone", self.now())

    def tick(self) -> None:
        """Record where every run stands; called at intervals."""
        now = self.now()
        for run in self.runs.values():
            if run.ranks and (run.ended_at is None or now - run.ended_at < 2):
                sums = run.totals()
                run.sums.add(now - run.began, sums)
                run.recent.append((now, sums))
                _forget(run.recent, now)


def _forget(recent: deque[tuple[float, Any]], now: float) -> None:
    while len(recent) > 2 and recent[1][0] <= now - RECENT_S:
        recent.popleft()
