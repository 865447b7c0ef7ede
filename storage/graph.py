"""The graph message: in-neighbour lists by destination.

Legend for shapes in the whole project: V nodes, E edges, B seeds, F features, L layers, P partitions, k minibatches in
a bulk.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from .array_kinds import AnyArray, Float32Array, Float64Array, FloatArray, IdArray, IntArray, Mask, ValueArray
from .errors import InputError
from .optional import present, present_items, taken, when_present
from .plural import are, counted
from .times.moments import as_times, check_times, check_unit, in_one_unit
from .typed.graph_types import SINGLE, GraphTypes, check_edge_type

if TYPE_CHECKING:
    from .features import FeatureStore


MOST_NODES = math.isqrt(2**63 - 1)
"""Edges are sorted by dst * V + src, which must be below 2**63."""


def index_dtype(num_values: int) -> np.dtype:
    """Index dtype for the whole project: int32 if every value in [0, num_values] fits, else int64."""
    return np.dtype(np.int32 if num_values < 2**31 - 1 else np.int64)


@dataclass(frozen=True, eq=False)
class TakenRows:
    """In-neighbour lists of n rows of a graph, in the graph's order."""

    indptr: IdArray
    """int64 [n+1]."""
    first_edge: IdArray
    """int64 [n], position of the row's first edge in the edge arrays of the whole graph."""
    indices: IntArray
    """[e], source nodes."""
    edge_weight: Float32Array | None
    edge_id: IdArray | None
    edge_type: AnyArray | None = None


