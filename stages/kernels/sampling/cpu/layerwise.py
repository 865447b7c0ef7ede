"""Compiled layer-wise sampling: one pass over the rows' in-edges per hop, GIL-free, the same bits as
`oracles.layerwise`.

P is not formed (`cpu.terms`): darts find the columns, and the pass that extracts the block adds P up at those columns,
all of whose edges it keeps. Only when the darts hit too few distinct columns is P accumulated and the rest drawn by a
race. Membership of the columns is a bitmap over V that is cleared bit by bit, so only its allocation costs O(V).
"""

import numpy as np
import numpy.typing as npt

from .....storage.array_kinds import AnyArray, Float32Array, IdArray, Int32Array, IntArray, WordArray
from .....storage.graph import Graph
from ...runtime.intrinsics import prefetch
from ...runtime.jit import JIT, njit
from ...runtime.threads import parallel, spans_of_threads
from ..draws import LayerDraws
from ..layerwise import Drawn, LayerSample, budget, clock, complete, dart_word, factors, same_scale, with_replacement
from .buffers import doubled, edge_buffer
from .terms import add_terms, draw_distinct, flip, has, integer, rates, row_prefix, square
from .workspace import Workspace

_U = np.uint64


@njit(**JIT)
def _unite(nodes, n, drawn, seen, local):
    """Append the drawn ids (ascending) that are not among nodes[:n]; updates `seen` and `local`."""
    m = n
    for i in range(len(drawn)):
        u = drawn[i]
        if has(seen, u) == _U(0):
            flip(seen, u)
            nodes[m] = u
            local[u] = m
            m += 1
    return m


@njit(**JIT)
def _extract(indptr, sources, weight, nodes, first, n, seen, row_ends, edges, values, places, e):
    """Append the in-edges of rows nodes[first:n] whose source is in `seen`, with their positions if `places` is not
    None. Stops before a row that might not fit."""
    for i in range(first, n):
        v = nodes[i]
        lo, hi = indptr[v], indptr[v + 1]
        if i + 4 < n:
            prefetch(indptr, np.int64(nodes[i + 4]))
        if i + 2 < n:
            ahead = indptr[nodes[i + 2]]
            prefetch(sources, ahead)
            prefetch(sources, ahead + 16)
        if e + hi - lo > len(edges):
            return i, e
        for at in range(lo, hi):
            u = sources[at]
            # Always written, kept if it is one: no branch that the processor would have to predict.
            edges[e] = u
            if weight is not None:
                values[e] = weight[at]
            if places is not None:
                places[e] = at
            e += np.int64(has(seen, u))
        row_ends[i + 1] = e
    return n, e


@njit(**JIT)
def _renumber(edges, local, out):
    for e in range(len(out)):
        out[e] = local[edges[e]]


@njit(**JIT)
def add_up(indptr, weight, degree, scale, one, nodes, n, row_ends, indices, values, mass):
    """P at the sources of a block, from its edges and the loops of its rows."""
    own = np.int64(1) if weight is None else integer(1.0, scale)
    mass[:] = 0
    for i in range(n):
        v = nodes[i]
        whole = indptr[v + 1] - indptr[v] + 1 if weight is None else degree[v]
        w = square(own, whole, one)
        mass[i] += w
        for e in range(row_ends[i], row_ends[i + 1]):
            mass[indices[e]] += w if weight is None else square(integer(values[e], scale), whole, one)


@njit(**JIT)
def weigh(indptr, sums, nodes, n, row_ends, indices, weighted, values, factor, scaled, out):
    for i in range(n):
        total = 0.0
        for e in range(row_ends[i], row_ends[i + 1]):
            total += np.float64(values[e]) * factor[indices[e]] if weighted else factor[indices[e]]
        by = 1.0
        if scaled:
            whole = np.float64(indptr[nodes[i] + 1] - indptr[nodes[i]]) if sums is None else sums[nodes[i]]
            by = whole / total if total > 0 else 0.0
        for e in range(row_ends[i], row_ends[i + 1]):
            c = np.float64(values[e]) * factor[indices[e]] if weighted else factor[indices[e]]
            out[e] = np.float32(c * by)


