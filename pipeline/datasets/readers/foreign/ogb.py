"""Node-property graphs of the Open Graph Benchmark (Hu et al., NeurIPS 2020), from the files that OGB itself unpacks.

A folder has ``raw/edge.csv.gz``, ``raw/node-label.csv.gz``, ``raw/num-node-list.csv.gz``, optionally
``raw/node-feat.csv.gz``, and ``split/<name>/{train,valid,test}.csv.gz``. Reading it needs neither the ``ogb`` package
nor a network.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from .....storage.errors import InputError, MissingExtraError, install
from ...cleaning.arrow import reading
from ...cleaning.raw import AnyArray, GivenLabels, Hint, Raw, RawEdges, RawNodes
from ...schema.source import Request
from .public import OGB, near_ogb

ONE_WAY = {"ogbn-products", "ogbn-proteins"}
"""Datasets whose edges OGB stores once, and reverses when it loads them (add_inverse_edge in its master table)."""


def find_ogb(name: str) -> Path:
    """The folder of `name` under ``$OGB_ROOT`` or ``./dataset``; downloaded through the ``ogb`` package if it is
    missing. Raises MissingExtraError: the folder is missing and ``ogb`` is not installed; InputError: OGB has no such
    dataset, or the download failed."""
    root = Path(os.environ.get("OGB_ROOT", "dataset"))
    own = name.replace("-", "_")
    folders = [root / each for each in (own, f"{own}_pyg", name, name.removeprefix("ogbn-"))]
    for folder in folders:
        if (folder / "raw").is_dir():
            return folder
    if name not in OGB:
        raise InputError(near_ogb(name))
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError:
        raise MissingExtraError(
            f"{name} is not at {folders[0]} and the ogb package, which downloads it, is not installed: "
            f"{install('ogb')}, or set OGB_ROOT to the folder that holds it"
        ) from None
    try:
        NodePropPredDataset(name=name, root=str(root))
    except Exception as e:
        raise InputError(
            f"{name} could not be downloaded to {root} ({e}); check the name and the network, or unpack it there by "
            "hand"
        ) from e
    if not (folders[0] / "raw").is_dir():
        raise InputError(f"the ogb package left no {folders[0] / 'raw'}; unpack {name} there by hand")
    return folders[0]


def read_ogb(name: Path, request: Request) -> Raw:
    """The graph of a name of OGB. See `find_ogb` and `read_ogb_folder`."""
    return read_ogb_folder(find_ogb(str(name)), replace(request, name=request.name or str(name)))


def read_ogb_folder(folder: Path, request: Request) -> Raw:
    """Read one graph from OGB's raw files. Raises InputError: a file is missing or malformed."""
    edges = _csv(folder / "raw" / "edge.csv.gz", np.int64)
    if edges.size and edges.shape[1] != 2:
        raise InputError(f"{folder / 'raw' / 'edge.csv.gz'} has {edges.shape[1]} columns; expected source, destination")
    edges = edges.reshape(-1, 2)
    counts = _csv(folder / "raw" / "num-node-list.csv.gz", np.int64)
    if counts.size != 1:
        raise InputError(f"{folder} holds {counts.size} graphs; expected one graph (a node-property dataset)")
    labels = _csv(folder / "raw" / "node-label.csv.gz", np.float64)
    if len(labels) != counts.item():
        raise InputError(f"{folder} has {len(labels)} labels for {counts.item()} nodes; unpack the dataset again")
    feat = folder / "raw" / "node-feat.csv.gz"
    known = request.name or folder.resolve().name.removesuffix("_pyg").replace("_", "-")
    if known in ONE_WAY:
        hint = Hint("undirected", f"OGB stores each edge of {known} once")
    elif known.startswith("ogbn-"):
        hint = Hint("directed", f"OGB publishes {known} as a directed graph")
    else:
        hint = None
    x = _csv(feat, np.float32) if feat.exists() else None
    ends, nodes = {None: RawEdges((edges[:, 0], edges[:, 1]))}, {None: RawNodes(x)}
    return Raw(known, ends, GivenLabels(labels), nodes, split=_split(folder), hint=hint)


def _split(folder: Path) -> dict[str, AnyArray]:
    kinds = sorted(p for p in (folder / "split").glob("*") if p.is_dir())
    if not kinds:
        return {}
    if len(kinds) > 1:
        raise InputError(
            f"{folder / 'split'} holds {len(kinds)} splits ({', '.join(p.name for p in kinds)}); leave one there"
        )
    files = {"train": "train", "val": "valid", "test": "test"}
    return {part: _csv(kinds[0] / f"{stem}.csv.gz", np.int64).reshape(-1) for part, stem in files.items()}


def _csv(path: Path, dtype: type[np.number]) -> AnyArray:
    """[rows, columns] of a headerless, compressed table of numbers. Empty cells are NaN if `dtype` is floating."""
    if not path.exists():
        raise InputError(f"{path} does not exist; expected OGB's layout (raw/edge.csv.gz, raw/node-label.csv.gz, ...)")
    with reading(path, "OGB's own file: unpack the dataset again", "is not a compressed table of numbers"):
        with pa.input_stream(str(path), compression="gzip") as stream:
            content = stream.read()
        if not content.strip():
            return np.empty((0, 1), dtype)
        options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
        table = pyarrow.csv.read_csv(pa.BufferReader(content), read_options=options)
        return np.stack([column.cast(pa.from_numpy_dtype(dtype)).to_numpy() for column in table.columns], axis=1)
