"""`millrace convert`: write a dataset as a Millrace store."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.errors import InputError
from ...storage.optional import present_items
from ...storage.store.paths import local_folder
from ...storage.urls import is_url
from .shared.flags import SPLIT, Flag, JsonFlag, Options, SetFlag, with_flags
from .shared.job_table import job_table
from .shared.output import show

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
