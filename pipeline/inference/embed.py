"""Embeddings of nodes: the rows that a trained model's last layer, or another one, reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...stages.models.base import Model, keeps_edges, layered, reads_edges
from ...stages.neighbourhood.base import Neighbourhood
from ...stages.nodes import BY_LABELS, node_ids
from ...storage.array_kinds import FloatArray
from ...storage.dataset import IdArray
from ...storage.errors import InputError
from ..datasets import ReadOptions
from ..setup.result import Result
from ..telemetry.events import Emit, StageStarted, cautioning, during
from .by_tasks import Workers
from .files import PIECE_ROWS, FileRows, check_suffix, names_of, row_columns, write_rows
from .finished_run import TrainedRun
from .opened import Call, opened


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(FileRows):
    """Rows of a hidden layer for n nodes."""

    nodes: IdArray
    """int64 [n], ids in the order of the request."""
    rows: FloatArray
    """[n, D]."""
    layer: int
    """Layers that have been applied, from 1."""
    node_names: Any = None
    """Names of these nodes, where their dataset has names."""

    BY_ROW = ("nodes", "rows", "node_names")

    def as_array(self) -> FloatArray:
        return self.rows

    def columns(self) -> dict[str, Any]:
        return row_columns(self.nodes, self.node_names) | {"embedding": self.rows}

    @property
    def attributes(self) -> dict[str, Any]:
        return {"layer": self.layer}

    def table(self) -> Any:
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(self.rows).reshape(-1))
        return pa.table({**self.columns(), "embedding": pa.FixedSizeListArray.from_arrays(flat, self.rows.shape[1])})

    def write(self, path: str | Path) -> None:
        """Write a file: ``.parquet`` with the columns ``node`` (id or name) and ``embedding`` (a list of D numbers),
        ``.zarr`` with such arrays, or ``.npy`` with the rows alone. An existing file is replaced.

        Raises:
            InputError: another suffix, or it cannot be written.
        """
        write_rows(path, check_suffix(Path(path), (".parquet", ".npy", ".zarr")), len(self), self.pieces(PIECE_ROWS))

    def __repr__(self) -> str:
        return f"Embeddings({len(self):,} nodes, {self.rows.shape[1]} columns, after layer {self.layer})"


class FirstLayers(nn.Module):
    """The first layers of a model, as they are within it."""

    def __init__(self, model: nn.Module, num_layers: int) -> None:
        super().__init__()
        self.model, self.num_layers = model, num_layers
        self.reads_edges, self.keeps_edges = reads_edges(model), keeps_edges(model)

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        return layered(self.model).layer(i, neighbourhood, h)

    def forward(self, neighbourhoods: Any, h: Tensor) -> Tensor:
        # pyrefly: ignore[bad-argument-type]
        return Model.forward(self, neighbourhoods, h)


def embed(
    run: TrainedRun | Result | str | Path | nn.Module,
    dataset: Any = None,
    nodes: Any = None,
    *,
    layer: int | None = None,
    options: ReadOptions | None = None,
    model: Any = None,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    emit: Emit = cautioning,
) -> Embeddings:
    """Embeddings of nodes, over all in-edges in every layer: what a model knows of a node before it says its class.

    Args:
        run: as in `predict`.
        dataset: as in `predict`.
        nodes: as in `predict`. For pairs on a graph with several types, the name of a node type is allowed too, and ids
            are then those within it; other ids count through all types in order.
        layer: layers to apply, from 1 to L; by default L - 1, the rows that the last layer reads, and L where pairs are
            predicted.
        options: see `predict`.
        model: as in `predict`.
        workers: as in `predict`.
        scheduler: as in `predict`.
        cluster: as in `predict`.
        client: as in `predict`.
        emit: called with every event.

    Raises:
        InputError: the arguments do not go together, the model has no such layer, or the run is not finished.
        StoreError: something in the run's folder is damaged.
    """
    of_split = isinstance(nodes, str) and nodes in BY_LABELS
    call = Call(dataset, options, Workers.from_arguments(workers, scheduler, cluster, client), emit)
    found = opened(run, call, "embed", model, labelled=of_split)
    num_layers = int(layered(found.model).num_layers)
    if layer is None and found.of_pairs:
        layer = num_layers
    if layer is None and num_layers == 1:
        raise InputError(f"{found.name} has one layer, which reads the features; give layer=1 for what it computes")
    applied = num_layers - 1 if layer is None else layer
    if type(applied) is not int or not 1 <= applied <= num_layers:
        raise InputError(f"layer is {applied!r}; expected a whole number from 1 to {num_layers}")
    data, of_pairs = found.data, found.of_pairs
    types, first = data.graph.types, 0
    if of_pairs and not types.is_single and isinstance(nodes, str) and nodes in types.node_types:
        first, stop = types.offsets[(t := types.node_type(nodes)) : t + 2]
        ids = np.arange(first, stop)
    else:
        ids = node_ids(nodes, data.num_nodes if of_pairs else data.num_targets, data)
    with during(StageStarted("predict", f"embedding {len(ids):,} nodes of {data.name} by {found.name}"), emit):
        rows = found.outputs(found.model if applied == num_layers else FirstLayers(found.model, applied), ids, emit)
    return Embeddings(ids - first, rows.cpu().numpy(), applied, names_of(ids, data))
