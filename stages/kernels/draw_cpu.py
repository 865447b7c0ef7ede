"""Drawing in-edges of frontier rows, compiled: uniform or weighted, with or without replacement, or all.

All minibatches that one thread holds walk the same stretch of rows of the graph together, so that rows which several of them
share are read from memory once. Random draws are looked up by (stream, node, draw), so neither the walk nor the number of
threads can change a sample. Distinct uniform picks: Floyd's algorithm (Bentley, CACM 30(9), 1987), for 64 rows at a time.
"""

import numpy as np
from numba import njit

from ..random import GOLDEN as _GOLDEN
from ..random import NODE as _NODE
from .intrinsics import prefetch
from .race import exponential

JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
_U = np.uint64
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
LANES = 64
"""Frontier nodes that are drawn for together: wide enough for vector instructions, small enough for the first cache."""
BLOCK_ROWS = 1 << 14
"""Rows of the graph that a thread's minibatches walk together."""


@njit(inline="always")
def _mix(z):
    z = (z ^ (z >> _U(30))) * _M1
    z = (z ^ (z >> _U(27))) * _M2
    return z ^ (z >> _U(31))


@njit(**JIT)
def _draw(nodes, degree, fanout, replace, key, words, candidate, repeated, picks):
    """picks[:fanout, lane] are positions below degree[lane]: independent with `replace`, else distinct by Floyd's algorithm."""
    for lane in range(LANES):
        words[lane] = _mix(key + _U(nodes[lane]) * _NODE)
    if replace:
        for i in range(fanout):
            step = _U(i + 1) * _GOLDEN
            for lane in range(LANES):
                picks[i, lane] = np.uint32(((_mix(words[lane] + step) >> _U(32)) * _U(degree[lane])) >> _U(32))
        return
    for i in range(fanout):
        step = _U(i + 1) * _GOLDEN
        below, last = np.uint32(fanout - i - 1), np.uint32(fanout - i)
        for lane in range(LANES):
            bits = _mix(words[lane] + step) >> _U(32)
            candidate[lane] = np.uint32((bits * _U(np.uint32(degree[lane] - below))) >> _U(32))
            repeated[lane] = np.uint32(0)
        for j in range(i):
            for lane in range(LANES):
                repeated[lane] |= np.uint32(1) if picks[j, lane] == candidate[lane] else np.uint32(0)
        for lane in range(LANES):
            pick = np.uint32(degree[lane] - last) if repeated[lane] != 0 else candidate[lane]
            picks[i, lane] = np.uint32(i) if degree[lane] <= fanout else pick


@njit(inline="always")
def _kept(degree, fanout, replace):
    if replace:
        return fanout if degree > 0 else 0
    return min(np.int64(degree), fanout)


@njit(**JIT)
def _take(indptr, sources, nodes, lo, hi, fanout, replace, key, row_ends, edges, positions, keep_positions, e, tile):
    """Sample rows nodes[lo:hi] in order, appending to `edges` from e on; three tiles are in flight to hide memory latency."""
    ids, degree, start, words, candidate, repeated, picks = tile
    tiles = (hi - lo + LANES - 1) // LANES
    for x in range(tiles + 2):
        if x < tiles:
            a, f = x & 3, lo + x * LANES
            n = min(LANES, hi - f)
            for lane in range(n):
                ids[a, lane] = nodes[f + lane]
                prefetch(indptr, np.int64(nodes[f + lane]))
            for lane in range(n, LANES):
                ids[a, lane] = ids[a, 0]
        if 1 <= x <= tiles:
            a = (x - 1) & 3
            n = min(LANES, hi - (lo + (x - 1) * LANES))
            for lane in range(LANES):
                s = indptr[ids[a, lane]]
                start[a, lane] = s
                degree[a, lane] = np.uint32(indptr[ids[a, lane] + 1] - s)
            _draw(ids[a], degree[a], fanout, replace, key, words, candidate, repeated, picks[a])
            for lane in range(n):
                for i in range(_kept(degree[a, lane], fanout, replace)):
                    prefetch(sources, start[a, lane] + np.int64(picks[a, i, lane]))
        if x >= 2:
            a, f = (x - 2) & 3, lo + (x - 2) * LANES
            for lane in range(min(LANES, hi - f)):
                s = start[a, lane]
                for i in range(_kept(degree[a, lane], fanout, replace)):
                    at = s + np.int64(picks[a, i, lane])
                    edges[e] = sources[at]
                    if keep_positions:
                        positions[e] = at
                    e += 1
                row_ends[f + lane + 1] = e
    return e


