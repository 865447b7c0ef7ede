"""Predictions for pairs of nodes: scores of links, `mr.predict_links`, and labels of edges, `mr.predict_edges`; and the
work of `millrace predict` for them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...stages.evaluate.edges import edge_outputs
from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.links import score_pairs
from ...stages.links.decoders import decoder_beside, of_relation
from ...stages.links.plan import Ends
from ...storage.array_kinds import FloatArray, IdArray, ValueArray
from ...storage.dataset import SPLITS, Dataset
from ...storage.errors import InputError, nearest
from ...storage.links.pairs import PairArray
from ...storage.optional import present, present_items, taken
from ...storage.store.paths import expanded
from ...storage.times.moments import as_moments
from ..datasets import ReadOptions
from ..datasets.cleaning.splits import NO_SPLIT
from ..datasets.edge_labels import LabelledEdges, edges_to_predict
from ..datasets.links import like_edges
from ..datasets.pairs import as_pairs, own_ids, read_pairs
from ..setup.open_data import as_event
from ..setup.python_inputs import read_given
from ..setup.result import Result
from ..telemetry.events import Emit, StageStarted, cautioning, during
from .by_tasks import Workers
from .files import PIECE_ROWS, FileRequest, FileRows, check_suffix, names_of, row_columns, write_rows
from .finished_run import TrainedRun, load
from .opened import Call, Opened, opened
from .predictions import EdgePredictions
from .relations_of_run import by_asked, relations_asked, types_of_pairs


@dataclass(frozen=True, eq=False, repr=False)
class LinkScores(FileRows):
    """Scores of n pairs of nodes. A larger score means a likelier link. If the loss was ``bce`` without `pos_weight`,
    the sigmoid of a score is a probability."""

    pairs: IdArray
    """int64 [n, 2], in the order of the request; ids within the types of the ends, where a graph has several."""
    scores: FloatArray
    """[n]."""
    relations: npt.NDArray[np.str_] | None = None
    """[n], names of the pairs' relations, where the run predicts several."""
    node_names: Any = None
    """Names of the nodes of `pairs`, [n, 2], where their dataset has names."""

    BY_ROW = ("pairs", "scores", "relations", "node_names")

    def as_array(self) -> FloatArray:
        return self.scores

    def columns(self) -> dict[str, Any]:
        named = row_columns(self.pairs, self.node_names)
        return named | present_items({"relation": self.relations}) | {"score": self.scores}

    def write(self, path: str | Path) -> None:
        """Write a file: ``.parquet`` or ``.csv`` with the columns ``src``, ``dst`` (ids or names), perhaps
        ``relation``, and ``score``, ``.zarr`` with such arrays, or ``.npy`` with the scores alone. An
        existing one is replaced.

        Raises:
            InputError: another suffix, or it cannot be written.
        """
        write_rows(path, check_suffix(Path(path)), len(self), self.pieces(PIECE_ROWS))

    def __repr__(self) -> str:
        return f"LinkScores({len(self):,} pairs)"


