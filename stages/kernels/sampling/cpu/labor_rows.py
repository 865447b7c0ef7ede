"""Drawing rows of LABOR-0, compiled: the in-edges whose sources have the smallest numbers; the bits of
`oracles.labor`.

In-edges are many times as many as kept edges, so a row is a stream: the numbers of a piece of it are computed by vector
instructions, and 64 at a time are compared with a bound below which somewhat more of them lie than are kept. Among
those few, a number that separates the s smallest from the others is found by bisection; nothing is sorted. A row whose
candidates are too few or too many, or that ends in equal numbers (parallel edges), is drawn again by insertion.
"""

from math import ceil, sqrt

import numpy as np

from ....random import NODE as _NODE
from ...runtime.intrinsics import LANES, below, ones, prefetch, trailing_zeros
from ...runtime.jit import JIT, njit
from .draw import BLOCK_ROWS, fetch
from .exponential_times import exponential, inserted
from .relations import segment_end
from .rng import mixed

_U = np.uint64
_HIGHEST = np.uint64(0xFFFFFFFFFFFFFFFF)
PIECE = 256
"""In-edges whose numbers are computed before any is compared."""
LEAST = 1.44
"""Below 1 / ln 2."""
STREAM = 4
"""If at least one row of so many of the graph is drawn, each range of rows is fetched as a whole, in order."""
AHEAD = 4
"""Rows between the one that is drawn and the one whose first edges are prefetched."""


@njit(inline="always")
def _wanted(s):
    """Mean number of candidates of a row: a Poisson variable of this mean is below s about once in ten thousand
    times."""
    return s + np.int64(ceil(4.0 * sqrt(s))) + 4


@njit(**JIT)
def number(sources, start, m, key, words):
    """words[:m]: the numbers of the sources of in-edges from `start` on. More are computed, up to whole groups."""
    # Slices, since an index that might be negative keeps vector instructions away.
    if start + m + LANES <= len(sources):
        for block in range(0, m, LANES):
            part, out = sources[start + block : start + block + LANES], words[block : block + LANES]
            for i in range(LANES):
                out[i] = mixed(key + _U(part[i]) * _NODE)
    else:
        part = sources[start : start + m]
        for i in range(m):
            words[i] = mixed(key + _U(part[i]) * _NODE)


@njit(inline="always")
def _mask(words, block, n, bound):
    """Bits of those of words[block:block + LANES] that are below `bound`; of the first n words alone."""
    bits = below(words, block, bound)
    return bits if n - block >= LANES else bits & ((_U(1) << _U(n - block)) - _U(1))


@njit(**JIT)
def _separator(words, n, s, high):
    """A word that exactly s of words[:n] are below, or 0 if there is none: s < n, and all are below `high`."""
    low, under, over, turn = _U(0), 0, n, 0
    while high - low > _U(1):
        # By proportion and by halves in turn: words are uniform, but few.
        share = 0.5 if turn & 1 else (s + 0.5 - under) / (over - under + 1.0)
        middle = low + min(max(_U(np.float64(high - low) * share), _U(1)), high - low - _U(1))
        count = 0
        for block in range(0, n, LANES):
            count += ones(_mask(words, block, n, middle))
        if count == s:
            return middle
        if count < s:
            low, under = middle, count
        else:
            high, over = middle, count
        turn += 1
    return _U(0)


@njit(**JIT)
def _insert(sources, lo, hi, key, s, words, best, place):
    """place[:s]: the s in-edges with the smallest words, in the row's order; of equal ones, the earlier."""
    n = 0
    for start in range(lo, hi, PIECE):
        m = min(PIECE, hi - start)
        number(sources, start, m, key, words)
        for i in range(m):
            w = words[i]
            if n == s and w >= best[s - 1]:
                continue
            n = inserted(best, place, 0, n, s, w, start + i)
    place[:s].sort()


