"""Writing of a report on one run, or of a comparison of several: the page, with the values that its templates need."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...storage.errors import InputError
from ...storage.store.full_disk import whole_file
from ...storage.store.own_files import own_folder, refuse_links
from ...storage.store.paths import local_folder
from ...storage.stored.data_card import described
from ..config.systems import SYSTEMS
from ..setup.open_data import with_keys
from ..setup.result import read_card, versions
from ..setup.run_folder import JOB, write_atomically
from ..telemetry.main_metric import main_metric_of
from ..telemetry.palette import FAINT, INK, KIND_MEANINGS, STAGE_MEANINGS, STAGES, VARIABLES
from ..telemetry.quantities import amount, decimal, duration
from ..telemetry.templates import rendered
from . import comparison, figures
from .canvas import Picture, draw
from .reading import RunRecord, names, read_run
from .stores import StoreRecord, is_recorded, read_record, records_behind
from .summary import Summary, summarise
from .timeline import ROWS, Timeline, timeline

PAGE = "report.html"
FOLDER = "report"


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    path: Path
    """The page, which needs no other file."""
    pictures: dict[str, Path]
    """PNG of each picture, by name; with several runs also by run: ``run/name``."""
    runs: list[dict[str, Any]]
    """Numbers of each run's summary, or of each store's record."""


def _folder_of(run: object) -> Path:
    """The folder of a run that is given by it, by its result, or as `load` opens it."""
    folder = getattr(run, "out", getattr(run, "folder", run))
    if not isinstance(folder, str | Path):
        given = type(run).__name__
        raise InputError(f"runs is of type {given}; expected the folder of a run, its result, or a list of them")
    return Path(folder)


def report(runs: Any, out: str | Path | None = None) -> Report:
    """Write the report of a run, finished or not, or compare several; or tell how stores were made.

    Args:
        runs: a run's folder, its result or what `load` opens, or a list of them; or stores that `convert`, `millrace
            partition` or `millrace sample` has made, or is making: stages, times, bytes and memory, by the record
            beside each.
        out: the report's folder; by default ``report`` in the first run's folder, or ``NAME.report`` beside the first
            store. An earlier report there is replaced.

    Raises:
        InputError: a folder holds no run, `out` cannot be written, or matplotlib is not installed.
        StoreError: a run's result is damaged.
    """
    each = [runs] if isinstance(runs, str | Path) or not isinstance(runs, Iterable) else runs
    folders = [f if f.name not in ("", "..") else f.resolve() for f in map(_folder_of, each)]
    if not folders:
        raise InputError("no run is given; expected the folder of at least one")
    stores = [folder for folder in folders if is_recorded(folder) and not (folder / JOB).is_file()]
    if len(stores) == len(folders):
        made = [read_record(store) for store in stores]
        usual = stores[0].with_name(f"{stores[0].name}.{FOLDER}")
        return _written(render_stores(made), usual, out, {}, [record.as_record() for record in made])
    if stores:
        raise InputError(f"{stores[0]} is no run but a store; expected runs, or stores and nothing else")
    records = [read_run(folder, name) for folder, name in zip(folders, names(folders))]
    several = len(records) > 1
    read: list[comparison.Run] = [(r, line, summarise(r, line)) for r, line in zip(records, map(timeline, records))]
    drawn = [_drawn(figures.pictures_of(*run), f"{number}-" * several) for number, run in enumerate(read)]
    compared = _drawn(comparison.pictures_of(read), "compared-") if several else {}
    named = compared | {f"{r.name}/{n}" if several else n: p for r, own in zip(records, drawn) for n, p in own.items()}
    numbers = [summary.as_record(record) for record, _, summary in read]
    return _written(render(read, drawn, compared), folders[0] / FOLDER, out, named, numbers)


def _written(
    page: str, usual: Path, out: str | Path | None, pictures: dict[str, Picture], numbers: list[dict[str, object]]
) -> Report:
    """Write a page and its pictures into the folder `out`, or else into the `usual` one."""
    folder = usual if out is None else local_folder(out)
    try:
        refuse_links(folder)
        (folder if out is not None else own_folder(folder)).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / PAGE, page)
        files = {name: folder / f"{_plain(name)}.png" for name in pictures}
        for name, path in files.items():
            with whole_file(path) as aside:
                aside.write_bytes(pictures[name].png)
    except OSError as e:
        raise InputError(f"cannot write the report into {folder}: {e.strerror}; choose another --out") from None
    return Report(folder / PAGE, files, numbers)


def _drawn(pictures: dict[str, tuple[str, figures.Draw]], prefix: str) -> dict[str, Picture]:
    """Draw pictures; `prefix` keeps the ids of several runs in one page apart."""
    return {name: draw(f"{prefix}{name}", caption, on, COLOURS) for name, (caption, on) in pictures.items()}


def _plain(name: str) -> str:
    """A name in the form of a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


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
        **_origin(),
    )


def render_stores(records: Sequence[StoreRecord]) -> str:
    """The page on commands that made stores, as HTML; everything from their records is escaped."""
    title = f"Report: {', '.join(record.path.name for record in records)}"
    return rendered("stores.html", title=title, records=records, **_origin())


def _origin() -> dict[str, str]:
    version = versions().get("millrace-gnn", "of unknown version")
    return {"written": f"{datetime.now():%Y-%m-%d %H:%M}", "millrace": version}


def section(run: RunRecord, line: Timeline | None, summary: Summary, pictures: dict[str, Picture]) -> dict[str, Any]:
    """Template values of one run's section."""
    result, entry = run.result or {}, SYSTEMS.available().get(str(run.config.get("system")))
    val, test = (result.get(key) or {} for key in ("val_metrics", "test_metrics"))
    return {
        "folder": str(run.folder),
        "silent_s": None if not run.running or run.log.last is None else max(0.0, time.time() - run.log.last),
        "summary": summary,
        "metric": main_metric_of(result, "val")[0] if result else run.log.metric,
        "facts": _facts(run, summary),
        "made": records_behind(str(run.config.get("dataset"))),
        "pictures": pictures,
        "seconds": _seconds(result, line, summary),
        "waits": summary.waits if len(summary.waits) <= MATRIX_RANKS else [],
        "ranks": list(line.ranks) if line else [],
        "kinds": list(dict.fromkeys(k for found in summary.bytes.values() for k, count in found.items() if count)),
        "memory": list(zip(result.get("memory_bytes") or [], result.get("peak_rss_bytes") or [])),
        **_by_class(result),
        **_by_relation(result),
        "metrics": [(name, val.get(name), test.get(name)) for name in {**val, **test}],
        **{key: result.get(key) or [] for key in ("hot_rows", "phases", "lost")},
        **{key: result.get(key) or {} for key in ("clients", "versions")},
        **{key: getattr(run, key) for key in ("name", "status", "quality", "partitioner", "config")},
        "data": described(card := read_card(run.folder), MOST_NOTES),
        "data_notes": [with_keys(note) for note in (card or {}).get("notes", ())],
        "notes": [(float(line.positions(at)) if line else 0.0, text) for at, text in list(run.log.notes)[:MOST_NOTES]],
        "more_notes": max(0, len(run.log.notes) - MOST_NOTES),
        "changed": sorted(run.changed),
        "unfinished": run.result is None,
        "has_events": line is not None,
        "has_pulses": not line or bool(line.ranks),
        "unreadable": run.log.unreadable,
        "lacks_parts": run.quality is None and bool(entry and entry.needs_parts),
        "cuts": line.cuts if line else [],
    }


def _by_class(result: dict[str, Any]) -> dict[str, Any]:
    """The test split by class: rows of a table, what each class is taken for, and few classes' confusion matrix."""
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
        (relation, int(values.get("pairs") or 0), [values.get(name) for name in names])
        for relation, values in found[:MOST_CLASSES]
    ]
    return {"relations": rows, "relation_metrics": names, "more_relations": max(0, len(found) - MOST_CLASSES)}


def _taken_for(c: int, row: list[int], names: list[str]) -> str:
    """The wrong class that is predicted most often for class c, and how often."""
    wrong = [*row[:c], 0, *row[c + 1 :]]
    return f"{names[wrong.index(max(wrong))]} ({max(wrong):,})" if max(wrong) else ""


def _facts(run: RunRecord, summary: Summary) -> list[tuple[str, str]]:
    result, epoch = run.result or {}, comparison.epoch_seconds(run)
    best, moved = result.get("best_epoch", -1), sum(summary.bytes.get("network", {}).values())
    found = [(word, main_metric_of(result, split)) for word, split in (("test", "test"), ("validation", "val"))]
    numbers = [*((f"{word} {name}", value) for word, (name, value) in found), ("train loss", result.get("train_loss"))]
    facts = [(label, decimal(value)) for label, value in numbers]
    facts += [
        ("epochs", f"{summary.epochs}" + (f" (best: {best + 1})" if best >= 0 else "")),
        ("an epoch (median)", "" if epoch is None else duration(epoch)),
        ("in all", duration(summary.total_s)),
        ("peak memory of a rank", amount(max(summary.peak_rss_bytes)) if summary.peak_rss_bytes else ""),
        ("sent in training", amount(moved) if moved else ""),
        ("sampled edges", f"{result['sampled_edges']:,}" if result.get("sampled_edges") else ""),
    ]
    return [(label, value) for label, value in facts if value]


def _seconds(result: dict[str, Any], line: Timeline | None, summary: Summary) -> list[tuple[str, dict[str, float]]]:
    """Rows of the table of seconds."""
    ranks = zip(line.ranks if line else (), summary.seconds)
    rows = [(f"rank {rank}", {**spent, "total": sum(spent.values())}) for rank, spent in ranks]
    whole = {name: s for name, s in result.get("seconds", {}).items() if name != "per_epoch"}
    return [*rows, ("largest", whole)] if "seconds" in result else rows