def starts_of(counts: npt.NDArray[np.integer | np.bool_] | Sequence[int]) -> IdArray:
    """int64 [n+1], where groups of these sizes begin, one behind the other, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def run_starts(*columns: ValueArray) -> Mask:
    """True where a run of rows begins that are equal in all columns."""
    first = np.ones(len(columns[0]), bool)
    first[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    return first


def edges_of_rows(starts: IdArray, degree: IdArray) -> tuple[IdArray, IdArray]:
    """``indptr`` of rows that begin at `starts`, and the positions of their edges."""
    indptr = starts_of(degree)
    return indptr, np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], degree)


@dataclass(frozen=True)
class GraphArray:
    """Declaration of an array of a graph, beside its field: what writers, readers, digests and reorderings know of
    it."""

    per: Literal["node", "edge", "graph"]
    """What an entry is of."""
    check: Callable[["Graph", AnyArray], None]
    """Raises InputError if the array does not fit the graph."""
    digested_as: str = ""
    """Dtype in the record of the graph's digest, which has an entry whether the array is there or not; such arrays may
    be mapped. Empty: see `later`."""
    later: bool = True
    """True for an array that came later than the others: it is digested only if it is there, and moves with its nodes
    or edges."""


def _check_edge_type(graph: "Graph", array: ValueArray) -> None:
    check_edge_type(graph.types, array, graph.indptr, graph.indices)


def _of_edges(name: str, dtype: str) -> dict[str, GraphArray]:
    """Metadata of an array of edges that all stores may have."""
    check = lambda g, a: check_of_edges(name, a, g.num_nodes, g.num_edges)  # noqa: E731
    return {"array": GraphArray("edge", check, dtype, later=False)}


def _times(per: Literal["node", "edge"], name: str) -> dict[str, GraphArray]:
    check = lambda g, a: check_times(name, a, g.num_edges if per == "edge" else g.num_nodes)  # noqa: E731
    return {"array": GraphArray(per, check)}


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph as in-neighbour lists: ``indices[indptr[v]:indptr[v+1]]`` are the sources of the edges into
    v."""

    indptr: IdArray = field(
        metadata={"array": GraphArray("graph", lambda g, a: check_indptr(a, g.num_edges), "int64", later=False)}
    )
    """int64 [V+1], non-decreasing, starts at 0, ends at E."""
    indices: IntArray = field(metadata=_of_edges("indices", "int64"))
    """int32 or int64 [E], source node of each edge; ascending within a row when made by `from_edges`."""
    edge_weight: Float32Array | None = field(default=None, metadata=_of_edges("edge_weight", "float32"))
    """float32 [E], finite and non-negative, or None for an unweighted graph."""
    edge_id: IdArray | None = field(default=None, metadata=_of_edges("edge_id", "int64"))
    """int64 [E], the position of each edge in its input, or None."""
    part_offsets: IdArray | None = field(
        default=None, metadata={"array": GraphArray("graph", lambda g, a: check_offsets(a, g.num_nodes), later=False)}
    )
    """int64 [P+1], the first node of each part and V, if nodes were renumbered part by part; else None."""
    types: GraphTypes = SINGLE
    """Types of nodes and edges. With several, edges of a row are sorted by (relation, source)."""
    edge_type: AnyArray | None = field(
        default=None, metadata={"array": GraphArray("edge", _check_edge_type, later=False)}
    )
    """[E] of `GraphTypes.edge_dtype`, the relation of each edge; None if there are no types."""
    edge_features: "FeatureStore | None" = None
    """[E, D], row e is of the edge at position e; memory, memory-mapped or Zarr. None: edges have none. With types, D
    is the widest relation's, and columns beyond the width of an edge's own relation are zero."""
    edge_time: AnyArray | None = field(default=None, metadata=_times("edge", "edge_time"))
    """int64 or float64 [E], the time of each edge, or None."""
    node_time: AnyArray | None = field(default=None, metadata=_times("node", "node_time"))
    """int64 or float64 [V], the time of each node, or None: as a seed, it sees no later edge where samples go by
    time."""
    time_unit: str | None = None
    """Unit of NumPy that all times count since 1970, those of pairs too, such as ``D`` or ``ms``; None: they were not
    read from dates."""

    @property
    def num_nodes(self) -> int:
        """V."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.indices)

    @property
    def is_weighted(self) -> bool:
        """True if edges have weights."""
        return self.edge_weight is not None

    @property
    def edge_relations(self) -> IntArray:
        """[E], `edge_type` of a graph with several types."""
        assert self.edge_type is not None
        return self.edge_type

    @property
    def input_edges(self) -> IdArray:
        """int64 [E], `edge_id` of a graph that was made with it."""
        assert self.edge_id is not None
        return self.edge_id

    @property
    def has_edge_times(self) -> bool:
        """True if edges have times."""
        return self.edge_time is not None

    @property
    def has_node_times(self) -> bool:
        """True if nodes have times."""
        return self.node_time is not None

    @property
    def num_edge_features(self) -> int:
        """D, columns of the edges' features; 0 without any."""
        return 0 if self.edge_features is None else self.edge_features.num_features

    def __repr__(self) -> str:
        weighted = ", weighted" if self.is_weighted else ""
        if not self.types.is_single:
            weighted += f", {counted(len(self.types.node_types), 'node type')}"
            weighted += f", {counted(self.types.num_relations, 'relation')}"
        if self.num_edge_features:
            weighted += f", {counted(self.num_edge_features, 'edge feature')}"
        if self.has_edge_times:
            weighted += ", edge times"
        return f"Graph({counted(self.num_nodes, 'node')}, {counted(self.num_edges, 'edge')}{weighted})"

    @cached_property
    def in_degree(self) -> IdArray:
        """int64 [V], number of in-edges of each node."""
        return np.diff(self.indptr)

    def in_degree_at(self, rows: IntArray) -> IdArray:
        """int64 [n], `in_degree` of these rows, without that of all."""
        return self.indptr[rows + 1] - self.indptr[rows]

    @property
    def degree(self) -> Float64Array:
        """float64 [V], the sum of each node's in-edge weights; without weights, the in-degree, which is not kept."""
        starts, stops = self.indptr[:-1], self.indptr[1:]
        return self._total_weight if self.is_weighted else np.subtract(stops, starts, dtype=np.float64)

    @cached_property
    def _total_weight(self) -> Float64Array:
        weights = cast(FloatArray, self.edge_weight)
        # Row by row: the sum of a row must not depend on which other rows are here.
        total = np.zeros(self.num_nodes)
        for first, stop in row_ranges(self.indptr, AT_ONCE, AT_ONCE):
            rows = np.repeat(np.arange(stop - first, dtype=np.int32), self.in_degree[first:stop])
            weight = weights[self.indptr[first] : self.indptr[stop]]
            total[first:stop] = np.bincount(rows, weight, minlength=stop - first)
        return total

    def take(self, rows: IdArray) -> TakenRows:
        """Rows of these ascending ids, with copies of their edges."""
        starts = self.indptr[rows]
        indptr, edges = edges_of_rows(starts, self.in_degree_at(rows))
        return self._taken(indptr, starts, edges)

    def _taken(self, indptr: IdArray, starts: IdArray, edges: slice | IdArray) -> TakenRows:
        weight, ids = taken(self.edge_weight, edges), taken(self.edge_id, edges)
        return TakenRows(indptr, starts, self.indices[edges], weight, ids, taken(self.edge_type, edges))

    def first_edge(self, first: int, stop: int) -> IdArray:
        """int64, position of the first edge of each row in ``[first, stop)``; row V begins at E."""
        return self.indptr[first:stop]

    def rows(self, first: int, stop: int) -> TakenRows:
        """Rows ``[first, stop)``, without copies of their edges."""
        indptr = self.indptr[first : stop + 1]
        return self._taken(indptr - indptr[0], indptr[:-1], slice(indptr[0], indptr[-1]))

    def written(self, name: str) -> Any:
        """The array `name`, for a writer that reads it once, by slices; None if the graph lacks it."""
        return getattr(self, name)

    @property
    def later(self) -> dict[str, AnyArray]:
        """Arrays that are there of those declared so."""
        return present_items({name: getattr(self, name) for name, a in GRAPH_ARRAYS.items() if a.later})

    @property
    def has_later(self) -> bool:
        """True if there are any such arrays; reads none."""
        return bool(self.later)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of nodes and edges, without features."""
        arrays = (getattr(self, name) for name in GRAPH_ARRAYS if name != "part_offsets")
        return sum(a.nbytes for a in present(arrays))

    def check(self) -> "Graph":
        """Check the invariants above.

        Raises:
            InputError: names the first invariant that does not hold.
        """
        if self.types.is_single != (self.edge_type is None):
            raise InputError("a graph has types and no edge_type, or the reverse; expected both or neither")
        if not self.types.is_single:
            self.types.check(self.num_nodes, None if self.edge_features is None else self.num_edge_features)
        for name, array in present_items({name: getattr(self, name) for name in GRAPH_ARRAYS}).items():
            GRAPH_ARRAYS[name].check(self, array)
        check_unit(self.time_unit)
        if self.edge_features is not None and self.edge_features.num_rows != self.num_edges:
            raise InputError(
                f"edge_features have {self.edge_features.num_rows} rows; the graph has {self.num_edges} edges: "
                "give one row for each"
            )
        return self


GRAPH_ARRAYS: dict[str, GraphArray] = {f.name: f.metadata["array"] for f in fields(Graph) if f.metadata}
"""All arrays of a graph but the features of its edges, as they are declared."""


def degree_summary(degrees: IntArray, counts: IntArray) -> dict[str, int]:
    """Median, largest and number of zeros of in-degrees, of which each of the ascending `degrees` occurs so often."""
    total = int(counts.sum())
    before = np.cumsum(counts)
    # The mean of the two in the middle, which are one if their number is odd.
    middle = (
        [0, 0]
        if not total
        else [int(degrees[np.searchsorted(before, at, side="right")]) for at in ((total - 1) // 2, total // 2)]
    )
    return {"median": sum(middle) // 2, "largest": int(degrees.max(initial=0)), "zero": int(counts[degrees == 0].sum())}


AT_ONCE = 1 << 22
"""Edges that are looked at together, so that temporary arrays are small."""


def row_ranges(indptr: IdArray, most_edges: int = AT_ONCE, most_rows: int = AT_ONCE) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most so many edges and rows each, or of one row."""
    first, last = 0, len(indptr) - 1
    while first < last:
        stop = int(np.searchsorted(indptr, indptr[first] + most_edges, side="right")) - 1
        stop = min(max(stop, first + 1), first + most_rows, last)
        yield first, stop
        first = stop


