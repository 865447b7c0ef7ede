"""Summary of a run: a headline, findings, and a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..setup.result import ONE_STEP, STOPPED
from ..telemetry.main_metric import main_metric_of
from ..telemetry.templates import rendered
from .reading import RunRecord
from .timeline import ROWS, WAITING, Timeline

WORTH_SAYING = 0.10
"""Share of the ranks' time below which a stage appears in tables only."""
SLOW_START = 0.25
"""Share of a run's time before its first step above which the summary mentions it and the rest gets a picture."""
BOTTLENECK = 0.25
"""Share of the ranks' time in training above which a stage counts as a bottleneck."""


@dataclass(frozen=True, eq=False)
class Summary:
    """A run in a few numbers. Seconds and shares are computed from the ranks' pulses, and empty without them."""

    headline: str
    findings: list[str]
    seconds: list[dict[str, float]]
    """Seconds of each rank, by stage of `ROWS`."""
    shares: dict[str, float]
    """Share of all ranks' time, by stage."""
    waits: list[list[float]]
    """See `Timeline.waits`."""
    bytes: dict[str, dict[str, int]]
    """Bytes by channel and kind, from the result, or else from pulses."""
    sent: dict[str, list[list[int]]]
    """[P][P] bytes of messages from rank to rank, by channel."""
    peak_rss_bytes: list[int]
    total_s: float
    epochs: int

    def as_record(self, run: RunRecord) -> dict[str, Any]:
        """The summary as plain values, for JSON."""
        result = run.result or {}
        return {
            "run": str(run.folder),
            "status": run.status,
            **{key: getattr(self, key) for key in ("headline", "findings")},
            **{key: result.get(key, run.config.get(key)) for key in ("system", "dataset", "ranks")},
            **{key: result.get(key) for key in ("val_accuracy", "test_accuracy", "train_loss", "best_epoch")},
            **{key: result.get(key) or {} for key in ("val_metrics", "test_metrics")},
            "epochs": self.epochs,
            "seconds": {"total": self.total_s, "per_rank": self.seconds},
            **{key: getattr(self, key) for key in ("shares", "waits", "bytes", "sent", "peak_rss_bytes")},
        }


def summarise(run: RunRecord, line: Timeline | None) -> Summary:
    """Summarise a run from its folder and its timeline."""
    seconds = [line.seconds(rank) for rank in line.ranks] if line else []
    whole = sum(sum(s.values()) for s in seconds)
    shares = {name: sum(s[name] for s in seconds) / whole for name in ROWS} if whole else {}
    waits = line.waits().tolist() if line and len(seconds) > 1 else []
    result, logs = run.result or {}, [log for _, log in sorted(run.log.ranks.items())]
    peaks = result.get("peak_rss_bytes") or [int(max(log.beats["rss_bytes"])) for log in logs]
    total_s = result.get("seconds", {}).get("total") or (line.length if line else 0.0)
    counted = {k: v for k, v in result.get("bytes", {}).items() if k != "per_rank"}
    counted = counted or _added([log.lives[-1]["bytes"] for log in logs])
    epochs = result.get("epochs", len(run.log.epochs))
    said = _headline(run, shares, total_s, epochs), _findings(run, line, waits)
    spent = seconds, shares, waits
    return Summary(*said, *spent, counted, sent=_sent(run), peak_rss_bytes=peaks, total_s=total_s, epochs=epochs)


