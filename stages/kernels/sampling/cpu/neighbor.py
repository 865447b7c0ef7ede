"""Compiled bulk sampling, node by node: parallel over minibatches, GIL-free, and the same bits as `oracles.neighbor`.

A hop draws in-edges (`cpu.draw`); `cpu.bulk` numbers the nodes found.
"""

import numpy as np

from .....storage.graph import Graph
from ...runtime.jit import JIT, njit
from ...runtime.once_per_graph import once_per_graph
from ...runtime.threads import parallel
from ..draws import NeighborDraws
from ..samples import NeighborSample
from .bulk import Bulk, IdArray, sample_hops
from .draw import LANES, draw_spans
from .relations import NO_SEGMENTS, Segments, count_relations, sample_relations


@njit(**JIT)
def _count(first, last, indptr, nodes, begin, end, fanout, total):
    """Number of the frontier's edges, at most `fanout` per row unless that is negative."""
    for q in range(first, last):
        n = np.int64(0)
        for f in range(begin[q], end[q]):
            degree = indptr[nodes[q, f] + 1] - indptr[nodes[q, f]]
            n += degree if fanout < 0 else min(degree, fanout)
        total[q] = n


def most_edges(bulk: Bulk, begin: IdArray, end: IdArray, s: int) -> IdArray:
    """int64 [k], edges of the rows between `begin` and `end`, at most `s` of each unless that is negative."""
    total = np.zeros(bulk.k, np.int64)
    parallel(_count, [(a, b, bulk.graph.indptr, bulk.nodes, begin, end, s, total) for a, b in bulk.spans])
    return total


def edges_of_relations(bulk: Bulk, begin: IdArray, end: IdArray, fanout: IdArray, replace: bool = False) -> IdArray:
    """int64 [k], edges that the rows between `begin` and `end` keep, with a fanout for each relation."""
    total, graph = np.zeros(bulk.k, np.int64), bulk.graph
    rows = (graph.indptr, graph.edge_type, bulk.nodes, begin, end, fanout, replace, total, *segments_of(graph))
    parallel(count_relations, [(a, b, *rows) for a, b in bulk.spans])
    return total


def neighbor(graph: Graph, asked: NeighborDraws) -> list[NeighborSample]:
    """Sample k minibatches node by node."""
    if not graph.types.is_single:
        return _by_relation(graph, asked)
    bulk = Bulk(graph, asked, asked.keep_positions, asked.keep_weights)
    replace = asked.replace

    def draw(bulk: Bulk, h: int, ends: list[IdArray]) -> None:
        s, stream = asked.fanout[h], asked.keys[:, h].copy()
        begin, end = ends[0], ends[-1]
        if not replace and s > LANES:
            # The buffers of a draw grow with the fanout, and no row has more in-edges than this.
            s = min(s, int(graph.in_degree.max(initial=1)))
        exact = s < 0 or (s > LANES and not replace)
        bulk.reserve(most_edges(bulk, begin, end, s) if exact else (end - begin) * s)
        weights = (graph.edge_weight, bulk.weight) if asked.keep_weights else (None, None)
        to = (bulk.row_ends, bulk.edges, bulk.positions, asked.keep_positions, bulk.edge_end)
        for lo, hi in zip(ends, ends[1:]):
            walk = (bulk.nodes, lo, hi, s, replace, stream, *to, bool(lo.any()))
            draw_spans(graph, bulk.spans, asked.table, s, walk, weights)

    return sample_hops(bulk, len(asked.fanout), asked.expand, draw)


def _by_relation(graph: Graph, asked: NeighborDraws) -> list[NeighborSample]:
    """`neighbor` with a fanout for each relation; keeps positions and weights."""
    bulk, fanout = Bulk(graph, asked, keep_positions=True, keep_weight=True), np.asarray(asked.fanout)
    lists, segments, replace = (graph.indptr, graph.indices, graph.edge_type), segments_of(graph), asked.replace

    def draw(bulk: Bulk, h: int, ends: list[IdArray]) -> None:
        fan = fanout[h].copy()
        bulk.reserve(edges_of_relations(bulk, ends[0], ends[-1], fan, replace), final=h == len(fanout) - 1)
        stream, to = asked.keys[:, h].copy(), (bulk.row_ends, bulk.edges, bulk.positions, bulk.edge_end)
        for lo, hi in zip(ends, ends[1:]):
            walk = (bulk.nodes, lo, hi, fan, replace, stream, *to, bool(lo.any()), bulk.weight, 0, *segments)
            parallel(sample_relations, [(a, b, *lists, *walk) for a, b in bulk.spans])

    return sample_hops(bulk, len(fanout), asked.expand, draw)


@once_per_graph
def segments_of(graph: Graph) -> Segments:
    """Segments of a graph with types, measured once; `NO_SEGMENTS` if a type is several ranges of ids."""
    types = graph.types
    return Segments.from_graph(graph) if len(types.offsets) == len(types.node_types) + 1 else NO_SEGMENTS