@njit(**JIT)
def _take_all(indptr, sources, nodes, lo, hi, row_ends, edges, positions, keep_positions, e):
    for f in range(lo, hi):
        for at in range(indptr[nodes[f]], indptr[nodes[f] + 1]):
            edges[e] = sources[at]
            if keep_positions:
                positions[e] = at
            e += 1
        row_ends[f + 1] = e
    return e


@njit(**JIT)
def _take_weighted(
    indptr, sources, weight, nodes, lo, hi, fanout, replace, key, row_ends, edges, positions, keep_positions, e, table, best, place, sums
):
    """Sample rows nodes[lo:hi] in proportion to `weight`: an exponential race, or independent draws with `replace`."""
    for f in range(lo, hi):
        v = nodes[f]
        s, degree = indptr[v], indptr[v + 1] - indptr[v]
        word = _mix(key + _U(v) * _NODE)
        if replace:
            total = np.int64(0)
            for i in range(degree):
                total += weight[s + i]
                sums[i] = total
            for i in range(fanout if total > 0 else 0):
                dart = np.int64(_mix(word + _U(i + 1) * _GOLDEN) % _U(total))
                a, b = np.int64(0), degree - 1
                while a < b:
                    m = (a + b) >> 1
                    if sums[m] > dart:
                        b = m
                    else:
                        a = m + 1
                edges[e] = sources[s + a]
                if keep_positions:
                    positions[e] = s + a
                e += 1
        else:
            n = 0
            for i in range(degree):
                w = weight[s + i]
                if w == 0:
                    continue
                bits = _mix(word + _U(i + 1) * _GOLDEN) >> _U(32)
                finish = np.float64(exponential(bits, table)) / np.float64(w)
                if n == fanout and finish >= best[n - 1]:
                    continue
                j = n if n < fanout else n - 1
                while j > 0 and best[j - 1] > finish:
                    best[j] = best[j - 1]
                    place[j] = place[j - 1]
                    j -= 1
                best[j] = finish
                place[j] = s + i
                n = min(n + 1, fanout)
            for i in range(n):
                edges[e] = sources[place[i]]
                if keep_positions:
                    positions[e] = place[i]
                e += 1
        row_ends[f + 1] = e
    return e


@njit(**JIT)
def sample_hop(
    first, last, indptr, sources, weight, nodes, begin, end, fanout, replace, keys, row_ends, edges, positions, keep_positions, edge_end,
    sorted_rows, table, max_degree
):  # fmt: skip
    """Sample rows nodes[q, begin[q]:end[q]] of minibatches first..last-1; an empty `weight` means uniform."""
    num_rows = len(indptr) - 1
    weighted = len(weight) > 0
    width = max(fanout, 1)
    tile = (
        np.empty((4, LANES), np.int64),
        np.empty((4, LANES), np.uint32),
        np.empty((4, LANES), np.int64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint32),
        np.empty(LANES, np.uint32),
        np.empty((4, width if not weighted else 1, LANES), np.uint32),
    )
    best, place = np.empty(width, np.float64), np.empty(width, np.int64)
    sums = np.empty(max_degree if weighted and replace else 0, np.int64)
    at = begin[first:last].copy()
    stride = BLOCK_ROWS if sorted_rows else num_rows
    row = 0
    while row < num_rows:
        row = min(num_rows, row + stride)
        for q in range(first, last):
            lo = at[q - first]
            hi = end[q]
            if sorted_rows:
                a, b = lo, hi
                while a < b:
                    m = (a + b) >> 1
                    if nodes[q, m] < row:
                        a = m + 1
                    else:
                        b = m
                hi = a
            at[q - first] = hi
            if hi == lo:
                continue
            e = edge_end[q]
            if fanout < 0:
                e = _take_all(indptr, sources, nodes[q], lo, hi, row_ends[q], edges[q], positions[q], keep_positions, e)
            elif weighted:
                e = _take_weighted(
                    indptr, sources, weight, nodes[q], lo, hi, fanout, replace, keys[q], row_ends[q], edges[q], positions[q],
                    keep_positions, e, table, best, place, sums
                )  # fmt: skip
            else:
                e = _take(
                    indptr, sources, nodes[q], lo, hi, fanout, replace, keys[q], row_ends[q], edges[q], positions[q],
                    keep_positions, e, tile
                )  # fmt: skip
            edge_end[q] = e