def _added(records: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    added: dict[str, dict[str, int]] = {}
    for channel, kinds in (item for record in records for item in record.items()):
        for kind, num_bytes in kinds.items():
            added.setdefault(channel, {})[kind] = added.get(channel, {}).get(kind, 0) + num_bytes
    return added


def _sent(run: RunRecord) -> dict[str, list[list[int]]]:
    """Bytes over all generations of a rank; repeated work counts again."""
    found = [
        (r, channel, to)
        for r, log in run.log.ranks.items()
        for life in log.lives
        for channel, kinds in life["sent_to"].items()
        for to in kinds.values()
    ]
    size = max([len(to) for *_, to in found] + [r + 1 for r, *_ in found], default=0)
    tables: dict[str, np.ndarray[Any, Any]] = {}
    for rank, channel, to in found:
        tables.setdefault(channel, np.zeros((size, size), np.int64))[rank, : len(to)] += np.array(to, np.int64)
    return {channel: table.tolist() for channel, table in tables.items()}


def _headline(run: RunRecord, shares: dict[str, float], total_s: float, epochs: int) -> str:
    largest = sorted(((share, name) for name, share in shares.items() if share >= WORTH_SAYING), reverse=True)[:3]
    result = run.result or {}
    return rendered(
        "headline.txt",
        # A dataset of a script is stored in the run's folder; its result has the name.
        **{name: getattr(run, name) for name in ("result", "config", "folder", "running")},
        ranks=int((run.result or run.config).get("ranks") or 1),
        epochs=epochs,
        total_s=total_s,
        stopped=result.get("status") == STOPPED,
        tested=main_metric_of(result, "test"),
        largest=largest,
    ).strip()


def _findings(run: RunRecord, line: Timeline | None, waits: list[list[float]]) -> list[str]:
    known = line if line and line.ranks else None
    return rendered(
        "findings.txt",
        result=run.result or {},
        length=known.length if known else 0.0,
        began=known and _began_late(run, known),
        held=_held_up(run, known) if known else [],
        stored=not run.log.levels and not any(any(log.beats["sample"]) for log in run.log.ranks.values()),
        slow=known and _waited_for(known, np.array(waits)),
        waiting=WAITING,
        one_step=[text for _, text in run.log.notes if text.startswith(ONE_STEP)][-1:] or _one_step(run),
    ).splitlines()


def _one_step(run: RunRecord) -> list[str]:
    """The finding on epochs of one step, of a run by a version that noted none."""
    result = run.result or {}
    epochs, minibatches = result.get("epochs", 0), result.get("minibatches", 0)
    return [f"{ONE_STEP}."] if 0 < minibatches <= epochs * result.get("minibatches_per_step", 0) else []


def first_step(run: RunRecord, line: Timeline) -> float:
    """Time of the first step's end, in seconds of the timeline; the timeline's end if there was none."""
    first = min((at for at, *_ in run.log.steps.values()), default=None)
    return line.length if first is None else float(line.positions(first))


def _began_late(run: RunRecord, line: Timeline) -> tuple[float, str] | None:
    """The time before the first step, if it was long, and the stage with most of it."""
    first = first_step(run, line)
    if not SLOW_START * line.length < first < line.length:
        return None
    before = line.over_ranks(last=first)
    before["other"] += first * len(line.ranks) - sum(before.values())  # until the ranks began
    return first, max(before, key=lambda stage: before[stage])


def _held_up(run: RunRecord, line: Timeline) -> list[tuple[str, float]]:
    """Bottlenecks after the first epoch, when all kernels are compiled, and their shares of the time."""
    times = [e["time"] for _, e in sorted(run.log.epochs.items())]
    seconds = line.over_ranks(*line.positions([times[0], times[-1]]).tolist()) if len(times) > 1 else {}
    whole = sum(seconds.values())
    stages = ("queue_wait", "fetch", "exchange", "evaluate") if whole else ()
    return [(name, seconds[name] / whole) for name in stages if seconds[name] > BOTTLENECK * whole]


def _waited_for(line: Timeline, waits: "np.ndarray[Any, Any]") -> dict[str, float] | None:
    """The rank that the others waited for, if they did for long."""
    if waits.size < 4:
        return None
    caused = waits.sum(axis=0)
    slow = int(caused.argmax())
    rank, own = list(line.ranks)[slow], line.seconds(list(line.ranks)[slow])
    all_ranks, others = line.over_ranks(), len(line.ranks) - 1
    lived = sum(all_ranks.values()) - sum(own.values())
    if caused[slow] <= WORTH_SAYING * lived:
        return None
    computed, theirs = own["forward_backward"], (all_ranks["forward_backward"] - own["forward_backward"]) / others
    return {"rank": rank, "caused": caused[slow], "share": caused[slow] / lived, "computed": computed, "theirs": theirs}
