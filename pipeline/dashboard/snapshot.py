"""Data of `/millrace.json` and the page: rates and shares computed from the `History`, as plain values."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..telemetry.main_metric import main_metric_of_epoch
from ..telemetry.palette import STAGES
from .history import BYTES, History, RankState, RunState, Sums

SCHEMA_VERSION = 1
SPENT = tuple(name for name in STAGES if name != "sample")
"""Stages that divide a rank's own time; samples are drawn beside it."""
WAITS = ("queue_wait", "exchange", "reduce")
"""Stages in `SPENT` in which a rank waits for others."""
WINDOW_S = 10.0
"""Seconds over which rates and shares are taken."""
SILENT_S = 6.0
"""Seconds without a report after which a rank counts as silent: pulses come every second, and a large cluster's
heartbeats every few."""
SMOOTH_S = 2.0
"""Shortest time over which a curve's rates are taken: a step falls into one heartbeat or the next."""


def record(history: History) -> dict[str, Any]:
    """All runs, the newest first, as values that JSON can express."""
    runs = [run_record(run, history.now()) for run in reversed(history.runs.values())]
    return {"schema_version": SCHEMA_VERSION, "time": history.now(), "runs": runs}


def run_record(run: RunState, now: float) -> dict[str, Any]:
    """Record of one run. Seconds of curves and notes count from `began`."""
    exchanges, until = run.about.get("exchanges", ""), run.ended_at or now
    ranks = [_rank_record(number, seen, exchanges, now, run.ended) for number, seen in sorted(run.ranks.items())]
    rates = _rates(run.recent)
    sums = run.totals()
    metric = (main_metric_of_epoch(run.best) or main_metric_of_epoch(run.epoch) or ("accuracy", None))[0]
    return {
        "run": run.name,
        **{key: run.about.get(key) for key in ("command", "out", "system", "model", "dataset", "producers")},
        "num_ranks": run.about.get("ranks"),
        # Systems with phases have more epochs than were asked for.
        "epochs": run.epoch.get("epochs") or run.about.get("epochs"),
        "state": run.ended or ("running" if run.ranks or run.about.get("command") else "starting"),
        "doing": "" if run.ended else run.doing,
        "began": run.began,
        "elapsed_s": until - run.began,
        "epoch": max((r["epoch"] for r in ranks), default=-1),
        "step": max(((r["epoch"], r["step"]) for r in ranks), default=(-1, -1))[1],
        "steps_per_epoch": run.steps_per_epoch,
        "left_s": _left(run, ranks, until),
        "first_validation": run.about.get("evaluate_every"),
        "train_loss": _finite(run.epoch.get("train_loss")),
        "val_accuracy": run.epoch.get("val_accuracy"),
        "best_val_accuracy": run.best.get("val_accuracy"),
        "metric": metric,
        "best_validation": _finite((main_metric_of_epoch(run.best) or ("", None))[1]),
        "best_epoch": run.best.get("epoch", -1),
        "steps": sums.steps,
        "edges": sums.edges,
        "bulks_sampled": sums.sampled if run.level else None,
        "queue": _queue(run, sums),
        "rates": rates,
        "stages": _stages(run, rates, ranks),
        "progress": [_progress(run, name, stage, until) for name, stage in run.stages.items()],
        "hot": _hot([r["hot"] for r in ranks if r["hot"]]),
        "bytes": _by_channel(sums.bytes),
        "ranks": ranks,
        "epochs_done": [
            {
                "time_s": t,
                "train_loss": _finite(loss),
                "val_accuracy": val if metric == "accuracy" else None,
                "validation": _finite(val),
            }
            for t, (loss, val) in run.epochs.points
        ],
        "curves": _curves(run),
        "notes": [{"time_s": t, "text": text} for t, text in run.notes],
    }


def _left(run: RunState, ranks: list[dict[str, Any]], until: float) -> float | None:
    """Seconds until the last epoch ends, at the pace since the first step; None before it, and after the run."""
    epochs, each = run.epoch.get("epochs") or run.about.get("epochs"), run.steps_per_epoch
    epoch, step = max(((r["epoch"], r["step"]) for r in ranks), default=(-1, -1))
    begun = next(((t, s.steps) for t, s in run.sums.points if s.steps), None)
    if run.ended or not epochs or not each or epoch < 0 or begun is None:
        return None
    taken, seconds = run.totals().steps - begun[1], until - run.began - begun[0]
    left = epochs * each - (epoch * each + step + 1)
    return max(0, left) * seconds / taken if taken > 0 else None


