"""Partitioning on a cluster: the driver says who owns what, Dask tasks deal the rows to their owners, and one for each part writes it."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from distributed import Client, Future, as_completed

from ..stages.partition.quality import PartCounts
from ..stages.partition.stage import write_part
from ..storage.dataset import Dataset
from ..storage.dataset_store import open_stored
from ..storage.dealt import Dealt, deal, row_ranges
from ..storage.errors import RunError
from ..storage.partition_book import Book, open_book
from ..storage.store import ASIDE, remove_tree
from .cluster import opened
from .config import Job
from .events import Emit, StageAdvanced
from .shared_data import share


def parts_on_cluster(job: Job, dataset: Dataset, out: Path, parts: list[int], fingerprint: dict[str, str], emit: Emit) -> Iterator[Any]:
    """Write `parts` of the partitioning in `out`, whose book is stored, by as many tasks at a time as the job has producers.

    Yields:
        (part, its `PartCounts`), as they come.

    Raises:
        RunError: a part could not be written.
    """
    if not parts:
        return
    path, _ = share(job, dataset, out)
    job = job.model_copy(update={"device": "cpu"})  # nothing here is done by GPUs
    with _removed(path, made=path.parent == out.resolve()), opened(job, emit, min(job.cluster.producers, len(parts))) as client:
        yield from parts_by(client, out, path, parts, fingerprint, emit)


def parts_by(client: Client, out: Path, dataset: Path, parts: list[int], fingerprint: dict[str, str], emit: Emit) -> Iterator[Any]:
    """`parts_on_cluster` by the workers of `client`, from the store at `dataset` (see `shared_data.share`).

    Until the parts are written, `out` holds their rows once more, uncompressed (see `storage.dealt`).
    """
    if not parts:
        return
    batch, out, dataset = uuid.uuid4().hex[:8], out.resolve(), dataset.resolve()
    submit = partial(client.submit, pure=False)
    # What a killed call leaves under such a name goes when the next one sweeps the folder.
    folder = out / f"{ASIDE}dealt-{batch}"
    with _removed(folder):
        ((bounds, edges),) = _done([submit(_ranges, out, dataset, batch, key=f"ranges-{batch}")])
        folders = [folder / f"{first:012d}" for first in bounds[:-1]]
        ranges = enumerate(zip(bounds, bounds[1:], folders))
        deals = [submit(_deal, out, dataset, batch, *rows, parts, key=(f"deal-{batch}", k)) for k, rows in ranges]
        for done, _ in enumerate(_done(deals), 1):
            emit(StageAdvanced("deal", done, len(deals)))
        dealt = Dealt(folders, edges)
        yield from _done([submit(_write, out, dealt, batch, part, fingerprint, key=(f"partition-{batch}", part)) for part in parts])
    client.run(_book.cache_clear, on_error="ignore")


def _done(futures: list[Future]) -> Iterator[Any]:
    """What tasks return, as they come."""
    for future in as_completed(futures):
        try:
            yield future.result()
        except Exception as e:
            raise RunError(
                f"partitioning failed: {type(e).__name__}: {e}; mend that and give the command again (a run: with --resume)"
            ) from e


@contextmanager
def _removed(path: Path, made: bool = True) -> Iterator[None]:
    """What was made for the workers alone goes when they are done."""
    try:
        yield
    finally:
        if made:
            remove_tree(path)


@lru_cache(maxsize=1)
def _book(out: Path, batch: str) -> Book:
    """Each worker opens it once for all tasks of a batch, with what is looked up in it."""
    return open_book(out / "book")


def _ranges(out: Path, dataset: Path, batch: str) -> tuple[list[int], int]:
    stored = open_stored(dataset)
    return row_ranges(stored, _book(out, batch).num_parts).tolist(), stored.graph.num_edges


def _deal(out: Path, dataset: Path, batch: str, first: int, stop: int, folder: Path, parts: list[int]) -> None:
    deal(open_stored(dataset), first, stop, _book(out, batch), parts, folder)


def _write(out: Path, dealt: Dealt, batch: str, part: int, fingerprint: dict[str, str]) -> tuple[int, PartCounts]:
    return part, write_part(out, dealt.part(part), _book(out, batch), part, fingerprint)
