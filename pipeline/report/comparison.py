"""Comparison of several runs: a table, and their curves in one picture."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...storage.ledger import KINDS as LEDGER
from ..telemetry.curves import by_epoch
from ..telemetry.main_metric import main_metric_of
from ..telemetry.palette import KINDS, STAGES
from ..telemetry.quantities import amount, decimal
from .canvas import Sheet
from .figures import OTHER, Draw, line_style
from .reading import RunRecord
from .summary import Summary, first_step
from .timeline import ROWS, Timeline

Run = tuple[RunRecord, Timeline | None, Summary]


def differing(runs: list[RunRecord]) -> list[tuple[str, list[Any]]]:
    """Configuration keys that differ between runs, with their values; None if a run has no such key."""
    keys = sorted({key for run in runs for key in run.config})
    table = [(key, [run.config.get(key) for run in runs]) for key in keys]
    return [(key, values) for key, values in table if any(v != values[0] for v in values)]


def table(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Rows of the comparison: a label, and a value for each run."""

    def each(of: Callable[[RunRecord, Summary], Any]) -> list[str]:
        return [of(run, summary) or "" for run, _, summary in runs]

    def scores(metric: str, split: str) -> list[str]:
        found = (main_metric_of(run.result or {}, split) for run, _, _ in runs)
        return [decimal(value) if name == metric else "" for name, value in found]

    rows = [
        ("status", each(lambda run, _: run.status)),
        ("system", each(lambda run, _: run.config.get("system"))),
        ("model", each(lambda run, _: (run.result or {}).get("model") or run.config.get("model.name"))),
        ("ranks", each(lambda run, _: str(run.config.get("ranks")))),
        ("epochs", each(lambda _, summary: str(summary.epochs))),
        *(
            (f"{word} {metric}", scores(metric, split))
            for metric in _metrics(runs)
            for word, split in (("test", "test"), ("validation", "val"))
        ),
        ("seconds an epoch (median)", each(lambda run, _: (s := epoch_seconds(run)) and f"{s:.3f}")),
        ("seconds in all", each(lambda _, summary: f"{summary.total_s:.2f}")),
        ("largest share from the first step on", [_most(run, line) for run, line, _ in runs]),
        ("peak memory of a rank", each(lambda _, s: s.peak_rss_bytes and amount(max(s.peak_rss_bytes)))),
        ("training step's memory", each(lambda run, _: (steps := _steps(run)) and amount(max(steps)))),
    ]
    kinds = dict.fromkeys((c, k) for *_, s in runs for c, found in s.bytes.items() for k, n in found.items() if n)
    kinds = sorted(kinds, key=lambda ck: (_position(LEDGER, ck[0]), _position(KINDS, ck[1])))
    rows += [(f"{c}: {k}", each(lambda _, s, c=c, k=k: amount(s.bytes.get(c, {}).get(k, 0)))) for c, k in kinds]
    return [(name, values) for name, values in rows if any(values)]


def _metrics(runs: list[Run]) -> list[str]:
    """Main metrics of the runs, each once."""
    return sorted({main_metric_of(run.result, "val")[0] if run.result else run.log.metric for run, _, _ in runs})


def epoch_seconds(run: RunRecord) -> float | None:
    """Median seconds of an epoch."""
    seconds = (run.result or {}).get("seconds", {}).get("per_epoch") or [e["seconds"] for e in run.log.epochs.values()]
    return float(np.median(seconds)) if seconds else None


def _steps(run: RunRecord) -> list[int]:
    """Bytes of a step, by rank."""
    return [m.get("step", 0) for m in (run.result or {}).get("memory_bytes") or []]


def _position(known: Iterable[str], name: str) -> int:
    """Position of a name among the known ones; unknown names come last."""
    names = list(known)
    return names.index(name) if name in names else len(names)


def _most(run: RunRecord, line: Timeline | None) -> str:
    spent = line.over_ranks(first_step(run, line)) if line else {}
    whole = sum(spent.values())
    name = max(spent, key=lambda stage: spent[stage], default="")
    return f"{name} {spent[name] / whole:.0%}" if whole else ""