def _progress(run: RunState, name: str, stage: dict[str, Any], until: float) -> dict[str, Any]:
    ended = stage["ended"]
    state = "done" if ended is not None or run.ended == "done" else "stopped" if run.ended else "running"
    seconds = (until - run.began if ended is None else ended) - stage["began"]
    return {"stage": name, **{key: stage[key] for key in ("text", "done", "total")}, "seconds": seconds, "state": state}


def _rank_record(number: int, seen: RankState, exchanges: str, now: float, run_ended: str) -> dict[str, Any]:
    p, silent_s = seen.pulse, now - seen.heard
    recent = _difference(seen.recent)
    over = bool(seen.ended or run_ended)
    whole = spent(p["seconds"], exchanges) if p else {}
    state = seen.ended or run_ended or ("silent" if p and silent_s > SILENT_S else "running" if p else "starting")
    if run_ended == "done":
        # Workers end before their driver reports the end.
        state = "done"
    return {
        "rank": number,
        "worker": seen.worker,
        "generation": seen.generation,
        "state": state,
        "silent_s": 0.0 if over or not p else silent_s,
        "stage": p.get("stage", ""),
        "epoch": p.get("epoch", -1),
        "step": p.get("step", -1),
        "steps": p.get("steps", 0),
        "edges": p.get("edges", 0),
        "loss": _finite(p.get("loss")),
        "seconds": p.get("seconds", {}),
        "share": {"recent": _share(spent(recent, exchanges)) if recent else {}, "whole": _share(whole)},
        "busy": {name: _ratio(recent.get(name, 0.0), recent.get("total", 0.0)) for name in ("sample", "exchange")},
        "bytes": p.get("bytes", {}),
        "rss_bytes": p.get("rss_bytes"),
        "memory": {"time_s": [t for t, _ in seen.memory.points], "rss_bytes": [b for _, b in seen.memory.points]},
        "hot": p.get("hot", {}),
        "queue": p.get("queue", {}),
    }


def spent(seconds: Mapping[str, float], exchanges: str) -> dict[str, float]:
    """A rank's time divided into `SPENT`; the seconds add up to its ``total``.

    Args:
        seconds: a rank's seconds by stage, as in `events.Pulse`; stages may overlap there.
        exchanges: when ranks exchange rows: ``within`` layers or ``beside`` them. Otherwise the exchange runs in a
            thread during training, or is part of ``fetch`` (on GPUs), so that only ``fetch`` counts.
    """
    parts = {name: seconds.get(name, 0.0) for name in SPENT}
    if exchanges == "within":
        parts["forward_backward"] = max(0.0, parts["forward_backward"] - parts["exchange"])
    elif exchanges != "beside":
        parts["exchange"] = 0.0
    parts["other"] = max(0.0, seconds.get("total", 0.0) - sum(s for name, s in parts.items() if name != "other"))
    return parts