@njit(**JIT)
def _candidates(sources, lo, hi, key, bound, words, found, place):
    """Number of in-edges whose words are below `bound`, with these words and the positions; -1 if they do not fit."""
    n = 0
    for start in range(lo, hi, PIECE):
        m = min(PIECE, hi - start)
        if n + m > len(place):
            return -1
        number(sources, start, m, key, words)
        for block in range(0, m, LANES):
            bits = _mask(words, block, m, bound)
            while bits != _U(0):
                i = block + trailing_zeros(bits)
                bits &= bits - _U(1)
                found[n], place[n] = words[i], start + i
                n += 1
    return n


@njit(inline="always")
def _put(sources, at, edges, positions, keep_positions, e):
    edges[e] = sources[at]
    if keep_positions:
        positions[e] = at
    return e + 1


@njit(inline="always")
def _put_below(sources, lo, words, n, limit, edges, positions, keep_positions, e):
    """Append the in-edges lo + i of those words[i] that are below `limit`."""
    for block in range(0, n, LANES):
        bits = _mask(words, block, n, limit)
        while bits != _U(0):
            at = lo + block + trailing_zeros(bits)
            bits &= bits - _U(1)
            e = _put(sources, at, edges, positions, keep_positions, e)
    return e


@njit(**JIT)
def _exponential_race(sources, weight, lo, hi, key, s, words, best, place, log):
    """place[:n]: the n <= s in-edges of positive weight whose sources' times over their weights are the smallest, in
    the row's order; of equal ones, the earlier. Returns n."""
    n = 0
    for start in range(lo, hi, PIECE):
        m = min(PIECE, hi - start)
        number(sources, start, m, key, words)
        for i in range(m):
            w, bits = np.float64(weight[start + i]), words[i] >> _U(32)
            # -log2(u) is at least (1 - u) / ln 2: most edges need no logarithm.
            if w == 0.0 or (n == s and np.float64(_U(0xFFFFFFFF) - bits) * LEAST >= best[s - 1] * w):
                continue
            time = np.float64(exponential(bits, log)) / w
            if n == s and time >= best[s - 1]:
                continue
            n = inserted(best, place, 0, n, s, time, start + i)
    place[:n].sort()
    return n


