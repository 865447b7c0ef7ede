"""`mr.convert`: a source of any kind into a dataset's store; tables of edges and nodes in bounded memory."""

import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ...stages.capabilities import Cannot, Need
from ...storage import dataset_store as stores
from ...storage.dataset import Dataset, counted_outputs
from ...storage.errors import InputError, NoLabelsError, RunError, StoreError, whole_number
from ...storage.fingerprint import digest_record
from ...storage.store.bytes_left import bytes_left
from ...storage.store.narrow import FeatureDtype
from ...storage.store.paths import expanded
from ...storage.store.store import Store, open_store
from ...storage.urls import is_url
from ..config.held_cluster import cluster_table
from ..config.load import Job
from ..custom.user_code import pickled
from ..dashboard.command import recorded_stages
from ..datasets import is_name
from ..datasets.cleaning.options import ReadOptions, require_options
from ..datasets.open import graph_request, with_pairs
from ..datasets.readers.reader import Request
from ..datasets.readers.registry import reader_of
from ..datasets.schema.source import GraphTables
from ..opening import open_with_cluster
from ..setup.open_data import with_keys
from ..telemetry.events import Emit, Note, StageEnded, StageStarted
from .budget import budget_of
from .run import Ingest
from .scratch import STORE, commit, scratch, scratch_of, sweep_committed
from .source import File, Formats, find_source, stamp_of
from .tasks import Execute, Stages, inline, parse_memory
from .url_files import fetched_store, holds_store, uploaded

LAYOUT = 14
"""Changes with the files of an ingest under way: one of another version is not gone on with."""
DEFAULT_MEMORY = "2GiB"
IN_PIECES = (
    Cannot("components=largest", Need.COMPONENT, "needs the whole graph"),
    Cannot("labels of edges at a URL", Need.EDGE_LABELS, "are read from files"),
)
"""What is not read in pieces; such tables are read into memory first."""
TO_PREDICT = "A graph that a run only predicts for is not converted: give its source to predict as --dataset"
"""Ending of the message on a source without labels."""


def convert_job(
    job: Job, source: Any, out: Path | str, formats: Formats, memory: str | int, workers: int, emit: Emit
) -> Store:
    """Write the job's dataset, or `source` in its place, as a store at a path or a URL. Raises InputError: see
    `convert`; RunError: a task failed; the same call goes on."""
    formats.check()
    limit = parse_memory(memory)
    workers = whole_number("workers", workers, 1)
    spec = job.dataset if source is None else source
    read = str(spec) if isinstance(spec, str | Path) else type(spec).__name__
    goes_on = isinstance(out, Path) and scratch_of(out).exists()
    with recorded_stages("convert", read, out, emit, goes_on=goes_on) as told:
        make = partial(_convert, job, spec, source, formats=formats, limit=limit, workers=workers, emit=told)
        try:
            return uploaded(out, lambda path: make(out=path)) if isinstance(out, str) else make(out=out)
        except NoLabelsError as e:
            raise NoLabelsError(with_keys(f"{e}. {TO_PREDICT}")) from None
        except InputError as e:
            raise type(e)(with_keys(str(e))) from e


def _convert(
    job: Job, spec: Any, source: Any, out: Path, formats: Formats, limit: int, workers: int, emit: Emit
) -> Store:
    if os.path.lexists(out):
        sweep_committed(out)
        raise InputError(f"{out} already exists; choose another --out")
    if isinstance(spec, str) and is_url(spec) and holds_store(spec):
        emit(StageStarted("store", f"copying {spec}"))
        return fetched_store(spec, out)
    why = _why_in_memory(spec, job.read)
    if why and isinstance(spec, str) and is_url(spec):
        raise InputError(f"{spec} is read in pieces only, but {why}; copy its files here first")
    if why == "" and not (workers == 1 and job.cluster.starts_here and limit == parse_memory(DEFAULT_MEMORY)):
        raise InputError("memory, workers or a scheduler are given, which concern tables only; leave them out")
    if why is not None:
        data = open_with_cluster(_left_on_disk(job, spec), source, emit, lazy=True)
        if why:
            emit(Note(f"the dataset was read into memory, since {why}"))
        store = _written(out, data, formats, emit)
        for note in store.value("notes", list)[len(data.notes) :]:
            emit(Note(with_keys(note)))
        return store
    path = spec if isinstance(spec, str) and is_url(spec) else expanded(spec)
    return _ingest(job, path, out, formats, limit, workers, emit=emit)


