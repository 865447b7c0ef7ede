"""Compiled aggregation of a block of destinations from the rows of a whole layer, read where they lie. Forward only.

Exact evaluation reads each row once for every out-edge of its node, from a matrix far larger than any cache: its time
is that of these reads. So no row is copied, and rows are prefetched across the ends of lists. One call computes one
block of destinations in one thread; `stages.evaluate` runs blocks side by side.

Rows are contiguous float32 or float64 matrices, or bfloat16 as uint16, which are summed in float32. `lists` is the
flattened form of the block's in-edges (`Flat`): n destinations, e edges. Edges are added one by one, in their order,
so that a sum that goes on with further edges (`more`) has the bits of one that has all at once.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .....storage.array_kinds import AnyArray, IdArray, Mask
from ...runtime.intrinsics import prefetch, widened
from ...runtime.jit import CONTRACTED, njit
from ...runtime.threads import parallel
from .row_ranges import row_parts
from .spmm_rows import ADDED, BESIDE, NOTHING
from .spmm_rows import FROM_BESIDE as FROM_BESIDE

_U = np.uint64
AHEAD = 8
"""Edges between the row that is being used and the row that is being fetched."""
AS_THEY_ARE, LEFT_OUT, AT_THE_END = range(3)
"""Edges of a destination from itself: like others; none; or one at the end of its list, in place of any."""


class Flat(NamedTuple):
    """In-edges of n destinations, list after list."""

    ends: IdArray
    """int64 [n+1], first edge of each list."""
    rows: npt.NDArray[np.uint32]
    """uint32 [e], row of each edge's source."""
    coef: AnyArray
    """[e], coefficient of each edge, in the type of the sums."""
    own: npt.NDArray[np.uint32]
    """uint32 [n], row of each destination itself."""


class Edges(NamedTuple):
    """Edges of a graph, and their factors. Empty arrays stand for ones, an empty `place` for the nodes' own numbers."""

    indptr: AnyArray
    """int64 [V+1]."""
    indices: AnyArray
    """[E], sources by node."""
    place: AnyArray
    """int32 [V], the row of each node that has one."""
    weight: AnyArray
    """float32 [E], factor of each edge."""
    factor: AnyArray
    """[V], factor of each source."""


@njit(**CONTRACTED)
def _flatten(indptr, indices, place, weight, factor, dst, scale, at, stop, loops, ends, rows, coef, own):
    q = 0
    for i in range(len(dst)):
        v = dst[i]
        ends[i] = q
        own[i] = place[v] if len(place) else v
        e = at[i]
        while e < indptr[v + 1]:
            u = _U(indices[_U(e)])
            if u >= _U(stop):
                break
            if loops == AS_THEY_ARE or u != _U(v):
                rows[_U(q)] = place[u] if len(place) else u
                if len(coef):
                    c = scale[i] if len(scale) else coef.dtype.type(1)
                    if len(weight):
                        c *= weight[_U(e)]
                    if len(factor):
                        c *= factor[u]
                    coef[_U(q)] = c
                q += 1
            e += 1
        at[i] = e
        if loops == AT_THE_END:
            rows[_U(q)] = own[i]
            q += 1
    ends[len(dst)] = q
    return q


def flatten(
    edges: Edges, dst: IdArray, scale: AnyArray, real: npt.DTypeLike | None, loops: int, at: AnyArray, stop: int
) -> Flat:
    """In-edges of `dst`.

    Args:
        edges: those of the graph.
        dst: n nodes.
        scale: [n], factor of each destination; empty: ones.
        real: dtype of coefficients; None: they are not needed.
        loops: what becomes of edges from the destination itself.
        at: int64 [n], edge that each list begins with; afterwards the first that was not taken.
        stop: lists end before a source of this id or more.
    """
    n = len(dst)
    count = int((edges.indptr[dst + 1] - at).sum()) + n
    ends, own = np.empty(n + 1, np.int64), np.empty(n, np.uint32)
    rows, coef = np.empty(count, np.uint32), np.empty(0 if real is None else count, real or np.float32)
    count = _flatten(*edges, dst, scale, at, stop, loops, ends, rows, coef, own)
    return Flat(ends, rows[:count], coef, own)


@njit(**CONTRACTED)
def _mark(indptr, indices, rows, mask, lo, hi):
    for i in range(lo, hi):
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            mask[_U(indices[_U(e)])] = True


def mark_sources(indptr: AnyArray, indices: AnyArray, rows: IdArray, mask: Mask) -> None:
    """Set `mask` [V] at the in-neighbours of `rows`, in the threads of the kernels: they all write the same."""
    before = np.concatenate([[0], np.cumsum(indptr[rows + 1] - indptr[rows])])
    parallel(_mark, [(indptr, indices, rows, mask, a, b) for a, b in row_parts(before, 1)])


