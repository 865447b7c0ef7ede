"""Compiled LABOR: every in-edge of a frontier is read once (`cpu.labor_rows`); `cpu.bulk` numbers the nodes found.
GIL-free, the same bits as `oracles.labor`. Importance iterations read them more often (`cpu.labor_importance`).

A source's number is computed when needed, many edges at a time: a table would be read at random.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .....storage.graph import Graph
from ...runtime.threads import parallel
from ..exponential_race import log2_table
from ..samples import Fanouts, NeighborSample
from .bulk import Bulk, IdArray, sample_hops
from .labor_importance import draw_importance
from .labor_rows import sample_labor, sample_labor_relations
from .neighbor import edges_of_relations, most_edges
from .workspace import Workspace


def labor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Fanouts,
    *,
    poisson: bool = False,
    weight: npt.NDArray[np.float32] | None = None,
    expand: str = "new",
    keep_positions: bool = True,
    iterations: int = 0,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """Sample k minibatches node by node, with one random number per source node and minibatch.

    Args:
        graph: in-neighbour lists.
        seeds: k vectors of distinct node ids.
        keys: uint64 [k], the stream of each minibatch: all its hops share it.
        fanout: L numbers, nearest the seeds first; -1 takes every in-edge. Of a graph with types int64 [L, R], of each
            hop and relation: each relation of a row is a row of its own, with the same numbers, and `EdgeList.weight`
            has 1 / chance.
        poisson: keep an edge into v iff its source's number is below fanout / degree(v); else keep the min(fanout,
            degree) edges whose sources have the smallest numbers (of parallel edges, the first).
        weight: float32 [E], with rows of exact size only: a source's number u becomes the time -log2(u) / weight of
            each of its edges, and a row keeps its first edges (an exponential race that rows share); never an edge of
            weight 0.
        expand: see `cpu.neighbor.neighbor`.
        keep_positions: see there.
        iterations: with `poisson` and without `weight` only: how often a hop's importance is computed anew. A row v
            then keeps the edge of a source t with chance min(1, c_v pi_t), and says 1 / chance in `EdgeList.weight`.
        workspace: buffers to reuse.

    Returns:
        k samples, rows in the graph's own order.
    """

    def draw(bulk: Bulk, h: int, ends: list[IdArray]) -> None:
        s: Any = fanouts[h]
        if iterations:
            return draw_importance(bulk, ends[0], ends[-1], s, iterations, keys)
        exact = not poisson or (not typed and s < 0)
        for lo, hi in zip(ends, ends[1:]):
            expected = (edges_of_relations if typed else most_edges)(bulk, lo, hi, s)
            # Poisson draws have no bound but a row's length: there is more room than they need nearly always.
            slack = 0 if exact else most_row + expected // 4
            begin = lo.copy()
            while True:
                room = bulk.reserve(expected + slack)
                walk = (bulk.nodes, begin, hi, s, poisson, keys, bulk.row_ends, bulk.edges, bulk.positions)
                if typed:
                    lists, to = (graph.indptr, graph.indices, graph.edge_type), (room, bulk.edge_end, bulk.weight)
                    parallel(sample_labor_relations, [(a, b, *lists, *walk, *to) for a, b in bulk.spans])
                else:
                    to = (keep_positions, room, bulk.edge_end, bool(lo.any()), weights, log2_table())
                    parallel(sample_labor, [(a, b, graph.indptr, graph.indices, *walk, *to) for a, b in bulk.spans])
                if (begin == hi).all():
                    break
        return None

    # Kernels take each hop's as an array of its own.
    typed, fanouts = not graph.types.is_single, fanout if graph.types.is_single else list(np.array(fanout))
    weights = np.empty(0, np.float32) if weight is None else weight
    most_row = int(graph.in_degree.max(initial=0)) if poisson else 0
    bulk = Bulk(graph, seeds, workspace, keep_positions or typed, typed or iterations > 0)
    return sample_hops(bulk, len(fanout), expand, draw)
