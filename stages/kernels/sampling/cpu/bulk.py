"""Minibatches of a bulk hop by hop, for compiled node-wise kernels: buffers, the numbering of new nodes, and the
results.

A bitmap per minibatch gives the new nodes in ascending order, so that the next hop's rows can be processed together.
Parallel over minibatches. Source of the skeleton: Tripathy, Yelick, Buluc, MLSys 2024.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .....storage.array_kinds import AnyArray, IdArray
from .....storage.graph import Graph, starts_of
from .....storage.optional import present
from .....storage.store.npy import file_of
from .....storage.store.row_file import RowFile
from ...runtime.intrinsics import ones, trailing_zeros
from ...runtime.jit import JIT, njit
from ...runtime.once_per_graph import once_per_graph
from ...runtime.threads import parallel, spans_of_threads
from ..draws import BulkDraws
from ..samples import EdgeList, NeighborSample, check_edges
from .workspace import ALIGN, Cutter, Workspace, padded

_U = np.uint64


@njit(**JIT)
def _start(first, last, seeds, offsets, nodes, known, words):
    for q in range(first, last):
        for w in range(words):
            known[q, w] = _U(0)
        for i in range(offsets[q], offsets[q + 1]):
            v = np.int64(seeds[i])
            nodes[q, i - offsets[q]] = v
            known[q, v >> 6] |= _U(1) << _U(v & 63)


@njit(inline="always")
def _find(row, begin, end, found, words):
    """Set the bit of every node in row[begin:end]."""
    for w in range(words):
        found[w] = _U(0)
    for e in range(begin, end):
        u = np.int64(row[e])
        found[_U(u >> 6)] |= _U(1) << _U(u & 63)


@njit(inline="always")
def _append(found, seen, words, rank, ids, n):
    """Append the nodes that are found but not yet seen, in ascending order, and mark them as seen; `found` keeps these
    only, and `rank` has the position of each word's first."""
    for w in range(words):
        new = found[w] & ~seen[w]
        seen[w] |= new
        found[w] = new
        rank[w] = n
        while new != _U(0):
            ids[_U(n)] = w * 64 + trailing_zeros(new)
            new &= new - _U(1)
            n += 1
    return n


@njit(inline="always")
def _translate(row, end, found, rank, local, target):
    """target[:end]: the positions of the nodes in row[:end], by their ranks among those just found, else by `local`.
    `target` may be `row`."""
    for e in range(end):
        # Words of `found` are far fewer than entries of `local`, which is read for other nodes alone. Without a branch.
        u = _U(row[e])
        word = u >> _U(6)
        upto = found[word] << (_U(63) - (u & _U(63)))
        other = local[u * (_U(1) - (upto >> _U(63)))]
        new = np.int64(rank[word]) + np.int64(ones(upto)) - 1
        target[_U(e)] = new if upto >> _U(63) else other


@njit(**JIT)
def _number(
    first, last, nodes, node_end, edges, edge_begin, edge_end, known, found, rank, local, words, target
):  # fmt: skip
    """Append the hop's new nodes in ascending order; after the last hop, which has a `target` [k, edges], translate the
    edges of all hops.

    A position never changes once given, so edges are translated after all are found.
    """
    for q in range(first, last):
        _find(edges[q], edge_begin[q], edge_end[q], found, words)
        before = node_end[q]
        node_end[q] = _append(found, known[q], words, rank, nodes[q], before)
        if target.shape[1] > 0:
            for i in range(before):
                local[nodes[q, i]] = i
            _translate(edges[q], edge_end[q], found, rank, local, target[q])


@njit(**JIT)
def _copy_out(row, begin, target, base):
    for i in range(len(target)):
        target[i] = row[begin + i] - base


