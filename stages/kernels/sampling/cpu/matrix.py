"""Products and draws of samplers that are written as sparse matrices, compiled: the bits of `matrix.products`.

A product is Gustavson's (ACM TOMS 4(3), 1978): row by row, in an accumulator over V columns that is cleared entry by
entry. That by a selector only says where rows are.
"""

import numpy as np

from .....storage.array_kinds import WordArray
from .....storage.graph import Graph
from ....random import GOLDEN as _GOLDEN
from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch
from ...runtime.jit import JIT, njit
from ..exponential_race import log2_table
from ..numbering import DenseNumbering
from ..samples import EdgeList
from ..sparse import Sparse, adjacency
from .draw import LANES, draw, kept
from .exponential_times import exponential, inserted
from .rng import below, mixed

__all__ = ["adjacency", "choose", "induced", "multiply"]
TOGETHER = False
"""Threads draw minibatches side by side, each by itself."""
_U = np.uint64
AHEAD = 16
"""Rows between the one that is looked up and the one that is prefetched."""


@njit(**JIT)
def _find(q_start, q_stop, q_column, start, stop, out_start, out_stop):
    """The rows of a product by a selector; where it has an empty row, so has the product."""
    n = len(q_start)
    for r in range(n):
        if r + AHEAD < n and q_start[r + AHEAD] < q_stop[r + AHEAD]:
            prefetch(start, np.int64(q_column[q_start[r + AHEAD]]))
        out_start[r] = out_stop[r] = 0
        if q_start[r] < q_stop[r]:
            v = q_column[q_start[r]]
            out_start[r], out_stop[r] = start[v], stop[v]


@njit(**JIT)
def _multiply(q_start, q_stop, q_column, q_value, start, stop, column, value, place, row_ends, out, out_value):
    # Checked at run time: a version of its own for matrices without values takes seconds to compile.
    e, weighted = 0, len(value) > 0
    for r in range(len(q_start)):
        begin = e
        for i in range(q_start[r], q_stop[r]):
            v, x = q_column[i], q_value[i]
            for at in range(start[v], stop[v]):
                u = column[at]
                if place[u] < 0:
                    place[u] = e
                    out[e], out_value[e] = u, 0
                    e += 1
                out_value[place[u]] += x * value[at] if weighted else x
        found, sums = out[begin:e].copy(), out_value[begin:e].copy()
        order = np.argsort(found)
        for i in range(e - begin):
            place[found[i]] = -1
            out[begin + i], out_value[begin + i] = found[order[i]], sums[order[i]]
        row_ends[r + 1] = e


def multiply(Q: Sparse, A: Sparse, num_columns: int) -> Sparse:
    if Q.values is None and bool((Q.lengths <= 1).all()):
        start, stop = np.empty(Q.num_rows, np.int64), np.empty(Q.num_rows, np.int64)
        _find(Q.start, Q.stop, Q.columns, A.start, A.stop, start, stop)
        return Sparse(start, stop, A.columns, A.values)
    entries = Q.packed()
    values = entries.mass
    room = np.zeros(Q.num_rows, np.int64)
    np.add.at(room, entries.row_of, A.lengths[entries.columns])
    size = int(np.minimum(room, num_columns).sum())
    ends, out, sums = np.zeros(Q.num_rows + 1, np.int64), np.empty(size, A.columns.dtype), np.empty(size, np.int64)
    place = np.full(num_columns, -1, np.int64)
    rows = (entries.start, entries.stop, entries.columns, values)
    weights = np.empty(0, np.int64) if A.values is None else A.values
    _multiply(*rows, A.start, A.stop, A.columns, weights, place, ends, out, sums)
    return Sparse(ends[:-1], ends[1:], out[: ends[-1]], sums[: ends[-1]])


