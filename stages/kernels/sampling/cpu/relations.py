"""Drawing in-edges of frontier rows relation by relation, compiled. Edges of a row are sorted by relation, so that a
relation is a segment of the row.

A draw is keyed by (stream, relation, node, draw); Floyd's algorithm gives distinct picks.
"""

import numpy as np

from ....random import GOLDEN as _GOLDEN
from ....random import NODE as _NODE
from ...runtime.jit import njit
from .rng import mixed

JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
_U = np.uint64


@njit(inline="always")
def segment_end(kind, begin, stop):
    """End of the segment of equal entries that begins at `begin`: by doubling steps, then by bisection."""
    value, step, low = kind[begin], np.int64(1), begin
    high = begin + 1
    while high < stop and kind[high] == value:
        low = high
        step *= 2
        high = min(stop, begin + step)
    while high - low > 1:
        middle = (low + high) // 2
        if kind[middle] == value:
            low = middle
        else:
            high = middle
    return high


@njit(inline="always")
def _kept(degree, fanout, replace):
    if fanout < 0:
        return degree
    return fanout if replace else min(degree, fanout)


@njit(**JIT)
def count_relations(first, last, indptr, kind, nodes, begin, end, fanout, replace, total):
    """Number of edges that the rows nodes[q, begin[q]:end[q]] keep, of minibatches first..last-1."""
    for q in range(first, last):
        n = np.int64(0)
        for f in range(begin[q], end[q]):
            v = np.int64(nodes[q, f])
            at, stop = indptr[v], indptr[v + 1]
            while at < stop:
                until = segment_end(kind, at, stop)
                n += _kept(until - at, fanout[kind[at]], replace)
                at = until
        total[q] = n


@njit(**JIT)
def sample_relations(
    first, last, indptr, sources, kind, nodes, begin, end, fanout, replace, keys, row_ends, edges, positions,
    edge_end, weights, zero
):  # fmt: skip
    """Sample up to ``fanout[r]`` edges of each relation r of the rows nodes[q, begin[q]:end[q]]; -1 takes all.

    Weights are the number of the row's edges in a relation divided by the number kept. `zero` is the name of row 0 in
    random streams.
    """
    for q in range(first, last):
        e = edge_end[q]
        for f in range(begin[q], end[q]):
            v = np.int64(nodes[q, f])
            at, stop = indptr[v], indptr[v + 1]
            while at < stop:
                until, r = segment_end(kind, at, stop), np.int64(kind[at])
                degree, s = until - at, np.int64(fanout[r])
                kept = _kept(degree, s, replace)
                weight = np.float32(np.float64(degree) / np.float64(kept)) if kept > 0 else np.float32(0)
                key = mixed(keys[q] + _U(r + 1) * _GOLDEN)
                word = mixed(key + _U(v + zero) * _NODE)
                start = e
                for i in range(kept):
                    if s < 0 or (not replace and degree <= s):
                        pick = np.int64(i)
                    else:
                        bits = mixed(word + _U(i + 1) * _GOLDEN) >> _U(32)
                        bound = degree if replace else degree - s + i + 1
                        pick = np.int64((bits * _U(bound)) >> _U(32))
                        if not replace:
                            for j in range(start, e):
                                if positions[q, j] == at + pick:
                                    pick = bound - 1
                                    break
                    edges[q, e] = sources[at + pick]
                    positions[q, e] = at + pick
                    weights[q, e] = weight
                    e += 1
                at = until
            row_ends[q, f + 1] = e
        edge_end[q] = e
