"""Drawing in-edges of frontier rows, compiled: uniform or weighted, with or without replacement, or all.

All minibatches of one thread process the same range of rows of the graph together, so that shared rows are read from
memory once. Random draws are keyed by (stream, node, draw), so neither the order nor the number of threads can change a
sample. Distinct uniform picks: Floyd's algorithm (Bentley, CACM 30(9), 1987), for 64 rows at a time.
"""

from typing import Any

import numpy as np

from .....storage.graph import Graph
from ....random import GOLDEN as _GOLDEN
from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch
from ...runtime.jit import JIT, njit
from ...runtime.threads import parallel
from ..alias import NO_TABLE, AliasTable
from ..exponential_race import log2_table
from .alias import take_weighted
from .rng import mixed

_U = np.uint64
LANES = 64
"""Frontier nodes that are processed together: wide enough for vector instructions, small enough for the first-level
cache."""
BLOCK_ROWS = 1 << 11
"""Rows of the graph that a thread's minibatches process together: their edges fit the second-level cache."""
LINE = 64
"""Bytes of a cache line."""
STREAM = 8
"""Cache lines per draw up to which all edges of a block are fetched, in order, before any is drawn. (Measured: 16 is
slower.)"""
LINES, ASK = 32, 4
"""A processor drops prefetches if too many are under way: lines per batch, and number of batches."""


@njit(inline="always")
def draw(words, degree, fanout, replace, candidate, repeated, picks):
    """picks[:fanout, lane] are positions below degree[lane]: independent with `replace`, else distinct by Floyd's
    algorithm."""
    if replace:
        for i in range(fanout):
            step = _U(i + 1) * _GOLDEN
            for lane in range(LANES):
                picks[i, lane] = np.uint32(((mixed(words[lane] + step) >> _U(32)) * _U(degree[lane])) >> _U(32))
        return
    for i in range(fanout):
        step = _U(i + 1) * _GOLDEN
        below, last = np.uint32(fanout - i - 1), np.uint32(fanout - i)
        for lane in range(LANES):
            bits = mixed(words[lane] + step) >> _U(32)
            candidate[lane] = np.uint32((bits * _U(np.uint32(degree[lane] - below))) >> _U(32))
            repeated[lane] = np.uint32(0)
        for j in range(i):
            for lane in range(LANES):
                repeated[lane] |= np.uint32(1) if picks[j, lane] == candidate[lane] else np.uint32(0)
        for lane in range(LANES):
            pick = np.uint32(degree[lane] - last) if repeated[lane] != 0 else candidate[lane]
            picks[i, lane] = np.uint32(i) if degree[lane] <= fanout else pick


@njit(inline="always")
def kept(degree, fanout, replace):
    if replace:
        return fanout if degree > 0 else 0
    return min(np.int64(degree), fanout)


@njit(**JIT)
def _take_all(indptr, sources, nodes, lo, hi, row_ends, edges, positions, keep_positions, e, weight, weights, q):
    for f in range(lo, hi):
        for at in range(indptr[nodes[f]], indptr[nodes[f] + 1]):
            edges[e] = sources[at]
            if weight is not None:
                weights[q, e] = weight[at]
            if keep_positions:
                positions[e] = at
            e += 1
        row_ends[f + 1] = e
    return e


@njit(inline="always")
def fetch(sources, begin, end):
    """Prefetch the sources of a range of edges."""
    line = LINE // sources.itemsize
    for chunk in range(begin, end, LINES * line):
        for _ in range(ASK):
            for i in range(chunk, min(chunk + LINES * line, end), line):
                prefetch(sources, i)