@njit(**JIT)
def _choose_evenly(start, stop, column, words, s, replace, row_ends, out):
    tile, degree = np.empty(LANES, np.uint64), np.empty(LANES, np.uint32)
    spare, picks = np.empty((2, LANES), np.uint32), np.empty((s, LANES), np.uint32)
    e, n = 0, len(start)
    for first in range(0, n, LANES):
        rows = min(LANES, n - first)
        for lane in range(LANES):
            r = first + min(lane, rows - 1)
            tile[lane], degree[lane] = words[r], np.uint32(stop[r] - start[r])
        draw(tile, degree, s, replace, spare[0], spare[1], picks)
        for lane in range(rows):
            for i in range(kept(degree[lane], s, replace)):
                prefetch(column, start[first + lane] + np.int64(picks[i, lane]))
        for lane in range(rows):
            for i in range(kept(degree[lane], s, replace)):
                out[e] = column[start[first + lane] + np.int64(picks[i, lane])]
                e += 1
            row_ends[first + lane + 1] = e
    return e


@njit(**JIT)
def _throw(word, start, stop, value, s, column, out, e):
    """s independent draws in proportion to `value`."""
    total = np.int64(0)
    for at in range(start, stop):
        total += value[at]
    if total == 0:
        return e
    for i in range(s):
        rest = below(mixed(word + _U(i + 1) * _GOLDEN), total)
        at = start
        while rest >= value[at]:
            rest -= value[at]
            at += 1
        out[e] = column[at]
        e += 1
    return e


@njit(**JIT)
def _exponential_race(word, start, stop, value, s, column, log, best, found):
    """found[:n]: entries of the s smallest times, ascending; returns n."""
    n = 0
    if s == 0:
        return n
    for at in range(start, stop):
        if value[at] == 0:
            continue
        bits = mixed(word + _U(column[at]) * _NODE) >> _U(32)
        time = np.float64(exponential(bits, log)) / np.float64(value[at])
        if n == s and time >= best[n - 1]:
            continue
        n = inserted(best, found, 0, n, s, time, at)
    found[:n].sort()
    return n


@njit(**JIT)
def _choose_by_value(start, stop, column, value, words, s, replace, log, row_ends, out):
    best, found = np.empty(s, np.float64), np.empty(s, np.int64)
    e = 0
    for r in range(len(start)):
        if replace:
            e = _throw(words[r], start[r], stop[r], value, s, column, out, e)
        else:
            n = _exponential_race(words[r], start[r], stop[r], value, s, column, log, best, found)
            for i in range(n):
                out[e] = column[found[i]]
                e += 1
        row_ends[r + 1] = e
    return e


def choose(P: Sparse, s: int, words: WordArray, *, replace: bool = False) -> Sparse:
    if s < 0:
        return P.packed()
    room = P.num_rows * s if replace else int(np.minimum(P.lengths, s).sum())
    ends, out = np.zeros(P.num_rows + 1, np.int64), np.empty(room, P.columns.dtype)
    if not replace:
        s = min(s, max(1, int(P.lengths.max(initial=0))))
    if P.values is None:
        e = _choose_evenly(P.start, P.stop, P.columns, words, s, replace, ends, out)
    else:
        e = _choose_by_value(P.start, P.stop, P.columns, P.values, words, s, replace, log2_table(), ends, out)
    return Sparse(ends[:-1], ends[1:], out[:e])


@njit(**JIT)
def _induced(indptr, sources, weight, nodes, place, row_ends, out, values, positions):
    e = 0
    for i in range(len(nodes)):
        for at in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            if place[sources[at]] >= 0:
                out[e] = place[sources[at]]
                if weight is not None:
                    values[e] = weight[at]
                if positions is not None:
                    positions[e] = at
                e += 1
        row_ends[i + 1] = e
    return e


def induced(graph: Graph, known: DenseNumbering, keep_positions: bool = False) -> EdgeList:
    nodes, weight = known.nodes, graph.edge_weight
    room = int(graph.in_degree[nodes].sum())
    ends, out = np.zeros(len(nodes) + 1, np.int64), np.empty(room, np.int32)
    values = np.empty(0 if weight is None else room, np.float32)
    positions = np.empty(room, np.int64) if keep_positions else None
    e = _induced(graph.indptr, graph.indices, weight, nodes, known.place, ends, out, values, positions)
    # What is returned is kept: not the room.
    return EdgeList(
        ends.astype(np.int32),
        out[:e].copy(),
        None if positions is None else positions[:e].copy(),
        None if weight is None else values[:e].copy(),
    )
