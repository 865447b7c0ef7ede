"""Partitioning on a cluster: the driver says who owns what, a Dask task for each part writes it."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, as_completed

from ..stages.partition.quality import PartCounts
from ..stages.partition.stage import write_part
from ..storage.dataset import Dataset
from ..storage.dataset_store import open_stored
from ..storage.errors import RunError
from ..storage.partition_book import open_book
from ..storage.store import remove_tree
from .cluster import opened
from .config import Job
from .events import Emit
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
        yield from parts_by(client, out, path, parts, fingerprint)


def parts_by(client: Client, out: Path, dataset: Path, parts: list[int], fingerprint: dict[str, str]) -> Iterator[Any]:
    """`parts_on_cluster` by the workers of `client`, from the store at `dataset` (see `shared_data.share`)."""
    batch = f"partition-{uuid.uuid4().hex[:8]}"
    futures = [client.submit(_write, str(out), str(dataset), part, fingerprint, key=(batch, part), pure=False) for part in parts]
    for future in as_completed(futures):
        try:
            yield future.result()
        except Exception as e:
            raise RunError(
                f"partitioning failed: {type(e).__name__}: {e}; mend that and give the command again (a run: with --resume)"
            ) from e


@contextmanager
def _removed(path: Path, made: bool) -> Iterator[None]:
    """A store that was made for the workers alone goes when they are done."""
    try:
        yield
    finally:
        if made:
            remove_tree(path)


def _write(out: str, dataset: str, part: int, fingerprint: dict[str, str]) -> tuple[int, PartCounts]:
    return part, write_part(Path(out), open_stored(Path(dataset)), open_book(Path(out) / "book"), part, fingerprint)
