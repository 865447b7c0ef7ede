"""Compiled LABOR: every in-edge of a frontier is read once (`cpu.labor_rows`); `cpu.bulk` numbers the nodes found.
GIL-free, the same bits as `oracles.labor`. Importance iterations read them more often (`cpu.labor_importance`).

A source's number is computed when needed, many edges at a time: a table would be read at random.
"""

from typing import Any

import numpy as np

from .....storage.graph import Graph
from ...runtime.threads import parallel
from ..draws import LaborDraws
from ..exponential_race import log2_table
from ..samples import NeighborSample
from .bulk import Bulk, IdArray, sample_hops
from .labor_importance import draw_importance
from .labor_rows import sample_labor, sample_labor_relations
from .neighbor import edges_of_relations, most_edges


def labor(graph: Graph, asked: LaborDraws) -> list[NeighborSample]:
    """Sample k minibatches node by node, with one random number per source node and minibatch: rows in the graph's own
    order."""
    poisson, keys, fanout, iterations = asked.poisson, asked.keys, asked.fanout, asked.iterations

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
                    to = (asked.keep_positions, room, bulk.edge_end, bool(lo.any()), weights, log2_table())
                    parallel(sample_labor, [(a, b, graph.indptr, graph.indices, *walk, *to) for a, b in bulk.spans])
                if (begin == hi).all():
                    break
        return None

    # Kernels take each hop's as an array of its own.
    typed, fanouts = not graph.types.is_single, fanout if graph.types.is_single else list(np.array(fanout))
    weights = np.empty(0, np.float32) if asked.weight is None else asked.weight
    most_row = int(graph.in_degree.max(initial=0)) if poisson else 0
    bulk = Bulk(graph, asked, asked.keep_positions or typed, typed or iterations > 0)
    return sample_hops(bulk, len(fanout), asked.expand, draw)
