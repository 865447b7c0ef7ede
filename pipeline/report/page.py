"""The report's page: the values that its templates need."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...storage.plural import counted
from ...storage.stored.data_card import described
from ..config.systems import SYSTEMS
from ..setup.result import read_card, versions
from ..telemetry.main_metric import main_metric_of
from ..telemetry.palette import FAINT, INK, KIND_MEANINGS, STAGE_MEANINGS, STAGES, VARIABLES
from ..telemetry.quantities import amount, duration
from ..telemetry.templates import rendered
from . import comparison
from .canvas import Picture
from .reading import RunRecord
from .stores import StoreRecord, records_behind, sections
from .summary import Summary, last_event_clause
from .timeline import ROWS, Timeline

COLOURS = {**VARIABLES, INK: "--ink", FAINT: "--faint"}
"""CSS variables by colour."""
MOST_NOTES = 200
MATRIX_RANKS = 16
MOST_CLASSES, MOST_COLUMNS = 100, 40
"""Classes in the table of classes, and in the confusion matrix."""


def render(runs: list[comparison.Run], pictures: list[dict[str, Picture]], compared: dict[str, Picture]) -> str:
    """The page as HTML; everything from a run's folder is escaped.

    Args:
        runs: the runs of the report.
        pictures: pictures of each run, by name.
        compared: pictures of all runs together, by name; empty for one run.
    """
    return rendered(
        "page.html",
        title=f"Report: {', '.join(run.name for run, *_ in runs)}",
        runs=[section(*run, drawn) for run, drawn in zip(runs, pictures)],
        comparison=comparison.table(runs) if len(runs) > 1 else [],
        differing=comparison.differing([run for run, *_ in runs]) if len(runs) > 1 else [],
        compared=compared,
        stage_meanings={name: (COLOURS[STAGES[name]], STAGE_MEANINGS[name]) for name in ROWS},
        kind_meanings=KIND_MEANINGS,
        **_written(),
    )


def render_stores(records: Sequence[StoreRecord]) -> str:
    """The page on commands that made stores, as HTML; everything from their records is escaped."""
    title = f"Report: {', '.join(record.path.name for record in records)}"
    return rendered("stores.html", title=title, records=sections(records), **_written())


def _written() -> dict[str, str]:
    return {
        "written": f"{datetime.now():%Y-%m-%d %H:%M}",
        "millrace": versions().get("millrace-gnn", "of unknown version"),
    }


def section(run: RunRecord, line: Timeline | None, summary: Summary, pictures: dict[str, Picture]) -> dict[str, Any]:
    """Template values of one run's section."""
    result = run.result or {}
    return {
        "name": run.name,
        "folder": str(run.folder),
        "status": run.status,
        "heard_of": last_event_clause(run) if run.running else "",
        "summary": summary,
        "metric": main_metric_of(result, "val")[0] if result else run.log.metric,
        "facts": _facts(run, summary),
        "made": sections(records_behind(str(run.config.get("dataset")))),
        "pictures": pictures,
        "seconds": _seconds(result, line, summary),
        "waits": summary.waits if len(summary.waits) <= MATRIX_RANKS else [],
        "ranks": list(line.ranks) if line else [],
        "bytes": _bytes(summary),
        "memory": list(zip(result.get("memory_bytes") or [], result.get("peak_rss_bytes") or [])),
        **_by_class(result),
        **_by_relation(result),
        "metrics": _metrics(result),
        "hot_rows": result.get("hot_rows") or [],
        "phases": result.get("phases") or [],
        "clients": result.get("clients") or {},
        "lost": result.get("lost") or [],
        "quality": run.quality,
        "partitioner": run.partitioner,
        "data": described(read_card(run.folder), MOST_NOTES),
        "notes": _notes(run, line),
        "more_notes": max(0, len(run.log.notes) - MOST_NOTES),
        "config": run.config,
        "changed": sorted(run.changed),
        "versions": result.get("versions") or {},
        "missing": _missing(run, line),
        "cuts": [(at, length) for at, length in line.cuts] if line else [],
    }


