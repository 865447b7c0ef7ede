"""Writing of a report on one run, or of a comparison of several."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage.errors import InputError
from ...storage.store.full_disk import whole_file
from ...storage.store.own_files import own_folder, refuse_links
from ...storage.store.paths import local_folder
from ..setup.run_folder import JOB, write_atomically
from . import comparison, figures
from .canvas import Picture, draw
from .page import COLOURS, render, render_stores
from .reading import names, read_run
from .stores import is_recorded, read_record
from .summary import summarise
from .timeline import timeline

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
