"""Darts at the terms of P = Q (W o W), compiled, without forming P; and P itself if darts are not enough.

A dart at the terms picks a row by its mass (1 / (degree + 1) without weights) and then one of the row's entries: two
cache misses.
"""

import numpy as np

from .....storage.array_kinds import IdArray
from .....storage.graph import Graph
from ....random import GOLDEN as _GOLDEN
from ...runtime.jit import JIT, njit
from ...runtime.once_per_graph import once_per_graph
from ..layerwise import fraction_bits, weight_scale
from .rng import below, mixed

_U = np.uint64


@njit(inline="always")
def has(bitmap, u):
    """Bit u, as uint64."""
    return (bitmap[_U(u) >> _U(6)] >> (_U(u) & _U(63))) & _U(1)


@njit(inline="always")
def flip(bitmap, u):
    """Flip bit u."""
    bitmap[_U(u) >> _U(6)] ^= _U(1) << (_U(u) & _U(63))


@njit(inline="always")
def integer(w, scale):
    return max(np.int64(np.rint(np.float64(w) * scale)), np.int64(1)) if w > 0 else np.int64(0)


@njit(inline="always")
def square(part, whole, one):
    t = part / whole
    return max(np.int64(np.rint(t * t * one)), np.int64(1)) if part > 0 else np.int64(0)


@njit(**JIT)
def _row_tables(indptr, weight, scale, one, degree, mass, sums):
    """For every row of a weighted graph: weighted degree and mass as integers, and the sum of its edges' weights."""
    own = integer(1.0, scale)
    for v in range(len(indptr) - 1):
        total, x = own, 0.0
        for at in range(indptr[v], indptr[v + 1]):
            total += integer(weight[at], scale)
            x += np.float64(weight[at])
        m = square(own, total, one)
        for at in range(indptr[v], indptr[v + 1]):
            m += square(integer(weight[at], scale), total, one)
        degree[v], mass[v], sums[v] = total, m, x


@njit(**JIT)
def add_terms(indptr, sources, weight, degree, scale, one, nodes, n, columns, mass, place, seen):
    """Add up P over the rows nodes[:n]: columns[:m] in order of appearance and mass[:m]; `seen` is clear before and
    after."""
    own = np.int64(1) if weight is None else integer(1.0, scale)
    m = 0
    for i in range(n):
        v = nodes[i]
        lo, hi = indptr[v], indptr[v + 1]
        whole = hi - lo + 1 if weight is None else degree[v]
        for at in range(lo, hi + 1):
            u = np.int64(v) if at == hi else np.int64(sources[at])
            part = own if at == hi or weight is None else integer(weight[at], scale)
            w = square(part, whole, one)
            if w == 0:
                continue
            if has(seen, u) == _U(0):
                flip(seen, u)
                columns[m], place[u], mass[m] = u, m, 0
                m += 1
            mass[place[u]] += w
    for i in range(m):
        flip(seen, columns[i])
    return m


@njit(**JIT)
def row_prefix(indptr, mass, one, nodes, n, prefix):
    """prefix[i] is the mass of the rows before nodes[i]."""
    total = np.int64(0)
    for i in range(n):
        prefix[i] = total
        if mass is None:
            d = indptr[nodes[i] + 1] - indptr[nodes[i]] + 1
            total += square(np.int64(1), d, one) * d
        else:
            total += mass[nodes[i]]
    prefix[n] = total


@njit(inline="always")
def column(indptr, sources, weight, degree, scale, one, v, rest, own):
    """Column of the term of row v that contains `rest`; `own` is the term of its loop."""
    lo, hi = indptr[v], indptr[v + 1]
    if weight is None:
        d = hi - lo + 1
        at = lo + rest // square(np.int64(1), d, one)
    else:
        at = lo
        while at < hi:
            rest -= square(integer(weight[at], scale), degree[v], one)
            if rest < 0:
                break
            at += 1
    return np.int64(own) if at >= hi else np.int64(sources[at])


@njit(**JIT)
def draw_distinct(
    indptr, sources, weight, degree, scale, one, nodes, n, prefix, word, want, limit, repeats, drawn, out
):
    """Throw darts until `want` columns are in `out` or `limit` darts are thrown; nodes None: a term is a column itself.

    Returns the number of columns, and the number of darts thrown. `drawn` is clear before and after.
    """
    found, j = 0, 0
    while j < limit and found < want:
        j += 1
        x = below(mixed(word + _U(j) * _GOLDEN), prefix[n])
        a, b = 0, n
        while b - a > 1:
            m = (a + b) >> 1
            if prefix[m] <= x:
                a = m
            else:
                b = m
        u = (
            np.int64(a)
            if nodes is None
            else column(indptr, sources, weight, degree, scale, one, nodes[a], x - prefix[a], nodes[a])
        )
        if repeats or has(drawn, u) == _U(0):
            out[found] = u
            found += 1
            if not repeats:
                flip(drawn, u)
    if not repeats:
        for i in range(found):
            flip(drawn, out[i])
    return found, j


@njit(**JIT)
def _throw(word, first, total, out):
    for i in range(len(out)):
        out[i] = below(mixed(word + _U(first + i + 1) * _GOLDEN), total)


def throw(word: np.uint64, first: int, count: int, total: int) -> IdArray:
    """Positions of darts `first` to ``first + count`` of a stream below `total`: int64 [count]."""
    out = np.empty(count, np.int64)
    _throw(word, first, total, out)
    return out


class Rates:
    """Weights of a graph in fixed point: made once per graph."""

    def __init__(self, graph: Graph, num_nodes: int | None = None, heaviest: float | None = None) -> None:
        """
        Args:
            graph: all rows, or some.
            num_nodes: V, if `graph` has only some rows.
            heaviest: the largest edge weight of the whole graph, likewise.
        """
        weight = graph.edge_weight
        self.one = 2.0 ** fraction_bits(graph.num_nodes if num_nodes is None else num_nodes)
        self.scale, self.degree, self.mass, self.sums = 1.0, None, None, None
        if weight is not None:
            self.scale = weight_scale(float(weight.max(initial=0.0)) if heaviest is None else heaviest)
            self.degree, self.mass = np.empty(graph.num_nodes, np.int64), np.empty(graph.num_nodes, np.int64)
            self.sums = np.empty(graph.num_nodes)
            _row_tables(graph.indptr, weight, self.scale, self.one, self.degree, self.mass, self.sums)
        self._everywhere: tuple[IdArray, IdArray] | None = None
        self.common = (graph.indptr, graph.indices, weight, self.degree, self.scale, self.one)

    @property
    def everywhere(self) -> tuple[IdArray, IdArray]:
        """P over all V rows, and its prefix sums [V + 1]."""
        if self._everywhere is None:
            V = len(self.common[0]) - 1
            columns, mass, place = np.empty(V, np.int64), np.empty(V, np.int64), np.empty(V, np.int32)
            seen = np.zeros((V + 63) // 64, np.uint64)
            m = add_terms(*self.common, np.arange(V), V, columns, mass, place, seen)
            assert m == V, "every node has a loop"
            importance = np.empty(V, np.int64)
            importance[columns] = mass
            self._everywhere = importance, np.concatenate([[0], np.cumsum(importance)])
        return self._everywhere


@once_per_graph
def rates(graph: Graph) -> Rates:
    """The graph's `Rates`; kept as long as the graph lives."""
    return Rates(graph)
