"""The best destinations of each source by a model of a link task, and files with a row for each pair:
`mr.recommend`, and `millrace predict --top`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...stages.evaluate.best_links import NodeRows, best_destinations
from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.links import KnownPairs
from ...stages.links.decoders import decoder_beside, of_relation
from ...stages.links.plan import before
from ...stages.nodes import node_ids
from ...storage.array_kinds import FloatArray, Mask, ValueArray
from ...storage.dataset import SPLITS, Dataset, IdArray
from ...storage.errors import InputError, whole_number
from ...storage.graph import Graph
from ...storage.links.pairs import node_ranges
from ...storage.node_names import NodeNames
from ...storage.plural import counted
from ...storage.times.moments import as_moments
from ..datasets import ReadOptions
from ..datasets.links import like_edges
from ..setup.result import Result
from ..telemetry.events import Emit, StageStarted, advancing, cautioning, during
from .by_tasks import Workers
from .files import PIECE_ROWS, FileRequest, FileRows, check_suffix, write_rows
from .finished_run import TrainedRun, load
from .opened import Call, opened
from .pairs import scale_of
from .predict import nodes_of_text
from .relations_of_run import Asked, Relation, asked, types_of_pairs

PIECE_PAIRS = 1 << 20
"""Pairs of a file that are made at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class Recommendations(FileRows):
    """The k best destinations of n sources, the best first. A larger score means a likelier link. Among equal scores,
    the smaller id comes first."""

    sources: IdArray
    """int64 [n], in the order of the request; ids within the type of the relation's source, where a graph has
    several."""
    destinations: IdArray
    """int64 [n, k], ids within the type of the relation's destination; -1 where fewer than k are left."""
    scores: FloatArray
    """[n, k]; -inf where `destinations` is -1."""
    node_names: tuple[NodeNames, NodeNames] | None = None
    """Names of all nodes of the source's and of the destination's type, by id, where the dataset has names."""

    BY_ROW = ("sources", "destinations", "scores")

    def as_array(self) -> IdArray:
        """`destinations`, [n, k], as a file ``.npy`` has them."""
        return self.destinations

    @property
    def source_names(self) -> ValueArray | None:
        """Names of `sources`, [n], text or integers; None if nodes have none."""
        return None if self.node_names is None else np.asarray(self.node_names[0].called(self.sources))

    @property
    def destination_names(self) -> ValueArray | None:
        """Names of `destinations`, [n, k], text or integers, empty or -1 where there are none; None if nodes have
        none."""
        if self.node_names is None:
            return None
        there = self.destinations >= 0
        names = np.asarray(self.node_names[1].called(self.destinations[there]))
        found = np.full(there.shape, -1 if names.dtype.kind == "i" else "", object)
        found[there] = names
        return found.astype(names.dtype if len(names) else np.str_)

    def write(self, path: str | Path) -> None:
        """Write a file: ``.parquet`` or ``.csv`` with a row for each pair and the columns ``src``, ``dst`` (ids or
        names), ``rank`` (from 1) and ``score``; ``.npy`` with `destinations` alone; or ``.zarr`` with arrays ``src``
        [n], ``dst`` and ``score`` [n, k]. An existing file is replaced.

        Raises:
            InputError: another suffix, or it cannot be written.
        """
        pieces = self.pieces(sources_at_once(self.destinations.shape[1]))
        write_rows(path, check_suffix(Path(path)), len(self), pieces)

    def table(self) -> Any:
        """A `pyarrow.Table` as `write` puts it into a file."""
        import pyarrow as pa

        rows, places = np.nonzero(self.destinations >= 0)
        ends = self.sources[rows], self.destinations[rows, places]
        if self.node_names is not None:
            called = [names.called(nodes) for names, nodes in zip(self.node_names, ends)]
            named = [pa.array(names, pa.string() if isinstance(names, list) else pa.int64()) for names in called]
            ends = tuple(named)
        return pa.table({"src": ends[0], "dst": ends[1], "rank": places + 1, "score": self.scores[rows, places]})

    def columns(self) -> dict[str, Any]:
        named = {"src": self.source_names, "dst": self.destination_names}
        plain = {"src": self.sources, "dst": self.destinations}
        return {**(plain if self.node_names is None else named), "score": self.scores}

    def __repr__(self) -> str:
        return f"Recommendations({len(self):,} sources, the {self.destinations.shape[1]:,} best of each)"