def predict_links(
    run: TrainedRun | Result | str | Path,
    pairs: Any,
    dataset: Any = None,
    *,
    relation: Any = None,
    times: Any = None,
    options: ReadOptions | None = None,
    model: Any = None,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    emit: Emit = cautioning,
) -> LinkScores:
    """Score pairs of nodes. Every layer reads all in-edges; with the sampler temporal, samples of the in-edges before a
    pair's time.

    Args:
        run: a finished run of the task ``link``: its folder, or the result of `millrace.run` or of `load`.
        pairs: [n, 2] ids or names of nodes, or a file: a table with the columns src and dst, or ``.npy``. Where a graph
            has several types, each column is of ids or names within the type of that end of the pair's relation.
        dataset: anything that `open_dataset` takes, with features of the same width; by default the run's own, whose
            graph lacks the held-out pairs. Of another one all edges count, and labels or pairs need not be there.
        relation: of a run that predicts several: the relation of all pairs, its name or (source type, name, destination
            type), or a sequence with that of each. By default the column relation of the file.
        times: [n] numbers or dates, of the pairs, for a run by the sampler temporal: each is scored from what lies
            before. By default the column time of the file, or after all edges.
        options: see `predict`.
        model: for a run of your own module: see `load`.
        workers: processes that compute the rows of nodes: see `predict`.
        scheduler: see `predict`.
        cluster: see `predict`.
        client: see `predict`.
        emit: called with every event.

    Raises:
        InputError: the run has another task or is not finished, or a pair has an end that is no node.
        StoreError: something in the run's folder is damaged.
    """
    trained = run if isinstance(run, TrainedRun) else load(run, model=model, emit=emit)
    if trained.result.labels_of == "edges":
        raise InputError(f"{trained.folder} predicts labels of edges; use mr.predict_edges")
    if trained.result.task != "link":
        raise InputError(
            f"the task of {trained.folder} is {trained.result.task}, which scores no pairs; leave --pairs out, or call "
            'mr.predict(run), or train with task = "link"'
        )
    call = Call(dataset, options, Workers.from_arguments(workers, scheduler, cluster, client), emit)
    found = opened(trained, call, "predict_links", labelled=False)
    data = for_pairs(trained, found.data)
    types, given = data.graph.types, read_pairs(pairs, data)
    if relation is not None and given.relation is not None:
        raise InputError(f"relation is {relation!r}, but {given.what} has a column relation; leave one of them out")
    if given.relation is None or not types.predicts_several:
        given = replace(given, relation=relations_asked(types, relation, len(given), trained.folder))
    wanted = given.nodes(data)
    ends = ends_at(wanted, times, given.times(data.graph), found, trained)
    names = np.empty(len(wanted), object)
    text = f"scoring {len(wanted):,} pairs of {data.name} by {trained.result.model}"
    with during(StageStarted("predict", text), emit), evaluating(trained.model), torch.no_grad():
        rows = found.outputs(trained.model, ends.nodes, emit, moments=ends.moments)
        scores, decoder = rows.new_zeros(len(wanted)), decoder_beside(trained.model, rows)
        for one, at in by_asked(types, given.relation):
            scores[at] = score_pairs(of_relation(decoder, one.place), rows, ends.positions[at])
            names[at] = None if one.place is None else one.name
    relations = names.astype(np.str_) if types.predicts_several else None
    return LinkScores(own_ids(wanted, data, given.relation), scores.cpu().numpy(), relations, ends_called(wanted, data))


def for_pairs(trained: TrainedRun, data: Dataset) -> Dataset:
    """The data whose types say which relations the run predicts."""
    types = types_of_pairs(trained.result, data)
    return data if types.is_single else replace(data, graph=replace(data.graph, types=types))


def ends_at(wanted: PairArray, times: object, read: object, found: Opened, trained: TrainedRun) -> Ends:
    """Distinct ends of pairs; of a run by the sampler temporal, each at its pair's time: of the caller's `times`, else
    of those `read` from a file, else after all edges.

    Raises:
        InputError: times are given to a run without them, or are not [n] numbers.
    """
    temporal = found.temporal is not None
    if times is not None and not temporal:
        raise InputError(f"times are given, but {trained.folder} was trained without them; leave them out")
    graph, given = found.data.graph, read if times is None else times
    moments = np.full(len(wanted), np.inf) if temporal else None
    if temporal and given is not None:
        moments = like_edges(as_moments(given, "times", len(wanted), graph.time_unit), graph)
    return Ends.from_pairs(wanted, moments, graph.num_nodes)


def ends_called(wanted: PairArray, data: Dataset) -> ValueArray | None:
    """[n, 2], names of the nodes of pairs, where their dataset has names: int64 where they are integers, else text; or
    objects, if those of one end are integers and those of the other one text."""
    arrays = [np.asarray(names) for names in present(names_of(end, data) for end in wanted.T)]
    if not arrays:
        return None
    mixed = len({a.dtype.kind for a in arrays}) > 1
    return np.stack([a.astype(object) if mixed else a for a in arrays], axis=1)