def _written(out: Path, data: Dataset, formats: Formats, emit: Emit) -> Store:
    """The store of a dataset that is open."""
    emit(StageStarted("store", f"writing {out}"))
    of_features, of_graph = ("npy" if f == "npy" else "zarr" for f in (formats.features, formats.graph))
    more: Any = {"features_format": of_features, "graph_format": of_graph, "feature_dtype": formats.feature_dtype}
    return stores.write_dataset(out, data, **more)


def _left_on_disk(job: Job, spec: Any) -> Job:
    """The job with the features and graph of a Millrace store left on disk, from where they are copied."""
    try:
        store = open_store(expanded(spec), stores.KIND) if isinstance(spec, str | Path) else None
    except StoreError:
        store = None
    if store is None or is_name(spec):
        return job
    return job.model_copy(update={"features": stores.features_access(store.path), "graph": stores.graph_access(store)})


def _why_in_memory(spec: Any, options: ReadOptions) -> str | None:
    """Reason for reading a source into memory, empty if it is none to mention; None if it need not be."""
    at_url = isinstance(spec, str) and is_url(spec)
    reader = None if at_url else reader_of(spec)
    if not at_url and (reader is None or reader.name != "tables"):
        return ""
    asked = {
        Need.COMPONENT: options.components == "largest",
        Need.EDGE_LABELS: at_url and options.labels_of == "edges" and options.pairs is None,
    }
    for row in IN_PIECES:
        if asked[row.need]:
            return f"{row.part} {row.because}"
    if options.dangling_edges == "drop" and options.nan_features in ("mean", "median", "indicator"):
        return "features of edges are filled by those that are kept"
    if options.edges_on == "gpu" and (at_url or not any(expanded(spec).glob("*.parquet"))):
        return "edges_on=gpu reads a folder of Parquet on this machine"
    return None


def _ingest(job: Job, path: Path | str, out: Path, formats: Formats, memory: int, workers: int, emit: Emit) -> Store:
    start = time.perf_counter()
    asked = Request(None, job.read, job.split, job.seed_of("split"))
    request = graph_request(path, asked) if asked.is_of_pairs else asked
    source = find_source(path, request)
    # The graph that pairs are taken out of is mapped.
    made_as = Formats(graph="npy") if asked.is_of_pairs else formats
    in_process = workers == 1 and job.cluster.starts_here
    plan = _plan(source, request, made_as, memory, workers)
    files = [file for table in source.tables for file in table.files[:1]]
    with (
        scratch(out, plan) as (folder, resumed),
        executing(job, workers, in_process, emit, 0, (folder, *files)) as (execute, slots),
    ):
        if resumed and any((folder / "done").glob("*")):
            emit(Note(f"going on with the conversion into {out} that was stopped"))
        if job.cluster.starts_here and memory > (left := bytes_left()):
            emit(Note(f"memory is {memory >> 20:,} MiB, but {left >> 20:,} MiB are left; set memory={left >> 20}MiB"))
        budget = budget_of(memory, slots, in_process)
        Ingest(source, request, made_as, budget, Stages(folder, execute, emit)).run()
        if asked.is_of_pairs:
            plain = stores.open_dataset_store(folder / STORE, "zarr", graph="mapped")
            _written(out, with_pairs(plain, path, asked), formats, emit)
            shutil.rmtree(folder / STORE)
        else:
            commit(folder, out)
    store = open_store(out, stores.KIND)
    nodes, edges = store.entries["indptr"]["shape"][0] - 1, store.entries["indices"]["shape"][0]
    labels = counted_outputs(store.value("task", str), store.value("num_classes", int), "pairs" in store)
    sizes = f"{nodes:,} nodes, {edges:,} edges, {labels}"
    emit(StageEnded("convert", time.perf_counter() - start, f"{store.meta['name']}: {sizes}"))
    for note in store.meta["notes"]:
        emit(Note(with_keys(note)))
    return store


def _plan(source: GraphTables, request: Request, formats: Formats, memory: int, workers: int) -> dict[str, Any]:
    """Digest of an ingest's files and options. An interrupted ingest with another digest is not continued."""
    try:
        files = [[str(f.resolve()), *stamp_of(f)] for table in (*source.edges, *source.nodes) for f in table.files]
    except OSError as e:
        raise InputError(f"{e.filename} cannot be read ({e.strerror}); make it readable") from e
    chosen = {name: str(value) for name, value in (vars(request) | vars(formats)).items()}
    return {"layout": LAYOUT, "plan": digest_record({"files": files, "memory": memory, "workers": workers, **chosen})}