class _Scratch:
    """One thread's part of the workspace. Bitmaps are clear between minibatches."""

    def __init__(self, space: Workspace, thread: int, graph: Graph) -> None:
        self._space, self._thread = space, thread
        V = graph.num_nodes
        self.ids = graph.indices.dtype
        self.seen, self.drawn = (self.take(name, (V + 63) // 64, np.uint64) for name in ("seen", "drawn"))
        self.seen[:] = 0
        self.drawn[:] = 0
        self.local = self.take("local", V, np.int32)

    def take(self, name: str, size: int, dtype: npt.DTypeLike, keep: int = 0) -> AnyArray:
        return edge_buffer(self._space, f"layers.{name}.{self._thread}", max(size, 1), dtype, keep)


class _Layers:
    """Draws minibatches of one graph, one after the other, in the buffers of one thread."""

    def __init__(self, graph: Graph, asked: LayerDraws, scratch: _Scratch) -> None:
        self.graph, self.sizes, self.scratch = graph, asked.sizes, scratch
        self.debias, self.every_row, self.keep = asked.debias, asked.every_row, asked.keep_positions
        self.rates = rates(graph)

    def sample(self, seeds: IntArray, keys: WordArray) -> LayerSample:
        """One minibatch; keys is uint64 [L]."""
        scratch, V = self.scratch, self.graph.num_nodes
        nodes = scratch.take("nodes", min(len(seeds) + sum(self.sizes), V), scratch.ids)
        n = _unite(nodes, 0, seeds, scratch.seen, scratch.local)
        ends, blocks = [n], []
        for s, key in zip(self.sizes, keys):
            drawn, total = self._draw(nodes, n, int(key), s)
            m = _unite(nodes, n, np.sort(drawn.nodes), scratch.seen, scratch.local)
            blocks.append(self._block(nodes, n, m, drawn, total))
            n = m
            ends.append(n)
        out = nodes[:n].copy()
        _clear(scratch.seen, out)
        weighted = self.debias != "none" or self.graph.edge_weight is not None
        return LayerSample.from_blocks(out, ends, blocks, weighted, self.keep)

    def _draw(self, nodes: AnyArray, n: int, key: int, s: int) -> tuple[Drawn, int]:
        scratch, common = self.scratch, self.rates.common
        indptr, one = common[0], common[-1]
        if self.every_row:
            _, prefix = self.rates.everywhere
            rows, count = None, len(prefix) - 1
        else:
            prefix = scratch.take("prefix", n + 1, np.int64)
            row_prefix(indptr, self.rates.mass, one, nodes, n, prefix)
            rows, count = nodes, n
        total = int(prefix[count])
        if not total:
            return with_replacement(np.empty(0, np.int64)), total
        repeats = self.debias == "with_replacement"
        want, limit = (s, s) if repeats else (s + (self.debias == "bottom_k"), budget(s))
        out = scratch.take("out", want, np.int64)
        found, darts = draw_distinct(
            *common, rows, count, prefix, dart_word(key), want, limit, repeats, scratch.drawn, out
        )
        if repeats:
            return with_replacement(out[:found]), total
        if found == want:
            return Drawn(out[:s].copy(), None, clock(key, darts) if want > s else np.nan), total
        if self.every_row:
            columns, mass = np.arange(count), self.rates.everywhere[0]
        else:
            V = self.graph.num_nodes
            kinds = {"columns": np.int64, "mass": np.int64, "place": np.int32}
            columns, mass, place = (scratch.take(name, V, dtype) for name, dtype in kinds.items())
            m = add_terms(*common, nodes, n, columns, mass, place, scratch.drawn)
            columns, mass = columns[:m], mass[:m]
        return complete(key, s, out[: min(found, s)].copy(), darts, total, columns, mass), total

    def _block(
        self, nodes: AnyArray, n: int, m: int, drawn: Drawn, total: int
    ) -> tuple[Int32Array, Int32Array, Float32Array, IdArray | None]:
        """Extract and debias: indptr, indices, weight (empty where no weight is needed), positions if kept."""
        graph, scratch = self.graph, self.scratch
        indptr, sources, weight, degree, scale, one = self.rates.common
        row_ends = np.zeros(n + 1, np.int32)
        size, row, e, weighted = 1 << 14, 0, 0, weight is not None
        while True:
            edges = scratch.take("edges", size, scratch.ids, keep=e)
            room, kept = (size, e) if weighted else (1, 0)
            values = scratch.take("values", room, np.float32, keep=kept)
            places = scratch.take("places", size, np.int64, keep=e) if self.keep else None
            row, e = _extract(indptr, sources, weight, nodes, row, n, scratch.seen, row_ends, edges, values, places, e)
            if row == n:
                break
            size = doubled(len(edges), e + int(graph.in_degree[nodes[row]]))
        indices = np.empty(e, np.int32)
        _renumber(edges, scratch.local, indices)
        positions = None if places is None else places[:e].copy()
        if self.debias == "none" and not weighted:
            return row_ends, indices, np.empty(0, np.float32), positions
        mass = np.empty(m, np.int64)
        if self.every_row:
            mass = self.rates.everywhere[0][nodes[:m]]
        else:
            add_up(indptr, weight, degree, scale, one, nodes, n, row_ends, indices, values, mass)
        # `normalise` of the reference multiplies by the inverse, so this does too. Without seeds there is no mass.
        factor = factors(self.debias, mass.astype(np.float64) * (1.0 / max(total, 1)), nodes[:m], n, drawn)
        out, scaled = np.empty(e, np.float32), same_scale(self.debias)
        weigh(indptr, self.rates.sums, nodes, n, row_ends, indices, weighted, values, factor, scaled, out)
        return row_ends, indices, out, positions


@njit(**JIT)
def _clear(bitmap, nodes):
    for i in range(len(nodes)):
        bitmap[_U(nodes[i]) >> _U(6)] = _U(0)


def layers(graph: Graph, asked: LayerDraws) -> list[LayerSample]:
    """Sample k minibatches layer by layer."""
    k = len(asked.seeds)
    space = asked.workspace if asked.workspace is not None else Workspace()
    # pyrefly: ignore[bad-assignment]
    samples: list[LayerSample] = [None] * k
    if asked.every_row:
        # Before the threads start, since it is made once.
        _ = rates(graph).everywhere

    def span(t: int, first: int, last: int) -> None:
        layers = _Layers(graph, asked, _Scratch(space, t, graph))
        for q in range(first, last):
            samples[q] = layers.sample(np.asarray(asked.seeds[q], np.int64), asked.keys[q])

    parallel(span, [(t, *each) for t, each in enumerate(spans_of_threads(k))])
    return samples