def scale_of(trained: TrainedRun) -> str:
    """What a score of this run's pairs says, in words."""
    own, loss = "loss" in read_given(trained.folder).get("code", {}), trained.config.train.loss
    if own or loss.name not in (None, "bce") or loss.pos_weight is not None:
        return "higher scores are likelier links; they are no probabilities"
    return "higher scores are likelier links; sigmoid(score) is the share of links among such pairs and negatives drawn"


def predict_links_to_file(request: FileRequest, pairs: Path, relation: str | None) -> dict[str, Any]:
    """Score pairs with a finished run and write them into a file.

    Args:
        request: run, file, dataset.
        pairs: file of pairs.
        relation: see `predict_links`.

    Returns:
        The record of `FileRequest.write`, with the number of pairs.

    Raises:
        InputError: the file cannot be written; see also `predict_links`.
    """

    def write(trained: TrainedRun, out: Path) -> dict[str, Any]:
        found = predict_links(trained, pairs, relation=relation, **request.arguments)
        found.write(out)
        return {"pairs": len(found), "scale": scale_of(trained)}

    return request.write(write)


SETS = (*SPLITS, "all")


def predict_edges(
    run: TrainedRun | Result | str | Path,
    pairs: Any = None,
    dataset: Any = None,
    *,
    features: Any = None,
    times: Any = None,
    options: ReadOptions | None = None,
    model: Any = None,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    emit: Emit = cautioning,
) -> EdgePredictions:
    """Predict the classes, or the values, of edges from the rows of their ends. Every layer reads all in-edges; with
    the sampler temporal, samples of the in-edges before each edge's time.

    Args:
        run: a finished run whose labels are of edges: its folder, or the result of `millrace.run` or of `load`.
        pairs: [n, 2] ids or names of nodes, source and destination, which need not be edges of the graph; or a file: a
            table with the columns src and dst, and those of the features that the run's labelled edges have, or
            ``.npy``; or ``"train"``, ``"val"`` or ``"test"``: the labelled edges of that set. None: all labelled edges
            of the dataset, those without a label too; of another one all rows of its table, whatever their labels.
            Where a graph has several types, each column is of ids or names within the type of that end of the run's
            relation.
        dataset: anything that `open_dataset` takes, with features of the same width; by default the run's own.
        features: [n, K], of `pairs` that are given as an array, if the run's labelled edges have features.
        times: [n] numbers or dates, of `pairs`, for a run by the sampler temporal. By default the column time of the
            file, or after all edges.
        options: see `predict`.
        model: for a run of your own module: see `load`.
        workers: processes that compute the rows of nodes: see `predict`.
        scheduler: see `predict`.
        cluster: see `predict`.
        client: see `predict`.
        emit: called with every event.

    Raises:
        InputError: the run predicts something else or is not finished, an end is no node, or features are missing.
        StoreError: something in the run's folder is damaged.
    """
    trained = run if isinstance(run, TrainedRun) else load(run, model=model, emit=emit)
    result = trained.result
    if result.labels_of != "edges":
        use = "predict_links" if result.task == "link" else "predict"
        raise InputError(f"{trained.folder} predicts no labels of edges (task {result.task}); use mr.{use}")
    of_split = isinstance(pairs, str) and pairs in SPLITS
    call = Call(dataset, options, Workers.from_arguments(workers, scheduler, cluster, client), emit)
    # Edges that the model must not see are those of val and test.
    every = pairs is None or (isinstance(pairs, str) and pairs == "all")
    hides = every and trained.reading(options).labelled_edges == "hidden"
    found = opened(trained, call, "predict_edges", labelled=of_split or hides)
    data = for_pairs(trained, found.data)
    if hides and dataset is not None and any(note.startswith(NO_SPLIT) for note in data.notes):
        known = f"{data.name} has no split that says which edges are known"
        raise InputError(f"labelled_edges is 'hidden', but {known}; give it one, or the pairs to predict")
    if pairs is None or (isinstance(pairs, str) and pairs in SETS):
        if features is not None or times is not None:
            raise InputError("features or times are given, but the edges are those of the dataset; leave them out")
        if not data.has_edge_labels and not of_split and dataset is not None and not isinstance(dataset, Dataset):
            read = edges_to_predict(dataset, trained.as_before(options), data, of_file=False)
        else:
            read = _of_dataset(data, pairs)
    elif isinstance(pairs, str | Path):
        if not Path(pairs).suffix and not expanded(pairs).exists():
            meant = nearest(str(pairs), SETS)
            raise InputError(f"pairs is '{pairs}'; expected a file of pairs, or {', '.join(SPLITS)} or all{meant}")
        read = edges_to_predict(expanded(pairs), trained.as_before(options), data, of_file=True)
    else:
        read = LabelledEdges(as_pairs(pairs, data, "pairs"))
    for note in read.notes:
        emit(as_event(note))
    wanted, rows_of = read.pairs, read.features if features is None else features
    own = _features(rows_of, len(wanted), result.num_pair_features, data.name)
    ends = ends_at(wanted, times, read.time, found, trained)
    text = f"predicting {len(wanted):,} edges of {data.name} by {result.model}"
    with during(StageStarted("predict", text), emit), evaluating(trained.model):
        rows = found.outputs(trained.model, ends.nodes, emit, moments=ends.moments)
        outputs = edge_outputs(decoder_beside(trained.model, rows), rows, ends.positions, own)
    named = ends_called(wanted, data)
    return EdgePredictions(own_ids(wanted, data), outputs.cpu().numpy(), result.task, named, result.class_names)


