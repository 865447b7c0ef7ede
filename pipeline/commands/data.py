"""Commands of the theme `Data`: `millrace partition`, `convert`, `sample`, `inspect`, `check`."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage.errors import InputError, StoreError
from ...storage.optional import present, present_items
from ...storage.plural import counted
from ...storage.store.paths import expanded, local_folder
from ...storage.urls import is_url
from ..cluster.signals import heeded
from ..telemetry.events import Emit, StageStarted, advancing, both
from .shared.flags import JOB, SPLIT, AllowCodeFlag, Flag, Flags, JobFile, JsonFlag, Options, SetFlag, with_flags
from .shared.job_table import job_table
from .shared.output import say, say_aside, show

if TYPE_CHECKING:
    from ...stages.partition.base import Cut
    from ...stages.partition.quality import PartitionQuality
    from ...storage.dataset import Dataset
    from ..config.job import Job


PARTITION = {
    "out": Flag("Folder of the partitions.", Path),
    "into": Flag("Instead of --out: store of the dataset, nodes renumbered part by part.", Path),
    "method": Flag(
        "contiguous | hash | ldg | fennel | metis | metis-work | metis-streamed | louvain | leiden  [default: metis]"
    ),
    "balance": Flag("nodes | edges | train, for contiguous (not train) and metis-streamed."),
    "passes": Flag("Times that ldg, fennel or metis-streamed reads the graph.  [default: 1, 1, 8]", int),
    "order": Flag("With --into, of the nodes within a part: ids | degree | rcm (reverse Cuthill-McKee).", str, "ids"),
    "memory": Flag("With --into and a store: bound of memory.  [default: 2GiB]", metavar="SIZE"),
    "seed": Flag("Random seed.", int, 0),
}


@with_flags(JOB, PARTITION)
def partition(
    dataset: Annotated[
        str, typer.Argument(help="Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.")
    ],
    parts: Annotated[int, typer.Option(help="P, the number of partitions.")],
    *,
    options: Options,
    flags: Flags,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Cut a dataset into partitions, and print their quality.

    Takes the job of `run`; what concerns other stages is left to them.
    """
    from ...stages.partition.base import Cut, check_parts
    from ...stages.partition.clustered import Clustered
    from ...storage.dataset import check_one_type
    from ...storage.partition.node_order import check_order
    from ..config.load import resolve
    from ..config.records import cut_of
    from ..custom.user_module import from_flags
    from ..dashboard.command import recorded_stages
    from ..ingest.scratch import scratch_of, sweep_committed
    from ..opening import open_with_cluster
    from ..setup.run_folder import being_written, is_locked
    from ..telemetry.console import Terminal

    out, into, method, memory, order = options.out, options.into, options.method, options.memory, options.order
    renumbers = into is not None
    if (out is not None) == renumbers:
        raise InputError("expected a folder for the parts, --out, or one for a renumbered store, --into")
    if memory is not None and not renumbers:
        raise InputError("--memory bounds the writing of a renumbered store, --into; leave it out")
    check_order(order)
    if order != "ids" and not renumbers:
        raise InputError("--order is that of a renumbered store, --into; parts keep the order of ids: leave it out")
    flags |= {"dataset": dataset, "seed": options.seed, "partition": method or "metis"}
    # Ranks are those of a run: this command works here, unless it is told otherwise.
    usual = "inline" if flags["scheduler"] is None else "dask"
    flags["executor"] = present((flags["executor"], usual))[0]
    balance = present_items({"balance": options.balance, "passes": options.passes})
    given = [f"partition.{key}={value}" for key, value in balance.items()]
    job = resolve(job_table(None, from_flags(flags, resume=False)[1], given + (overrides or [])))
    folder = local_folder(out or into or Path())
    if method is not None and job.partition.owners is not None:
        raise InputError(f"--method is {method}, but partition.owners decides who owns a node; leave one of them out")
    chosen, parts = cut_of(job), check_parts(parts)
    assert chosen is not None, "a method is always given"
    if renumbers and folder.exists():
        sweep_committed(folder)
        raise InputError(f"{folder} already exists; choose another --into")
    if isinstance(chosen, Clustered) and not folder.exists():
        from ..cluster.dask_cluster import check_gpus_of_cut

        check_gpus_of_cut(job, chosen)
    if job.executor == "dask":
        from ..cluster.dask_cluster import check_reachable

        check_reachable(job.cluster)
    goes_on = (scratch_of(folder) if renumbers else folder).exists()
    if not renumbers and is_locked(folder):  # its record is another process's, too
        raise being_written(folder)
    with Terminal() as terminal, recorded_stages("partition", dataset, folder, terminal, goes_on=goes_on) as told:
        data = open_with_cluster(job, None, told, lazy=True)
        if renumbers:
            check_one_type(data, "renumbering")
        told(StageStarted("partition", f"cutting {data.name} into {parts} parts by {chosen.name}", parts))
        parts = check_parts(parts, data.num_nodes)
        cut = Cut(chosen, parts, job.seed_of("minibatches"), order)
        if renumbers:
            quality, seconds = _write_store(job, data, cut, folder, memory, told)
        else:
            with _own_folder(folder):
                quality, seconds = _write_parts(job, data, cut, folder, told)
    text = f"{quality.table()}\n{parts} parts in {folder} ({seconds:.1f} s)"
    record = {"out": str(folder), "method": chosen.name, "seconds": seconds, **quality.as_record()}
    show(text, record, as_json)


