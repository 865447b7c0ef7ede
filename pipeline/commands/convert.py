"""`millrace convert`: write a dataset as a Millrace store."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.errors import InputError, nearest
from ..telemetry.events import StageStarted
from .shared.flags import JsonFlag, SetFlag, SplitFlag
from .shared.job_table import job_table
from .shared.output import show
from .shared.paths import output_folder

FORMATS = ("zarr", "npy")


def convert(
    dataset: Annotated[str, typer.Argument(help="Embedded name; file or folder: .npz, .csv, .parquet; OGB name.")],
    out: Annotated[Path, typer.Option(help="Folder of the store.")],
    features: Annotated[str, typer.Option(help="zarr (compressed, checksummed) | npy (memory-mapped)")] = "zarr",
    seed: Annotated[int, typer.Option(help="Seed of a random split.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a dataset as a Millrace store.

    Stores open fast, and can leave their features on disk.
    """
    from ...storage.dataset_store import write_dataset
    from ..config.load import resolve
    from ..setup.open_data import open_data
    from ..telemetry.console import Terminal

    if features not in FORMATS:
        raise InputError(f"--features is '{features}'; expected zarr or npy{nearest(features, list(FORMATS))}")
    flags = {"dataset": dataset, "seed": seed, "split": split}
    job, out = resolve(job_table(None, flags, overrides)), output_folder(out)
    if out.exists():
        raise InputError(f"{out} already exists; choose another --out")
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("store", f"writing {out}"))
        store = write_dataset(out, data, features_format=features)
    record = {
        "out": str(out),
        "dataset": data.name,
        "num_nodes": data.num_nodes,
        "num_edges": data.graph.num_edges,
        "features": features,
        "bytes": store.nbytes,
    }
    size = f"{data.num_nodes:,} nodes, {data.graph.num_edges:,} edges, {store.nbytes / 2**20:,.2f} MiB"
    show(f"{data.name}: {size} in {out}", record, as_json)
