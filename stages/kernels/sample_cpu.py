"""Compiled bulk sampling: parallel over minibatches, GIL-free, and the same bits as `sample_reference`.

All minibatches that one thread holds walk the same stretch of rows of the graph together, so that rows which several of them
share are read from memory once. A hop's new nodes come out sorted through a bitmap, which is what makes that walk possible.
Random draws are looked up by (stream, node, draw), so neither the walk nor the number of threads can change a sample.
Source of the skeleton: Tripathy, Yelick, Buluc, MLSys 2024; of the draw: Floyd's algorithm (Bentley, CACM 30(9), 1987).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ...storage.errors import RunError
from ...storage.graph import Graph
from ..random import GOLDEN as _GOLDEN
from ..random import NODE as _NODE
from .intrinsics import prefetch, trailing_zeros
from .sampled import NeighborSample
from .threads import get_num_threads, parallel

_JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
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


@njit(**_JIT)
def _draw(nodes, degree, fanout, key, words, candidate, repeated, picks):
    """Floyd's algorithm on every lane: picks[:fanout, lane] are distinct positions below degree[lane]."""
    for lane in range(LANES):
        words[lane] = _mix(key + _U(nodes[lane]) * _NODE)
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


@njit(**_JIT)
def _take(indptr, sources, nodes, lo, hi, fanout, key, row_ends, edges, positions, keep_positions, e, tile):
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
            _draw(ids[a], degree[a], fanout, key, words, candidate, repeated, picks[a])
            for lane in range(n):
                for i in range(min(np.int64(degree[a, lane]), fanout)):
                    prefetch(sources, start[a, lane] + np.int64(picks[a, i, lane]))
        if x >= 2:
            a, f = (x - 2) & 3, lo + (x - 2) * LANES
            for lane in range(min(LANES, hi - f)):
                s = start[a, lane]
                for i in range(min(np.int64(degree[a, lane]), fanout)):
                    at = s + np.int64(picks[a, i, lane])
                    edges[e] = sources[at]
                    if keep_positions:
                        positions[e] = at
                    e += 1
                row_ends[f + lane + 1] = e
    return e


@njit(**_JIT)
def _take_all(indptr, sources, nodes, lo, hi, row_ends, edges, positions, keep_positions, e):
    for f in range(lo, hi):
        for at in range(indptr[nodes[f]], indptr[nodes[f] + 1]):
            edges[e] = sources[at]
            if keep_positions:
                positions[e] = at
            e += 1
        row_ends[f + 1] = e
    return e


@njit(**_JIT)
def _hop(first, last, indptr, sources, nodes, begin, end, fanout, keys, row_ends, edges, positions, keep_positions, edge_end, sorted_rows):
    """Sample one hop of minibatches first..last-1: rows nodes[q, begin[q]:end[q]] of each."""
    num_rows = len(indptr) - 1
    width = max(fanout, 1)
    tile = (
        np.empty((4, LANES), np.int64),
        np.empty((4, LANES), np.uint32),
        np.empty((4, LANES), np.int64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint32),
        np.empty(LANES, np.uint32),
        np.empty((4, width, LANES), np.uint32),
    )
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
            if fanout < 0:
                edge_end[q] = _take_all(indptr, sources, nodes[q], lo, hi, row_ends[q], edges[q], positions[q], keep_positions, edge_end[q])
            else:
                edge_end[q] = _take(
                    indptr,
                    sources,
                    nodes[q],
                    lo,
                    hi,
                    fanout,
                    keys[q],
                    row_ends[q],
                    edges[q],
                    positions[q],
                    keep_positions,
                    edge_end[q],
                    tile,
                )


@njit(**_JIT)
def _count(first, last, indptr, nodes, begin, end, total):
    """Edges that taking every in-edge of the frontier would add."""
    for q in range(first, last):
        n = np.int64(0)
        for f in range(begin[q], end[q]):
            n += indptr[nodes[q, f] + 1] - indptr[nodes[q, f]]
        total[q] = n


@njit(**_JIT)
def _start(first, last, seeds, offsets, nodes, known):
    for q in range(first, last):
        known[q, :] = _U(0)
        for i in range(offsets[q], offsets[q + 1]):
            v = np.int64(seeds[i])
            nodes[q, i - offsets[q]] = v
            known[q, v >> 6] |= _U(1) << _U(v & 63)


@njit(**_JIT)
def _number(first, last, nodes, node_end, edges, edge_begin, edge_end, known, found, local):
    """Append the hop's new nodes in ascending order, and turn its edges from global ids into positions in `nodes`."""
    words = known.shape[1]
    for q in range(first, last):
        ids, row, seen = nodes[q], edges[q], known[q]
        found[:] = _U(0)
        n = node_end[q]
        for i in range(n):
            local[ids[i]] = i
        for e in range(edge_begin[q], edge_end[q]):
            u = np.int64(row[e])
            found[u >> 6] |= _U(1) << _U(u & 63)
        for w in range(words):
            new = found[w] & ~seen[w]
            seen[w] |= new
            while new != _U(0):
                u = w * 64 + trailing_zeros(new)
                new &= new - _U(1)
                ids[n] = u
                local[u] = n
                n += 1
        for e in range(edge_begin[q], edge_end[q]):
            row[e] = local[row[e]]
        node_end[q] = n