class Bulk:
    """State of k minibatches between hops."""

    def __init__(self, graph: Graph, asked: BulkDraws, keep_positions: bool, keep_weight: bool = False) -> None:
        """
        Args:
            graph: in-neighbour lists.
            asked: has the seeds, and buffers to reuse.
            keep_positions: also keep each edge's position in the graph's edge arrays.
            keep_weight: also keep `EdgeList.weight`.
        """
        self.graph, self.keep, self.keep_weight = graph, keep_positions, keep_weight
        self.space = space = asked.workspace if asked.workspace is not None else Workspace()
        seeds = asked.seeds
        self.k = len(seeds)
        self.spans = spans_of_threads(self.k)
        """Minibatches of each thread."""
        threads = len(self.spans)
        offsets = starts_of([len(s) for s in seeds])
        flat = np.concatenate([np.asarray(s, np.int64) for s in seeds]) if self.k else np.empty(0, np.int64)
        self.node_end = np.diff(offsets)
        """int64 [k], nodes known so far."""
        self.edge_end = np.zeros(self.k, np.int64)
        """int64 [k], edges drawn so far."""
        words = self.words = (graph.num_nodes + 63) // 64
        self.known = space.rows("known", (max(self.k, 1), words), np.uint64)
        self.found = space.rows("found", (threads, words), np.uint64)
        self.rank = space.rows("rank", (threads, words), np.int32)
        self.local = space.rows("local", (threads, graph.num_nodes), np.int32)
        self.target: Any = np.empty((0, 0), np.int32)
        self.final = False
        self.nodes = self._rows("nodes", int(self.node_end.max(initial=1)))
        """[k, at least the nodes known so far], their ids."""
        self.edges = np.empty((self.k, 0), graph.indices.dtype)
        self.positions = self.row_ends = np.empty((self.k, 0), np.int64)
        self.weight = np.empty((self.k, 0), np.float32)
        parallel(_start, [(a, b, flat, offsets, self.nodes, self.known, self.words) for a, b in self.spans])

    def _rows(self, name: str, width: int, dtype: npt.DTypeLike | None = None, keep: int = 0) -> AnyArray:
        return self.space.rows(
            name, (max(self.k, 1), max(width, 1)), self.graph.indices.dtype if dtype is None else dtype, keep
        )

    def _output(self, width: int, dtype: npt.DTypeLike, old: AnyArray | None = None, keep: int = 0) -> Any:
        """[k, at least `width`] in an output buffer, with the first `keep` columns of `old`."""
        width = -(-max(width, 1) // ALIGN) * ALIGN
        new = Cutter(self.space.output(padded(self.k * width, dtype) + ALIGN)).cut(self.k * width, dtype)
        new = new.reshape(self.k, width)
        if old is not None:
            new[:, :keep] = old[: self.k, :keep]
        return new

    def reserve(self, total: IdArray, final: bool = False) -> int:
        """Make room for `total` more edges in each minibatch, in `edges` [k, ...] (source ids), `positions`, `weight`.
        With `final` so many will be drawn, and no more after them: they are drawn where the results will be.

        Returns: The number of edges for which there is room in every minibatch.

        Raises:
            RunError: these are more than a minibatch can index.
        """
        need = int((self.edge_end + total).max(initial=1))
        check_edges(need, "batch_size or fanout")
        used, self.final = int(self.edge_end.max(initial=0)), final
        if final:
            assert self.keep and self.keep_weight
            self.edges = self._output(need, self.edges.dtype, self.edges, used)
            self.positions = self._output(need, np.int64, self.positions, used)
            self.weight = self._output(need, np.float32, self.weight, used)
            return self.edges.shape[1]
        self.edges = self._rows("edges", need, keep=used)
        self.positions = self._rows("positions", need if self.keep else 1, np.int64, keep=used if self.keep else 0)
        if self.keep_weight:
            self.weight = self._rows("weight", self.edges.shape[1], np.float32, keep=used)
        return min(self.edges.shape[1], self.positions.shape[1]) if self.keep else self.edges.shape[1]

    def append(self, found: Sequence[tuple[AnyArray, ...]]) -> None:
        """Append edges: source ids, positions and weights of each minibatch. Raises what `reserve` raises."""
        count = np.array([len(edges) for edges, _, _ in found], np.int64)
        self.reserve(count)
        for q, (edges, positions, weight) in enumerate(found):
            to = slice(int(self.edge_end[q]), int(self.edge_end[q] + count[q]))
            self.edges[q, to], self.weight[q, to] = edges, weight
            if self.keep:
                self.positions[q, to] = positions
        self.edge_end += count

    def announce(self, begin: IdArray, end: IdArray) -> None:
        """Tell the system which lists of a mapped graph the hop of the rows between `begin` and `end` reads."""
        ends_file, files = _files_of(self.graph)
        if not files:
            return
        of_hop = [self.nodes[q, begin[q] : end[q]] for q in range(self.k)]
        rows = np.unique(np.concatenate(of_hop)).astype(np.int64, copy=False)
        if ends_file is not None:
            ends_file.announce(rows, rows + 2)
        starts, stops = self.graph.indptr[rows], self.graph.indptr[rows + 1]
        for file in files:
            file.announce(starts, stops)

    def begin_hop(self, begin: IdArray, end: IdArray, rows: str) -> None:
        """Make room for the ends of the rows between `begin` and `end`.

        Args:
            begin: int64 [k].
            end: int64 [k].
            rows: name of the buffer for `row_ends`, [k, rows + 1]: the ends of each row's edges in `edges`.
        """
        self.row_ends = self._rows(rows, int(end.max(initial=0)) + 1, np.int64, keep=int(begin.max(initial=0)) + 1)
        self.row_ends[np.arange(self.k), begin] = self.edge_end

    def end_hop(self, edge_begin: IdArray, last: bool) -> None:
        """Number the sources of the edges from `edge_begin` on; after the last hop, translate all edges.

        Args:
            edge_begin: int64 [k].
            last: no hop follows; the positions of minibatch q's edges go to target[q].
        """
        most = np.minimum(self.node_end + self.edge_end - edge_begin, self.graph.num_nodes)
        self.nodes = self._rows("nodes", int(most.max(initial=1)), keep=int(self.node_end.max(initial=0)))
        if last:
            in_place = self.final and self.edges.dtype == self.target.dtype
            self.target = self.edges if in_place else self._output(int(self.edge_end.max(initial=1)), np.int32)
        parallel(
            _number,
            [
                (a, b, self.nodes, self.node_end, self.edges, edge_begin, self.edge_end, self.known, self.found[t],
                 self.rank[t], self.local[t], self.words, self.target)
                for t, (a, b) in enumerate(self.spans)
            ],
        )  # fmt: skip

    def copied(self, source: AnyArray, begin: Any, count: Any, base: Any, dtype: npt.DTypeLike) -> list[AnyArray]:
        """source[q, begin[q]:begin[q]+count[q]] - base[q] for every minibatch, in one output buffer."""
        count, begin = np.broadcast_to(count, self.k), np.broadcast_to(begin, self.k)
        cutter = Cutter(self.space.output(sum(padded(int(n), dtype) for n in count) + 64))
        parts = [cutter.cut(int(n), dtype) for n in count]
        base = np.broadcast_to(base, self.k)
        tasks = [(source[q], int(begin[q]), parts[q], int(base[q])) for q in range(self.k)]
        parallel(_copy_rows, [(tasks[a:b],) for a, b in self.spans])
        return parts

    def results(self, of_edges: AnyArray, first: IdArray, last: IdArray, kept: bool) -> list[Any]:
        """For every minibatch q of_edges[q, first[q]:last[q]], copied unless they lie where results do; None unless
        they were kept."""
        if not kept:
            return [None] * self.k
        if self.final:
            return [of_edges[q, first[q] : last[q]] for q in range(self.k)]
        return self.copied(of_edges, first, last - first, 0, of_edges.dtype)


def _copy_rows(tasks: list[tuple[Any, int, Any, int]]) -> None:
    for row, begin, target, base in tasks:
        _copy_out(row, begin, target, base)


@once_per_graph
def _files_of(graph: Graph) -> tuple[RowFile | None, list[RowFile]]:
    """Files that `indptr` and the arrays of edges are maps of."""
    arrays = present((graph.indices, graph.edge_weight, graph.edge_type))
    return file_of(graph.indptr), present(map(file_of, arrays))


Draw = Callable[[Bulk, int, list[IdArray]], None]
"""Draws a hop: given its number, and the boundaries of ranges of rows (in each range but that of the seeds the ids
ascend), appends each row's edges and their end."""


def sample_hops(bulk: Bulk, hops: int, expand: str, draw: Draw) -> list[NeighborSample]:
    """Sample a bulk.

    Args:
        bulk: with its seeds.
        hops: L.
        expand: as in `NodeWiseDraws`.
        draw: draws one hop.
    """
    k = bulk.k
    if not k:
        return []
    zero = np.zeros(k, np.int64)
    node_ends, edge_ends, row_ends = [zero, bulk.node_end.copy()], [zero], []
    for h in range(hops):
        ends = node_ends[-2:] if expand == "new" else node_ends
        bulk.announce(ends[0], ends[-1])
        bulk.begin_hop(ends[0], ends[-1], "row_ends" if expand == "new" else f"row_ends{h}")
        draw(bulk, h, ends)
        bulk.end_hop(edge_ends[-1], h == hops - 1)
        row_ends.append(bulk.row_ends)
        node_ends.append(bulk.node_end.copy())
        edge_ends.append(bulk.edge_end.copy())
    # One list over all hops, or one for each: (row ends, number of rows, where its edges begin and end).
    spans = [(row_ends[-1], node_ends[-2], zero, edge_ends[-1])]
    if expand != "new":
        spans = [(row_ends[h], node_ends[h + 1], edge_ends[h], edge_ends[h + 1]) for h in range(hops)]
    lists = []
    for ends, rows, first, last in spans:
        indptr = bulk.copied(ends, 0, rows + 1, first, np.int32)
        indices = [bulk.target[q, first[q] : last[q]] for q in range(k)]
        positions = bulk.results(bulk.positions, first, last, bulk.keep)
        weight = bulk.results(bulk.weight, first, last, bulk.keep_weight)
        lists.append([EdgeList(*parts) for parts in zip(indptr, indices, positions, weight)])
    nodes = bulk.copied(bulk.nodes, 0, bulk.node_end, 0, bulk.graph.indices.dtype)
    counts = np.stack(node_ends[1:], axis=1).tolist()
    return [NeighborSample(nodes[q], tuple(counts[q]), tuple(each[q] for each in lists)) for q in range(k)]
