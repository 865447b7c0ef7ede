"""Compiled bulk sampling, node by node: parallel over minibatches, GIL-free, and the same bits as `reference.neighbor`.

A hop draws in-edges (`cpu.draw`), then numbers the nodes found: a bitmap per minibatch gives the new nodes in ascending
order, so that the next hop's rows can be processed together. Source of the skeleton: Tripathy, Yelick, Buluc, MLSys
2024.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .....storage.errors import RunError
from .....storage.graph import Graph
from ...runtime.intrinsics import prefetch, trailing_zeros
from ...runtime.jit import njit
from ...runtime.threads import get_num_threads, parallel
from ..alias import NO_TABLE, AliasTable
from ..exponential_race import log2_table
from ..samples import EdgeList, NeighborSample
from .draw import JIT, LANES, sample_rows, sample_uniform
from .workspace import ALIGN, Cutter, Workspace, padded

_U = np.uint64
AHEAD = 16
"""Edges between the one that is translated and the one whose node is prefetched."""


@njit(**JIT)
def _count(first, last, indptr, nodes, begin, end, fanout, total):
    """Number of the frontier's edges, at most `fanout` per row unless that is negative."""
    for q in range(first, last):
        n = np.int64(0)
        for f in range(begin[q], end[q]):
            degree = indptr[nodes[q, f] + 1] - indptr[nodes[q, f]]
            n += degree if fanout < 0 else min(degree, fanout)
        total[q] = n


@njit(**JIT)
def _start(first, last, seeds, offsets, nodes, known, words):
    for q in range(first, last):
        known[q, :words] = _U(0)
        for i in range(offsets[q], offsets[q + 1]):
            v = np.int64(seeds[i])
            nodes[q, i - offsets[q]] = v
            known[q, v >> 6] |= _U(1) << _U(v & 63)


@njit(inline="always")
def _find(row, begin, end, found, words):
    """Set the bit of every node in row[begin:end]."""
    found[:words] = _U(0)
    for e in range(begin, end):
        u = np.int64(row[e])
        found[u >> 6] |= _U(1) << _U(u & 63)


@njit(inline="always")
def _append(found, seen, words, ids, n):
    """Append the nodes that are found but not yet seen, in ascending order, and mark them as seen."""
    for w in range(words):
        new = found[w] & ~seen[w]
        seen[w] |= new
        while new != _U(0):
            ids[n] = w * 64 + trailing_zeros(new)
            new &= new - _U(1)
            n += 1
    return n


@njit(inline="always")
def _locate(ids, n, local):
    for i in range(n):
        local[ids[i]] = i


@njit(inline="always")
def _translate(row, end, local, target, base):
    """target[base:base+end]: the positions of the nodes in row[:end]."""
    for e in range(end):
        prefetch(local, np.int64(row[min(e + AHEAD, end - 1)]))
        target[base + e] = local[row[e]]


@njit(**JIT)
def _number(first, last, nodes, node_end, edges, edge_begin, edge_end, known, found, local, words, target, offset):
    """Append the hop's new nodes in ascending order; after the last hop, which has a `target`, translate the edges of
    all hops.

    A position never changes once given, so edges are translated after all are found.
    """
    for q in range(first, last):
        _find(edges[q], edge_begin[q], edge_end[q], found, words)
        node_end[q] = _append(found, known[q], words, nodes[q], node_end[q])
        if len(target) > 0:
            _locate(nodes[q], node_end[q], local)
            _translate(edges[q], edge_end[q], local, target, offset[q])


@njit(**JIT)
def _copy_out(row, begin, target, base):
    for i in range(len(target)):
        target[i] = row[begin + i] - base