def check_indptr(p: IntArray, num_edges: int) -> None:
    """Raise InputError unless `p` is int64 [V+1] and rises from 0 to E."""
    if p.dtype != np.int64 or p.ndim != 1 or len(p) < 1:
        raise InputError(f"indptr is {p.dtype}{list(p.shape)}; expected int64 [V+1]")
    if p[0] != 0 or p[-1] != num_edges or (p[1:] < p[:-1]).any():
        raise InputError(f"indptr must rise from 0 to E={num_edges}; it runs from {p[0]} to {p[-1]}")


def check_of_edges(name: str, a: AnyArray, num_nodes: int, num_edges: int) -> None:
    """Raise InputError unless `a` is sound as the array `name` of a graph, which has an entry for each edge."""
    if name == "indices":
        if a.dtype not in (np.int32, np.int64) or a.ndim != 1:
            raise InputError(f"indices is {a.dtype}{list(a.shape)}; expected int32 or int64 [E]")
        for i in range(0, len(a), AT_ONCE):
            piece = a[i : i + AT_ONCE]
            if piece.min() < 0 or piece.max() >= num_nodes:
                raise InputError(f"indices lie in [{a.min()}, {a.max()}]; expected [0, {num_nodes})")
    elif name == "edge_weight":
        if a.dtype != np.float32 or a.shape != (num_edges,):
            raise InputError(f"edge_weight is {a.dtype}{list(a.shape)}; expected float32 [{num_edges}]")
        pieces = (a[i : i + AT_ONCE] for i in range(0, len(a), AT_ONCE))
        if not all(np.isfinite(piece).all() and (piece >= 0).all() for piece in pieces):
            raise InputError("edge_weight holds negative, NaN or infinite values; expected finite values >= 0")
    elif a.dtype != np.int64 or a.shape != (num_edges,):
        raise InputError(f"edge_id is {a.dtype}{list(a.shape)}; expected int64 [{num_edges}]")


