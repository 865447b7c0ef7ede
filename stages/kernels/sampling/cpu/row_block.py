"""Compiled sampling in one block of rows, for whoever asks, and what those who ask make of the answers. No array of V
entries.

An owner has the in-edges of rows [first, first + N) with global sources; what it draws are the bits that
`cpu.neighbor`, `cpu.labor` and `cpu.layerwise` draw in the whole graph. Where those mark nodes in bitmaps and tables
over all V nodes, this has a hash table over the nodes of one minibatch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from .....storage.graph import Graph
from ....random import GOLDEN as _GOLDEN
from ....random import NODE
from ...runtime.intrinsics import prefetch
from ...runtime.threads import get_num_threads, parallel
from ..exponential_race import log2_table
from .draw import sample_rows, sample_uniform
from .labor import draw_hop
from .terms import JIT, column, integer, square

IdArray = npt.NDArray[np.int64]
Common = tuple[Any, Any, Any, Any, Any, Any]
_U = np.uint64
EMPTY = -1
AHEAD = 16
"""Ids between the one that is looked up and the one whose slot is asked for."""
GROWTH = 4
"""Times as many nodes as there are fit a table that is made anew."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """In-edges that were drawn for rows, in the order of the rows."""

    kept: IdArray
    """int64 [n], edges of each row."""
    sources: npt.NDArray[np.integer]
    """[e], global ids."""
    positions: IdArray | None
    """int64 [e], where they lie in the edge arrays of the block, if that was asked for."""


def draw_rows(
    graph: Graph,
    first: int,
    rows: IdArray,
    splits: IdArray,
    keys: npt.NDArray[np.uint64],
    fanout: int,
    *,
    replace: bool = False,
    probability: npt.NDArray[np.int64] | None = None,
    ascending: bool = False,
    keep_positions: bool = True,
) -> Drawn:
    """What `cpu.neighbor.neighbor` draws for these rows in one hop.

    Args:
        graph: N rows of a block, with global sources.
        first: global id of row 0.
        rows: int64 [n] in [0, N), segment after segment.
        splits: int64 [m + 1]; ``rows[splits[i]:splits[i+1]]`` are of one minibatch.
        keys: uint64 [m], stream of each minibatch in this hop.
        fanout: edges of a row at most; -1 takes all.
        replace: see `reference.neighbor.neighbor`; likewise `probability`, int64 [e] of the block.
        probability: see there.
        ascending: whether ids ascend within each segment: rows are then walked in step.
        keep_positions: also say where the edges lie.
    """
    m, lengths = len(keys), np.diff(splits)
    if not len(rows):
        return Drawn(np.empty(0, np.int64), graph.indices[:0], np.empty(0, np.int64))
    degree = graph.in_degree
    if not replace and fanout > 64:
        # The buffers of a draw grow with the fanout, and no row has more in-edges than this.
        fanout = min(fanout, max(1, int(degree[rows].max())))
    most = degree[rows] if fanout < 0 else np.full(len(rows), fanout) if replace else np.minimum(degree[rows], fanout)
    room = np.zeros(m, np.int64)
    np.add.at(room, np.repeat(np.arange(m), lengths), most)
    width, need = int(lengths.max()), max(1, int(room.max()))
    nodes = np.zeros((m, width), np.int64)
    for row, a, b in zip(nodes, splits, splits[1:]):
        row[: b - a] = rows[a:b]
    # A draw is keyed by the node's global id, of which the kernels know the local part.
    with np.errstate(over="ignore"):
        keys = keys + _U(first) * NODE
    begin, edge_end = np.zeros(m, np.int64), np.zeros(m, np.int64)
    ends, positions = np.zeros((m, width + 1), np.int64), np.empty((m, need if keep_positions else 1), np.int64)
    edges = np.empty((m, need), graph.indices.dtype)
    walk = (nodes, begin, lengths, fanout, replace, keys, ends, edges, positions, keep_positions, edge_end, ascending)
    threads = max(1, min(m, get_num_threads()))
    spans = [(m * t // threads, m * (t + 1) // threads) for t in range(threads)]
    if fanout >= 0 and probability is None:
        parallel(sample_uniform, [(a, b, graph.indptr, graph.indices, *walk) for a, b in spans])
    else:
        weight = np.empty(0, np.int64) if probability is None else probability
        race = (log2_table(), int(degree.max(initial=0)) if replace else 0)
        parallel(sample_rows, [(a, b, graph.indptr, graph.indices, weight, *walk, *race) for a, b in spans])
    kept = [np.diff(row[: n + 1]) for row, n in zip(ends, lengths)]
    sources, places = (np.concatenate([row[:e] for row, e in zip(rows, edge_end)]) for rows in (edges, positions))
    return Drawn(np.concatenate(kept), sources, places.astype(np.int64, copy=False) if keep_positions else None)


def draw_labor(
    graph: Graph, rows: IdArray, splits: IdArray, keys: npt.NDArray[np.uint64], fanout: int, poisson: bool
) -> Drawn:
    """What `cpu.labor.labor` draws for these rows in one hop; arguments as of `draw_rows`."""
    parts: list[tuple[IdArray, IdArray]] = [(np.empty(0, np.int64), np.empty(0, np.int64))] * len(keys)

    def segment(q: int) -> None:
        of = rows[splits[q] : splits[q + 1]]
        degree = graph.in_degree[of]
        most = degree if poisson or fanout < 0 else np.minimum(degree, fanout)
        ends, positions = np.zeros(len(of) + 1, np.int64), np.empty(int(most.sum()), np.int64)
        _, e = draw_hop(graph.indptr, graph.indices, of, 0, len(of), fanout, poisson, keys[q], ends, positions, 0)
        parts[q] = np.diff(ends), positions[:e]

    parallel(segment, [(q,) for q in range(len(keys))])
    kept, positions = (np.concatenate([np.empty(0, np.int64), *(p[i] for p in parts)]) for i in (0, 1))
    return Drawn(kept, graph.indices[positions], positions)


@njit(inline="always")
def _first_slot(u, shift):
    return np.int64((_U(u) * _GOLDEN) >> shift) << 1


@njit(inline="always")
def _slot(table, u, shift):
    """Where u is, or where it would be. A table holds pairs of id and place, side by side, so that one is one miss."""
    at = _first_slot(u, shift)
    while table[at] != EMPTY and table[at] != u:
        at = (at + 2) & (len(table) - 1)
    return at


@njit(**JIT)
def _fill(table, shift, nodes):
    for i in range(len(nodes)):
        if i + AHEAD < len(nodes):
            prefetch(table, _first_slot(nodes[i + AHEAD], shift))
        at = _slot(table, np.int64(nodes[i]), shift)
        table[at] = nodes[i]
        table[at + 1] = i


@njit(**JIT)
def _find_new(table, shift, sources, e, found, n, most):
    """Put sources from e on into the table; those that were not there go to `found`. Stops where `most` have been
    found."""
    end = len(sources)
    while e < end and n < most:
        if e + AHEAD < end:
            prefetch(table, _first_slot(sources[e + AHEAD], shift))
        u = np.int64(sources[e])
        at = _slot(table, u, shift)
        if table[at] == EMPTY:
            table[at] = u
            found[n] = u
            n += 1
        e += 1
    return e, n


@njit(**JIT)
def _place_new(table, shift, new, first):
    for i in range(len(new)):
        if i + AHEAD < len(new):
            prefetch(table, _first_slot(new[i + AHEAD], shift))
        table[_slot(table, np.int64(new[i]), shift) + 1] = first + i


@njit(**JIT)
def _look_up(table, shift, sources, out):
    for e in range(len(sources)):
        if e + AHEAD < len(sources):
            prefetch(table, _first_slot(sources[e + AHEAD], shift))
        out[e] = table[_slot(table, np.int64(sources[e]), shift) + 1]


def _table(nodes: npt.NDArray[np.integer], room: int) -> tuple[npt.NDArray[np.int64], np.uint64]:
    """A table with `nodes` in it, at most half full when there are `room` of them; and what makes a slot of a hash."""
    bits = max(4, (2 * max(room, len(nodes))).bit_length())
    table, shift = np.full(2 << bits, EMPTY, np.int64), _U(64 - bits)
    _fill(table, shift, nodes)
    return table, shift


class Numbering:
    """The nodes of one minibatch in their order, and the place of each."""

    def __init__(self, seeds: npt.NDArray[np.integer], dtype: npt.DTypeLike) -> None:
        """
        Args:
            seeds: distinct global ids, the first nodes.
            dtype: of ids.
        """
        self.nodes = np.asarray(seeds).astype(dtype)
        self._table, self._shift = _table(self.nodes, GROWTH * len(self.nodes))

    def add(self, sources: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Append those of `sources` that are not there yet, ascending, and give them."""
        found, e, n, known = np.empty(len(sources), self.nodes.dtype), 0, 0, len(self.nodes)
        while True:
            # A pair takes two entries, and half of the pairs stay empty.
            e, n = _find_new(self._table, self._shift, sources, e, found, n, len(self._table) // 4 - known)
            if e == len(sources):
                break
            self._table, self._shift = _table(np.concatenate([self.nodes, found[:n]]), GROWTH * (known + n))
        new = np.sort(found[:n])
        _place_new(self._table, self._shift, new, known)
        self.nodes = np.concatenate([self.nodes, new])
        return new

    def places(self, sources: npt.NDArray[np.integer], out: npt.NDArray[np.int32]) -> None:
        """Where each of `sources` is; all of them must be there."""
        _look_up(self._table, self._shift, sources, out)


@njit(**JIT)
def _gather(starts, counts, source, ends, out):
    """Segment i of `out` is source[starts[i]:starts[i] + counts[i]]."""
    for i in range(len(starts)):
        s, e = starts[i], ends[i]
        for k in range(counts[i]):
            out[e + k] = source[s + k]


def in_order(
    order: IdArray, counts: npt.NDArray[np.integer], *values: npt.NDArray[Any]
) -> tuple[IdArray, list[npt.NDArray[Any]]]:
    """Segments as they were asked for, of segments that came in another order.

    Args:
        order: int64 [n], which was asked for is the i-th that came.
        counts: [n], lengths in the order in which they came.
        values: each all segments, one after the other, in that order.

    Returns:
        int64 [n + 1], where segments begin, and `values` anew.
    """
    at = np.cumsum(counts, dtype=np.int64) - counts
    starts, lengths = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    starts[order], lengths[order] = at, counts
    ends = np.zeros(len(order) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    out = []
    for v in values:
        out.append(np.empty_like(v))
        _gather(starts, lengths, v, ends, out[-1])
    return ends, out


@njit(**JIT)
def _resolve(indptr, sources, weight, degree, scale, one, first, rows, rests, out):
    for i in range(len(rows)):
        out[i] = column(indptr, sources, weight, degree, scale, one, rows[i], rests[i], rows[i] + first)


def resolve(common: Common, first: int, rows: IdArray, rests: IdArray, dtype: npt.DTypeLike) -> npt.NDArray[np.integer]:
    """The column of the term of each row in which each dart has landed; `common` as in `cpu.terms.Rates`, of a
    block."""
    out = np.empty(len(rows), dtype)
    _resolve(*common, first, rows, rests, out)
    return out


@njit(**JIT)
def _extract(indptr, sources, weight, table, shift, rows, first, counts, out, values):
    e = 0
    for i in range(len(rows)):
        v, begin = rows[i] - first, e
        for edge in range(indptr[v], indptr[v + 1]):
            u = np.int64(sources[edge])
            at = _slot(table, u, shift)
            if table[at] == u:
                out[e] = table[at + 1]
                if weight is not None:
                    values[e] = weight[edge]
                e += 1
        counts[i] = e - begin
    return e


def extract(
    graph: Graph, first: int, nodes: npt.NDArray[np.integer], rows: IdArray
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The in-edges of `rows` whose source is among `nodes`.

    Args:
        graph: of the block.
        first: global id of its row 0.
        nodes: distinct global ids.
        rows: int64, global ids of rows of the block.

    Returns: int32 [rows], edges of each; int32 [e], places in `nodes`; float32 [e], weights, or nothing for an
        unweighted graph.
    """
    table, shift = _table(nodes, len(nodes))
    room = int(graph.in_degree[rows - first].sum())
    counts, out = np.empty(len(rows), np.int32), np.empty(room, np.int32)
    values = np.empty(0 if graph.edge_weight is None else room, np.float32)
    e = _extract(graph.indptr, graph.indices, graph.edge_weight, table, shift, rows, first, counts, out, values)
    return counts, out[:e], values[:e]


@njit(**JIT)
def _terms(indptr, sources, weight, degree, scale, one, first, rows, columns, mass):
    own = np.int64(1) if weight is None else integer(1.0, scale)
    n = 0
    for i in range(len(rows)):
        v = rows[i]
        lo, hi = indptr[v], indptr[v + 1]
        whole = hi - lo + 1 if weight is None else degree[v]
        for at in range(lo, hi + 1):
            part = own if at == hi or weight is None else integer(weight[at], scale)
            w = square(part, whole, one)
            if w != 0:
                columns[n] = v + first if at == hi else np.int64(sources[at])
                mass[n] = w
                n += 1
    return n


def partial_sums(common: Common, first: int, rows: IdArray) -> tuple[IdArray, IdArray]:
    """What these rows of the block add to P = Q (W o W): distinct columns, ascending, and their sums.

    Args:
        common: as in `cpu.terms.Rates`, of the block.
        first: global id of its row 0.
        rows: int64, local ids.
    """
    indptr = common[0]
    room = int((indptr[rows + 1] - indptr[rows] + 1).sum())
    columns, mass = np.empty(room, np.int64), np.empty(room, np.int64)
    n = _terms(*common, first, rows, columns, mass)
    return summed(columns[:n], mass[:n])


def summed(columns: IdArray, mass: IdArray) -> tuple[IdArray, IdArray]:
    """Distinct columns, ascending, and the sum of what each has."""
    found, place = np.unique(columns, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, place, mass)
    return found.astype(np.int64), total