def overlaid(runs: list[Run], value: str, by_time: bool) -> Draw | None:
    """One curve for each run.

    Args:
        runs: the runs of the report.
        value: a key of `RunLog.epochs`.
        by_time: plot over seconds since the first step, not over epochs.
    """
    curves = []
    for number, (run, line, _) in enumerate(runs):
        epochs = [(n + 1, e["time"], e[value]) for n, e in sorted(run.log.epochs.items()) if e[value] is not None]
        start = first_step(run, line) if line else 0.0
        points = [(float(line.positions(at)) - start if by_time and line else n, y) for n, at, y in epochs]
        if points:
            curves.append((run.name, np.array(points, dtype=float), line_style(number)))
    if not curves:
        return None

    def draw(sheet: Sheet) -> None:
        (ax,) = sheet.rows([2.6])
        for name, points, style in curves:
            ax.plot(*points.T, label=name, marker="o" if len(points) < 30 else None, markersize=3, **style)
        ax.grid(True)
        ax.set_xlabel("seconds since the first step") if by_time else by_epoch(ax)
        sheet.legend(*ax.get_legend_handles_labels())

    return draw


def stacked(runs: list[Run], of: Callable[[Run], dict[str, float]], colours: dict[str, str], unit: str) -> Draw | None:
    """A bar for each run, divided by stage or kind."""
    bars = [(run[0].name, of(run)) for run in runs]
    names = [name for name in colours if any(pieces.get(name) for _, pieces in bars)]
    if not names:
        return None

    def draw(sheet: Sheet) -> None:
        (ax,) = sheet.rows([0.4 + 0.36 * len(bars)])
        values = np.array([[pieces.get(name, 0.0) for _, pieces in bars] for name in names])
        handles = [
            ax.barh(range(len(bars)), of, left=end - of, color=colours[name], height=0.7)
            for name, of, end in zip(names, values, values.cumsum(axis=0))
        ]
        ax.set_yticks(range(len(bars)), [name if len(name) < 24 else f"…{name[-22:]}" for name, _ in bars])
        ax.invert_yaxis()
        ax.set_xlabel(unit)
        sheet.legend(handles, names)

    return draw


def pictures_of(runs: list[Run]) -> dict[str, tuple[str, Draw]]:
    """Caption and drawing function of each picture, by name."""

    def by_stage(run: Run) -> dict[str, float]:
        record, line, _ = run
        spent = line.over_ranks(first_step(record, line)) if line else {}
        return {name: s / max(1, len(line.ranks) if line else 0) for name, s in spent.items()}

    def by_kind(run: Run) -> dict[str, float]:
        return {kind: n / 2**20 for kind, n in run[2].bytes.get("network", {}).items()}

    def by_memory(run: Run) -> dict[str, float]:
        record, _, summary = run
        held = max((record.result or {}).get("memory_bytes") or [{}], key=lambda m: sum(m.values()))
        known = {name: held.get(name, 0) / 2**20 for name in ("graph", "features", "step")}
        peak = max(summary.peak_rss_bytes, default=0) / 2**20
        return {**known, "other": max(0.0, peak - sum(known.values()))}

    found: dict[str, tuple[str, Draw | None]] = {}
    for metric in _metrics(runs):
        alike = [run for run in runs if run[0].log.metric == metric]
        found[metric] = f"Validation {metric} by epoch.", overlaid(alike, "validation", by_time=False)
        timed = f"Validation {metric} by time since the first step: start-up is left out."
        found[f"{metric}-time"] = timed, overlaid(alike, "validation", by_time=True)
    found |= {
        "loss": ("Training loss by epoch.", overlaid(runs, "train_loss", by_time=False)),
        "time": (
            f"Seconds of a rank by stage from the first step on, mean over ranks. {OTHER}",
            stacked(runs, by_stage, {n: STAGES[n] for n in ROWS}, "seconds"),
        ),
        "network": ("Sent over the network in training, all ranks.", stacked(runs, by_kind, KINDS, "MiB")),
        "memory": (
            "Peak memory of a rank: its known parts, and the rest (the process, its libraries, and other memory that "
            "is not counted). Features that are mapped from disk count in full.",
            stacked(runs, by_memory, {**KINDS, "other": STAGES["other"]}, "MiB"),
        ),
    }
    return {name: (caption, draw) for name, (caption, draw) in found.items() if draw}