def sources_at_once(k: int) -> int:
    """Sources whose k best make a piece of a file: a power of two, so that pieces begin where chunks of arrays do."""
    return min(PIECE_ROWS, 1 << max(0, (PIECE_PAIRS // k).bit_length() - 1))


def counted_in(pieces: Iterable[Recommendations], counts: list[int]) -> Iterator[Recommendations]:
    """The pieces, the number of pairs of each of which is appended to `counts`."""
    for piece in pieces:
        counts.append(int((piece.destinations >= 0).sum()))
        yield piece


ROWS_AT_ONCE = 1 << 16
"""Rows that are checked at once."""


def recommend(
    run: TrainedRun | Result | str | Path,
    k: int = 10,
    nodes: object = None,
    dataset: object = None,
    *,
    relation: Relation | None = None,
    exclude_known: bool = True,
    time: object = None,
    options: ReadOptions | None = None,
    model: object = None,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    emit: Emit = cautioning,
) -> Recommendations:
    """Find the k best destinations of each source, among all nodes that can be one. Left out are the source itself and,
    by default, its known links. Rows of nodes are those of `predict_links`.

    Args:
        run: a finished run of the task ``link``: its folder, or the result of `millrace.run` or of `load`.
        k: number of destinations for each source, the best first.
        nodes: sources: ids (a list, an array, a tensor), a mask, names, or ``"train"``, ``"val"`` or ``"test"``, the
            distinct first ends of that set's pairs; by default all nodes. Where a graph has several types, ids, masks
            and names are those within the source type of the relation.
        dataset: see `predict_links`.
        relation: of a run that predicts several: the one whose links are wanted, its name or (source type, name,
            destination type).
        exclude_known: leave out destinations that the source has an edge to, or a positive pair of any set with; in a
            symmetric graph, an edge or a pair in either direction.
        time: a number or a date, for a run by the sampler temporal: recommend from what lies before, and leave out
            links that are known then. By default after all edges.
        options: see `predict`.
        model: for a run of your own module: see `load`.
        workers: processes that compute the rows of nodes: see `predict`.
        scheduler: see `predict`.
        cluster: see `predict`.
        client: see `predict`.
        emit: called with every event.

    Raises:
        InputError: the run has another task or is not finished, a node is none of the sources' type, or there are fewer
            than k nodes that can be destinations.
        StoreError: something in the run's folder is damaged.
    """
    trained = run if isinstance(run, TrainedRun) else load(run, model=model, emit=emit)
    call = Call(dataset, options, Workers.from_arguments(workers, scheduler, cluster, client), emit)
    found = _open(trained, Wanted(k, nodes, relation, exclude_known, time), call)
    (piece,) = found.pieces(len(found.sources), emit)
    return piece


@dataclass(frozen=True, eq=False)
class Recommender:
    """All that recommendations are made from."""

    model: nn.Module
    rows: NodeRows
    sources: IdArray
    known: KnownPairs
    """Pairs that are left out."""
    relation: Asked
    k: int
    firsts: tuple[int, int]
    """Id of the first node that can be a source, and a destination."""
    node_names: tuple[NodeNames, NodeNames] | None

    def pieces(self, step: int, emit: Emit) -> Iterator[Recommendations]:
        """Recommendations for `step` sources after the other; one piece, if there are none."""
        text = f"ranking {len(self.known.candidates):,} nodes for {counted(len(self.sources), 'source')}"
        first, advance = 0, advancing("recommend", emit)
        with during(StageStarted("recommend", text, len(self.sources)), emit), evaluating(self.model):
            decoder = of_relation(decoder_beside(self.model, self.rows.rows), self.relation.place)
            best = best_destinations(
                decoder, self.rows, self.sources, self.k, self.known, max(1, step), on_progress=advance
            )
            for ids, scores in best:
                sources = self.sources[first : (first := first + len(ids))]
                yield self._piece(sources, ids, scores)
        if not len(self.sources):
            nothing = np.empty((0, self.k), np.int64), torch.empty(0, self.k, dtype=self.rows.rows.dtype).numpy()
            yield self._piece(self.sources, *nothing)

    def _piece(self, sources: IdArray, ids: IdArray, scores: Any) -> Recommendations:
        of_sources, of_destinations = self.firsts
        own = np.where(ids < 0, -1, ids - of_destinations)
        return Recommendations(sources - of_sources, own, scores, self.node_names)


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which destinations of which nodes a caller asks for: see the arguments of `recommend`."""

    k: int
    nodes: Any
    relation: Relation | None
    exclude_known: bool
    moment: object
    """Its `time`."""


def _open(trained: TrainedRun, wanted: Wanted, call: Call, of_text: bool = False) -> Recommender:
    """Check the arguments of `recommend` and compute the rows of nodes. With `of_text` nodes are those of the command
    line."""
    nodes, moment, emit = wanted.nodes, wanted.moment, call.emit
    if trained.result.task != "link":
        raise InputError(
            f"the task of {trained.folder} is {trained.result.task}, and only links have destinations; expected a run "
            'with task = "link"'
        )
    k = whole_number("k (--top)", wanted.k, 1)
    found = opened(trained, call, "recommend", labelled=isinstance(nodes, str) and nodes in SPLITS)
    data, temporal = found.data, found.temporal is not None
    if moment is not None and not temporal:
        raise InputError(f"time is given, but {trained.folder} was trained without times; leave it out")
    when = None if moment is None else like_edges(as_moments([moment], "time", 1, data.graph.time_unit), data.graph)
    of = asked(types_of_pairs(trained.result, data), wanted.relation, trained.folder)
    known = _known(data, of, when, wanted.exclude_known)
    of_sources, among = known.ends or (known.candidates, known.candidates)
    if k > len(among):
        raise InputError(
            f"k (--top) is {k:,}, but {data.name} has {counted(len(among), 'node')} that can be destinations; give as "
            "many at most"
        )
    sources = _sources(nodes_of_text(nodes, data, False) if of_text else nodes, data, of_sources, of)
    ids = np.arange(among.start, among.stop)
    if not sources.size or sources.min() < among.start or sources.max() >= among.stop:
        ids = np.union1d(ids, sources)
    name = f"{counted(len(ids), 'node')} of {data.name} by {trained.result.model}"
    with during(StageStarted("predict", f"computing the rows of {name}"), emit):
        moments = np.repeat(before(np.array([np.inf]) if when is None else when), len(ids)) if temporal else None
        rows = found.outputs(trained.model, ids, emit, moments=moments)
        _check_finite(rows, ids, trained)
    names = None
    if data.node_names is not None:
        every = NodeNames.from_values(data.node_names)
        names = every.between(of_sources), every.between(among)
    return Recommender(
        trained.model,
        NodeRows(ids, rows),
        sources,
        known,
        of,
        k,
        firsts=(of_sources.start, among.start),
        node_names=names,
    )


def _known(data: Dataset, of: Asked, when: Any, exclude: bool) -> KnownPairs:
    """Links of a relation that are left out: with `when` [1], those of before; none, unless they are to be excluded."""
    graph, types = data.graph, of.types
    if not exclude:
        return KnownPairs(data.num_nodes, np.empty(0, np.int64), ends=node_ranges(types, data.num_nodes))
    labels = data.labels if data.task == "link" else np.empty((0, 3), np.int64)
    edges = None if when is None or not graph.has_edge_times else graph.edge_time < when
    if when is not None and data.task == "link" and data.pair_time is not None:
        labels = labels[data.pair_time < when]
    labels = labels[_of_relation(labels, data, of)]
    return KnownPairs.from_graph(
        Graph(graph.indptr, graph.indices, types=types, edge_type=graph.edge_type), labels, edges
    )


def _of_relation(labels: Any, data: Dataset, of: Asked) -> Mask:
    """True for each pair of a relation, in a table of the dataset's pairs."""
    types = data.graph.types
    if data.task != "link" or not types.predicts_several:
        return np.ones(len(labels), bool)
    return labels[:, 3] == of.types.one_predicted


def _sources(nodes: Any, data: Dataset, among: range, of: Asked) -> IdArray:
    """int64 [n], ids of the sources that a caller names."""
    if isinstance(nodes, str) and nodes in SPLITS:
        if data.task != "link":
            raise InputError(f"nodes is '{nodes}', but {data.name} has no pairs; give ids, or leave nodes out")
        labels = data.labels[getattr(data.split, nodes)]
        return np.unique(labels[_of_relation(labels, data, of), 0])
    return node_ids(nodes, len(among), data, among.start) + among.start


def _check_finite(rows: Tensor, ids: IdArray, trained: TrainedRun) -> None:
    """Raise InputError if a row holds NaN or an infinite number: its scores would order nothing."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        wrong = ~rows[first : first + ROWS_AT_ONCE].isfinite().all(1)
        if wrong.any():
            node = ids[first + int(wrong.nonzero()[0])]
            raise InputError(
                f"the row that {trained.folder} gives for node {node} holds numbers that are not finite, so nothing "
                "can be ranked; train again with a lower train.lr, or look at the features"
            )


def recommend_to_file(request: FileRequest, wanted: Wanted) -> dict[str, Any]:
    """Write the best destinations by a finished run into a file, piece by piece.

    Args:
        request: run, file, dataset.
        wanted: as in `recommend`, with nodes as ids or names separated by commas, or a set of pairs; None: all.

    Returns:
        The record of `FileRequest.write`, with k and the numbers of sources and pairs.

    Raises:
        InputError: the file exists or cannot be written; see also `recommend`.
    """

    def write(trained: TrainedRun, out: Path) -> dict[str, Any]:
        found = _open(trained, wanted, request.call, of_text=True)
        counts: list[int] = []
        pieces = found.pieces(sources_at_once(found.k), request.emit)
        write_rows(out, check_suffix(out), len(found.sources), counted_in(pieces, counts))
        return {"top": found.k, "sources": len(found.sources), "pairs": sum(counts), "scale": scale_of(trained)}

    return request.write(write)
