"""`millrace partition`: cut a dataset into partitions."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage.errors import InputError
from ..telemetry.events import Emit, StageAdvanced, StageStarted
from .shared.flags import JsonFlag, SetFlag, SplitFlag
from .shared.job_table import job_table
from .shared.output import show
from .shared.paths import output_folder

if TYPE_CHECKING:
    from ...stages.partition.base import Partitioner
    from ...stages.partition.quality import PartitionQuality
    from ...storage.dataset import Dataset
    from ..config.job import Job


def partition(
    dataset: Annotated[
        str, typer.Argument(help="Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.")
    ],
    parts: Annotated[int, typer.Option(help="P, the number of partitions.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the partitions.")] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Instead of --out: store of the dataset, nodes renumbered part by part."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="contiguous | hash | ldg | fennel | metis | metis-work | metis-streamed | louvain | leiden"),
    ] = "metis",
    balance: Annotated[
        str | None,
        typer.Option(help="nodes | edges | train, for contiguous (not train) and metis-streamed."),
    ] = None,
    passes: Annotated[
        int | None, typer.Option(help="Times that ldg, fennel or metis-streamed reads the graph.  [default: 1, 1, 8]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Cut a dataset into partitions, and print their quality."""
    from ...stages.partition.base import check_parts
    from ...stages.partition.clustered import Clustered
    from ...stages.partition.registry import partitioner
    from ..config.load import resolve
    from ..setup.open_data import open_data
    from ..telemetry.console import Terminal

    if (out is None) == (into is None):
        raise InputError("expected a folder for the parts, --out, or one for a renumbered store, --into")
    flags = {"dataset": dataset, "seed": seed, "split": split}
    job, folder = resolve(job_table(None, flags, overrides)), output_folder(out or into or Path())
    chosen, parts = partitioner(method, balance=balance, passes=passes), check_parts(parts)
    if into is not None and folder.exists():
        raise InputError(f"{folder} already exists; choose another --into")
    if isinstance(chosen, Clustered) and not folder.exists():
        chosen.check_available()
    if job.executor == "dask":
        from ..cluster.dask_cluster import check_reachable

        if into is not None:
            raise InputError("--into renumbers the dataset in this process; leave executor out, or use --out")
        check_reachable(job.cluster)
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("partition", f"cutting {data.name} into {parts} parts by {method}", parts))
        cut = _write_parts if into is None else _write_store
        quality, seconds = cut(job, data, chosen, check_parts(parts, data.num_nodes), folder, terminal)
    text = f"{quality.table()}\n{parts} parts in {folder} ({seconds:.1f} s)"
    record = {"out": str(folder), "method": method, "seconds": seconds, **quality.as_record()}
    show(text, record, as_json)


def _write_parts(
    job: "Job", data: "Dataset", chosen: "Partitioner", parts: int, out: Path, emit: Emit
) -> tuple["PartitionQuality", float]:
    """A folder of parts, by tasks if the job has a cluster."""
    from ...stages.partition.stage import partition_dataset

    write_parts = None
    if job.executor == "dask":
        from ..cluster.partition_task import parts_on_cluster

        write_parts = partial(parts_on_cluster, job, data, out, emit=emit)
    report = partition_dataset(
        data,
        chosen,
        parts,
        out,
        seed=job.seed_of("minibatches"),
        on_progress=lambda done, total: emit(StageAdvanced("partition", done, total)),
        write_parts=write_parts,
    )
    return report.quality, report.seconds


def _write_store(
    job: "Job", data: "Dataset", chosen: "Partitioner", parts: int, out: Path, emit: Emit
) -> tuple["PartitionQuality", float]:
    """A store of the dataset in which each part is a range of ids; its features can be mapped."""
    import time

    from ...stages.partition.base import make_book
    from ...stages.partition.quality import measure
    from ...storage.dataset_store import write_dataset
    from ...storage.partition.reorder import reorder

    start = time.perf_counter()
    book = make_book(
        chosen,
        data.graph,
        parts,
        job.seed_of("minibatches"),
        data.split.train,
        lambda done, total: emit(StageAdvanced("partition", done, total)),
    )
    quality = measure(data.graph, book, data.split.train)
    emit(StageStarted("store", f"writing {out}"))
    write_dataset(out, reorder(data, book), features_format="npy")
    return quality, time.perf_counter() - start
