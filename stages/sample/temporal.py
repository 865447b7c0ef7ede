"""Samples before a moment: in-edges in the order of time, so that those until a moment are a prefix of their row."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from ...storage.array_kinds import Float64Array, FloatArray, IdArray, NumberArray, WordArray
from ...storage.errors import InputError
from ...storage.graph import ALWAYS, Graph
from ...storage.minibatch import Bulk, MiniBatch, nested_blocks
from ...storage.optional import taken, when_present
from ..assignment import BulkRequest
from ..kernels.row_block.relation_rows import RelationRows
from ..kernels.row_block.segments import draw_segments, ends_until
from ..kernels.runtime.once_per_graph import once_per_graph
from ..kernels.sampling.edge_weights import scaled
from ..placement.row_owners import Owners
from ..random import NODE, mix
from ..self_loops import COLUMNS, LOOP, OTHERS, loops_of_rows
from .base import check_fanout, per_layer

if TYPE_CHECKING:
    from torch import Tensor

    from ..kernels.runtime.device_memory import MemoryKind
    from ..kernels.sampling.device_times import DeviceTimes, NodesInTrees

Strategy = Literal["uniform", "last"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Times = NumberArray


@dataclass(frozen=True, eq=False)
class TimedGraph:
    """A graph whose edges have times."""

    graph: Graph
    """Its in-edges ascend by time within each row; at equal times they keep their order."""
    time: NumberArray
    """int64 or float64 [E], time of each edge."""
    order: IdArray
    """int64 [E], position of each edge in the graph that this was made of."""
    relations: RelationRows | None = None
    """Rows of a graph with types, one for each node and relation into its type; None: a row is a node."""
    timeless: frozenset[int] = frozenset()
    """Relations whose edges have been there always."""

    @classmethod
    def from_graph(cls, graph: Graph, time: NumberArray) -> "TimedGraph":
        """The graph with its rows in the order of time.

        Args:
            graph: in-neighbour lists.
            time: numbers [E], time of each edge of `graph`.

        Raises:
            InputError: a time is NaN.
        """
        if np.issubdtype(time.dtype, np.floating):
            time = time.astype(np.float64, copy=False)
            if np.isnan(time).any():
                raise InputError("times hold NaN; expected numbers")
        else:
            time = time.astype(np.int64, copy=False)
        order = np.lexsort((time, np.repeat(np.arange(graph.num_nodes), graph.in_degree)))
        weight, ids = graph.edge_weight, graph.edge_id
        rows = Graph(graph.indptr, graph.indices[order], taken(weight, order), taken(ids, order))
        return cls(rows, time[order], order)

    @classmethod
    def by_relation(cls, graph: Graph, time: NumberArray) -> "TimedGraph":
        """`of`, for a graph with types."""
        relations, kind = RelationRows.from_graph(graph), graph.edge_type
        assert kind is not None
        found = cls.from_graph(relations.graph, time)
        timed = set(np.unique(kind[time > ALWAYS[time.dtype]]).tolist())
        return replace(found, relations=relations, timeless=frozenset(range(relations.types.num_relations)) - timed)

    @property
    def num_nodes(self) -> int:
        """V."""
        return self.graph.num_nodes if self.relations is None else self.relations.types.offsets[-1]

    def parts(self, nodes: IdArray) -> list[tuple[int, IdArray, IdArray]]:
        """See `RelationRows.parts`; without types, one of all nodes."""
        return [(0, np.arange(len(nodes)), nodes)] if self.relations is None else self.relations.parts(nodes)

    def draw(
        self, rows: IdArray, moments: Times, keys: WordArray, fanout: int, *, last: bool = False, replace: bool = False
    ) -> tuple[IdArray, IdArray]:
        """Draw in-edges, none later than its row's moment: the number kept, int64 [n], and their positions, int64 [e].

        Args:
            rows: int64 [n], numbers of rows.
            moments: [n], the moment of each.
            keys: uint64 [n], the random stream of each.
            fanout: most edges of a row; -1: all.
            last: the latest ones in place of a uniform choice.
            replace: draw independently; with `last`, of the latest ones.
        """
        begin = self.graph.indptr[rows]
        end = self.ends(rows, moments)
        if last and fanout >= 0:
            begin = np.maximum(begin, end - fanout)
        with np.errstate(over="ignore"):
            words = mix(keys + rows.astype(np.uint64) * NODE)
        return draw_segments(begin, end, words, fanout, replace)

    def ends(self, rows: IdArray, moments: Times) -> IdArray:
        """int64 [n], end of each row's in-edges that are not later than its moment."""
        return ends_until(self.graph.indptr, self.time, rows, self.as_time(moments))

    def degree(self, nodes: IdArray, moments: Times) -> Float64Array:
        """float64 [n], the number of in-edges of each node that are not later than its moment; with weights, their
        sum. Of a graph with self loops [n, 3], with those until then beside it: see `stages.self_loops`."""
        of_edges = [None if not self.graph.is_weighted else self._sums, *self._sums_of_loops]
        found = np.zeros((len(nodes), len(of_edges)))
        for _, at, rows in self.parts(nodes):
            begin, end = self.graph.indptr[rows], self.ends(rows, moments[at])
            for column, sums in enumerate(of_edges):
                found[at, column] += end - begin if sums is None else sums[end] - sums[begin]
        if len(of_edges) == 1:
            return found[:, 0]
        found[:, OTHERS] = np.maximum(found[:, 0] - found[:, OTHERS], 0)
        found[:, LOOP] += 1
        return found

    @cached_property
    def _sums(self) -> Float64Array:
        """float64 [E+1], sums of the weights before each edge."""
        weight = self.graph.edge_weight
        assert weight is not None
        return _sums_before(weight)

    @cached_property
    def _sums_of_loops(self) -> tuple[Float64Array, ...]:
        """float64 [E+1] each, sums before each edge: of the weights of self loops, and of the steps from 1 to the
        weight of a row's first loop, and from loop to loop. Empty without self loops, and with types."""
        at = loops_of_rows(self.graph) if self.relations is None else np.empty(0, np.int64)
        if not len(at):
            return ()
        loops, steps = np.zeros((2, self.graph.num_edges))
        loops[at] = weight = 1.0 if self.graph.edge_weight is None else self.graph.edge_weight[at]
        first = np.diff(self.graph.indices[at], prepend=-1) != 0
        steps[at] = weight - np.where(first, 1.0, np.roll(loops[at], 1))
        return _sums_before(loops), _sums_before(steps)

    def on_device(self, where: "MemoryKind | None" = None) -> "DeviceTimes":
        """Its copy on the device, made once: where it was placed before, else as `where` says, or if it fits.

        Raises:
            InputError: there is no GPU.
        """
        from ..kernels import sampling_backend
        from ..kernels.sampling.device_times import RowsOfTypes

        rows = None
        if self.relations is not None:
            types, N = self.relations.types, len(self.relations.types.node_types)
            into = types.ends[:, 1]
            count = np.bincount(into, minlength=N)
            first, timed = np.zeros(N, np.int64), np.zeros((N, max(1, count.max(initial=0))), bool)
            for t in range(N):
                own = np.flatnonzero(into == t)
                first[t] = self.relations.first[own].min(initial=0 if not len(own) else self.graph.num_nodes)
                timed[t, : len(own)] = [r not in self.timeless for r in own.tolist()]
            rows = RowsOfTypes(np.asarray(types.offsets, np.int64), first, count, timed)
        kernels = sampling_backend("cuda")
        given = self.graph, self.time, rows
        return kernels.times_on_device(*given) if where is None else kernels.place_times(*given, where)

    def degree_on_device(self, of_bulk: "NodesInTrees") -> "Tensor":
        """`degree` of the nodes of minibatches on the device, at the moments of their trees."""
        from ..kernels import sampling_backend

        times, until = self.on_device(), sampling_backend("cuda").degrees_until
        sums = None if self.graph.edge_weight is None else times.beside("sums", self._sums)
        degree = until(times, of_bulk, sums)
        if not (of_loops := self._sums_of_loops):
            return degree
        found = degree.new_empty(len(degree), COLUMNS)
        found[:, 0] = degree
        found[:, OTHERS] = (degree - until(times, of_bulk, times.beside("loops", of_loops[0]))).clamp(min=0)
        found[:, LOOP] = until(times, of_bulk, times.beside("steps of loops", of_loops[1])) + 1
        return found

    def trees(self, moments: Times) -> tuple[Times, IdArray]:
        """The distinct moments of some seeds, ascending, in the dtype of `time`; and the number of each seed's, int64
        [B]."""
        when = self.as_time(moments)
        distinct = np.unique(when)
        return distinct, np.searchsorted(distinct, when)

    def as_time(self, moments: Times) -> Times:
        """Moments in the dtype of `time`. Between whole numbers counts as the one before."""
        if np.issubdtype(self.time.dtype, np.integer) and np.issubdtype(moments.dtype, np.floating):
            limit = np.iinfo(np.int64)
            inside = np.clip(np.floor(moments), limit.min, np.nextafter(float(limit.max), 0))
            return np.where(moments >= float(limit.max), limit.max, inside.astype(np.int64))
        return np.ascontiguousarray(moments, self.time.dtype)