def _difference(recent: deque[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Seconds of the recent past by stage."""
    if len(recent) < 2:
        return {}
    (_, a), (_, b) = _ends(recent)
    return {name: max(0.0, s - a.get(name, 0.0)) for name, s in b.items()}


def _ends(recent: deque[tuple[float, Any]]) -> tuple[tuple[float, Any], tuple[float, Any]]:
    """The last point, and the latest one that is `WINDOW_S` older, or else the oldest."""
    last = recent[-1]
    return next((p for p in reversed(recent) if last[0] - p[0] >= WINDOW_S), recent[0]), last


def _share(parts: dict[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: _ratio(s, total) for name, s in parts.items()} if total > 0 else {}


def _ratio(a: float, b: float) -> float:
    return min(1.0, a / b) if b > 0 else 0.0


def _rates(recent: deque[tuple[float, Sums]]) -> dict[str, Any]:
    """Rates per second over the recent past."""
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return {"over_s": 0.0, "steps": 0.0, "edges": 0.0, "bulks": 0.0, "sample_s": 0.0, "bytes": {}}
    (t0, a), (t1, b) = _ends(recent)
    return {"over_s": t1 - t0, **_per_second(a, b, t1 - t0), "bytes": _by_channel(_bytes_per_second(a, b, t1 - t0))}


def _per_second(a: Sums, b: Sums, seconds: float) -> dict[str, float]:
    gone = {
        "steps": b.steps - a.steps,
        "edges": b.edges - a.edges,
        "bulks": b.sampled - a.sampled,
        "sample_s": b.sample_s - a.sample_s,
    }
    return {name: max(0.0, n / seconds) for name, n in gone.items()}


def _bytes_per_second(a: Sums, b: Sums, seconds: float) -> tuple[float, ...]:
    return tuple(
        max(0.0, (y - x) / seconds) for x, y in zip(a.bytes or (0,) * len(BYTES), b.bytes or (0,) * len(BYTES))
    )


def _by_channel(values: Any) -> dict[str, dict[str, Any]]:
    """Values by channel and kind, without kinds that are zero."""
    found: dict[str, dict[str, Any]] = {}
    for (channel, kind), value in zip(BYTES, values):
        if value:
            found.setdefault(channel, {})[kind] = value
    return found


def _queue(run: RunState, sums: Sums) -> dict[str, Any] | None:
    """Level of the sampling tasks' queue, or of all that ranks fill themselves; None without queues."""
    own = [seen.pulse["queue"] for seen in run.ranks.values() if seen.pulse.get("queue")]
    if not run.level and not own:
        return None
    bound = run.level["bound"] if run.level else sum(q["bound"] for q in own)
    return {
        "bulks": sums.queue_bulks,
        "bytes": sums.queue_bytes,
        "bound": bound,
        "filled_by": "tasks" if run.level else "ranks",
    }


def _stages(run: RunState, rates: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Speed of each stage, and the share of its time that it waits, over the recent past."""
    live = [r for r in ranks if r["share"]["recent"]]
    stages: dict[str, Any] = {}

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    if run.level:
        busy = _ratio(rates["sample_s"], run.about.get("producers") or 1)
        stages["sample"] = {
            "by": "tasks",
            "bulks_per_s": rates["bulks"],
            "waits": 1 - busy if rates["over_s"] else None,
        }
    elif any(r["seconds"].get("sample") for r in ranks):
        stages["sample"] = {
            "by": "ranks",
            "bulks_per_s": None,
            "waits": 1 - mean([r["busy"]["sample"] for r in live]) if live else None,
        }
    if run.about.get("exchanges") == "background" and any(r["seconds"].get("exchange") for r in ranks):
        stages["fetch"] = {"by": "ranks", "waits": 1 - mean([r["busy"]["exchange"] for r in live]) if live else None}
    for_what = {name: mean([r["share"]["recent"].get(name, 0.0) for r in live]) for name in WAITS}
    stages["train"] = {
        "by": "ranks",
        "steps_per_s": rates["steps"],
        "edges_per_s": rates["edges"],
        "waits": sum(for_what.values()) if live else None,
        "for": for_what,
    }
    return stages


def _hot(counts: list[dict[str, int]]) -> dict[str, Any] | None:
    """Counts of the feature caches over all ranks."""
    if not counts:
        return None
    asked, hits = sum(h["asked"] for h in counts), sum(h["hits"] for h in counts)
    return {"rows": sum(h["rows"] for h in counts), "asked": asked, "hits": hits, "rate": _ratio(hits, asked)}


def _curves(run: RunState) -> dict[str, Any]:
    """Curves over the life of the run: levels at each moment, and rates since the moment before."""
    points = [(t, sums) for t, sums in run.sums.points]
    if run.recent:
        latest = run.recent[-1][0] - run.began, run.recent[-1][1]
        points += [latest] if not points or latest[0] > points[-1][0] else []
    names = [f"{channel} {kind}" for channel, kind in BYTES]
    rates: dict[str, list[Any]] = {name: [] for name in ("rate_time_s", "steps", "edges", "bulks", *names)}
    before = points[0] if points else None
    for t, sums in points[1:]:
        assert before is not None
        if (seconds := t - before[0]) < SMOOTH_S:
            continue
        found = _per_second(before[1], sums, seconds) | dict(zip(names, _bytes_per_second(before[1], sums, seconds)))
        for name, values in rates.items():
            values.append(t if name == "rate_time_s" else found[name])
        before = t, sums
    return {
        "time_s": [t for t, _ in points],
        "loss": [_finite(s.loss) for _, s in points],
        "queue_bulks": [s.queue_bulks for _, s in points],
        "queue_bytes": [s.queue_bytes for _, s in points],
        "rates": {name: values for name, values in rates.items() if name not in names or any(values)},
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