@contextmanager
def _own_folder(out: Path) -> Iterator[None]:
    """Context in which no other process writes parts into `out`. A new folder is removed if the input is refused.

    Raises:
        InputError: another process writes there, or `out` holds something else.
    """
    from ...stages.partition.stage import check_folder
    from ...storage.store.committed_folder import remove_tree
    from ...storage.store.manifest import MANIFEST
    from ..setup.run_folder import LOCK, locked

    check_folder(out)
    if (out / MANIFEST).exists():  # complete: it is only read
        yield
        return
    with locked(out):
        is_new = all(path.name == LOCK for path in out.iterdir())
        try:
            yield
        except InputError:
            if is_new:
                remove_tree(out)
            raise


def _write_parts(job: "Job", data: "Dataset", cut: "Cut", out: Path, emit: Emit) -> tuple["PartitionQuality", float]:
    """A folder of parts, by tasks if the job has a cluster. A store stays on disk."""
    from ...stages.partition.clustered import Clustered
    from ...stages.partition.stage import Cutter, assign_nodes, cut_dataset, parts_of_store
    from ...storage.dataset import require_nodes
    from ...storage.dataset_store import KIND, graph_access
    from ...storage.lazy_dataset import LazyDataset, open_lazily
    from ...storage.store.store import open_store

    with ExitStack() as exits:
        cutter = Cutter.here(data, cut, out)
        if job.executor == "dask":
            from ..cluster.partition_task import cutting_on_cluster

            # Its workers start when there is something to do.
            tasks = cache(lambda: exits.enter_context(cutting_on_cluster(job, data, cut, out, emit)))
            by_tasks = isinstance(data, LazyDataset) or isinstance(cut.partitioner, Clustered)
            assign = (lambda made: tasks().assign(cut, made)) if by_tasks else cutter.assign
            cutter = Cutter(assign, lambda parts, made: tasks().write_parts(parts, made) if parts else iter(()))
        elif isinstance(data, LazyDataset):
            path, place = data.path, data.features_access

            def assign_lazily(fingerprint: dict[str, str]) -> None:
                # The graph is read for this only, and not kept.
                data = open_lazily(path, place, graph=graph_access(open_store(path, KIND)))
                assign_nodes(data, cut, out, fingerprint, on_progress=advancing("cut", emit))

            cutter = Cutter(assign_lazily, parts_of_store(path, out))
        require_nodes(data, "parts hold")
        report = cut_dataset(data, cut, out, advancing("partition", emit), cutter)
    return report.quality, report.seconds


