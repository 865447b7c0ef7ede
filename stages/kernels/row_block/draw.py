"""Node-wise draws in one block of rows: the bits that `sampling.cpu` draws in the whole graph.

Rows are handed to the kernels in the dtype of the graph's ids, so that the same compiled versions serve both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....storage.array_kinds import AnyArray, Float32Array, IdArray, IntArray, WordArray
from ....storage.graph import Graph, edges_of_rows
from ...random import NODE
from ..runtime.threads import parallel, spans_of_threads
from ..sampling.alias import AliasTable
from ..sampling.cpu.draw import draw_spans
from ..sampling.cpu.labor_rows import sample_labor, sample_labor_relations
from ..sampling.cpu.relations import NO_SEGMENTS, count_relations, sample_relations
from ..sampling.exponential_race import log2_table

_U = np.uint64
ROOM = 1 << 22
"""Edges that the buffers of `_draw_each` have room for, unless a row has more."""
Arrays = tuple[AnyArray, ...]


@dataclass(frozen=True, eq=False)
class Drawn:
    """In-edges drawn for rows, in the order of the rows."""

    kept: IdArray
    """int64 [n], edges of each row."""
    sources: IntArray
    """[e], global ids."""
    positions: IdArray | None
    """int64 [e], positions in the edge arrays of the block, if requested."""
    weight: Float32Array | None = None
    """float32 [e], see `EdgeList.weight`, of a graph with types."""


@dataclass(frozen=True, eq=False)
class HopRows:
    """n rows of a block that m minibatches draw in one hop."""

    rows: IdArray
    """int64 [n] in [0, N), segment after segment."""
    splits: IdArray
    """int64 [m + 1]; ``rows[splits[i]:splits[i+1]]`` belong to minibatch i."""
    keys: WordArray
    """uint64 [m], stream of each minibatch in this hop."""
    fanout: Any
    """Edges of a row at most; -1 takes all. Of a graph with types int64 [R], of each relation."""
    ascending: bool = False
    """True if ids ascend within each segment: rows are then read in step."""


def draw_rows(
    graph: Graph, first: int | IdArray, hop: HopRows, replace: bool, table: AliasTable | None, keep_positions: bool
) -> Drawn:
    """The draws of `cpu.neighbor.neighbor` for these rows in one hop.

    Args:
        graph: N rows of a block, with global sources.
        first: global id of row 0, if rows are consecutive; otherwise int64 [N], that of each.
        hop: the rows.
        replace: see `NeighborDraws`.
        table: see there; of the block's rows.
        keep_positions: also return positions.
    """
    rows, splits, keys, fanout = hop.rows, hop.splits, hop.keys, hop.fanout
    m, lengths = len(keys), np.diff(splits)
    if not len(rows):
        return Drawn(np.empty(0, np.int64), graph.indices[:0], np.empty(0, np.int64))
    degree = graph.in_degree
    if not isinstance(first, int):
        # A draw is keyed by the node's global id; the kernels know the place of its row.
        keys = np.repeat(keys, lengths) + (first[rows] - rows).astype(np.uint64) * NODE
        return _draw_each(graph, HopRows(rows, splits, keys, fanout), replace, table, keep_positions)
    if not replace and fanout > 64:
        # The buffers of a draw grow with the fanout, and no row has more in-edges than this.
        fanout = min(fanout, max(1, int(degree[rows].max())))
    most = degree[rows] if fanout < 0 else np.full(len(rows), fanout) if replace else np.minimum(degree[rows], fanout)
    room = np.zeros(m, np.int64)
    np.add.at(room, np.repeat(np.arange(m), lengths), most)
    width, need = int(lengths.max()), max(1, int(room.max()))
    nodes = np.zeros((m, width), graph.indices.dtype)
    for row, a, b in zip(nodes, splits, splits[1:]):
        row[: b - a] = rows[a:b]
    # A draw is keyed by the node's global id; the kernels know the local id.
    with np.errstate(over="ignore"):
        keys = keys + _U(first) * NODE
    begin, edge_end = np.zeros(m, np.int64), np.zeros(m, np.int64)
    ends, positions = np.zeros((m, width + 1), np.int64), np.empty((m, need if keep_positions else 1), np.int64)
    edges = np.empty((m, need), graph.indices.dtype)
    to = (ends, edges, positions, keep_positions, edge_end, hop.ascending)
    walk = (nodes, begin, lengths, fanout, replace, keys, *to)
    draw_spans(graph, spans_of_threads(m), table, fanout, walk, (None, None))
    kept = [np.diff(row[: n + 1]) for row, n in zip(ends, lengths)]
    sources, places = (np.concatenate([row[:e] for row, e in zip(rows, edge_end)]) for rows in (edges, positions))
    return Drawn(np.concatenate(kept), sources, places.astype(np.int64, copy=False) if keep_positions else None)


def draw_relations(
    graph: Graph, first: int, hop: HopRows, *, replace: bool = False, labor: bool = False, poisson: bool = False
) -> Drawn:
    """The draws of `cpu.neighbor.neighbor`, or of `cpu.labor.labor`, for these rows of a graph with types in one hop;
    other arguments are as in `draw_rows`."""
    lists, fanout = (graph.indptr, graph.indices, graph.edge_type), hop.fanout.copy()

    def room_for(of: IntArray) -> int:
        if poisson:
            # Poisson draws have no bound but a row's length.
            return int(graph.in_degree[of].sum())
        total, rows = np.zeros(1, np.int64), (of[None], np.zeros(1, np.int64), np.array([len(of)]))
        count_relations(0, 1, graph.indptr, graph.edge_type, *rows, fanout, replace, total, *NO_SEGMENTS)
        return int(total[0])

    def draw(rows: Arrays, to: Arrays, room: int, edge_end: IdArray, weights: AnyArray) -> None:
        if labor:
            sample_labor_relations(0, 1, *lists, *rows, fanout, poisson, *to, room, edge_end, weights)
        else:
            sample_relations(0, 1, *lists, *rows, fanout, replace, *to, edge_end, False, weights, first, *NO_SEGMENTS)

    kept, sources, positions, weight = _by_segment(graph, hop, room_for, draw)
    if graph.edge_weight is not None:
        weight *= graph.edge_weight[positions]
    return Drawn(kept, sources, positions, weight)


def draw_labor(graph: Graph, hop: HopRows, poisson: bool, weighted: bool = False) -> Drawn:
    """The draws of `cpu.labor.labor` for these rows in one hop, by the edges' weights if `weighted`."""
    fanout: int = hop.fanout
    weight = graph.edge_weight if weighted and graph.edge_weight is not None else np.empty(0, np.float32)

    def room_for(of: IntArray) -> int:
        degree = graph.in_degree[of]
        return int((degree if poisson or fanout < 0 else np.minimum(degree, fanout)).sum())

    def draw(rows: Arrays, to: Arrays, room: int, edge_end: IdArray, _: AnyArray) -> None:
        walk = (*rows, fanout, poisson, *to, True, room, edge_end, False, weight, log2_table())
        sample_labor(0, 1, graph.indptr, graph.indices, *walk)

    return Drawn(*_by_segment(graph, hop, room_for, draw)[:3])


