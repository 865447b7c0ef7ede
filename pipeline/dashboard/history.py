"""The runs on a scheduler, in bounded memory, without Dask or drawing.

Ranks report through the metrics of their workers; what only a driver knows comes in its messages (`publisher`).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...storage.ledger import KINDS
from ..telemetry.run_log import RankLog, RunLog, Series

RUNS = 6
"""Most runs that are remembered."""
POINTS = 300
"""Most points of a curve over the life of a run."""
BYTES = [(channel, kind) for channel, kinds in KINDS.items() for kind in kinds]
SUMS = ("steps", "edges", "sampled", "sample_s", "loss", "queue_bulks", "queue_bytes", *map(" ".join, BYTES))
"""Sums over all ranks of a run: steps, edges, bulks that sampling tasks drew, their seconds, the mean loss of the last
step (NaN without one), the contents of the queue, and bytes by channel and kind."""
ENDED_S = 2.0
"""Seconds after a run's end in which last reports are awaited."""


@dataclass
class RankState:
    """One rank, as last reported."""

    worker: str
    generation: int
    log: RankLog
    heard: float
    """Time of its last pulse with progress; that of its first report before."""
    pulse: dict[str, Any] = field(default_factory=dict)
    """The last pulse of this generation; empty before the first."""
    ended: str = ""
    """Reason of its end; empty while it runs."""


@dataclass
class RunState:
    """One run or command."""

    name: str
    began: float
    """Time of its first report."""
    about: dict[str, Any] = field(default_factory=dict)
    """Description by its driver: see `publisher`."""
    log: RunLog = field(default_factory=lambda: RunLog(POINTS))
    ranks: dict[int, RankState] = field(default_factory=dict)
    sums: Series = field(default_factory=lambda: Series(SUMS, POINTS))
    ended: str = ""
    """Reason of its end; empty while it runs."""
    ended_at: float | None = None

    @contextmanager
    def counting_unreadable(self) -> Iterator[None]:
        """Count a report that is not as it should be: any client of the scheduler can send one."""
        try:
            yield
        except (KeyError, TypeError, ValueError):
            self.log.unreadable += 1

    def end(self, how: str, now: float) -> None:
        """Record how the run ended, unless that is known already."""
        if not self.ended:
            self.ended, self.ended_at = how, now

    def totals(self) -> dict[str, float]:
        """Values of `SUMS` now."""
        logs, pulses = self.log.ranks.values(), [seen.pulse for seen in self.ranks.values() if seen.pulse]
        losses = [p["loss"] for p in pulses if p["loss"] is not None]
        levels = [self.log.level] if self.log.level else [p["queue"] for p in pulses if p["queue"]]
        return {
            # Ranks take steps together, so the furthest one has the number of steps.
            "steps": max((log.in_all("steps") for log in logs), default=0),
            "edges": sum(log.in_all("edges") for log in logs),
            "sampled": self.log.sampled["bulks"],
            "sample_s": self.log.sampled["seconds"],
            "loss": sum(losses) / len(losses) if losses else math.nan,
            "queue_bulks": sum(level["bulks"] for level in levels),
            "queue_bytes": sum(level["bytes"] for level in levels),
            **{" ".join(which): sum(log.most_bytes(*which) for log in logs) for which in BYTES},
        }


class History:
    """All runs that a scheduler has heard of. Used from one thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            clock: seconds since 1970.
        """
        self._clock = clock
        self.runs: dict[str, RunState] = {}
        """Runs by name, the latest last."""

    def now(self) -> float:
        """Seconds since 1970."""
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
            seen, generation = run.ranks.get(rank), record["generation"]
            if seen is None or generation > seen.generation:
                log = run.log.ranks.setdefault(rank, RankLog(POINTS))
                seen = run.ranks[rank] = RankState(worker, generation, log, now)
            elif generation < seen.generation:
                continue
            pulse = record["pulse"]
            if pulse and pulse["seconds"] != seen.pulse.get("seconds"):
                with run.counting_unreadable():
                    seen.log.add(now, pulse, is_new_life=not seen.pulse)
                    seen.pulse, seen.heard = seen.log.lives[-1], now
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
        if event := message.get("said"):
            with run.counting_unreadable():
                run.log.take(event["event"], now, event)

    def end_client(self, client: str) -> None:
        """End the runs of a driver that is gone."""
        for run in self.runs.values():
            if run.about.get("client") == client:
                run.end("its driver is gone", self.now())

    def tick(self) -> None:
        """Record where every run stands; called at intervals."""
        now = self.now()
        for run in self.runs.values():
            if run.ranks and (run.ended_at is None or now - run.ended_at < ENDED_S):
                run.sums.add(now, run.totals())