@njit(**CONTRACTED)
def lists_ascend(indptr, indices, rows):
    """True if the sources of each of `rows` are in ascending order."""
    for i in range(len(rows)):
        for e in range(indptr[rows[i]] + 1, indptr[rows[i] + 1]):
            if indices[_U(e)] < indices[_U(e - 1)]:
                return False
    return True


@njit(**CONTRACTED)
def row_sums(indptr, weight, dst, out):
    """Sum of the weights of each destination's in-edges, into float64 [n]."""
    for i in range(len(dst)):
        total = 0.0
        for e in range(indptr[dst[i]], indptr[dst[i] + 1]):
            total += weight[_U(e)]
        out[i] = total


@njit(inline="always")
def _prefetch_row(flat, row, stride, width):
    line = max(64 // flat.itemsize, 1)
    first = np.int64(row) * stride
    for k in range(0, width, line):
        prefetch(flat, first + k)
    if width:
        # A row that begins inside a line ends in one more.
        prefetch(flat, first + width - 1)


@njit(**CONTRACTED)
def _sums(ends, rows, coef, own, x, F, kind, factor, more, out):
    flat, stride, last = x.reshape(-1), x.shape[1], len(rows)
    for q in range(min(AHEAD, last)):
        _prefetch_row(flat, rows[q], stride, F)
    for i in range(len(own)):
        j, e = ends[i], ends[i + 1]
        for q in range(j + AHEAD, min(e + AHEAD, last)):
            _prefetch_row(flat, rows[_U(q)], stride, F)
        o = out[_U(i)]
        if not more:
            for k in range(F):
                o[k] = 0
        whole = e - ((e - j) & 3)
        for q in range(j, whole, 4):
            w0, w1, w2, w3 = coef[_U(q)], coef[_U(q + 1)], coef[_U(q + 2)], coef[_U(q + 3)]
            a, b, c, d = x[rows[_U(q)]], x[rows[_U(q + 1)]], x[rows[_U(q + 2)]], x[rows[_U(q + 3)]]
            for k in range(F):
                o[k] = (((o[k] + w0 * widened(a[k])) + w1 * widened(b[k])) + w2 * widened(c[k])) + w3 * widened(d[k])
        for q in range(whole, e):
            w0, a = coef[_U(q)], x[rows[_U(q)]]
            for k in range(F):
                o[k] += w0 * widened(a[k])
        if kind == NOTHING:
            continue
        a = x[own[_U(i)]]
        if kind == ADDED:
            w0 = factor[_U(i)]
            for k in range(F):
                o[k] += w0 * widened(a[k])
        elif kind == BESIDE:
            for k in range(F):
                o[F + k] = widened(a[k])
        else:
            for k in range(F):
                o[k] += widened(a[F + k])


def sums(lists: Flat, x: AnyArray, width: int, kind: int, factor: AnyArray, more: bool, out: AnyArray) -> None:
    """``out[i] = sum over edges q of i of coef[q] * x[rows[q], :width]``, and the own row as `kind` says.

    Args:
        lists: the edges, with coefficients.
        x: the rows, [N, >= width].
        width: F.
        kind: what is added of the own row, see `spmm_rows`.
        factor: [n], for `ADDED`.
        more: add to what `out` has.
        out: [n, F], or [n, 2F] for `BESIDE`.
    """
    _sums(*lists, x, width, kind, factor, more, out)


@njit(**CONTRACTED)
def _maxima(ends, rows, own, x, F, beside, more, out):
    flat, stride, last = x.reshape(-1), x.shape[1], len(rows)
    for q in range(min(AHEAD, last)):
        _prefetch_row(flat, rows[q], stride, F)
    for i in range(len(own)):
        j, e = ends[i], ends[i + 1]
        for q in range(j + AHEAD, min(e + AHEAD, last)):
            _prefetch_row(flat, rows[_U(q)], stride, F)
        o = out[_U(i)]
        if not more:
            for k in range(F):
                o[k] = -np.inf if j < e else 0
        for q in range(j, e):
            a = x[rows[_U(q)]]
            for k in range(F):
                b = widened(a[k])
                # NaN wins over numbers, as in torch.
                o[k] = b if (b > o[k]) | (b != b) else o[k]
        if beside:
            a = x[own[_U(i)]]
            for k in range(F, out.shape[1]):
                o[k] = widened(a[k])


def maxima(lists: Flat, x: AnyArray, width: int, beside: bool, more: bool, out: AnyArray) -> None:
    """``out[i] = max over edges q of i of x[rows[q], :width]``, 0 without edges; and of what `out` has, if there are
    `more`. `beside`: columns from `width` on are those of the own row."""
    _maxima(lists.ends, lists.rows, lists.own, x, width, beside, more, out)


@njit(**CONTRACTED)
def _weigh(ends, rows, logits, here, slope, known, top, total, p):
    H, last = here.shape[1], len(rows)
    side = logits.reshape(-1)
    for i in range(len(here)):
        j, e = ends[i], ends[i + 1]
        for q in range(e, min(ends[min(i + 2, len(here))], last)):
            prefetch(side, np.int64(rows[_U(q)]) * 2 * H)
        if not known:
            for h in range(H):
                top[_U(i), _U(h)] = -np.inf
                total[_U(i), _U(h)] = 0
        for q in range(j, e):
            there = logits[rows[_U(q)]]
            for h in range(H):
                z = there[h] + here[_U(i), _U(h)]
                p[_U(q), _U(h)] = z if z > 0 else slope * z
        if not known:
            for q in range(j, e):
                for h in range(H):
                    z = p[_U(q), _U(h)]
                    # A NaN must stay one.
                    top[_U(i), _U(h)] = z if (z > top[_U(i), _U(h)]) | (z != z) else top[_U(i), _U(h)]
        for q in range(j, e):
            for h in range(H):
                p[_U(q), _U(h)] = math.exp(p[_U(q), _U(h)] - top[_U(i), _U(h)])
        if not known:
            for q in range(j, e):
                for h in range(H):
                    total[_U(i), _U(h)] += p[_U(q), _U(h)]


def weigh(
    lists: Flat, logits: AnyArray, slope: float, here: AnyArray, top: AnyArray, total: AnyArray, known: bool
) -> AnyArray:
    """Softmax attention of each edge, [e, H], before it is divided by the sum of its list.

    Args:
        lists: the edges.
        logits: [N, 2H], each row's part of the logits as a source, then as a destination.
        slope: of the leaky ReLU below zero.
        here: [n, H], the destinations' part.
        top: [n, H], the largest logit of each list.
        total: [n, H], the sum of each list.
        known: these are those of whole lists; else they are computed of these.
    """
    p = np.empty((len(lists.rows), here.shape[1]), top.dtype)
    _weigh(lists.ends, lists.rows, logits, here, top.dtype.type(slope), known, top, total, p)
    return p


@njit(**CONTRACTED)
def _head_sums(ends, rows, p, x, D, apart, total, more, out):
    H = out.shape[1]
    flat, stride, last = x.reshape(-1), x.shape[1], len(rows)
    width = H * D if apart else D
    for q in range(min(AHEAD, last)):
        _prefetch_row(flat, rows[q], stride, width)
    for i in range(len(out)):
        j, e = ends[i], ends[i + 1]
        for q in range(j + AHEAD, min(e + AHEAD, last)):
            _prefetch_row(flat, rows[_U(q)], stride, width)
        o = out[_U(i)]
        if not more:
            for h in range(H):
                for k in range(D):
                    o[h, k] = 0
        whole = e - ((e - j) & 3)
        for q in range(j, whole, 4):
            a, b, c, d = x[rows[_U(q)]], x[rows[_U(q + 1)]], x[rows[_U(q + 2)]], x[rows[_U(q + 3)]]
            for h in range(H):
                at, r = h * D if apart else 0, o[_U(h)]
                w0, w1, w2, w3 = p[_U(q), _U(h)], p[_U(q + 1), _U(h)], p[_U(q + 2), _U(h)], p[_U(q + 3), _U(h)]
                a0, b0, c0, d0 = a[at : at + D], b[at : at + D], c[at : at + D], d[at : at + D]
                for k in range(D):
                    r[k] = (((r[k] + w0 * widened(a0[k])) + w1 * widened(b0[k])) + w2 * widened(c0[k])) + w3 * widened(
                        d0[k]
                    )
        for q in range(whole, e):
            a = x[rows[_U(q)]]
            for h in range(H):
                at, r, w0 = h * D if apart else 0, o[_U(h)], p[_U(q), _U(h)]
                a0 = a[at : at + D]
                for k in range(D):
                    r[k] += w0 * widened(a0[k])
        for h in range(H if len(total) else 0):
            r, w0 = o[_U(h)], 1 / total[_U(i), _U(h)]
            for k in range(D):
                r[k] *= w0


def head_sums(lists: Flat, p: AnyArray, x: AnyArray, apart: bool, total: AnyArray, more: bool, out: AnyArray) -> None:
    """Sums of rows by the weights of each head.

    Args:
        lists: the edges.
        p: [e, H], weights of the edges, see `weigh`.
        x: the rows, [N, >= H * D] if each head has columns of its own (`apart`), else [N, >= D].
        apart: see `x`.
        total: [n, H], divides the sums; none: they go on.
        more: add to what `out` has.
        out: [n, H * D].
    """
    heads = out.reshape(len(out), p.shape[1], out.shape[1] // p.shape[1])
    _head_sums(lists.ends, lists.rows, p, x, heads.shape[2], apart, total, more, heads)
