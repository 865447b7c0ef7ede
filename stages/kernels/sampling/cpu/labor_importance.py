"""Importance iterations of LABOR, compiled: the bits of `oracles.labor`.

A source's importance stands in a table over all nodes, one for each thread, which is read and written at random: each
iteration reads all in-edges of a hop's rows once more. The last one draws.
"""

import numpy as np

from .....storage.array_kinds import AnyArray, WordArray
from ...runtime.intrinsics import LANES, prefetch
from ...runtime.jit import JIT, njit
from ...runtime.threads import parallel
from .bulk import Bulk, IdArray
from .labor_rows import PIECE, number

_U = np.uint64
AHEAD = 16
"""Edges between the one whose source is looked up and the one whose source is prefetched."""
WHOLE = 4294967296.0
"""2^32: chances are compared with the upper half of a source's number."""


@njit(inline="always")
def _look_up(sources, lo, hi, table, pi):
    for at in range(lo, hi):
        prefetch(table, np.int64(sources[min(at + AHEAD, hi - 1)]))
        pi[at - lo] = table[sources[at]]


@njit(**JIT)
def _factor(pi, inverse, d, s):
    """The c of a row of d in-edges: see `oracles.labor.factor`."""
    total, largest = 0.0, 0.0
    for i in range(d):
        x = 1.0 / np.float64(pi[i])
        inverse[i] = x
        total += x
        largest = max(largest, x)
    if d <= s:
        return largest
    target = np.float64(d) * np.float64(d) / np.float64(s)
    c, full = total / target, 0
    while True:
        certain, left = 0, 0.0
        for i in range(d):
            if c * np.float64(pi[i]) >= 1.0:
                certain += 1
            else:
                left += inverse[i]
        if certain <= full:
            return c
        c, full = left / (target - np.float64(certain)), certain


@njit(inline="always")
def _spread(sources, lo, hi, pi, c, table):
    """Raise the importance of a row's sources to c times what it was."""
    for at in range(lo, hi):
        prefetch(table, np.int64(sources[min(at + AHEAD, hi - 1)]))
        u, value = np.int64(sources[at]), np.float32(c * np.float64(pi[at - lo]))
        if value > table[u]:
            table[u] = value


@njit(**JIT)
def sample_importance(
    indptr, sources, nodes, begin, end, s, iterations, key, row_ends, before, even, odd, pi, inverse
):  # fmt: skip
    """Sample rows nodes[begin:end], whose edges follow the `before` edges that there are: row_ends[f + 1] is set.

    Returns: Sources of the kept edges, their positions, and 1 / chance.
    """
    for turn in range(iterations if s >= 0 else 0):
        old, new = (even, odd) if turn % 2 == 0 else (odd, even)
        for v in range(len(indptr) - 1):
            new[v] = np.float32(0.0)
        for f in range(begin, end):
            lo, hi = indptr[nodes[f]], indptr[nodes[f] + 1]
            if turn == 0:
                for i in range(hi - lo):
                    pi[i] = np.float32(1.0)
            else:
                _look_up(sources, lo, hi, old, pi)
            _spread(sources, lo, hi, pi, _factor(pi, inverse, hi - lo, s), new)
    table = odd if iterations % 2 == 1 else even
    words = np.empty(PIECE + LANES, np.uint64)
    room = 1024
    edges, positions, scale = np.empty(room, sources.dtype), np.empty(room, np.int64), np.empty(room, np.float32)
    e = 0
    for f in range(begin, end):
        lo, hi = indptr[nodes[f]], indptr[nodes[f] + 1]
        d = hi - lo
        if e + d > room:
            room = 2 * (e + d)
            more, places, factors = np.empty(room, sources.dtype), np.empty(room, np.int64), np.empty(room, np.float32)
            more[:e], places[:e], factors[:e] = edges[:e], positions[:e], scale[:e]
            edges, positions, scale = more, places, factors
        if s < 0 or d <= s:
            for at in range(lo, hi):
                edges[e], positions[e], scale[e] = sources[at], at, np.float32(1.0)
                e += 1
        else:
            _look_up(sources, lo, hi, table, pi)
            c = _factor(pi, inverse, d, s)
            for start in range(lo, hi, PIECE):
                m = min(PIECE, hi - start)
                number(sources, start, m, key, words)
                for i in range(m):
                    p = c * np.float64(pi[start - lo + i])
                    if np.float64(words[i] >> _U(32)) < p * WHOLE:
                        edges[e], positions[e] = sources[start + i], start + i
                        scale[e] = np.float32(1.0 / min(p, 1.0))
                        e += 1
        row_ends[f + 1] = before + e
    return edges[:e], positions[:e], scale[:e]


def draw_importance(bulk: Bulk, begin: IdArray, end: IdArray, s: int, iterations: int, keys: WordArray) -> None:
    """Draw the edges of the rows between `begin` and `end` of all minibatches: one hop."""
    graph, threads = bulk.graph, len(bulk.spans)
    most = max(1, int(graph.in_degree.max(initial=0)))
    tables = bulk.space.rows("importance", (2 * threads, graph.num_nodes), np.float32)
    pi = bulk.space.rows("pi", (threads, most), np.float32)
    inverse = bulk.space.rows("inverse", (threads, most), np.float64)
    found: list[tuple[AnyArray, ...]] = [()] * bulk.k

    def draw(first: int, last: int, t: int) -> None:
        for q in range(first, last):
            found[q] = sample_importance(
                graph.indptr, graph.indices, bulk.nodes[q], begin[q], end[q], s, iterations, keys[q],
                bulk.row_ends[q], bulk.edge_end[q], tables[2 * t], tables[2 * t + 1], pi[t], inverse[t]
            )  # fmt: skip

    parallel(draw, [(a, b, t) for t, (a, b) in enumerate(bulk.spans)])
    bulk.append(found)