@njit(**JIT)
def _take(
    indptr, sources, nodes, lo, hi, s, poisson, key, row_ends, edges, positions, keep_positions, room, e, words, found,
    place, weight, log, times
):  # fmt: skip
    """Sample rows nodes[lo:hi], appending from e on. Stops before a row for which there might not be room.

    Returns: The first row that is not sampled, and the number of edges.
    """
    most = len(place)
    for f in range(lo, hi):
        begin, end = indptr[nodes[f]], indptr[nodes[f] + 1]
        d = end - begin
        if f + 2 * AHEAD < hi:
            prefetch(indptr, np.int64(nodes[f + 2 * AHEAD]))
        if f + AHEAD < hi:
            prefetch(sources, indptr[nodes[f + AHEAD]])
        if e + (d if poisson or s < 0 else min(d, s)) > room:
            return f, e
        if len(weight) > 0 and s >= 0:
            for i in range(_exponential_race(sources, weight, begin, end, key, s, words, times, place, log)):
                e = _put(sources, place[i], edges, positions, keep_positions, e)
        elif s < 0 or d <= s:
            for at in range(begin, end):
                e = _put(sources, at, edges, positions, keep_positions, e)
        elif poisson:
            # (word >> 32) * d < s << 32, without a multiplication.
            bound = _U(((s << 32) + d - 1) // d) << _U(32)
            for start in range(begin, end, PIECE):
                m = min(PIECE, end - start)
                number(sources, start, m, key, words)
                e = _put_below(sources, start, words, m, bound, edges, positions, keep_positions, e)
        else:
            limit = _U(0)
            if d <= most:
                number(sources, begin, d, key, words)
                limit = _separator(words, d, s, _HIGHEST)
                if limit != _U(0):
                    e = _put_below(sources, begin, words, d, limit, edges, positions, keep_positions, e)
            else:
                bound = _U((_wanted(s) << 32) // d) << _U(32)
                n = _candidates(sources, begin, end, key, bound, words, found, place)
                if n >= s:
                    limit = bound if n == s else _separator(found, n, s, bound)
                for i in range(n if limit != _U(0) else 0):
                    if found[i] < limit:
                        e = _put(sources, place[i], edges, positions, keep_positions, e)
            if limit == _U(0):
                _insert(sources, begin, end, key, s, words, found, place)
                for i in range(s):
                    e = _put(sources, place[i], edges, positions, keep_positions, e)
        row_ends[f + 1] = e
    return hi, e


@njit(**JIT)
def sample_labor(
    first, last, indptr, sources, nodes, begin, end, s, poisson, keys, row_ends, edges, positions, keep_positions, room,
    edge_end, sorted_rows, weight, log
):  # fmt: skip
    """Sample rows nodes[q, begin[q]:end[q]] of minibatches first..last-1. begin[q] advances to the first row for which
    there might not be room; `room` is that of each minibatch in `edges`.

    With `sorted_rows`, whose ids ascend, all minibatches walk the same range of rows together, so that it is read from
    memory once. With a `weight` for each edge, rows race; otherwise it is empty.
    """
    num_rows = len(indptr) - 1
    most = 2 * _wanted(max(s, 1)) + PIECE
    words, found = np.empty(most + LANES, np.uint64), np.empty(most + LANES, np.uint64)
    place, times = np.empty(most, np.int64), np.empty(max(s, 1), np.float64)
    rows = np.int64(0)
    for q in range(first, last):
        rows += end[q] - begin[q]
    stream = sorted_rows and rows * STREAM >= num_rows
    row = 0
    while row < num_rows:
        low, row = row, min(num_rows, row + BLOCK_ROWS) if sorted_rows else num_rows
        if stream:
            fetch(sources, indptr[low], indptr[row])
        for q in range(first, last):
            lo = hi = begin[q]
            while hi < end[q] and nodes[q, hi] < row:
                hi += 1
            if hi > lo:
                begin[q], edge_end[q] = _take(
                    indptr, sources, nodes[q], lo, hi, s, poisson, keys[q], row_ends[q], edges[q], positions[q],
                    keep_positions, room, edge_end[q], words, found, place, weight, log, times
                )  # fmt: skip


@njit(**JIT)
def sample_labor_relations(
    first, last, indptr, sources, kind, nodes, begin, end, fanout, poisson, keys, row_ends, edges, positions, room,
    edge_end, weights
):  # fmt: skip
    """Sample the segment of each relation r of the rows nodes[q, begin[q]:end[q]] as a row of its own, with
    ``fanout[r]`` edges. begin[q] advances as in `sample_labor`, with `poisson`; else there is room.

    Weights are the inverse of the chance of an edge: the number of the row's edges in a relation divided by the number
    kept, or, with `poisson`, by its fanout.
    """
    largest = np.int64(1)
    for r in range(len(fanout)):
        largest = max(largest, fanout[r])
    most = 2 * _wanted(largest) + PIECE
    words, found = np.empty(most + LANES, np.uint64), np.empty(most + LANES, np.uint64)
    place, times, log = np.empty(most, np.int64), np.empty(largest, np.float64), np.empty(0, np.int64)
    segment, row, ends = np.empty(2, np.int64), np.zeros(1, np.int64), np.zeros(2, np.int64)
    unweighted = np.empty(0, np.float32)
    for q in range(first, last):
        e, f = edge_end[q], begin[q]
        while f < end[q]:
            v = np.int64(nodes[q, f])
            at, stop = indptr[v], indptr[v + 1]
            if poisson and e + stop - at > room:
                break
            while at < stop:
                until, s = segment_end(kind, at, stop), fanout[kind[at]]
                if s != 0:
                    segment[0], segment[1], start = at, until, e
                    _, e = _take(
                        segment, sources, row, 0, 1, s, poisson, keys[q], ends, edges[q], positions[q], True,
                        e + until - at, e, words, found, place, unweighted, log, times
                    )  # fmt: skip
                    scale = np.float64(1)
                    if e > start:
                        scale = np.float64(until - at) / np.float64(s if poisson and s > 0 else e - start)
                    for i in range(start, e):
                        weights[q, i] = np.float32(max(scale, 1.0))
                at = until
            f += 1
            row_ends[q, f] = e
        begin[q], edge_end[q] = f, e
