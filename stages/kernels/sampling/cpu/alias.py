"""Alias tables, compiled: made row by row, and drawn from with table and sources prefetched; the bits of
`oracles.alias`."""

import numpy as np

from .....storage.errors import InputError
from .....storage.graph import Graph
from ....random import GOLDEN as _GOLDEN
from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch
from ...runtime.jit import JIT, njit
from ...runtime.threads import get_num_threads, parallel
from ..alias import RACE, SLOT_BITS, AliasTable, tries
from .exponential_times import exponential, inserted
from .rng import mixed

_U = np.uint64
_FULL = 1 << SLOT_BITS
_LOW = np.uint64(_FULL - 1)
_BITS = np.uint64(SLOT_BITS)
_tries = njit(inline="always")(tries)
TILE = 64
"""Rows whose slots are prefetched, then looked up, then written: about as many cache lines as the second-level cache
may wait for in a while."""


def alias_table(graph: Graph) -> AliasTable:
    """Alias tables of a weighted graph.

    Raises:
        InputError: a row has too many in-edges to number its slots.
    """
    assert graph.edge_weight is not None
    most = int(graph.in_degree.max(initial=0))
    if most >= 1 << 31:
        raise InputError(f"a node has {most} in-edges; weights allow at most {(1 << 31) - 1}; set weighted = false")
    table = AliasTable(np.empty(graph.num_edges, np.uint64), graph.edge_weight, np.empty(graph.num_nodes, np.int32))
    threads = get_num_threads()
    edges = np.linspace(0, graph.num_edges, threads + 1)
    bounds = np.searchsorted(graph.indptr, edges[1:-1]).tolist()
    spans = zip([0, *bounds], [*bounds, graph.num_nodes])
    parallel(_make, [(a, b, graph.indptr, table.weight, table.slots, table.positive) for a, b in spans])
    return table


@njit(**JIT)
def _make(first, last, indptr, weight, slots, positive):
    most = np.int64(0)
    for v in range(first, last):
        most = max(most, indptr[v + 1] - indptr[v])
    left = np.empty(most, np.int64)
    for v in range(first, last):
        s, degree = indptr[v], indptr[v + 1] - indptr[v]
        total, count = np.float64(0.0), 0
        for i in range(degree):
            total += np.float64(weight[s + i])
            count += weight[s + i] > 0
        positive[v] = count
        if count == 0:
            slots[s : s + degree] = _U(0)
            continue
        scale = np.float64(degree) * np.float64(_FULL) / total
        rest, largest = degree * np.int64(_FULL), np.int64(0)
        for i in range(degree):
            w = np.float64(weight[s + i])
            mass = max(np.int64(np.rint(w * scale)), np.int64(1)) if w > 0.0 else np.int64(0)
            left[i] = mass
            rest -= mass
            if mass > left[largest]:
                largest = i
        left[largest] += rest
        giver = np.int64(0)
        for i in range(degree):
            slots[s + i] = _U(i) << _BITS | _LOW
        for i in range(degree):
            short = np.int64(i)
            while left[short] < _FULL:
                while left[giver] <= _FULL:
                    giver += 1
                slots[s + short] = _U(giver) << _BITS | _U(left[short])
                left[giver] -= _FULL - left[short]
                left[short] = _FULL
                short = giver


@njit(inline="always")
def _number(bits, degree):
    """bits * degree / 2**32 for 64 random bits and degree < 2**31: a slot above 32 bits that decide within it."""
    return (bits >> _BITS) * degree + ((bits & _LOW) * degree >> _BITS)


@njit(inline="always")
def _pick(t, slot):
    return np.int64(t >> _BITS) if (t & _LOW) < (slot & _LOW) else np.int64(slot >> _BITS)