ALWAYS: dict[Any, Any] = {np.dtype(np.int64): np.iinfo(np.int64).min, np.dtype(np.float64): -np.inf}
"""By dtype, the time of what has been there always: nodes and edges of types that have no times."""


def check_offsets(o: IntArray, num_nodes: int) -> None:
    """Raise InputError unless `o` is int64 [P+1] and rises from 0 to V."""
    vector = o.dtype == np.int64 and o.ndim == 1 and len(o) >= 2
    if not vector or o[0] != 0 or o[-1] != num_nodes or (np.diff(o) < 0).any():
        raise InputError(f"part_offsets do not rise from 0 to V={num_nodes}, as int64 [P+1]")


def from_edges(
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    num_nodes: int | None = None,
    *,
    edge_weight: npt.ArrayLike | None = None,
    edge_features: npt.ArrayLike | None = None,
    edge_time: npt.ArrayLike | None = None,
    node_time: npt.ArrayLike | None = None,
    keep_edge_id: bool = False,
) -> Graph:
    """Build in-neighbour lists from edges src -> dst, all kept as they are (multi-edges and self loops too).

    Args:
        src: integers [E]; messages flow from src
        dst: integers [E], to dst.
        num_nodes: V; by default one more than the largest id.
        edge_weight: [E], finite and non-negative.
        edge_features: [E, D] finite numbers, a row for each edge, or [E].
        edge_time: [E], the time of each edge: numbers, or dates in a unit of NumPy.
        node_time: [V], the time of each node.
        keep_edge_id: also keep each edge's position in the input.

    Returns:
        A `Graph` whose rows list their sources in ascending order (ties in input order).

    Raises:
        InputError: lengths differ, ids are no integers, negative, or not below `num_nodes`; or `edge_features` are no
            finite numbers, or a time is NaN.
    """
    src, dst = np.asarray(src), np.asarray(dst)
    if src.ndim != 1 or src.shape != dst.shape:
        raise InputError(f"src has shape {list(src.shape)} and dst {list(dst.shape)}; expected vectors of one length")
    for name, ids in (("src", src), ("dst", dst)):
        if len(ids) and ids.dtype.kind not in "iu":
            raise InputError(f"{name} holds {ids.dtype}; expected integer node ids")
    largest = int(max(src.max(), dst.max())) if len(src) else -1
    smallest = int(min(src.min(), dst.min())) if len(src) else 0
    if num_nodes is None:
        num_nodes = largest + 1
    if smallest < 0 or largest >= num_nodes:
        raise InputError(
            f"edge ids lie in [{smallest}, {largest}]; expected [0, {num_nodes}): correct the ids or num_nodes"
        )
    if num_nodes > MOST_NODES:
        raise InputError(
            f"there would be {num_nodes:,} nodes; expected at most {MOST_NODES:,}, numbered from 0: renumber them"
        )
    # Two stable counting sorts through SciPy would need O(E) extra memory anyway, so sort once by a combined key.
    order = (
        np.argsort(dst.astype(np.int64) * max(num_nodes, 1) + src, kind="stable") if len(src) else np.empty(0, np.int64)
    )
    indptr = starts_of(np.bincount(dst, minlength=num_nodes) if len(dst) else np.zeros(num_nodes, np.int64))
    rows = None
    if edge_features is not None:
        from .features import ArrayFeatures  # kernels import this module where there is no Zarr

        rows = ArrayFeatures(edge_rows(edge_features, len(src))[order])
    (edge_time, node_time), unit = in_one_unit((edge_time, node_time))
    return Graph(
        indptr,
        np.ascontiguousarray(src[order], dtype=index_dtype(num_nodes)),
        when_present(lambda weight: np.asarray(weight, np.float32)[order], edge_weight),
        order.astype(np.int64) if keep_edge_id else None,
        edge_features=rows,
        edge_time=when_present(lambda time: as_times(time, "edge_time", len(src))[order], edge_time),
        node_time=when_present(lambda time: as_times(time, "node_time", num_nodes), node_time),
        time_unit=unit,
    ).check()