@contextmanager
def executing(
    job: Job, workers: int, in_process: bool, emit: Emit, gpus: int, seen: Sequence[File] = ()
) -> Iterator[tuple[Execute, int]]:
    """Context with what runs tasks, and how many it runs at once: in this process, or on the job's cluster, by so many
    `workers` unless it runs already, which must see the files `seen`. `gpus` as in `opened`."""
    if in_process:
        yield inline, 1
        return
    from ..cluster.dask_cluster import check_reachable, opened, worker_records
    from ..cluster.scheduler_watch import SchedulerWatch

    check_reachable(job.cluster)
    job = job.model_copy(update={"device": "cpu"})
    with (
        opened(job, emit, workers, gpus) as client,
        closing(SchedulerWatch(client, job.cluster, lambda text: emit(Note(text)))) as watch,
    ):
        slots = sum(int(record["nthreads"]) for record in worker_records(client).values())
        paths = [path.absolute() for path in seen if isinstance(path, Path)]
        yield partial(_on_cluster, client, watch, uuid.uuid4().hex[:8], paths), max(workers, slots)


def _on_cluster(
    client: Any, watch: Any, batch: str, seen: Sequence[Path], stage: str, calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run tasks on Dask's workers; their keys begin with the name of the stage."""
    from distributed import KilledWorker

    from ..cluster.futures import completed, result_of, seeing, unpickled_task

    futures = [
        client.submit(seeing, seen, unpickled_task, pickled(call), key=(f"{stage}-{batch}", number), pure=False)
        for number, call in enumerate(calls)
    ]
    number_of = {future.key: number for number, future in enumerate(futures)}
    try:
        for future in completed(watch, futures):
            yield number_of[future.key], result_of(watch, future)
    except KilledWorker as e:
        said = f"{stage}: workers were killed again and again, perhaps for want of memory ({e})"
        raise RunError(f"{said}; set a smaller memory, then give the same command again") from e
    finally:
        del futures


def convert(
    source: str | Path | object,
    out: str | os.PathLike[str],
    *,
    features: stores.FeaturesFormat = "zarr",
    graph: stores.FeaturesFormat = "zarr",
    feature_dtype: FeatureDtype | None = None,
    memory: str | int = DEFAULT_MEMORY,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    options: ReadOptions | None = None,
    split: str | None = None,
    seed: int = 0,
    emit: Emit | None = None,
    verbose: bool = True,
) -> Store:
    """Write a dataset as a Millrace store; it opens fast, and can leave its features on disk.

    Files of tables of edges and nodes, of one type or several, are read in pieces and sorted on disk: memory grows
    with neither edges nor features; links and labelled edges take some 100 bytes for each pair besides. `open_dataset`
    first opens all other inputs, and tables with ``components=largest``. The store is the same, to the bit.

    A killed call leaves ``.ingest-NAME`` beside `out`; repeat the call to go on from there.

    Args:
        source: as `open_dataset` takes it; or the URL of a folder of Parquet, or of a store, on an object store.
        out: the folder to make. While it is made, spilled edges lie beside it. Or a URL: the store is made in the
            working folder, and copied there, the manifest last.
        features: "zarr" (compressed, checksummed) or "npy" (can be memory-mapped).
        graph: format of the graph's arrays, likewise.
        feature_dtype: "float16", "bfloat16" or "int8": features are rounded to it, and widened to float32 when they are
            read ("int8" keeps a scale for each row); "float32"; None: as they come.
        memory: limit for all processes together, such as "1GiB"; some 60 bytes a node, and its label, come on top.
        workers: processes that share the work; 1: this process.
        scheduler: address of a Dask scheduler, its file, or a client or cluster of Dask, whose workers do the work, and
            see the same files.
        cluster: keys of the section ``cluster`` of the configuration, such as ``insecure``; or as `scheduler`.
        client: as `scheduler`.
        options: treatment of defects.
        split: see `open_dataset`.
        seed: of a random split.
        emit: called with events.
        verbose: print progress and notes, if `emit` is not given.

    Raises:
        InputError: says what was seen, what was expected and what to change.
        RunError: the disk is full, a file is lost, or workers are killed; the same call goes on.
    """
    from ..config.load import resolve
    from ..telemetry.console import console_events

    require_options(options)
    if not isinstance(out, str | os.PathLike):
        raise InputError(f"out is a {type(out).__name__}; expected the folder to make, such as 'store'")
    table: dict[str, Any] = {"split": split, "seed": seed, "cluster": cluster_table(scheduler, cluster, client)}
    table = {key: value for key, value in table.items() if value is not None}
    job = resolve(table).model_copy(update={"read": options or ReadOptions()})
    if isinstance(source, str | Path):
        job = job.model_copy(update={"dataset": str(source)})
    with console_events(emit, verbose) as listener:
        given = None if isinstance(source, str | Path) else source
        to = out if isinstance(out, str) and is_url(out) else expanded(out)
        return convert_job(job, given, to, Formats(features, graph, feature_dtype), memory, workers, emit=listener)