@njit(**JIT)
def sample_uniform(
    first, last, indptr, sources, nodes, begin, end, fanout, replace, keys, row_ends, edges, positions,
    keep_positions, edge_end, sorted_rows, weight, weights
):  # fmt: skip
    """Sample up to `fanout` edges of each row nodes[q, begin[q]:end[q]] of minibatches first..last-1. With a `weight`
    for each edge of the graph, and not None, those of the sampled edges go to `weights`.

    Rows are processed in tiles of LANES, whatever their minibatch, and three tiles are in flight to hide memory
    latency.
    """
    num_rows = len(indptr) - 1
    minibatch = np.empty((4, LANES), np.int64)
    place = np.empty((4, LANES), np.int64)
    ids = np.empty((4, LANES), np.int64)
    degree = np.empty((4, LANES), np.uint32)
    start = np.empty((4, LANES), np.int64)
    words = np.empty(LANES, np.uint64)
    spare = np.empty((2, LANES), np.uint32)
    picks = np.empty((4, max(fanout, 1), LANES), np.uint32)
    # Loops, since each NumPy function is compiled too.
    filled, at = np.empty(4, np.int64), np.empty(last - first, np.int64)
    for a in range(4):
        filled[a] = 0
    rows = 0
    for q in range(first, last):
        at[q - first] = begin[q]
        rows += end[q] - begin[q]
    stride = BLOCK_ROWS if sorted_rows else num_rows
    draws = rows * fanout
    stream = sorted_rows and draws * STREAM >= len(sources) * sources.itemsize // LINE
    q, row = last, np.int64(0)
    idle = 0
    x = -1
    while idle < 3:
        x += 1
        a = x & 3
        n = 0
        while n < LANES:
            if q == last:
                if row == num_rows:
                    break
                low, q, row = row, first, min(num_rows, row + stride)
                if stream:
                    fetch(sources, indptr[low], indptr[row])
                    if weight is not None:
                        fetch(weight, indptr[low], indptr[row])
            f = at[q - first]
            while n < LANES and f < end[q] and nodes[q, f] < row:
                v = np.int64(nodes[q, f])
                prefetch(indptr, v)
                ids[a, n], minibatch[a, n], place[a, n] = v, q, f
                n += 1
                f += 1
            at[q - first] = f
            if n < LANES:
                q += 1
        filled[a] = n
        idle = idle + 1 if n == 0 else 0

        a = (x - 1) & 3
        if filled[a] > 0:
            for lane in range(filled[a], LANES):
                ids[a, lane], minibatch[a, lane] = ids[a, 0], minibatch[a, 0]
            for lane in range(LANES):
                s = indptr[ids[a, lane]]
                start[a, lane] = s
                degree[a, lane] = np.uint32(indptr[ids[a, lane] + 1] - s)
                words[lane] = mixed(keys[minibatch[a, lane]] + _U(ids[a, lane]) * _NODE)
            draw(words, degree[a], fanout, replace, spare[0], spare[1], picks[a])
            for lane in range(filled[a]):
                for i in range(kept(degree[a, lane], fanout, replace)):
                    prefetch(sources, start[a, lane] + np.int64(picks[a, i, lane]))
                    if weight is not None:
                        prefetch(weight, start[a, lane] + np.int64(picks[a, i, lane]))

        a = (x - 2) & 3
        for lane in range(filled[a]):
            m, s = minibatch[a, lane], start[a, lane]
            e = edge_end[m]
            for i in range(kept(degree[a, lane], fanout, replace)):
                edge = s + np.int64(picks[a, i, lane])
                edges[m, e] = sources[edge]
                if weight is not None:
                    weights[m, e] = weight[edge]
                if keep_positions:
                    positions[m, e] = edge
                e += 1
            row_ends[m, place[a, lane] + 1] = e
            edge_end[m] = e


@njit(**JIT)
def sample_rows(
    first, last, indptr, sources, slots, weight, positive, nodes, begin, end, fanout, replace, keys, row_ends, edges,
    positions, keep_positions, edge_end, sorted_rows, log, edge_weight, weights
):  # fmt: skip
    """Like `sample_uniform`, from alias tables; or all edges of each row if `fanout` is negative, and only then with
    their weights."""
    num_rows = len(indptr) - 1
    at = begin[first:last].copy()
    stride = BLOCK_ROWS if sorted_rows else num_rows
    row = 0
    while row < num_rows:
        row = min(num_rows, row + stride)
        for q in range(first, last):
            lo = hi = at[q - first]
            while hi < end[q] and nodes[q, hi] < row:
                hi += 1
            at[q - first] = hi
            if hi == lo:
                continue
            if fanout < 0:
                edge_end[q] = _take_all(
                    indptr, sources, nodes[q], lo, hi, row_ends[q], edges[q], positions[q], keep_positions,
                    edge_end[q], edge_weight, weights, q
                )  # fmt: skip
            else:
                edge_end[q] = take_weighted(
                    indptr, sources, slots, weight, positive, nodes[q], lo, hi, fanout, replace, keys[q], row_ends[q],
                    edges[q], positions[q], keep_positions, edge_end[q], log
                )  # fmt: skip


Spans = list[tuple[int, int]]
"""Minibatches of each thread, [begin, end)."""


def draw_spans(
    graph: Graph, spans: Spans, table: AliasTable | None, fanout: int, walk: tuple[Any, ...], weights: tuple[Any, Any]
) -> None:
    """Draw rows of all minibatches, on all threads.

    Args:
        graph: its lists.
        spans: minibatches of each thread.
        table: see `NeighborDraws`.
        fanout: -1 takes all edges.
        walk: arguments of `sample_uniform` from `nodes` to `sorted_rows`.
        weights: its last two: of the graph's edges, and those of the sampled ones; None each: not kept.
    """
    lists = (graph.indptr, graph.indices)
    if fanout >= 0 and table is None:
        parallel(sample_uniform, [(a, b, *lists, *walk, *weights) for a, b in spans])
    else:
        t, log = table or NO_TABLE, log2_table()
        parallel(sample_rows, [(a, b, *lists, t.slots, t.weight, t.positive, *walk, log, *weights) for a, b in spans])