def _sums_before(values: FloatArray) -> Float64Array:
    """float64 [n+1], sums of the values before each place."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


@once_per_graph
def timed_graph(graph: Graph) -> TimedGraph:
    """The `TimedGraph` of a graph by its own times, made once."""
    assert graph.edge_time is not None
    make = TimedGraph.from_graph if graph.types.is_single else TimedGraph.by_relation
    return make(graph, graph.edge_time)


def _keys_of_trees(keys: WordArray | np.uint64, moments: Times) -> WordArray:
    """uint64, the random stream of each hop, whose `keys` these are, at each moment."""
    with np.errstate(over="ignore"):
        # By the moment itself, so that a draw does not depend on the other seeds.
        return mix(keys + mix(moments.view(np.uint64)))


def moments_of_nodes(minibatch: MiniBatch, moments: Times) -> Times:
    """[n], the moment of each node of a temporal minibatch: that of the seeds whose trees it is in.

    Args:
        minibatch: see `TemporalSampler`.
        moments: [B], of its seeds.
    """
    found = np.empty(len(minibatch.nodes), moments.dtype)
    found[: len(moments)] = moments
    for block in reversed(minibatch.blocks):
        found[block.indices] = np.repeat(found[: block.num_dst], np.diff(block.indptr))
    return found


def degrees_until(graph: Graph, minibatch: MiniBatch, moments: Times) -> Float64Array:
    """float64 [n] or [n, 3], `TimedGraph.degree` of each node of a temporal minibatch at its moment; arguments as of
    `moments_of_nodes`."""
    return timed_graph(graph).degree(minibatch.nodes.astype(np.int64), moments_of_nodes(minibatch, moments))


@dataclass(frozen=True)
class TemporalSampler:
    """Draws up to `fanout` in-neighbours of each frontier node, over edges that are not later than the seed. In a graph
    with types it draws from each relation into the node's type, from relations without times by ``uniform``.

    Edges and seeds have times. Every hop of a seed's tree draws only edges up to the seed's moment. Seeds of one moment
    share their nodes, as in `NeighborSampler`. Seeds of different moments share nothing, so a node may be in a
    minibatch several times. A row stands for its in-edges up to the moment; layers read their number (or weight) as the
    node's degree. Each hop expands only newly found nodes.
    Cost: O(sampled edges log E), and once a copy of the edges in the order of time.
    Source: the temporal sampling of PyG (Fey et al., 2023), strategies ``uniform`` and ``last``.
    """

    fanout: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per node and hop, nearest the seeds first; -1 takes all until the moment."""
    strategy: Strategy = "uniform"
    """Draws among edges that are not later than the seed: ``uniform`` draws evenly; ``last`` takes the latest ones."""
    replace: bool = False
    """Draw independently; an edge may come twice. With ``last``, of the last `fanout` ones."""
    edge_ids: bool = False
    """Keep the positions of each block's edges in the graph's edge arrays."""
    name: ClassVar[str] = "temporal"
    draws_relations_on_device: ClassVar[bool] = True
    reads_times: ClassVar[bool] = True
    """True if samples depend on the times of edges and seeds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanout", per_layer(self, "fanout", self.fanout, self.strategy))
        check_fanout(self.fanout, draws_none=False)
        if self.strategy not in STRATEGIES:
            raise InputError(f"strategy is '{self.strategy}'; expected one of {', '.join(STRATEGIES)}")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.fanout)

    def record(self) -> dict[str, Any]:
        options = {"replace": self.replace, "edge_ids": self.edge_ids}
        found = {"sampler": self.name, "fanout": list(self.fanout), "strategy": self.strategy}
        return {**found, **{k: v for k, v in options.items() if v}}

    def check(self, graph: Graph) -> None:
        """Raises InputError if edges have no times."""
        if not graph.has_edge_times:
            raise InputError(
                "the sampler temporal draws edges by their times, but the edges have none; give edge_time (PyG, .npz, "
                "from_edges, read.edge_time), or use the sampler neighbor"
            )

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """See `Sampler.sample`. Raises InputError: see `check`; or a seed has no time."""
        if hasattr(kernel, "temporal_pieces"):
            drawn = self.sample_on_device(graph, request)
            copies = (MiniBatch(m.epoch, m.index, m.blocks, nested=True) for m in drawn.minibatches)
            return replace(drawn, minibatches=tuple(copies))
        timed, moments = self._timed(graph, request)
        keys = request.keys(self.num_layers)
        made = [
            self._minibatch(timed, seeds.astype(np.int64), moments[i], keys[i], request.epoch, request.indices[i])
            for i, seeds in enumerate(request.seeds)
        ]
        return Bulk(request.epoch, request.number, tuple(made))

    def _timed(self, graph: Graph, request: BulkRequest) -> tuple[TimedGraph, tuple[Times, ...]]:
        """The graph in the order of time, and the moments of the seeds of each minibatch. Raises what `sample`
        raises."""
        self.check(graph)
        if request.moments:
            return timed_graph(graph), request.moments
        if graph.node_time is None:
            raise InputError("the sampler temporal needs the times of seeds, but nodes have none; give node_time")
        return timed_graph(graph), tuple(graph.node_time[seeds] for seeds in request.seeds)

    def _minibatch(
        self, timed: TimedGraph, seeds: IdArray, moments: Times, keys: WordArray, epoch: int, index: int
    ) -> MiniBatch:
        """One minibatch, hop by hop. A node at a moment is one number, moment V + node, by the moment's rank."""
        graph = timed.graph
        size, node = max(timed.num_nodes, 1), seeds
        distinct, tree = timed.trees(moments)
        known, place = np.unique(tree * size + node, return_index=True)
        assert len(known) == len(seeds), "a seed is given twice at one moment"
        nodes, kepts, scales, drawn, found, ends = [node], [], [], [], [], [len(node)]
        for hop, fanout in enumerate(self.fanout):
            key = _keys_of_trees(keys[hop], distinct)[tree]
            kept, positions, scale = self._drawn(timed, node, distinct[tree], key, fanout)
            kepts.append(kept)
            scales.append(scale)
            drawn.append(positions)
            found.append(np.repeat(tree, kept) * size + graph.indices[positions])
            new = np.setdiff1d(found[-1], known)
            at = np.searchsorted(known, new)
            known = np.insert(known, at, new)
            place = np.insert(place, at, np.arange(ends[-1], ends[-1] + len(new)))
            tree, node = np.divmod(new, size)
            nodes.append(node)
            ends.append(ends[-1] + len(new))
        kept, positions = np.concatenate(kepts), np.concatenate(drawn)
        weight = None
        if scales[0] is not None:
            scale = np.concatenate(scales)
            each = kept if timed.relations is None else np.ones(len(positions), np.int64)
            weight = scale.astype(np.float32)
            if graph.edge_weight is not None:
                weight = scaled(graph.edge_weight, positions, each, scale)
        blocks = nested_blocks(
            np.concatenate(nodes).astype(graph.indices.dtype),
            tuple(ends),
            np.concatenate([[0], np.cumsum(kept)]),
            place[np.searchsorted(known, np.concatenate(found))].astype(np.int32),
            weight,
            timed.order[positions] if self.edge_ids else None,
        )
        return MiniBatch(epoch, index, blocks, nested=True)

    def _drawn(
        self, timed: TimedGraph, nodes: IdArray, moments: Times, keys: WordArray, fanout: int
    ) -> tuple[IdArray, IdArray, Float64Array | None]:
        """In-edges of nodes at their moments: the number kept of each, int64 [n]; positions, int64 [e], relation after
        relation for each node; and the number of edges until the moment that one kept stands for, of each node, or with
        types of each edge. None: layers need it not."""
        graph, draws, last = timed.graph, [], self.strategy == "last"
        for r, at, rows in timed.parts(nodes):
            when = moments[at]
            late = last and r not in timed.timeless
            kept, positions = timed.draw(rows, when, keys[at], fanout, last=late, replace=self.replace)
            if timed.relations is None and not graph.is_weighted:
                return kept, positions, None
            scale = (timed.ends(rows, when) - graph.indptr[rows]) / np.maximum(kept, 1)
            if timed.relations is None:
                return kept, positions, scale
            draws.append((np.repeat(at, kept), positions, np.repeat(scale, kept)))
        nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        of, positions, scale = (np.concatenate(columns) for columns in zip(nothing, *draws))
        order = np.argsort(of, kind="stable")
        return np.bincount(of, minlength=len(nodes)), positions[order], scale[order]

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        """See `Sampler.sample_on_device`. Raises what `sample` raises."""
        from ..kernels import sampling_backend
        from ..kernels.minibatch_cuda.bulk import ResidentBulk
        from ..kernels.sampling.device_graph import number_on_device
        from ..kernels.sampling.device_samples import DeviceSample
        from ..kernels.sampling.device_times import TimedDraws
        from .resident import resident

        timed, moments = self._timed(graph, request)
        kernels, times, keys = sampling_backend("cuda"), timed.on_device(), request.keys(self.num_layers)
        seeds = [s.astype(np.int64) for s in request.seeds]
        trees = [timed.trees(m) for m in moments]
        for s, (_, tree) in zip(seeds, trees, strict=True):
            assert len(np.unique(tree * max(timed.num_nodes, 1) + s)) == len(s), "a seed is given twice at one moment"
        weight = number_on_device(timed.graph, "edge_weight") if timed.graph.is_weighted else None
        asked = TimedDraws(self.fanout, self.strategy == "last", self.replace, weight, self.edge_ids)
        streams = [_keys_of_trees(own[:, None], distinct) for own, (distinct, _) in zip(keys, trees)]
        distinct, numbers = ([each[i] for each in trees] for i in (0, 1))
        pieces = kernels.temporal_pieces(times, seeds, numbers, distinct, streams, asked)

        def ids(positions: "Tensor") -> "Tensor":
            return kernels.look_up(times.beside("order", timed.order), positions)

        def made() -> Iterator[tuple[slice, ResidentBulk]]:
            bound = None if min(self.fanout) < 0 else max(self.fanout) * times.most_rows
            for piece, d in pieces:
                lists = tuple(
                    replace(x, positions=when_present(ids, x.positions) if self.edge_ids else None) for x in d.lists
                )
                drawn = DeviceSample(d.rows, d.node_ends, lists, d.edge_ends)
                # Of the sample nothing else may wait with the bulk.
                of, trees = partial(timed.degree_on_device, d.in_trees), (d.in_trees.tree, d.in_trees.moments)
                yield piece, ResidentBulk(drawn, nested=True, bound=bound, until=of, trees=trees)

        return resident(request, made(), self.edge_ids)

    def sample_by_owners(self, owners: Owners, request: BulkRequest) -> Bulk:
        """See `Sampler.sample_by_owners`. Raises InputError: rows are drawn from a whole graph."""
        raise InputError('the sampler temporal draws from a whole graph; use bulk.topology = "replicated"')
