"""Prediction with a trained model: `mr.predict`, and the work of `millrace predict`."""

import csv
from pathlib import Path
from typing import Any

from torch import nn

from ...stages.nodes import BY_LABELS, node_ids
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ..datasets import ReadOptions
from ..setup.result import Result
from ..telemetry.events import Emit, StageStarted, cautioning, during
from .by_tasks import Workers
from .embed import embed
from .files import names_of
from .finished_run import TrainedRun
from .opened import Call, opened
from .predictions import Predictions
from .to_file import FileRequest


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
