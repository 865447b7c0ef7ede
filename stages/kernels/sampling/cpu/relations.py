"""Drawing in-edges of frontier rows relation by relation, compiled. Edges of a row are sorted by relation, so that a
relation is a segment of the row.

A row's edges are far from those of the row before: what a row needs is fetched while others are processed. A draw is
keyed by (stream, relation, node, draw); Floyd's algorithm gives distinct picks.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .....storage.array_kinds import IdArray
from .....storage.graph import Graph
from ....random import GOLDEN as _GOLDEN
from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch
from ...runtime.jit import JIT, njit
from .draw import BLOCK_ROWS, LANES, LINE, STREAM, fetch
from .rng import mixed

_U = np.uint64
AHEAD = 8
"""Rows from the one that is drawn from to the one whose edges are fetched; to that whose place is, twice as many."""
AHEAD_EDGES = 24


class Segments(NamedTuple):
    """Lengths of the segments of all rows, so that none has to be searched for. Empty arrays stand for none."""

    length: npt.NDArray[np.uint32]
    """uint32 [S], by row, and then by relation into its type."""
    offsets: IdArray
    """int64 [T+1], see `GraphTypes.offsets`."""
    first: IdArray
    """int64 [T], place in `length` of each type's first row."""
    begin: IdArray
    """int64 [T+1], where the relations into each type begin in `relations`."""
    relations: IdArray
    """int64 [R], numbers of the relations, by the type of their destinations."""

    @classmethod
    def from_graph(cls, graph: Graph) -> "Segments":
        """Measure the segments of a graph with types, each of which is one range of ids. They take 4 bytes for each
        node and relation into its type."""
        types = graph.types
        into, offsets = types.ends[:, 1], np.asarray(types.offsets)
        count = np.bincount(into, minlength=len(offsets) - 1)
        sizes = count * np.diff(offsets)
        begin = np.concatenate([[0], np.cumsum(count)])
        length, relations = np.zeros(int(sizes.sum()), np.uint32), np.argsort(into, kind="stable").astype(np.int64)
        found = cls(length, offsets, np.cumsum(sizes) - sizes, begin, relations)
        _measure(graph.indptr, graph.edge_type, *found)
        return found


NO_SEGMENTS = Segments(np.empty(0, np.uint32), *(np.empty(0, np.int64) for _ in range(4)))


@njit(**JIT)
def _measure(indptr, kind, length, offsets, first, begin, relations):
    for t in range(len(offsets) - 1):
        row = first[t]
        for v in range(offsets[t], offsets[t + 1]):
            e = indptr[v]
            for i in range(begin[t], begin[t + 1]):
                start = e
                while e < indptr[v + 1] and kind[e] == relations[i]:
                    e += 1
                length[row] = e - start
                row += 1


@njit(inline="always")
def _fetch(indptr, kind, nodes, q, f, end):
    if f + 2 * AHEAD < end:
        prefetch(indptr, np.int64(nodes[q, f + 2 * AHEAD]))
    if f + AHEAD < end:
        prefetch(kind, indptr[nodes[q, f + AHEAD]])


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


@njit(inline="always")
def _first_segment(v, t, offsets, first_row, begin_of):
    """Type of row v, near type t, and the place of its first segment's length."""
    while v >= offsets[t + 1]:
        t += 1
    while v < offsets[t]:
        t -= 1
    return t, first_row[t] + (v - offsets[t]) * (begin_of[t + 1] - begin_of[t])


@njit(**JIT)
def count_relations(
    first, last, indptr, kind, nodes, begin, end, fanout, replace, total, length, offsets, first_row, begin_of,
    relations
):  # fmt: skip
    """Number of edges that the rows nodes[q, begin[q]:end[q]] keep, of minibatches first..last-1. The last five are
    `Segments`."""
    known = len(length) > 0
    for q in range(first, last):
        n, t, place = np.int64(0), 0, np.int64(0)
        for f in range(begin[q], end[q]):
            v = np.int64(nodes[q, f])
            if known:
                t, place = _first_segment(v, t, offsets, first_row, begin_of)
                if f + 2 * AHEAD < end[q]:
                    prefetch(length, place + (np.int64(nodes[q, f + 2 * AHEAD]) - v) * (begin_of[t + 1] - begin_of[t]))
                for i in range(begin_of[t], begin_of[t + 1]):
                    degree = np.int64(length[_U(place)])
                    if degree > 0:
                        n += _kept(degree, fanout[relations[i]], replace)
                    place += 1
            else:
                _fetch(indptr, kind, nodes, q, f, end[q])
                at, stop = indptr[v], indptr[v + 1]
                while at < stop:
                    until = segment_end(kind, at, stop)
                    n += _kept(until - at, fanout[kind[at]], replace)
                    at = until
        total[q] = n