@njit(**JIT)
def _exponential_race(weight, start, degree, word, found, n, fanout, log, best):
    """found[n:fanout]: positions of the first of an exponential race among the edges that are not in found[:n]."""
    m = n
    for i in range(degree):
        w = weight[start + i]
        bits = mixed(word + (_U(RACE) + _U(i) + _U(1)) * _GOLDEN) >> _U(32)
        finish = np.float64(exponential(bits, log)) / np.float64(w)
        if w == 0.0 or (m == fanout and finish >= best[m - 1]):
            continue
        drawn = False
        for j in range(n):
            drawn |= found[j] == i
        if drawn:
            continue
        m = inserted(best, found, n, m, fanout, finish, i)


@njit(**JIT)
def _successive(slots, weight, start, degree, word, found, fanout, most, log, best):
    """found[:fanout]: distinct positions of the row, in the order of the draws."""
    if fanout == 0:
        return
    n = 0
    for i in range(most):
        t = _number(mixed(word + _U(i + 1) * _GOLDEN), _U(degree))
        at = np.int32(_pick(t, slots[start + np.int64(t >> _BITS)]))
        repeated = False
        for j in range(n):
            repeated |= found[j] == at
        if not repeated:
            found[n] = at
            n += 1
            if n == fanout:
                return
    _exponential_race(weight, start, degree, word, found, n, fanout, log, best)


@njit(**JIT)
def take_weighted(
    indptr, sources, slots, weight, positive, nodes, lo, hi, fanout, replace, key, row_ends, edges, positions,
    keep_positions, e, log
):  # fmt: skip
    """Draw up to `fanout` in-edges of each of the rows nodes[lo:hi], appending to `edges` from e on: tile by tile,
    slots are prefetched, edges picked and their sources prefetched, then written."""
    found, kept = np.empty((TILE, fanout), np.int32), np.empty(TILE, np.int64)
    starts, degrees, words = np.empty(TILE, np.int64), np.empty(TILE, np.int64), np.empty(TILE, np.uint64)
    best = np.empty(fanout, np.float64)
    most = _tries(fanout)
    ahead = fanout if replace else fanout + fanout // 4
    for f in range(lo, min(lo + TILE, hi)):
        prefetch(indptr, np.int64(nodes[f]))
        prefetch(positive, np.int64(nodes[f]))
    for first in range(lo, hi, TILE):
        n = min(TILE, hi - first)
        for x in range(n):
            v = np.int64(nodes[first + x])
            s, degree = indptr[v], indptr[v + 1] - indptr[v]
            starts[x], degrees[x], words[x] = s, degree, mixed(key + _U(v) * _NODE)
            count = np.int64(positive[v])
            kept[x] = min(count, fanout) if not replace else fanout if count > 0 else np.int64(0)
            if count <= fanout and not replace:
                prefetch(weight, s)
            else:
                for i in range(ahead):
                    bits = mixed(words[x] + _U(i + 1) * _GOLDEN)
                    prefetch(slots, s + np.int64(_number(bits, _U(degree)) >> _BITS))
        for f in range(first + TILE, min(first + 2 * TILE, hi)):
            prefetch(indptr, np.int64(nodes[f]))
            prefetch(positive, np.int64(nodes[f]))
        for x in range(n):
            s, degree, word = starts[x], degrees[x], words[x]
            if replace:
                for i in range(kept[x]):
                    t = _number(mixed(word + _U(i + 1) * _GOLDEN), _U(degree))
                    found[x, i] = _pick(t, slots[s + np.int64(t >> _BITS)])
            elif positive[nodes[first + x]] > fanout:
                _successive(slots, weight, s, degree, word, found[x], fanout, most, log, best)
            else:
                m = 0
                for i in range(degree):
                    if weight[s + i] > 0.0:
                        found[x, m] = i
                        m += 1
            for i in range(kept[x]):
                prefetch(sources, s + np.int64(found[x, i]))
        for x in range(n):
            for i in range(kept[x]):
                at = starts[x] + np.int64(found[x, i])
                edges[e] = sources[at]
                if keep_positions:
                    positions[e] = at
                e += 1
            row_ends[first + x + 1] = e
    return e
