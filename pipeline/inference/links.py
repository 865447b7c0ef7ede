"""Scores of pairs of nodes by a model of a link task: `mr.predict_links`, and `millrace predict --pairs`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.links import score_pairs
from ...stages.links.decoders import decoder_beside, of_relation
from ...stages.links.plan import Ends
from ...storage.array_kinds import FloatArray, IdArray, ValueArray
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.links.pairs import PairArray, node_ranges
from ...storage.optional import present, present_items
from ...storage.times.moments import as_moments
from ..datasets import ReadOptions
from ..datasets.links import like_edges
from ..datasets.pairs import GivenPairs
from ..setup.python_inputs import read_given
from ..setup.result import Result
from ..telemetry.events import Emit, StageStarted, cautioning, during
from .by_tasks import Workers
from .files import PIECE_ROWS, FileRows, check_suffix, names_of, row_columns, write_rows
from .finished_run import TrainedRun, load
from .opened import Call, Opened, opened
from .relations_of_run import asked_of_each, types_of_pairs
from .to_file import FileRequest


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
    data, types = found.data, types_of_pairs(trained.result, found.data)
    given = GivenPairs.read(pairs, data)
    named = present((relation, None if types.is_single else given.relations))
    if len(named) > 1:
        raise InputError(f"relation is {relation!r}, but {given.what} has a column relation; leave one of them out")
    groups = list(asked_of_each(types, next(iter(named), None), len(given), trained.folder))
    wanted, first = np.empty((len(given), 2), np.int64), np.zeros((len(given), 2), np.int64)
    for one, at in groups:
        nodes = node_ranges(one.types, data.num_nodes)
        wanted[at], first[at] = given.ends(at, data, nodes), [n.start for n in nodes]
    ends = ends_at(wanted, times, given.time, found, trained)
    names = np.empty(len(wanted), object)
    text = f"scoring {len(wanted):,} pairs of {data.name} by {trained.result.model}"
    with during(StageStarted("predict", text), emit), evaluating(trained.model), torch.no_grad():
        rows = found.outputs(trained.model, ends.nodes, emit, moments=ends.moments)
        scores, decoder = rows.new_zeros(len(wanted)), decoder_beside(trained.model, rows)
        for one, at in groups:
            scores[at] = score_pairs(of_relation(decoder, one.place), rows, ends.positions[at])
            names[at] = None if one.place is None else one.name
    relations = names.astype(np.str_) if types.predicts_several else None
    return LinkScores(wanted - first, scores.cpu().numpy(), relations, ends_called(wanted, data))


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