def edge_rows(values: npt.ArrayLike, num_edges: int, dtype: npt.DTypeLike | None = None) -> FloatArray:
    """Features of edges in the order of `values`: [E, D] or [E] finite numbers, as `dtype`; by default float64 if they
    are, else float32.

    Raises:
        InputError: another shape, no numbers, or NaN and infinite values.
    """
    x = edge_matrix(values, num_edges, dtype)
    bad = ~np.isfinite(x)
    if count := int(np.count_nonzero(bad)):
        raise InputError(
            f"{counted(count, 'edge feature value')} {are(count)} NaN or infinite (first: edge "
            f"{int(np.argmax(bad.any(axis=1)))} of the input); correct them"
        )
    return x


def edge_matrix(values: npt.ArrayLike, num_edges: int, dtype: npt.DTypeLike | None = None) -> FloatArray:
    """`edge_rows` whose values may be missing. Raises InputError for another shape, or no numbers."""
    x = np.asarray(values)
    if x.dtype.kind not in "biuf":
        raise InputError(f"edge features are {x.dtype}; expected numbers: encode them before saving")
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or len(x) != num_edges or not x.shape[1]:
        raise InputError(
            f"edge features have shape {list(np.shape(values))}; expected [{num_edges}, D], a row for each edge"
        )
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype or (np.float64 if x.dtype == np.float64 else np.float32))
    return x