class _Bulk:
    """One call of `neighbor`: state shared by its hops, per minibatch q of k."""

    def __init__(
        self,
        graph: Graph,
        seeds: Sequence[npt.NDArray[np.integer]],
        space: Workspace,
        table: AliasTable | None,
        replace: bool,
        keep_positions: bool,
    ) -> None:
        self.graph, self.space, self.replace, self.keep = graph, space, replace, keep_positions
        self.weighted, self.table = table is not None, table or NO_TABLE
        self.k = len(seeds)
        threads = max(1, min(self.k, get_num_threads()))
        bounds = [self.k * t // threads for t in range(threads + 1)]
        self.spans = list(zip(bounds, bounds[1:]))
        offsets = np.zeros(self.k + 1, np.int64)
        np.cumsum([len(s) for s in seeds], out=offsets[1:])
        flat = np.concatenate([np.asarray(s, np.int64) for s in seeds]) if self.k else np.empty(0, np.int64)
        self.node_end = np.diff(offsets)
        self.edge_end = np.zeros(self.k, np.int64)
        words = self.words = (graph.num_nodes + 63) // 64
        self.known = space.rows("known", (max(self.k, 1), words), np.uint64)
        self.found = space.rows("found", (threads, words), np.uint64)
        self.local = space.rows("local", (threads, graph.num_nodes), np.int32)
        self.target, self.offset = np.empty(0, np.int32), np.zeros(self.k, np.int64)
        self.nodes = self._rows("nodes", int(self.node_end.max(initial=1)))
        parallel(_start, [(a, b, flat, offsets, self.nodes, self.known, self.words) for a, b in self.spans])

    def _rows(self, name: str, width: int, dtype: npt.DTypeLike | None = None, keep: int = 0) -> npt.NDArray[Any]:
        return self.space.rows(
            name, (max(self.k, 1), max(width, 1)), self.graph.indices.dtype if dtype is None else dtype, keep
        )

    def hop(
        self, ends: list[npt.NDArray[np.int64]], s: int, keys: npt.NDArray[np.uint64], rows: str, last: bool
    ) -> npt.NDArray[np.int64]:
        """Sample the rows between ends[0] and ends[-1] and number the new nodes; after the last hop, also write out all
        edges.

        Args:
            ends: boundaries of ranges of rows; in each range but the seeds' the ids ascend.
            s: fanout.
            keys: uint64 [k].
            rows: name of the buffer for the ends of rows.
            last: no hop follows; the positions of minibatch q's edges begin at target[offset[q]].

        Returns:
            [k, rows + 1] ends of each row's edges in `edges`.
        """
        g, begin, end = self.graph, ends[0], ends[-1]
        total = (end - begin) * s
        if s < 0 or (s > LANES and not self.replace):
            parallel(_count, [(a, b, g.indptr, self.nodes, begin, end, s, total) for a, b in self.spans])
        need = int((self.edge_end + total).max(initial=1))
        if need >= 2**31 - 1:
            raise RunError(
                f"a minibatch would hold {need} edges; at most {2**31 - 2} fit: use a smaller batch_size or fanout"
            )
        used = int(self.edge_end.max(initial=0))
        self.edges = self._rows("edges", need, keep=used)
        self.positions = self._rows("positions", need if self.keep else 1, np.int64, keep=used if self.keep else 0)
        row_ends = self._rows(rows, int(end.max(initial=0)) + 1, np.int64, keep=int(begin.max(initial=0)) + 1)
        row_ends[np.arange(self.k), begin] = self.edge_end
        room = int(np.minimum(self.node_end + total, g.num_nodes).max(initial=1))
        self.nodes = self._rows("nodes", room, keep=int(self.node_end.max(initial=0)))
        edge_begin = self.edge_end.copy()
        for lo, hi in zip(ends, ends[1:]):
            ascending = bool(lo.any())
            walk = (
                self.nodes,
                lo,
                hi,
                s,
                self.replace,
                keys,
                row_ends,
                self.edges,
                self.positions,
                self.keep,
                self.edge_end,
                ascending,
            )
            if s >= 0 and not self.weighted:
                parallel(sample_uniform, [(a, b, g.indptr, g.indices, *walk) for a, b in self.spans])
            else:
                t, log = self.table, log2_table()
                tables = (t.slots, t.weight, t.positive)
                parallel(sample_rows, [(a, b, g.indptr, g.indices, *tables, *walk, log) for a, b in self.spans])
        if last:
            size = -(-self.edge_end * self.target.itemsize // ALIGN) * (ALIGN // self.target.itemsize)
            self.offset = np.cumsum(size) - size
            self.target = Cutter(self.space.output(int(size.sum()) * self.target.itemsize + ALIGN)).cut(
                int(size.sum()), np.int32
            )
        parallel(
            _number,
            [
                (a, b, self.nodes, self.node_end, self.edges, edge_begin, self.edge_end, self.known, self.found[t],
                self.local[t],
                 self.words, self.target, self.offset)
                for t, (a, b) in enumerate(self.spans)
            ],
        )  # fmt: skip
        return row_ends

    def copied(
        self, source: npt.NDArray[Any], begin: Any, count: Any, base: Any, dtype: npt.DTypeLike
    ) -> list[npt.NDArray[Any]]:
        """source[q, begin[q]:begin[q]+count[q]] - base[q] for every minibatch, in one output buffer."""
        count, begin = np.broadcast_to(count, self.k), np.broadcast_to(begin, self.k)
        cutter = Cutter(self.space.output(sum(padded(int(n), dtype) for n in count) + 64))
        parts = [cutter.cut(int(n), dtype) for n in count]
        base = np.broadcast_to(base, self.k)
        tasks = [(source[q], int(begin[q]), parts[q], int(base[q])) for q in range(self.k)]
        parallel(_copy_rows, [(tasks[a:b],) for a, b in self.spans])
        return parts


def _copy_rows(tasks: list[tuple[Any, int, Any, int]]) -> None:
    for row, begin, target, base in tasks:
        _copy_out(row, begin, target, base)


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    replace: bool = False,
    table: AliasTable | None = None,
    expand: str = "new",
    keep_positions: bool = False,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """See `reference.neighbor.neighbor`: the same arguments, the same bits."""
    bulk = _Bulk(graph, seeds, workspace if workspace is not None else Workspace(), table, replace, keep_positions)
    k = bulk.k
    if not k:
        return []
    zero = np.zeros(k, np.int64)
    node_ends, edge_ends, row_ends = [zero, bulk.node_end.copy()], [zero], []
    for h, s in enumerate(fanout):
        if not replace and s > LANES:
            # The buffers of a draw grow with the fanout, and no row has more in-edges than this.
            s = min(s, int(graph.in_degree.max(initial=1)))
        ends = node_ends[-2:] if expand == "new" else node_ends
        row_ends.append(
            bulk.hop(
                ends, s, keys[:, h].copy(), "row_ends" if expand == "new" else f"row_ends{h}", h == len(fanout) - 1
            )
        )
        node_ends.append(bulk.node_end.copy())
        edge_ends.append(bulk.edge_end.copy())
    # One list over all hops, or one for each: (row ends, number of rows, where its edges begin and end).
    hops = len(fanout)
    spans = [(row_ends[-1], node_ends[-2], zero, edge_ends[-1])]
    if expand != "new":
        spans = [(row_ends[h], node_ends[h + 1], edge_ends[h], edge_ends[h + 1]) for h in range(hops)]
    lists = []
    for ends, rows, first, last in spans:
        indptr = bulk.copied(ends, 0, rows + 1, first, np.int32)
        indices = [bulk.target[bulk.offset[q] + first[q] : bulk.offset[q] + last[q]] for q in range(k)]
        positions = bulk.copied(bulk.positions, first, last - first, 0, np.int64) if keep_positions else [None] * k
        lists.append([EdgeList(*parts) for parts in zip(indptr, indices, positions)])
    nodes = bulk.copied(bulk.nodes, 0, bulk.node_end, 0, graph.indices.dtype)
    counts = np.stack(node_ends[1:], axis=1).tolist()
    return [NeighborSample(nodes[q], tuple(counts[q]), tuple(each[q] for each in lists)) for q in range(k)]
