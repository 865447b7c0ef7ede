"""Partitioning on a cluster: the driver assigns nodes to parts, Dask tasks deal rows to the parts, and one task for
each part writes it."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from distributed import Client, Future

from ...stages.partition.quality import PartCounts
from ...stages.partition.stage import write_part
from ...storage.dataset import Dataset
from ...storage.dataset_store import open_stored
from ...storage.errors import RunError
from ...storage.partition.book import Book, open_book
from ...storage.partition.shuffle import ShuffledStore, begin, deal
from ...storage.store.committed_folder import ASIDE, remove_tree
from ..config.load import Job
from ..machine.time_limit import in_time
from ..setup.shared_dataset import share
from ..telemetry.events import Emit, Note, StageAdvanced
from .dask_cluster import opened
from .futures import completed, result_of
from .scheduler_watch import SchedulerWatch

FORGET_S = 5.0


def parts_on_cluster(
    job: Job, dataset: Dataset, out: Path, parts: list[int], fingerprint: dict[str, str], emit: Emit
) -> Iterator[Any]:
    """Write `parts` of the partitioning in `out`, whose book is stored, with as many workers as the job has producers.

    Yields:
        (part, its `PartCounts`), as they are written.

    Raises:
        RunError: a part could not be written.
    """
    if not parts:
        return
    path, _ = share(job, dataset, out)
    job = job.model_copy(update={"device": "cpu"})  # nothing here is done by GPUs
    with (
        _removed(path, made=path.parent == out.resolve()),
        opened(job, emit, min(job.cluster.producers, len(parts))) as client,
        closing(SchedulerWatch(client, job.cluster, lambda text: emit(Note(text)))) as watch,
    ):
        yield from parts_by(client, out, path, parts, fingerprint, emit, watch)


def parts_by(
    client: Client,
    out: Path,
    dataset: Path,
    parts: list[int],
    fingerprint: dict[str, str],
    emit: Emit,
    watch: SchedulerWatch,
) -> Iterator[Any]:
    """`parts_on_cluster` by the workers of `client`, from the store at `dataset` (see `shared_dataset.share`), while
    its scheduler answers.

    Until the parts are written, `out` holds their rows once more, uncompressed (see `storage.partition.shuffle`).
    """
    if not parts:
        return
    batch, out, dataset = uuid.uuid4().hex[:8], out.resolve(), dataset.resolve()
    submit = partial(client.submit, pure=False)
    # What a killed call leaves under such a name goes when the next one sweeps the folder.
    folder = out / f"{ASIDE}dealt-{batch}"
    try:
        folder.mkdir()
        (num_ranges,) = _done(watch, [submit(_begin, out, dataset, batch, parts, folder, key=f"begin-{batch}")])
        deals = (submit(_deal, out, dataset, batch, k, folder, key=(f"deal-{batch}", k)) for k in range(num_ranges))
        for done, _ in enumerate(_done(watch, deals), 1):
            emit(StageAdvanced("deal", done, num_ranges))
        yield from _done(
            watch,
            (submit(_write, out, batch, part, folder, fingerprint, key=(f"partition-{batch}", part)) for part in parts),
        )
        with suppress(TimeoutError):
            in_time(FORGET_S, client.run, _book.cache_clear, on_error="ignore")
    finally:
        remove_tree(folder)


def _done(watch: SchedulerWatch, futures: Iterable[Future]) -> Iterator[Any]:
    """Results of tasks, as they come. A finished task is released: its files stay, and need not be written again if its
    worker is lost."""
    for future in completed(watch, [*futures]):
        try:
            result = result_of(watch, future)
        except Exception as e:
            raise RunError(
                f"partitioning failed: {type(e).__name__}: {e}; "
                "fix that and give the command again (a run: with --resume)"
            ) from e
        yield result


@contextmanager
def _removed(path: Path, made: bool) -> Iterator[None]:
    """Context after which a store that was made only for the workers is removed."""
    try:
        yield
    finally:
        if made:
            remove_tree(path)


@lru_cache(maxsize=1)
def _book(out: Path, batch: str) -> Book:
    """The book, which a worker opens once for all tasks of a batch."""
    return open_book(out / "book")


def _begin(out: Path, dataset: Path, batch: str, parts: list[int], folder: Path) -> int:
    return begin(open_stored(dataset), _book(out, batch).num_parts, parts, folder)


def _deal(out: Path, dataset: Path, batch: str, k: int, folder: Path) -> None:
    deal(open_stored(dataset), k, _book(out, batch), folder)


def _write(out: Path, batch: str, part: int, folder: Path, fingerprint: dict[str, str]) -> tuple[int, PartCounts]:
    return part, write_part(out, ShuffledStore(folder).part(part), _book(out, batch), part, fingerprint)
