"""`millrace partition`: cut a dataset into partitions."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage.errors import InputError
from ...storage.optional import present, present_items
from ...storage.store.paths import local_folder
from ..telemetry.events import Emit, StageStarted, advancing
from .shared.flags import JOB, Flag, Flags, JsonFlag, Options, SetFlag, with_flags
from .shared.job_table import job_table
from .shared.output import show

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
