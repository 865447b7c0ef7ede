"""Self loops beside degrees: a GCN keeps the loops that a graph has, and adds one where there is none.

Degrees are then rows of three columns: the degree, that without the node's loops, and the weight of its last loop, 1
where it has none (as PyG's ``add_remaining_self_loops``: of several loops the last one stays, unweighted ones weigh 1).
"""

import numpy as np

from ..storage.array_kinds import Float64Array, FloatArray, IdArray, IntArray, NumberArray
from ..storage.graph import Graph, row_ranges
from ..storage.optional import taken
from .kernels.runtime.once_per_graph import once_per_graph

OTHERS, LOOP = 1, 2
"""Columns of such rows; 0 is the degree."""
COLUMNS = 3


def degree_rows(degree: NumberArray, loops: IntArray, weight: FloatArray | None) -> Float64Array:
    """float64 [n, 3], see above.

    Args:
        degree: [n], in-degrees of rows.
        loops: [l], the row of each self loop, in the order of edges.
        weight: [l], of the loops; None: all are 1.
    """
    weight = np.ones(len(loops)) if weight is None else weight
    rows = np.ones((len(degree), COLUMNS))
    rows[:, 0] = degree
    of_loops = np.bincount(loops, weight, minlength=len(degree)) if len(loops) else np.zeros(len(degree))
    rows[:, OTHERS] = np.maximum(degree - of_loops, 0)
    rows[loops, LOOP] = weight
    return rows


def loops_of_rows(graph: Graph, first: int = 0) -> IdArray:
    """int64 [l], positions of the edges from a node to itself, ascending; row 0 of the graph is the node `first`. The
    edges are read once, some rows at a time."""
    found = [np.empty(0, np.int64)]
    for a, b in row_ranges(graph.indptr):
        begin, end = int(graph.indptr[a]), int(graph.indptr[b])
        own = np.repeat(np.arange(first + a, first + b, dtype=graph.indices.dtype), graph.in_degree[a:b])
        found.append(begin + np.flatnonzero(graph.indices[begin:end] == own))
    return np.concatenate(found)


def with_loops(graph: Graph, first: int = 0) -> Float64Array:
    """`degree_rows` of a graph whose row 0 is the node `first`."""
    at = loops_of_rows(graph, first)
    rows = np.searchsorted(graph.indptr, at, side="right") - 1
    return degree_rows(graph.degree, rows, taken(graph.edge_weight, at))


@once_per_graph
def _with_own_loops(graph: Graph) -> Float64Array:
    rows = with_loops(graph)
    return rows if has_loops(rows) else rows[:0]


def degree_of(graph: Graph, loops: bool) -> Float64Array:
    """float64 [V], `Graph.degree`; if `loops` are asked for and the graph has any, its `with_loops`, [V, 3]."""
    degree = graph.degree
    rows = _with_own_loops(graph) if loops and len(degree) else degree[:0]
    return rows if len(rows) else degree


def has_loops(rows: Float64Array) -> bool:
    """True if any of these rows of degrees has a self loop."""
    # A loop of weight 0 too takes the place of the one that is added.
    return bool((rows[:, 0] != rows[:, OTHERS]).any() or (rows[:, LOOP] != 1).any())
