"""Compiled bulk sampling, node by node: parallel over minibatches, GIL-free, and the same bits as `oracles.neighbor`.

A hop draws in-edges (`cpu.draw`); `cpu.bulk` numbers the nodes found.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .....storage.graph import Graph
from ...runtime.jit import njit
from ...runtime.once_per_graph import once_per_graph
from ...runtime.threads import parallel
from ..alias import NO_TABLE, AliasTable
from ..exponential_race import log2_table
from ..samples import Fanouts, NeighborSample
from .bulk import Bulk, IdArray, sample_hops
from .draw import JIT, LANES, sample_rows, sample_uniform
from .relations import NO_SEGMENTS, Segments, count_relations, sample_relations
from .workspace import Workspace


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


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Fanouts,
    *,
    replace: bool = False,
    table: AliasTable | None = None,
    expand: str = "new",
    keep_positions: bool = False,
    keep_weights: bool = False,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """Sample k minibatches node by node.

    Args:
        graph: in-neighbour lists.
        seeds: k vectors of distinct node ids.
        keys: uint64 [k, L], the stream of each minibatch and hop.
        fanout: L numbers, nearest the seeds first; -1 takes every in-edge. Of a graph with types int64 [L, R], of each
            hop and relation: each relation of a row is drawn for itself, by a stream of its own. Positions are kept,
            and the weight of an edge is the number of its row's edges in its relation divided by the number kept.
        replace: draw independently (an edge may come twice; rows without in-edges stay empty).
        table: draw in proportion to the weights that it is made of, and never an edge of weight 0; None draws
            uniformly. Without replacement: successive sampling, see `sampling.alias`.
        expand: "new": only newly found nodes are expanded in the next hop; "all": every node so far, again.
        keep_positions: also return each edge's position in the graph's edge arrays.
        keep_weights: also return each edge's weight in the graph.
        workspace: buffers to reuse.

    Returns:
        k samples.
    """
    if not graph.types.is_single:
        return _by_relation(graph, seeds, keys, np.asarray(fanout), replace, expand, workspace)
    bulk = Bulk(graph, seeds, workspace, keep_positions, keep_weights)
    edge_weight = graph.edge_weight if keep_weights else None

    def draw(bulk: Bulk, h: int, ends: list[IdArray]) -> None:
        s, stream = fanout[h], keys[:, h].copy()
        begin, end = ends[0], ends[-1]
        if not replace and s > LANES:
            # The buffers of a draw grow with the fanout, and no row has more in-edges than this.
            s = min(s, int(graph.in_degree.max(initial=1)))
        exact = s < 0 or (s > LANES and not replace)
        bulk.reserve(most_edges(bulk, begin, end, s) if exact else (end - begin) * s)
        for lo, hi in zip(ends, ends[1:]):
            walk = (
                bulk.nodes,
                lo,
                hi,
                s,
                replace,
                stream,
                bulk.row_ends,
                bulk.edges,
                bulk.positions,
                keep_positions,
                bulk.edge_end,
                bool(lo.any()),
            )
            weights = (edge_weight, bulk.weight if keep_weights else None)
            if s >= 0 and table is None:
                parallel(sample_uniform, [(a, b, graph.indptr, graph.indices, *walk, *weights) for a, b in bulk.spans])
            else:
                t, log = table or NO_TABLE, log2_table()
                lists = (graph.indptr, graph.indices, t.slots, t.weight, t.positive)
                parallel(sample_rows, [(a, b, *lists, *walk, log, *weights) for a, b in bulk.spans])

    return sample_hops(bulk, len(fanout), expand, draw)


def _by_relation(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: IdArray,
    replace: bool,
    expand: str,
    workspace: Workspace | None,
) -> list[NeighborSample]:
    """`neighbor` with a fanout for each relation; keeps positions and weights."""
    bulk = Bulk(graph, seeds, workspace, keep_positions=True, keep_weight=True)
    lists, segments = (graph.indptr, graph.indices, graph.edge_type), segments_of(graph)

    def draw(bulk: Bulk, h: int, ends: list[IdArray]) -> None:
        fan = fanout[h].copy()
        bulk.reserve(edges_of_relations(bulk, ends[0], ends[-1], fan, replace), final=h == len(fanout) - 1)
        stream, to = keys[:, h].copy(), (bulk.row_ends, bulk.edges, bulk.positions, bulk.edge_end)
        for lo, hi in zip(ends, ends[1:]):
            walk = (bulk.nodes, lo, hi, fan, replace, stream, *to, bool(lo.any()), bulk.weight, 0, *segments)
            parallel(sample_relations, [(a, b, *lists, *walk) for a, b in bulk.spans])

    return sample_hops(bulk, len(fanout), expand, draw)


@once_per_graph
def segments_of(graph: Graph) -> Segments:
    """Segments of a graph with types, measured once; `NO_SEGMENTS` if a type is several ranges of ids."""
    types = graph.types
    return Segments.from_graph(graph) if len(types.offsets) == len(types.node_types) + 1 else NO_SEGMENTS