def _of_dataset(data: Dataset, name: str | None) -> LabelledEdges:
    """Labelled edges of a dataset with their features and times: all, or those of a set."""
    if not data.has_edge_labels:
        raise InputError(f"{data.name} has no labelled edges; give the pairs that are to be predicted")
    chosen: Any = slice(None) if name in (None, "all") else getattr(data.split, name)
    features, time = (taken(a, chosen) for a in (data.pair_features, data.pair_time))
    return LabelledEdges(data.pair_table[chosen], features=features, time=time)


def _features(given: object, count: int, width: int, name: str) -> FloatArray | None:
    """[n, K] features of edges, or None if the model reads none."""
    if not width:
        if given is not None:
            raise InputError("features are given, but the run's labelled edges had none; leave them out")
        return None
    if given is None:
        raise InputError(f"the edges of {name} to predict have no features; expected {width}, as the run's had")
    try:
        rows = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given, np.float32)
    except (TypeError, ValueError):
        raise InputError(f"features are no numbers; expected [{count}, {width}], as the run's had") from None
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.shape != (count, width):
        raise InputError(f"features have shape {list(rows.shape)}; expected [{count}, {width}], as the run's had")
    if not np.isfinite(rows).all():
        raise InputError("features hold NaN or infinite values; correct them")
    return rows


def predict_edges_to_file(request: FileRequest, pairs: str | None, all_probabilities: bool) -> dict[str, Any]:
    """Predict edges with a finished run and write the predictions into a file.

    Args:
        request: run, file, dataset.
        pairs: see `predict_edges`.
        all_probabilities: see `Predictions.to_parquet`.

    Returns:
        The record of `FileRequest.write`, with the number of edges.

    Raises:
        InputError: the file cannot be written; see also `predict_edges`.
    """

    def write(trained: TrainedRun, out: Path) -> dict[str, Any]:
        request.check_probabilities(trained, all_probabilities)
        found = predict_edges(trained, pairs, **request.arguments)
        found.write(out, all_probabilities=all_probabilities)
        return {"edges": len(found)}

    return request.write(write)