def _write_store(
    job: "Job", data: "Dataset", cut: "Cut", out: Path, memory: str | None, emit: Emit
) -> tuple["PartitionQuality", float]:
    """A store of the dataset in which each part is a range of ids; its features can be mapped."""
    import time

    from ...stages.partition.base import book_of
    from ...stages.partition.quality import measure
    from ...storage.dataset_store import write_dataset
    from ...storage.lazy_dataset import LazyDataset
    from ...storage.partition.reorder import reorder
    from ..ingest.convert import DEFAULT_MEMORY
    from ..ingest.tasks import parse_memory

    limit = parse_memory(memory or DEFAULT_MEMORY)
    if isinstance(data, LazyDataset):
        from ..relabel.run import moves_in_pieces, relabel

        in_memory = memory is None and job.executor != "dask" and 3 * data.nbytes <= limit
        if moves_in_pieces(data) or not in_memory:
            return relabel(job, data, cut, out, limit, emit)
        data = data.as_read()
    if job.executor == "dask" or memory is not None:
        given = "executor=dask" if memory is None else "--memory"
        raise InputError(
            f"{given} is for stores, and {data.name} was read into memory; make a store of it by millrace convert, or "
            "leave it out"
        )
    start = time.perf_counter()
    book = book_of(data, cut, advancing("cut", emit))
    quality = measure(data.graph, book, None if data.of_pairs else data.split.train)
    emit(StageStarted("store", f"writing {out}"))
    write_dataset(out, reorder(data, book, cut.order), features_format="npy")
    return quality, time.perf_counter() - start


CONVERT = {
    "features": Flag("zarr (compressed, checksummed) | npy (memory-mapped)", str, "zarr"),
    "graph": Flag("zarr (compressed, checksummed) | npy (memory-mapped): the edges", str, "zarr"),
    "feature_dtype": Flag(
        "float32 | float16 | bfloat16 | int8: round features to it; they are widened when read.", metavar="DTYPE"
    ),
    "memory": Flag("Bound of the memory of all processes together, for tables of edges and nodes.", str, "2GiB"),
    "workers": Flag("Processes that share the work on tables.", int, 1),
    "scheduler": Flag("A Dask scheduler whose workers share the work on tables.", metavar="ADDRESS"),
    "seed": Flag("Seed of a random split.", int, 0),
    "split": SPLIT,
}


