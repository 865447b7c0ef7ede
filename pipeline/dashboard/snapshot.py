"""Data of `/millrace.json` and the page: rates and shares computed from the `History`, as plain values."""

import math
from collections.abc import Mapping
from typing import Any

from ..telemetry.palette import STAGES
from ..telemetry.run_log import StageSpan
from .history import BYTES, SUMS, History, RankState, RunState

SCHEMA_VERSION = 1
SPENT = tuple(name for name in STAGES if name != "sample")
"""Stages that divide a rank's own time; samples are drawn beside it."""
WAITS = ("queue_wait", "exchange", "reduce")
"""Stages in `SPENT` in which a rank waits for others."""
WINDOW_S = 10.0
"""Seconds over which rates and shares are taken."""
SILENT_S = 6.0
"""Seconds without a report after which a rank counts as silent: reports come every second or every few."""
RATES = {"steps": "steps", "edges": "edges", "sampled": "bulks", "sample_s": "sample_s"}
"""Names of rates, by the sum that they are of."""
SMOOTH_S = 2.0
"""Shortest time over which a curve's rates are taken: a step falls into one heartbeat or the next."""


def record(history: History) -> dict[str, Any]:
    """All runs, the newest first, as values that JSON can express."""
    runs = [run_record(run, history.now()) for run in reversed(history.runs.values())]
    return {"schema_version": SCHEMA_VERSION, "time": history.now(), "runs": runs}


def run_record(run: RunState, now: float) -> dict[str, Any]:
    """Record of one run. Seconds of curves and notes count from `began`."""
    about, log, until, began = run.about, run.log, run.ended_at or now, run.began
    ranks = [_rank_record(number, seen, run, now) for number, seen in sorted(run.ranks.items())]
    rates, sums, latest = _rates(run), run.totals(), log.latest
    is_accuracy = log.metric == "accuracy"
    epoch, step = max(((r["epoch"], r["step"]) for r in ranks), default=(-1, -1))
    record = {
        "run": run.name,
        **{key: about.get(key) for key in ("command", "out", "system", "model", "dataset", "producers")},
        "num_ranks": about.get("ranks"),
        # Systems with phases have more epochs than were asked for.
        "epochs": latest.get("epochs") or about.get("epochs"),
        "state": run.ended or ("running" if run.ranks or about.get("command") else "starting"),
        "doing": "" if run.ended else log.doing,
        "began": began,
        "elapsed_s": until - began,
        "epoch": epoch,
        "step": step,
        "steps_per_epoch": log.steps_per_epoch,
        "first_validation": about.get("evaluate_every"),
        "train_loss": latest.get("train_loss"),
        "val_accuracy": latest.get("validation") if is_accuracy else None,
        "best_val_accuracy": log.best.get("validation") if is_accuracy else None,
        "metric": log.metric,
        "best_validation": log.best.get("validation"),
        "best_epoch": log.best.get("epoch", -1),
        **{key: sums[key] for key in ("steps", "edges")},
        "bulks_sampled": sums["sampled"] if log.level else None,
        "queue": _queue(run, sums),
        "rates": rates,
        "stages": _stages(run, rates, ranks),
        "progress": [_progress(span, run, until) for span in log.spans],
        "hot": _hot([r["hot"] for r in ranks if r["hot"]]),
        "bytes": _by_channel(sums),
        "ranks": ranks,
        "epochs_done": [_epoch_record(row, began, is_accuracy) for row in log.epochs.values()],
        "curves": _curves(run),
        "notes": [{"time_s": at - began, "text": text} for at, text in log.notes],
        "unreadable": log.unreadable,
    }
    return record | {"left_s": _left(record, run)}


def _epoch_record(row: Mapping[str, Any], began: float, is_accuracy: bool) -> dict[str, Any]:
    known = {key: row[key] for key in ("train_loss", "validation")}
    return {"time_s": row["time"] - began, "val_accuracy": row["validation"] if is_accuracy else None, **known}


def _left(record: dict[str, Any], run: RunState) -> float | None:
    """Seconds until the last epoch ends, at the pace since the first step; None before it, and after the run."""
    epochs, each, steps = record["epochs"], record["steps_per_epoch"], run.sums["steps"]
    first = next((i for i, taken in enumerate(steps) if taken), None)
    if run.ended or not epochs or not each or record["epoch"] < 0 or first is None:
        return None
    taken, seconds = record["steps"] - steps[first], record["elapsed_s"] - (run.sums["time"][first] - run.began)
    left = epochs * each - (record["epoch"] * each + record["step"] + 1)
    return max(0, left) * seconds / taken if taken > 0 else None


def _progress(span: StageSpan, run: RunState, until: float) -> dict[str, object]:
    state = "done" if span.end < math.inf or run.ended == "done" else "stopped" if run.ended else "running"
    seconds = min(until, span.end) - span.begin
    known = {key: value for key, value in vars(span).items() if key in ("stage", "text", "done", "total")}
    return {**known, "seconds": seconds, "state": state}