class Workspace:
    """Buffers that are reused from bulk to bulk: fresh pages cost as much as half the sampling. Not for two threads at once."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def rows(self, name: str, shape: tuple[int, int], dtype: npt.DTypeLike, keep: int = 0) -> npt.NDArray[Any]:
        """An uninitialised [k, n] array of at least that shape; the first `keep` columns survive a growth."""
        old = self._arrays.get(name)
        if old is None or old.dtype != dtype or old.shape[0] < shape[0] or old.shape[1] < shape[1]:
            grown = shape if old is None or old.dtype != dtype else (max(shape[0], old.shape[0]), max(shape[1], old.shape[1] * 5 // 4))
            new = np.empty(grown, dtype)
            if keep and old is not None:
                new[: old.shape[0], :keep] = old[:, :keep]
            self._arrays[name] = old = new
        return old

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for a in self._arrays.values())


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    keep_positions: bool = False,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """See `sample_reference.neighbor`: the same arguments, the same bits."""
    k = len(keys)
    space = workspace if workspace is not None else Workspace()
    V = graph.num_nodes
    words = (V + 63) // 64
    ids = graph.indices.dtype
    threads = max(1, min(k, get_num_threads()))
    bounds = [k * t // threads for t in range(threads + 1)]
    spans = list(zip(bounds, bounds[1:]))

    offsets = np.zeros(k + 1, np.int64)
    np.cumsum([len(s) for s in seeds], out=offsets[1:])
    flat = np.concatenate([np.asarray(s, np.int64) for s in seeds]) if k else np.empty(0, np.int64)
    node_end, edge_end = np.diff(offsets), np.zeros(k, np.int64)
    begin = np.zeros(k, np.int64)
    node_ends, total = [node_end.copy()], np.zeros(k, np.int64)

    known = space.rows("known", (k, words), np.uint64)
    found = space.rows("found", (threads, words), np.uint64)
    local = space.rows("local", (threads, V), np.int32)
    nodes = space.rows("nodes", (k, int(node_end.max(initial=1))), ids)
    edges = space.rows("edges", (k, 1), ids)
    positions = space.rows("positions", (k, 1), np.int64)
    row_ends = space.rows("row_ends", (k, 1), np.int64)
    row_ends[:k, 0] = 0
    parallel(_start, [(a, b, flat, offsets, nodes, known) for a, b in spans])

    for h, s in enumerate(fanout):
        frontier = node_end - begin
        if s < 0:
            parallel(_count, [(a, b, graph.indptr, nodes, begin, node_end, total) for a, b in spans])
        else:
            total = frontier * s
        need = int((edge_end + total).max(initial=1))
        if need >= 2**31 - 1:
            raise RunError(f"a minibatch would hold {need} edges; at most {2**31 - 2} fit: use a smaller batch_size or fanout")
        used = int(edge_end.max(initial=0))
        edges = space.rows("edges", (k, need), ids, keep=used)
        positions = space.rows("positions", (k, need if keep_positions else 1), np.int64, keep=used if keep_positions else 0)
        row_ends = space.rows("row_ends", (k, int(node_end.max(initial=0)) + 1), np.int64, keep=int(begin.max(initial=0)) + 1)
        nodes = space.rows("nodes", (k, int(np.minimum(node_end + total, V).max(initial=1))), ids, keep=int(node_end.max(initial=0)))
        edge_begin = edge_end.copy()
        parallel(
            _hop,
            [
                (a, b, graph.indptr, graph.indices, nodes, begin, node_end, s, keys[:, h].copy(), row_ends, edges, positions,
                 keep_positions, edge_end, h > 0)
                for a, b in spans
            ],
        )  # fmt: skip
        begin = node_end.copy()
        parallel(
            _number,
            [(a, b, nodes, node_end, edges, edge_begin, edge_end, known, found[t], local[t]) for t, (a, b) in enumerate(spans)],
        )
        node_ends.append(node_end.copy())

    ends = np.stack(node_ends, axis=1)
    return [
        NeighborSample(
            nodes[q, : ends[q, -1]].copy(),
            tuple(int(n) for n in ends[q]),
            row_ends[q, : ends[q, -2] + 1].astype(np.int32),
            edges[q, : edge_end[q]].astype(np.int32),
            positions[q, : edge_end[q]].copy() if keep_positions else None,
        )
        for q in range(k)
    ]
