"""Numbers of a minibatch's nodes, in a hash table over these nodes alone."""

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import AnyArray, IdArray, Int32Array, IntArray
from ....storage.graph import starts_of
from ...random import GOLDEN as _GOLDEN
from ..runtime.intrinsics import prefetch
from ..runtime.jit import JIT, njit

_U = np.uint64
EMPTY = -1
AHEAD = 16
"""Ids between the current lookup and the one whose slot is prefetched."""
GROWTH = 4
"""A new table has room for this many times its nodes."""


@njit(inline="always")
def _first_slot(u, shift):
    return np.int64((_U(u) * _GOLDEN) >> shift) << 1


@njit(inline="always")
def _slot(table, u, shift):
    """Slot of u, or the free one for it. A table holds pairs of id and position, so that a lookup is one cache miss."""
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
    """Insert sources from e on into the table; new ones go to `found`. Stops after `most` new ones."""
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
def _number_new(table, shift, new, first):
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


def _table(nodes: IntArray, room: int) -> tuple[IdArray, np.uint64]:
    """A table with `nodes` in it, at most half full with `room` of them; and the shift from hashes to slots."""
    bits = max(4, (2 * max(room, len(nodes))).bit_length())
    table, shift = np.full(2 << bits, EMPTY, np.int64), _U(64 - bits)
    _fill(table, shift, nodes)
    return table, shift


class Numbering:
    """Nodes of one minibatch in their order, and the position of each."""

    def __init__(self, seeds: IntArray, dtype: npt.DTypeLike) -> None:
        """
        Args:
            seeds: distinct global ids, the first nodes.
            dtype: of ids.
        """
        self.nodes = np.asarray(seeds).astype(dtype)
        self._table, self._shift = _table(self.nodes, GROWTH * len(self.nodes))

    def add(self, sources: IntArray) -> IntArray:
        """Append those of `sources` that are new, ascending, and return them."""
        found, e, n, known = np.empty(len(sources), self.nodes.dtype), 0, 0, len(self.nodes)
        while True:
            # A pair takes two entries, and half of the pairs stay empty.
            e, n = _find_new(self._table, self._shift, sources, e, found, n, len(self._table) // 4 - known)
            if e == len(sources):
                break
            self._table, self._shift = _table(np.concatenate([self.nodes, found[:n]]), GROWTH * (known + n))
        new = np.sort(found[:n])
        _number_new(self._table, self._shift, new, known)
        self.nodes = np.concatenate([self.nodes, new])
        return new

    def positions(self, sources: IntArray, out: Int32Array) -> None:
        """Position of each of `sources`; all of them must be known."""
        _look_up(self._table, self._shift, sources, out)


@njit(**JIT)
def _gather(starts, counts, source, ends, out):
    """Segment i of `out` is source[starts[i]:starts[i] + counts[i]]."""
    for i in range(len(starts)):
        s, e = starts[i], ends[i]
        for k in range(counts[i]):
            out[e + k] = source[s + k]


def in_order(order: IdArray, counts: IntArray, *values: AnyArray) -> tuple[IdArray, list[AnyArray]]:
    """Segments in the order of requests, from segments in the order of arrival.

    Args:
        order: int64 [n], the request that the i-th arrival answers.
        counts: [n], lengths in the order of arrival.
        values: each all segments, one after the other, in that order.

    Returns:
        int64 [n + 1], beginnings of the segments, and `values` reordered.
    """
    at = np.cumsum(counts, dtype=np.int64) - counts
    starts, lengths = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    starts[order], lengths[order] = at, counts
    ends, out = starts_of(lengths), []
    for v in values:
        out.append(np.empty_like(v))
        _gather(starts, lengths, v, ends, out[-1])
    return ends, out