def _metrics(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, validation and test of each further metric."""
    val, test = (result.get(key) or {} for key in ("val_metrics", "test_metrics"))

    return [(name, _figure(val.get(name)), _figure(test.get(name))) for name in {**val, **test}]


def _by_class(result: dict[str, Any]) -> dict[str, Any]:
    """The test split by class: rows of a table, what each class is taken for, and the confusion matrix of few
    classes."""
    counts, confusion = result.get("per_class"), result.get("confusion")
    keys = ("support", "precision", "recall", "f1")
    width = len((counts or {}).get("support", ()))
    if not counts or any(len(counts.get(key, ())) != width for key in keys):
        return {"classes": [], "more_classes": 0, "confused": [], "confusion": None}
    if confusion and {width} != {len(confusion), *map(len, confusion)}:
        confusion = None
    names = result.get("class_names") or range(width)
    names = [str(names[c]) if c < len(names) else str(c) for c in range(width)]
    rows = list(zip(names, *(counts[key] for key in keys)))
    confused = [_taken_for(c, row, names) for c, row in enumerate(confusion or [])]
    return {
        "labelled": result.get("labels_of", "nodes"),
        "classes": rows[:MOST_CLASSES],
        "more_classes": max(0, width - MOST_CLASSES),
        "confused": confused[:MOST_CLASSES],
        "confusion": confusion if confusion and width <= MOST_COLUMNS else None,
    }


def _by_relation(result: dict[str, Any]) -> dict[str, Any]:
    """Metrics of the test pairs of each relation, those with the most pairs first."""
    found = sorted((result.get("per_relation") or {}).items(), key=lambda item: -(item[1].get("pairs") or 0))
    names = list(dict.fromkeys(name for _, values in found for name in values if name != "pairs"))
    rows = [
        (relation, int(values.get("pairs") or 0), [_figure(values.get(name)) for name in names])
        for relation, values in found[:MOST_CLASSES]
    ]
    return {"relations": rows, "relation_metrics": names, "more_relations": max(0, len(found) - MOST_CLASSES)}


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _taken_for(c: int, row: list[int], names: list[str]) -> str:
    """The wrong class that is predicted most often for class c, and how often."""
    wrong = [0 if other == c else n for other, n in enumerate(row)]
    most = max(wrong)
    return f"{names[wrong.index(most)]} ({most:,})" if most else ""


def _facts(run: RunRecord, summary: Summary) -> list[tuple[str, str]]:
    result = run.result or {}
    found = [(word, main_metric_of(result, split)) for word, split in (("test", "test"), ("validation", "val"))]
    numbers = [*((f"{word} {name}", value) for word, (name, value) in found), ("train loss", result.get("train_loss"))]
    facts: list[tuple[str, str | None]] = [
        (label, None if value is None else f"{value:.4f}") for label, value in numbers
    ]
    epoch = comparison.epoch_seconds(run)
    moved = sum(summary.bytes.get("network", {}).values())
    facts += [
        (
            "epochs",
            f"{summary.epochs}" + (f" (best: {result['best_epoch'] + 1})" if result.get("best_epoch", -1) >= 0 else ""),
        ),
        ("an epoch (median)", None if epoch is None else duration(epoch)),
        ("in all", duration(summary.total_s)),
        ("peak memory of a rank", amount(max(summary.peak_rss_bytes)) if summary.peak_rss_bytes else None),
        ("sent in training", amount(moved) if moved else None),
        ("sampled edges", f"{result['sampled_edges']:,}" if result.get("sampled_edges") else None),
    ]
    return [(label, value) for label, value in facts if value is not None]


def _seconds(result: dict[str, Any], line: Timeline | None, summary: Summary) -> list[tuple[str, dict[str, float]]]:
    """Rows of the table of seconds."""
    rows = [
        (f"rank {rank}", {**spent, "total": sum(spent.values())})
        for rank, spent in zip(line.ranks if line else (), summary.seconds)
    ]
    if "seconds" in result:
        rows.append(("result.json", {name: s for name, s in result["seconds"].items() if name != "per_epoch"}))
    return rows


def _bytes(summary: Summary) -> list[tuple[str, list[int]]]:
    """Bytes by kind, over the channels of `summary.bytes`, without kinds that are zero."""
    kinds = dict.fromkeys(kind for found in summary.bytes.values() for kind in found)
    rows = [(kind, [found.get(kind, 0) for found in summary.bytes.values()]) for kind in kinds]
    return [(kind, values) for kind, values in rows if any(values)]


def _notes(run: RunRecord, line: Timeline | None) -> list[tuple[float, str]]:
    return [(float(line.positions(at)) if line else 0.0, text) for at, text in list(run.log.notes)[:MOST_NOTES]]


def _missing(run: RunRecord, line: Timeline | None) -> list[str]:
    """Sentences on the missing parts of the page, with the reason."""
    missing = []
    if run.result is None:
        missing.append(
            "There is no result.json: the run has not finished. Numbers are those of its events so far, and nothing "
            "was tested."
        )
    if line is None:
        missing.append("There is no metrics.jsonl: curves, times and memory over time are not known.")
    elif not line.ranks:
        missing.append(
            "metrics.jsonl has no pulses of ranks (an earlier version wrote it, or the run ended at once): the "
            "activity of each rank, its memory over time, and the messages between ranks are not known."
        )
    if run.log.unreadable:
        missing.append(f"{counted(run.log.unreadable, 'line')} of metrics.jsonl could not be read and left out.")
    entry = SYSTEMS.available().get(str(run.config.get("system")))
    if run.quality is None and entry is not None and entry.needs_parts:
        missing.append(
            "There are no parts in the folder (one rank, or they were removed): partition quality is not known."
        )
    return missing