def _by_segment(graph: Graph, hop: HopRows, room_for: Callable[[IntArray], int], draw: Callable[..., None]) -> Arrays:
    """Draw each segment by itself: kept edges of each row, and sources, positions and weights of all edges.

    Args:
        graph: the rows.
        hop: those to draw in.
        room_for: returns the maximum of the edges that some rows keep.
        draw: is called with the rows as kernels take them, with the key and arrays for what they draw, the room that
            these have, and arrays for the number of edges and for their weights.
    """
    parts: list[Arrays] = [()] * len(hop.keys)

    def segment(q: int) -> None:
        of = hop.rows[hop.splits[q] : hop.splits[q + 1]].astype(graph.indices.dtype)
        room, ends, edge_end = room_for(of), np.zeros((1, len(of) + 1), np.int64), np.zeros(1, np.int64)
        edges, positions, weights = (np.empty((1, room), kind) for kind in (of.dtype, np.int64, np.float32))
        rows, to = (of[None], np.zeros(1, np.int64), np.array([len(of)])), (hop.keys[q : q + 1], ends, edges, positions)
        draw(rows, to, room, edge_end, weights)
        e = int(edge_end[0])
        parts[q] = np.diff(ends[0]), edges[0, :e], positions[0, :e], weights[0, :e]

    parallel(segment, [(q,) for q in range(len(parts))])
    none = (np.empty(0, np.int64), graph.indices[:0], np.empty(0, np.int64), np.empty(0, np.float32))
    return tuple(np.concatenate(arrays) for arrays in zip(none, *parts))


def _draw_each(graph: Graph, hop: HopRows, replace: bool, table: AliasTable | None, keep_positions: bool) -> Drawn:
    """`draw_rows` with a key for each row."""
    rows, keys, fanout = hop.rows, hop.keys, hop.fanout
    degree = graph.in_degree[rows]
    if fanout < 0:
        _, at = edges_of_rows(graph.indptr[rows], degree)
        return Drawn(degree, graph.indices[at], at if keep_positions else None)
    most = np.full(len(rows), fanout) if replace else np.minimum(degree, fanout)
    parts: list[Arrays] = []
    a = 0
    while a < len(rows):
        # Buffers have as much room for each row as for the largest.
        room = np.maximum.accumulate(most[a : a + ROOM])
        n = max(1, int((room * np.arange(1, len(room) + 1) <= ROOM).sum()))
        need = max(1, int(room[n - 1]))
        nodes = rows[a : a + n, None].astype(graph.indices.dtype)
        begin, end = np.zeros(n, np.int64), np.ones(n, np.int64)
        ends, edges = np.zeros((n, 2), np.int64), np.empty((n, need), graph.indices.dtype)
        positions, edge_end = np.empty((n, need if keep_positions else 1), np.int64), np.zeros(n, np.int64)
        # A row is kept whole if it has no more edges than the fanout, however large that is.
        s = fanout if replace else min(fanout, max(1, int(degree[a : a + n].max())))
        walk = (nodes, begin, end, s, replace, keys[a : a + n], ends, edges, positions, keep_positions, edge_end, False)
        draw_spans(graph, spans_of_threads(n), table, s, walk, (None, None))
        there = np.arange(need) < edge_end[:, None]
        parts.append((edge_end, edges[there], positions[there] if keep_positions else edge_end[:0]))
        a += n
    kept, sources, positions = (np.concatenate(p) for p in zip(*parts))
    return Drawn(kept, sources, positions if keep_positions else None)