def _rank_record(number: int, seen: RankState, run: RunState, now: float) -> dict[str, Any]:
    p, silent_s, exchanges, beats = seen.pulse, now - seen.heard, run.about.get("exchanges", ""), seen.log.beats
    ends = beats.ends(WINDOW_S) if p else None
    recent = {} if ends is None else {name: max(0.0, ends[1][name] - ends[0][name]) for name in ends[1]}
    over = bool(seen.ended or run.ended)
    state = seen.ended or run.ended or ("silent" if p and silent_s > SILENT_S else "running" if p else "starting")
    if run.ended == "done":
        # Workers end before their driver reports the end.
        state = "done"
    return {
        "rank": number,
        "worker": seen.worker,
        "generation": seen.generation,
        "state": state,
        "silent_s": 0.0 if over or not p else silent_s,
        "stage": p.get("stage", ""),
        **{key: p.get(key, -1) for key in ("epoch", "step")},
        **{key: p.get(key, 0) for key in ("steps", "edges")},
        **{key: p.get(key) for key in ("loss", "rss_bytes")},
        **{key: p.get(key, {}) for key in ("seconds", "bytes", "hot", "queue")},
        "share": {
            "recent": _share(spent(recent, exchanges)) if recent else {},
            "whole": _share(spent(p["seconds"], exchanges)) if p else {},
        },
        "busy": {name: _ratio(recent.get(name, 0.0), recent.get("total", 0.0)) for name in ("sample", "exchange")},
        "memory": {"time_s": [t - run.began for t in beats["time"]], "rss_bytes": list(beats["rss_bytes"])},
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


def _share(parts: dict[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: _ratio(s, total) for name, s in parts.items()} if total > 0 else {}


def _ratio(a: float, b: float) -> float:
    return min(1.0, a / b) if b > 0 else 0.0


def _rates(run: RunState) -> dict[str, object]:
    """Rates per second over the recent past."""
    ends = run.sums.ends(WINDOW_S)
    found = _per_second(*ends) if ends else dict.fromkeys(RATES.values(), 0.0)
    over = ends[1]["time"] - ends[0]["time"] if ends else 0.0
    return {"over_s": over, **{name: found[name] for name in RATES.values()}, "bytes": _by_channel(found)}


def _per_second(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Rates between two rows of `history.SUMS`: those of `RATES` by their names there, and of bytes."""
    seconds = b["time"] - a["time"]
    names = {**RATES, **{name: name for name in map(" ".join, BYTES)}}
    return {to: max(0.0, (b[name] - a[name]) / seconds) for name, to in names.items()}


def _by_channel(values: Mapping[str, float]) -> dict[str, dict[str, object]]:
    """Values of bytes by channel and kind, without kinds that are zero."""
    found: dict[str, dict[str, Any]] = {}
    for channel, kind in BYTES:
        if value := values.get(f"{channel} {kind}"):
            found.setdefault(channel, {})[kind] = value
    return found


def _queue(run: RunState, sums: Mapping[str, float]) -> dict[str, Any] | None:
    """Level of the sampling tasks' queue, or of all that ranks fill themselves; None without queues."""
    own = [seen.pulse["queue"] for seen in run.ranks.values() if seen.pulse.get("queue")]
    level = run.log.level
    if not level and not own:
        return None
    return {
        "bulks": sums["queue_bulks"],
        "bytes": sums["queue_bytes"],
        "bound": level["bound"] if level else sum(q["bound"] for q in own),
        "filled_by": "tasks" if level else "ranks",
    }


def _stages(run: RunState, rates: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Speed of each stage, and the share of its time that it waits, over the recent past."""
    live = [r for r in ranks if r["share"]["recent"]]
    stages: dict[str, Any] = {}

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    def by_ranks(stage: str) -> dict[str, Any] | None:
        """None if no rank has done it."""
        waits = 1 - mean([r["busy"][stage] for r in live]) if live else None
        return {"by": "ranks", "waits": waits} if any(r["seconds"].get(stage) for r in ranks) else None

    if run.log.level:
        busy = _ratio(rates["sample_s"], run.about.get("producers") or 1)
        waits = 1 - busy if rates["over_s"] else None
        stages["sample"] = {"by": "tasks", "bulks_per_s": rates["bulks"], "waits": waits}
    elif found := by_ranks("sample"):
        stages["sample"] = {**found, "bulks_per_s": None}
    if run.about.get("exchanges") == "background" and (found := by_ranks("exchange")):
        stages["fetch"] = found
    for_what = {name: mean([r["share"]["recent"].get(name, 0.0) for r in live]) for name in WAITS}
    stages["train"] = {
        "by": "ranks",
        "steps_per_s": rates["steps"],
        "edges_per_s": rates["edges"],
        "waits": sum(for_what.values()) if live else None,
        "for": for_what,
    }
    return stages


def _hot(counts: list[dict[str, int]]) -> dict[str, object] | None:
    """Counts of the feature caches over all ranks."""
    if not counts:
        return None
    asked, hits = sum(h["asked"] for h in counts), sum(h["hits"] for h in counts)
    return {"rows": sum(h["rows"] for h in counts), "asked": asked, "hits": hits, "rate": _ratio(hits, asked)}


def _curves(run: RunState) -> dict[str, object]:
    """Curves over the life of the run: levels at each moment, and rates since the moment before."""
    sums, names = run.sums, [*map(" ".join, BYTES)]
    rows = [{name: sums[name][i] for name in ("time", *SUMS)} for i in range(len(sums))]
    if sums.recent and sums.recent[-1]["time"] > rows[-1]["time"]:
        rows.append(sums.recent[-1])
    rates: dict[str, list[float]] = {name: [] for name in ("rate_time_s", "steps", "edges", "bulks", *names)}
    before = rows[0] if rows else {}
    for row in rows[1:]:
        if row["time"] - before["time"] < SMOOTH_S:
            continue
        found = {"rate_time_s": row["time"] - run.began, **_per_second(before, row)}
        for name, values in rates.items():
            values.append(found[name])
        before = row
    return {
        "time_s": [row["time"] - run.began for row in rows],
        "loss": [row["loss"] if math.isfinite(row["loss"]) else None for row in rows],
        **{name: [row[name] for row in rows] for name in ("queue_bulks", "queue_bytes")},
        "rates": {name: values for name, values in rates.items() if name not in names or any(values)},
    }
