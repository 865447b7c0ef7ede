"""Compiled LABOR-0: reads every in-edge of the frontier once; GIL-free, the same bits as `reference.labor`.

A source's number is computed when needed, many edges at a time: a table would be read at random.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .....storage.graph import Graph
from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch, trailing_zeros
from ...runtime.jit import njit
from ...runtime.threads import get_num_threads, parallel
from ..samples import EdgeList, NeighborSample
from .buffers import doubled, room
from .rng import mixed
from .workspace import Workspace

_JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
_U = np.uint64
PIECE = 256
"""In-edges whose numbers are computed together."""


@njit(**_JIT)
def _smallest(sources, lo, hi, key, s, words, best, place):
    """place[:s]: positions of the s in-edges with the smallest words, ascending; ties go to the earlier."""
    n = 0
    for start in range(lo, hi, PIECE):
        m = min(PIECE, hi - start)
        for i in range(m):
            words[i] = mixed(key + _U(sources[start + i]) * _NODE)
        for i in range(m):
            w = words[i]
            if n == s and w >= best[s - 1]:
                continue
            if n < s:
                n += 1
            j = n - 1
            while j > 0 and best[j - 1] > w:
                best[j], place[j] = best[j - 1], place[j - 1]
                j -= 1
            best[j], place[j] = w, start + i
    place[:s].sort()


@njit(**_JIT)
def draw_hop(indptr, sources, nodes, first, end, s, poisson, key, row_ends, positions, e):
    """Sample rows nodes[first:end], appending to `positions` from e on. Stops before a row that might not fit."""
    words = np.empty(PIECE, np.uint64)
    best, place = np.empty(max(s, 1), np.uint64), np.empty(max(s, 1), np.int64)
    for f in range(first, end):
        lo, hi = indptr[nodes[f]], indptr[nodes[f] + 1]
        d = hi - lo
        if f + 4 < end:
            prefetch(indptr, np.int64(nodes[f + 4]))
        if f + 2 < end:
            prefetch(sources, indptr[nodes[f + 2]])
        if e + (d if poisson or s < 0 else min(d, s)) > len(positions):
            return f, e
        if s < 0 or d <= s:
            for at in range(lo, hi):
                positions[e] = at
                e += 1
        elif poisson:
            limit = _U(s) << _U(32)
            for at in range(lo, hi):
                positions[e] = at
                e += np.int64((mixed(key + _U(sources[at]) * _NODE) >> _U(32)) * _U(d) < limit)
        else:
            _smallest(sources, lo, hi, key, s, words, best, place)
            for i in range(s):
                positions[e] = place[i]
                e += 1
        row_ends[f + 1] = e
    return end, e


@njit(**_JIT)
def _known(nodes, n, known, local):
    known[:] = _U(0)
    for i in range(n):
        u = np.int64(nodes[i])
        known[u >> 6] |= _U(1) << _U(u & 63)
        local[u] = i


@njit(**_JIT)
def _unite(sources, positions, begin, end, nodes, n, known, found, local):
    """Append the sources of the edges positions[begin:end] that are not known yet, ascending. `found` is clear before
    and after."""
    for e in range(begin, end):
        u = np.int64(sources[positions[e]])
        found[u >> 6] |= _U(1) << _U(u & 63)
    for w in range(len(found)):
        new = found[w] & ~known[w]
        known[w] |= new
        found[w] = _U(0)
        while new != _U(0):
            u = w * 64 + trailing_zeros(new)
            new &= new - _U(1)
            nodes[n] = u
            local[u] = n
            n += 1
    return n


@njit(**_JIT)
def _renumber(sources, positions, local, out):
    for e in range(len(out)):
        out[e] = local[sources[positions[e]]]


def _sample(
    graph: Graph,
    seeds: npt.NDArray[np.int64],
    key: np.uint64,
    fanout: Sequence[int],
    poisson: bool,
    space: Workspace,
    thread: int,
) -> NeighborSample:
    V, ids, n = graph.num_nodes, graph.indices.dtype, len(seeds)

    def take(name: str, size: int, dtype: npt.DTypeLike, keep: int = 0) -> npt.NDArray[Any]:
        return room(space, f"labor.{name}.{thread}", max(size, 1), dtype, keep)

    known, found, local = (
        take("known", (V + 63) // 64, np.uint64),
        take("found", (V + 63) // 64, np.uint64),
        take("local", V, np.int32),
    )
    nodes, row_ends, positions = (
        take("nodes", n, ids),
        take("row_ends", 1, np.int64),
        take("positions", 1 << 14, np.int64),
    )
    found[:] = 0
    nodes[:n], row_ends[0] = seeds, 0
    _known(nodes, n, known, local)
    begin, e, ends = 0, 0, [n]
    for s in fanout:
        row, first = begin, e
        row_ends = take("row_ends", n + 1, np.int64, keep=begin + 1)
        while True:
            row, e = draw_hop(graph.indptr, graph.indices, nodes, row, n, s, poisson, key, row_ends, positions, e)
            if row == n:
                break
            positions = take(
                "positions", doubled(len(positions), e + int(graph.in_degree[nodes[row]])), np.int64, keep=e
            )
        nodes = take("nodes", min(n + e - first, V), ids, keep=n)
        begin, n = n, _unite(graph.indices, positions, first, e, nodes, n, known, found, local)
        ends.append(n)
    indices = np.empty(e, np.int32)
    _renumber(graph.indices, positions, local, indices)
    edges = EdgeList(row_ends[: begin + 1].astype(np.int32), indices, positions[:e].copy())
    return NeighborSample(nodes[:n].copy(), tuple(ends), (edges,))


def labor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    poisson: bool = False,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """See `reference.labor.labor`: the same arguments, the same bits."""
    k = len(seeds)
    space = workspace if workspace is not None else Workspace()
    threads = max(1, min(k, get_num_threads()))
    bounds = [k * t // threads for t in range(threads + 1)]
    samples: list[NeighborSample] = [None] * k  # pyright: ignore[reportAssignmentType]

    def span(t: int) -> None:
        for q in range(bounds[t], bounds[t + 1]):
            samples[q] = _sample(graph, np.asarray(seeds[q], np.int64), keys[q], fanout, poisson, space, t)

    parallel(span, [(t,) for t in range(threads)])
    return samples