@with_flags({}, CONVERT)
def convert(
    dataset: Annotated[
        str,
        typer.Argument(
            help="Embedded name; file or folder: .npz, .csv, .parquet; OGB name; URL of Parquet, or of a store."
        ),
    ],
    out: Annotated[str, typer.Option(help="Folder of the store, or its URL on an object store.")],
    *,
    options: Options,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a dataset as a Millrace store.

    Stores open fast, and can leave their features and their graph on disk. Tables are read in pieces, within
    --memory; the same command goes on with a conversion that was killed.
    """
    from ..config.load import resolve
    from ..ingest.convert import Formats, convert_job
    from ..setup.run_folder import flat
    from ..telemetry.console import Terminal

    flags = {"dataset": dataset, "seed": options.seed, "split": options.split}
    own = present_items({"cluster.scheduler": options.scheduler})
    table = job_table(None, flags, [*(overrides or []), *(f"{key}={value}" for key, value in own.items())])
    may_be = (*flags, "read", "cluster", "seeds.split")
    if others := [key for key in flat(table) if key not in may_be and key.partition(".")[0] not in may_be]:
        raise InputError(f"--set {others[0]} is a key of runs; expected read.KEY=VALUE or cluster.KEY=VALUE")
    job = resolve(table)
    to = out if is_url(out) else local_folder(Path(out))
    with Terminal() as terminal:
        formats = Formats(options.features, options.graph, options.feature_dtype)
        store = convert_job(job, None, to, formats, options.memory, options.workers, emit=terminal)
    nodes, edges = store.entries["indptr"]["shape"][0] - 1, store.entries["indices"]["shape"][0]
    name, size = store.value("name", str), None if is_url(out) else store.nbytes
    space = "" if size is None else f", {size / 2**20:,.2f} MiB"
    record = {
        "out": str(to),
        "dataset": name,
        "num_nodes": nodes,
        "num_edges": edges,
        **{name: getattr(options, name) for name in ("features", "graph", "feature_dtype")},
        "bytes": size,
    }
    show(f"{name}: {nodes:,} nodes, {edges:,} edges{space} in {to}", record, as_json)


FEATURES = Flag(
    "Pack the feature rows of each minibatch beside it, so that training reads them in order: as the dataset keeps "
    "them, or as float32 | float16 | bfloat16 | int8.",
    metavar="[FORM]",
)


@with_flags(JOB | {"features": FEATURES}, {})
def sample(
    job: JobFile = None,
    out: Annotated[str, typer.Option(help="Folder of the store, or its URL on an object store.")] = "samples",
    epochs: Annotated[int | None, typer.Option(help="Epochs to sample.  [default: 30]")] = None,
    *,
    flags: Flags,
    overrides: SetFlag = None,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Sample minibatches once, to train from them many times. An interrupted run continues where it stopped.

    Takes the job of `run`; what concerns training is left to it.
    """
    from ..config.load import resolve
    from ..custom.user_module import from_flags
    from ..precompute import precompute
    from ..setup.configure import check_used
    from ..telemetry.console import Terminal

    features = flags.pop("features") or ""
    resolved = resolve(job_table(job, from_flags({**flags, "epochs": epochs}, resume=False)[1], overrides))
    out = out if "://" in out else str(expanded(Path(out)))
    check_used([resolved], trains=False)
    with heeded(say_aside) as requests, Terminal() as terminal:
        report = precompute(resolved, out, emit=both(requests, terminal), stop=requests.stop, features=features)
    minibatches = counted(report["minibatches"], "minibatch", "minibatches")
    size = "" if report["bytes"] is None else f", {report['bytes'] / 2**20:,.2f} MiB"
    packed = f", with features as {report['features']}" if report["features"] else ""
    text = (
        f"{minibatches} of {counted(report['epochs'], 'epoch')}{size} in {out}{packed};"
        f" sampled now: {report['edges']:,} edges ({report['seconds']:.1f} s)"
    )
    show(text, report, as_json)


def inspect(
    path: Annotated[str, typer.Argument(help="A run, a store of samples, partitions or data, or any dataset.")],
    minibatch: Annotated[
        str | None, typer.Option(metavar="EPOCH,INDEX", help="Print one minibatch of a store of samples.")
    ] = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Describe a folder, a file or a dataset."""
    from ..config.load import resolve
    from .describe import describe

    record = describe(path, minibatch, resolve(job_table(None, {}, overrides)) if overrides else None)
    if as_json:
        say(json.dumps(record))
    else:
        width = max(map(len, record)) + 2
        say("\n".join(f"{key:<{width}}{value}" for key, value in record.items()))


def check(
    path: Annotated[Path, typer.Argument(help="A run's folder, a store of data or parts, or stored samples.")],
    as_json: JsonFlag = False,
) -> None:
    """Verify every digest in a store, a run or samples.

    Also those of what is mapped and not verified while it is read.
    """
    from ..telemetry.console import Terminal
    from ..verify import verify

    with Terminal() as terminal:
        found = verify(expanded(path), terminal)
    lines = [f"damaged: {name}: {why}" for name, why in found.damaged.items()]
    lines += [f"no digest: {name}" for name in found.unknown]
    sound = len(found.checked) - len(found.damaged)
    lines.append(f"{sound:,} of {len(found.checked):,} as they were written, in {path}")
    record = {"path": str(path), "checked": found.checked, "damaged": found.damaged, "unknown": found.unknown}
    show("\n".join(lines), record, as_json)
    if found.damaged:
        raise StoreError(f"{path} is damaged: {', '.join(found.damaged)}; copy it again, or make it again")
