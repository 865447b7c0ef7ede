"""Products and draws of samplers that are written as sparse matrices, in SciPy and plain Python: the definition of
`cpu.matrix`."""

import numpy as np
import scipy.sparse as sp

from .....storage.array_kinds import IntArray, WordArray
from .....storage.graph import Graph
from .....storage.optional import taken
from ....random import draw, draw_word, node_words
from .. import exponential_race
from ..numbering import DenseNumbering
from ..samples import EdgeList
from ..sparse import Sparse, adjacency

__all__ = ["adjacency", "choose", "induced", "multiply"]
TOGETHER = False
"""See `cpu.matrix`."""


def _scipy(M: Sparse, num_columns: int) -> sp.csr_array:
    M = M.packed()
    indptr = np.append(M.start, len(M.columns))
    return sp.csr_array((M.mass, M.columns.astype(np.int64), indptr), shape=(M.num_rows, num_columns))


def multiply(Q: Sparse, A: Sparse, num_columns: int) -> Sparse:
    """P = Q A, columns ascending. The product of two matrices of ones is one of ones if Q is a selector: if its rows
    have at most one entry.

    Args:
        Q: [n, m].
        A: [m, V].
        num_columns: V.
    """
    P = sp.csr_array(_scipy(Q, A.num_rows) @ _scipy(A, num_columns))
    P.sort_indices()
    ones = Q.values is None and A.values is None and bool((Q.lengths <= 1).all())
    columns, indptr = P.indices.astype(A.columns.dtype), P.indptr.astype(np.int64)
    return Sparse(indptr[:-1], indptr[1:], columns, None if ones else P.data.astype(np.int64))


def choose(P: Sparse, s: int, words: WordArray, *, replace: bool = False) -> Sparse:
    """SAMPLE: up to s entries of each row of P, in proportion to their values; -1 takes all, with their values.

    Of ones: distinct ones by Floyd's algorithm, in the order of the draws. Otherwise successive sampling by an
    exponential race, columns ascending; an entry of 0 is never drawn.

    Args:
        P: [n, V], values of a row below 2^63 together.
        s: entries of a row.
        words: uint64 [n], the stream of each row.
        replace: draw independently; an entry may come more than once.
    """
    if s < 0:
        return P.packed()
    found = [_row(P, r, s, words[r : r + 1], replace) for r in range(P.num_rows)]
    ends = np.cumsum([0, *map(len, found)]).astype(np.int64)
    return Sparse(ends[:-1], ends[1:], np.concatenate([P.columns[:0], *found]).astype(P.columns.dtype))


def _row(P: Sparse, r: int, s: int, word: WordArray, replace: bool) -> IntArray:
    columns = P.columns[P.start[r] : P.stop[r]]
    degree = len(columns)
    if not degree:
        return columns
    if P.values is None:
        if replace:
            return columns[[int(draw(word, i)[0]) * degree >> 32 for i in range(s)]]
        picks: list[int] = list(range(degree)) if degree <= s else []
        for i in range(0 if picks else s):
            last = degree - s + i
            pick = int(draw(word, i)[0]) * (last + 1) >> 32
            picks.append(last if pick in picks else pick)
        return columns[picks]
    values = P.values[P.start[r] : P.stop[r]]
    total = int(values.sum())
    if not total:
        return columns[:0]
    if replace:
        darts = [int(draw_word(word, i)[0]) * total >> 64 for i in range(s)]
        return columns[np.searchsorted(np.cumsum(values), darts, side="right")]
    times = exponential_race.keys(node_words(int(word[0]), columns) >> np.uint64(32), values)
    order = np.argsort(times, kind="stable")[: min(s, np.count_nonzero(values))]
    return columns[np.sort(order)]


def induced(graph: Graph, known: DenseNumbering, keep_positions: bool = False) -> EdgeList:
    """EXTRACT: all edges of the graph between the known nodes, with their weights if it has any; with `keep_positions`
    also where they are in its edge arrays."""
    nodes = known.nodes.astype(np.int64)
    number = np.full(graph.num_nodes, -1, np.int32)
    number[nodes] = np.arange(len(nodes), dtype=np.int32)
    rows = [np.arange(graph.indptr[v], graph.indptr[v + 1]) for v in nodes]
    kept = [row[number[graph.indices[row]] >= 0] for row in rows]
    positions = np.concatenate([np.empty(0, np.int64), *kept])
    indptr = np.cumsum([0, *map(len, kept)]).astype(np.int32)
    weight = taken(graph.edge_weight, positions)
    return EdgeList(indptr, number[graph.indices[positions]], positions if keep_positions else None, weight)
