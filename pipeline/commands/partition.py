"""`millrace partition`: cut a dataset into partitions."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..telemetry.events import StageAdvanced, StageStarted
from .shared.flags import JsonFlag, SetFlag, SplitFlag
from .shared.job_table import job_table
from .shared.output import show
from .shared.paths import output_folder


def partition(
    dataset: Annotated[
        str, typer.Argument(help="Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.")
    ],
    parts: Annotated[int, typer.Option(help="P, the number of partitions.")],
    out: Annotated[Path, typer.Option(help="Folder of the partitions.")],
    method: Annotated[
        str, typer.Option(help="contiguous | hash | ldg | fennel | metis | metis-work | louvain | leiden")
    ] = "metis",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Cut a dataset into partitions, and print their quality."""
    from ...stages.partition.base import check_parts
    from ...stages.partition.clustered import Clustered
    from ...stages.partition.registry import partitioner
    from ...stages.partition.stage import partition_dataset
    from ..config.load import resolve
    from ..setup.open_data import open_data
    from ..telemetry.console import Terminal

    flags = {"dataset": dataset, "seed": seed, "split": split}
    job, out = resolve(job_table(None, flags, overrides)), output_folder(out)
    chosen, parts = partitioner(method), check_parts(parts)
    if isinstance(chosen, Clustered) and not out.exists():
        chosen.check_available()
    on_cluster = job.executor == "dask"
    if on_cluster:
        from ..cluster.dask_cluster import check_reachable

        check_reachable(job.cluster)
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("partition", f"cutting {data.name} into {parts} parts by {method}", parts))
        write_parts = None
        if on_cluster:
            from ..cluster.partition_task import parts_on_cluster

            write_parts = partial(parts_on_cluster, job, data, out, emit=terminal)
        report = partition_dataset(
            data,
            chosen,
            parts,
            out,
            seed=job.seed_of("minibatches"),
            on_progress=lambda done, total: terminal(StageAdvanced("partition", done, total)),
            write_parts=write_parts,
        )
    text = f"{report.quality.table()}\n{parts} parts in {out} ({report.seconds:.1f} s)"
    record = {"out": str(out), "method": method, "seconds": report.seconds, **report.quality.as_record()}
    show(text, record, as_json)