@njit(**JIT)
def _draw(count, keys, names, degree, fanout, replace, words, picks):
    """picks[:fanout[lane], lane] are positions below degree[lane], of which there are more than fanout[lane]:
    independent with `replace`, else distinct (Floyd's algorithm)."""
    for lane in range(count, LANES):
        keys[lane], names[lane], degree[lane], fanout[lane] = keys[0], names[0], degree[0], fanout[0]
    for lane in range(LANES):
        words[lane] = mixed(mixed(keys[lane]) + names[lane])
    candidate, repeated = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    for i in range(fanout.max()):
        step = _U(i + 1) * _GOLDEN
        for lane in range(LANES):
            bound = degree[lane] if replace else degree[lane] - fanout[lane] + np.uint32(i + 1)
            bits = mixed(words[lane] + step) >> _U(32)
            candidate[lane] = np.uint32((bits * _U(bound)) >> _U(32))
            repeated[lane] = np.uint32(0)
        if not replace:
            for j in range(i):
                for lane in range(LANES):
                    repeated[lane] |= np.uint32(1) if picks[j, lane] == candidate[lane] else np.uint32(0)
        for lane in range(LANES):
            last = degree[lane] - fanout[lane] + np.uint32(i)
            picks[i, lane] = last if repeated[lane] != 0 else candidate[lane]


@njit(inline="always")
def _put(count, minibatch, at, slot, fanout, picks, positions):
    for lane in range(count):
        for i in range(fanout[lane]):
            positions[minibatch[lane], slot[lane] + i] = at[lane] + np.int64(picks[i, lane])


@njit(**JIT)
def sample_relations(
    first, last, indptr, sources, kind, nodes, begin, end, fanout, replace, keys, row_ends, edges, positions,
    edge_end, sorted_rows, weights, zero, length, offsets, first_row, begin_of, relations
):  # fmt: skip
    """Sample up to ``fanout[r]`` edges of each relation r of the rows nodes[q, begin[q]:end[q]]; -1 takes all.

    Weights are the number of the row's edges in a relation divided by the number kept. `sorted_rows`: the rows of each
    minibatch ascend. `zero` is the name of row 0 in random streams. The last five are `Segments`.
    """
    # Relations that keep some of their edges wait until there are LANES of them, which are drawn together.
    most = np.int64(1)
    for r in range(len(fanout)):
        most = max(most, np.int64(fanout[r]))
    picks = np.empty((most, LANES), np.uint32)
    words, streams, names = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    fan, of = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    owner, where, slot = np.empty(LANES, np.int64), np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    n, row, num_rows, rows = 0, np.int64(0), len(indptr) - 1, np.int64(0)
    next_row, edges_to = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
    for q in range(first, last):
        next_row[q - first] = begin[q]
        rows += end[q] - begin[q]
    stride = BLOCK_ROWS if sorted_rows else num_rows
    stream = sorted_rows and rows * most * STREAM >= len(sources) * sources.itemsize // LINE
    known, t = len(length) > 0, 0
    while row < num_rows:
        low, row = row, min(num_rows, row + stride)
        if stream:
            fetch(sources, indptr[low], indptr[row])
        for q in range(first, last):
            e, f = edge_end[q], next_row[q - first]
            place, i_relation = np.int64(0), np.int64(0)
            while f < end[q] and nodes[q, f] < row:
                v = np.int64(nodes[q, f])
                at, stop = indptr[v], indptr[v + 1]
                if known:
                    t, place = _first_segment(v, t, offsets, first_row, begin_of)
                    i_relation = begin_of[t]
                    if f + AHEAD < end[q]:
                        ahead = np.int64(nodes[q, f + AHEAD])
                        prefetch(indptr, ahead)
                        prefetch(length, place + (ahead - v) * (begin_of[t + 1] - i_relation))
                else:
                    _fetch(indptr, kind, nodes, q, f, end[q])
                while at < stop:
                    if known:
                        while length[place] == 0:
                            place += 1
                            i_relation += 1
                        until, r = at + np.int64(length[place]), relations[i_relation]
                        place += 1
                        i_relation += 1
                    else:
                        until, r = segment_end(kind, at, stop), np.int64(kind[at])
                    degree, s = until - at, np.int64(fanout[r])
                    kept = _kept(degree, s, replace)
                    if kept == degree and not (replace and s > 0):
                        for i in range(kept):
                            positions[q, e + i] = at + i
                            weights[q, e + i] = np.float32(1)
                    elif kept > 0:
                        weight = np.float32(np.float64(degree) / np.float64(kept))
                        for i in range(kept):
                            weights[q, e + i] = weight
                        streams[n], names[n] = keys[q] + _U(r + 1) * _GOLDEN, _U(v + zero) * _NODE
                        fan[n], of[n], owner[n], where[n], slot[n] = kept, degree, q, at, e
                        n += 1
                        if n == LANES:
                            _draw(n, streams, names, of, fan, replace, words, picks)
                            _put(n, owner, where, slot, fan, picks, positions)
                            n = 0
                    e += kept
                    at = until
                row_ends[q, f + 1] = e
                f += 1
            next_row[q - first], edges_to[q - first] = f, e
        if n > 0:
            _draw(n, streams, names, of, fan, replace, words, picks)
            _put(n, owner, where, slot, fan, picks, positions)
            n = 0
        for q in range(first, last):
            e = edges_to[q - first]
            for i in range(edge_end[q], e):
                prefetch(sources, positions[q, min(i + AHEAD_EDGES, e - 1)])
                edges[q, i] = sources[positions[q, i]]
            edge_end[q] = e
