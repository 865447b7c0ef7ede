"""Opening of a job's dataset."""

import re
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from ...storage.dataset import Dataset, counted_outputs
from ...storage.dataset_store import GraphAccess, features_access
from ...storage.errors import InputError, StoreError
from ...storage.lazy_dataset import open_lazily
from ...storage.store.paths import expanded
from ...storage.urls import is_url
from ..assembly.data_part import sampled_at
from ..config.load import Job
from ..datasets import ReadOptions, is_name, open_dataset, open_graph
from ..datasets.cleaning.kept import Cautioned
from ..telemetry.events import Caution, Emit, Note, StageEnded, StageStarted


def absolute_source(source: str | Path) -> str:
    """A dataset's name, or its path in a form that works from any folder."""
    name, path = str(source), expanded(source)
    return name if not path.exists() or is_name(source) else str(path.resolve())


_kept: dict[str, Dataset] | None = None
"""The dataset that was opened last, by all that decides what is opened; None: it is not kept."""


def keep_data() -> None:
    """From now on keep the dataset that was opened last, for jobs of this process that open it in the same way."""
    global _kept
    _kept = _kept or {}


def forget_data() -> None:
    """Forget the dataset that was kept, and keep none."""
    global _kept
    _kept = None


def open_data(
    job: Job, source: str | Path | object | None, emit: Emit, *, lazy: bool = False, labelled: bool = True
) -> Dataset:
    """Open the job's dataset, or `source` in its place, and emit its sizes and notes.

    Args:
        job: a resolved configuration.
        source: in place of the job's dataset.
        emit: called with events.
        lazy: leave the arrays of a store on disk until they are used (`LazyDataset`), unless it is to be split again.
        labelled: read labels; else see `open_graph`.
    """
    spec = source if source is not None else job.dataset
    emit(StageStarted("open", f"opening {spec if isinstance(spec, str | Path) else f'a {type(spec).__name__}'}"))
    start = time.perf_counter()
    try:
        # The driver reads all features once, to pass them on; ranks then hold their own.
        place = _features_access(spec) if job.features == "owned" or isinstance(spec, Dataset) else job.features
        graph: GraphAccess = "memory" if isinstance(spec, Dataset) else job.graph
        own_split = job.split is not None or job.read != ReadOptions()
        path = _store_at(spec) if lazy and not own_split else None
        is_place = isinstance(spec, str | Path) and not is_name(spec)
        found = sampled_at(str(spec if is_url(spec) else expanded(spec))) if is_place else None
        if found is not None and own_split:
            raise InputError(f"split and read.* say how a dataset is read, but {spec} holds samples; leave them out")
        if found is not None:
            dataset = found
        elif path is not None:
            dataset = open_lazily(path, place, graph=graph)
        elif not labelled:
            dataset = open_graph(spec, job.read, job.seed_of("split"))
        else:
            dataset = _opened(spec, job, place, graph)
    except InputError as e:
        raise type(e)(with_keys(str(e))) from e
    sizes = f"{dataset.num_nodes:,} nodes, {dataset.graph.num_edges:,} edges, {dataset.num_features} features"
    labels = counted_outputs(dataset.task, dataset.num_classes, dataset.has_edge_labels)
    told = f"{dataset.name}: {sizes}" + (f", {labels}" if labelled else "")
    emit(StageEnded("open", time.perf_counter() - start, told))
    for note in dataset.notes:
        emit(as_event(note))
    return dataset


def as_event(note: str) -> Note:
    """A reader's note as an event, with the keys of a job."""
    return (Caution if isinstance(note, Cautioned) else Note)(with_keys(note))


def _opened(spec: str | Path | object, job: Job, place: Any, graph: GraphAccess) -> Dataset:
    """A dataset, opened now or kept."""
    global _kept
    options: dict[str, Any] = {"options": job.read, "split": job.split, "seed": job.seed_of("split")}
    options |= {"features": place, "graph": graph}
    if _kept is None or not isinstance(spec, str | Path):
        return open_dataset(spec, **options)
    if (kept := _kept.get(key := repr((str(spec), options)))) is None:
        _kept = {}  # before the next one is opened
        _kept = {key: (kept := open_dataset(spec, **options))}
    return kept


def opened_from_python(job: Job, source: str | Path | object | None, emit: Emit) -> Dataset | str | Path | None:
    """Open a source from Python: a foreign object, or a `Dataset` that is to be split again. Names and paths stay."""
    if isinstance(source, str | Path | None):
        return source
    if isinstance(source, Dataset) and job.split is None and job.read == ReadOptions():
        return source
    return open_data(job, source, emit)


def _features_access(spec: str | Path | object) -> Literal["memory", "mapped", "zarr"]:
    """Place of a store's features while it is open; sources other than stores are read into memory."""
    path = _store_at(spec)
    return "memory" if path is None else features_access(path)


def _store_at(spec: str | Path | object) -> Path | None:
    """Folder of the dataset's store that a source names; None if it names something else."""
    if not isinstance(spec, str | Path) or is_name(spec):
        return None
    try:
        features_access(path := expanded(spec))
    except StoreError:
        return None
    return path


def with_keys(text: str) -> str:
    """Replace the options in a reader's message by the configuration keys that the user of a job sets."""
    # A job has a split of its own.
    options = "|".join(f.name for f in fields(ReadOptions) if f.name != "split")
    return re.sub(rf"(?<![\w.])({options})=|(?<=\bset )({options})(?= to\b)", r"read.\1\2=", text)
