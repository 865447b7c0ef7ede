"""Predictions and embeddings of nodes: `mr.predict`, `mr.embed`, and the work of `millrace predict` for them."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...stages.models.base import Model, keeps_edges, layered, reads_edges
from ...stages.neighbourhood.base import Neighbourhood
from ...stages.nodes import BY_LABELS, node_ids
from ...storage.array_kinds import FloatArray
from ...storage.dataset import Dataset, IdArray
from ...storage.errors import InputError
from ..datasets import ReadOptions
from ..setup.result import Result
from ..telemetry.events import Emit, StageStarted, cautioning, during
from .by_tasks import Workers
from .files import PIECE_ROWS, FileRequest, FileRows, check_suffix, names_of, row_columns, write_rows
from .finished_run import TrainedRun
from .opened import Call, opened
from .predictions import Predictions


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


def predict(
    run: TrainedRun | Result | str | Path | nn.Module,
    dataset: Any = None,
    nodes: Any = None,
    *,
    options: ReadOptions | None = None,
    model: Any = None,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    emit: Emit = cautioning,
) -> Predictions:
    """Predict the classes, or the values, of nodes. Every layer reads all in-edges, as in `infer`.

    Args:
        run: a finished run (its folder, the result of `millrace.run` or of `load`), or a model.
        dataset: anything that `open_dataset` takes; by default the run's own. Another graph needs features of the same
            width; its labels and classes do not matter.
        nodes: ids (a list, an array, a tensor), a mask [V], names of nodes, or ``"train"``, ``"val"``, ``"test"`` or
            ``"unlabelled"``; by default all nodes. Where the ids of the input are integers with gaps, or nodes were
            renumbered, integers are these ids.
        options: how `dataset` is read, where that is not as the run's own was: values that are not the defaults.
        model: for a run of your own module: see `load`.
        workers: processes that share the work, layer by layer, in files of the run's folder; rows are the same. With 1
            this process does the work, with all threads.
        scheduler: address of a Dask scheduler, its file, or a client or cluster of Dask, whose workers do the work;
            they see the run's folder.
        cluster: keys of the section ``cluster`` of the configuration, such as ``insecure``, in place of the run's; or
            as `scheduler`.
        client: as `scheduler`.
        emit: called with every event.

    Raises:
        InputError: the arguments do not go together, or the run is not finished.
        StoreError: something in the run's folder is damaged.
    """
    of_split = isinstance(nodes, str) and nodes in BY_LABELS
    call = Call(dataset, options, Workers.from_arguments(workers, scheduler, cluster, client), emit)
    found = opened(run, call, "predict", model, labelled=of_split)
    data, classes = found.data, found.class_names
    if found.task == "link":
        raise InputError(
            f"the task of {found.name} is link, which scores pairs of nodes; use mr.predict_links(run, pairs), "
            "mr.recommend(run) for the best of each node, or mr.embed(run) for the rows of nodes"
        )
    if found.of_edges:
        raise InputError(
            f"{found.name} predicts labels of edges; use mr.predict_edges(run), or mr.embed(run) for nodes"
        )
    ids = node_ids(nodes, data.num_targets, data)
    with during(StageStarted("predict", f"predicting {len(ids):,} nodes of {data.name} by {found.name}"), emit):
        logits = found.outputs(found.model, ids, emit)
    # A user's module may have another number of outputs.
    width = 2 if found.task == "binary" else logits.shape[1]
    classes = classes if classes is not None and len(classes) == width else None
    return Predictions(ids, logits.cpu().numpy(), found.task, names_of(ids, data), classes)


def predict_to_file(
    request: FileRequest, nodes: str | None, all_probabilities: bool, embeddings: bool = False, labels: bool = False
) -> dict[str, Any]:
    """Predict with a finished run and write the predictions, or embeddings, into a file.

    Args:
        request: run, file, dataset.
        nodes: ids or names separated by commas, or a split; None: all.
        all_probabilities: see `Predictions.to_parquet`.
        embeddings: write the rows that the last layer reads, in place of classes.
        labels: write what the dataset has for the nodes too: see `Predictions.beside`.

    Returns:
        The record of `FileRequest.write`, with the number of nodes.

    Raises:
        InputError: the file exists or cannot be written; see also `predict`.
    """
    if embeddings and all_probabilities:
        raise InputError("--all-probabilities and --embeddings are given; expected one of them")
    if labels and (embeddings or request.out.suffix.lower() == ".npy"):
        raise InputError(
            f"--labels is given, which are columns of a table, with {'--embeddings' if embeddings else '.npy'}; "
            "write predictions into .parquet, .csv or .zarr"
        )

    def write(trained: TrainedRun, out: Path) -> dict[str, Any]:
        result, run = trained.result, request.run
        of_edges = result.labels_of == "edges"
        if result.task == "link" and not embeddings:
            raise InputError(
                f"the task of {run} is link, which scores pairs of nodes; give --pairs FILE, --top K, or --embeddings"
            )
        if of_edges and not embeddings:
            raise InputError(f"{run} predicts labels of edges; leave --nodes out, or give --embeddings")
        request.check_probabilities(trained, all_probabilities)
        data = request.open_dataset(trained, labelled=labels or nodes in BY_LABELS)
        wanted = nodes_of_text(nodes, data, of_edges or result.task == "link")
        if embeddings:
            found = embed(trained, data, wanted, **request.computing)
            found.write(out)
        else:
            found = predict(trained, data, wanted, **request.computing)
            found = found.beside(data) if labels else found
            found.write(out, all_probabilities=all_probabilities)
        return {"dataset": data.name, "nodes": len(found)}

    return request.write(write, embeddings)


def nodes_of_text(nodes: str | None, data: Dataset, of_pairs: bool) -> Any:
    """Nodes of the command line, as a row of CSV: names that have commas are in quotation marks. Of a run that predicts
    pairs, the name of a node type too."""
    if nodes is None or nodes in BY_LABELS:
        return nodes
    if nodes == "all":
        return None
    if of_pairs and not data.graph.types.is_single and nodes in data.graph.types.node_types:
        return nodes
    rows = csv.reader(nodes.splitlines() or [""], skipinitialspace=True)
    parts = [part.strip() for row in rows for part in row or [""]]
    # Where nodes have names, `7` is a name, and no number of a row.
    if data.node_names is None and all(part.lstrip("-").isdecimal() for part in parts):
        return [int(part) for part in parts]
    return parts
