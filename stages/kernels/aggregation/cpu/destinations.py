"""Compiled aggregation of a block of destinations from the rows of a whole layer, read where they lie. Forward only.

Exact evaluation reads each row once for every out-edge of its node, from a matrix far larger than any cache: its time
is that of these reads. So no row is copied, and rows are prefetched across the ends of lists. One call computes one
block of destinations in one thread; `stages.evaluate` runs blocks side by side.

Rows are contiguous float32 or float64 matrices, or bfloat16 as uint16, which are summed in float32. `lists` is the
flattened form of the block's in-edges (`Flat`): n destinations, e edges.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...runtime.intrinsics import prefetch, widened
from ...runtime.jit import njit
from ...runtime.threads import parallel
from .row_ranges import row_parts
from .spmm_rows import ADDED, BESIDE, NOTHING
from .spmm_rows import FROM_BESIDE as FROM_BESIDE

AnyArray = npt.NDArray[Any]
_JIT: Any = {
    "nogil": True,
    "cache": True,
    "boundscheck": False,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract"},
}
_U = np.uint64
AHEAD = 8
"""Edges between the row that is being used and the row that is being fetched."""


class Flat(NamedTuple):
    """In-edges of n destinations, list after list."""

    ends: npt.NDArray[np.int64]
    """int64 [n+1], first edge of each list."""
    rows: npt.NDArray[np.uint32]
    """uint32 [e], row of each edge's source."""
    coef: AnyArray
    """[e], coefficient of each edge, in the type of the sums."""
    own: npt.NDArray[np.uint32]
    """uint32 [n], row of each destination itself."""


@njit(**_JIT)
def _flatten(indptr, indices, place, weight, factor, dst, scale, loops, ends, rows, coef, own):
    q = 0
    for i in range(len(dst)):
        v = dst[i]
        ends[i] = q
        own[i] = place[v] if len(place) else v
        for e in range(indptr[v], indptr[v + 1]):
            u = _U(indices[_U(e)])
            if loops and u == _U(v):
                continue
            rows[_U(q)] = place[u] if len(place) else u
            if len(coef):
                c = scale[i] if len(scale) else coef.dtype.type(1)
                if len(weight):
                    c *= weight[_U(e)]
                if len(factor):
                    c *= factor[u]
                coef[_U(q)] = c
            q += 1
        if loops:
            rows[_U(q)] = own[i]
            q += 1
    ends[len(dst)] = q
    return q


def flatten(
    indptr: AnyArray,
    indices: AnyArray,
    place: AnyArray,
    dst: npt.NDArray[np.int64],
    weight: AnyArray,
    factor: AnyArray,
    scale: AnyArray,
    real: npt.DTypeLike | None,
    loops: bool = False,
) -> Flat:
    """In-edges of `dst`. Empty arrays stand for ones, an empty `place` for the nodes' own numbers.

    Args:
        indptr: int64 [V+1].
        indices: [E], sources by node.
        place: int32 [V], the row of each node that has one.
        dst: n nodes.
        weight: float32 [E], factor of each edge.
        factor: [V], factor of each source.
        scale: [n], factor of each destination.
        real: dtype of coefficients; None: they are not needed.
        loops: end each list with the destination itself, in place of the edges that it has from itself.
    """
    n = len(dst)
    count = int((indptr[dst + 1] - indptr[dst]).sum()) + n * loops
    ends, own = np.empty(n + 1, np.int64), np.empty(n, np.uint32)
    rows, coef = np.empty(count, np.uint32), np.empty(0 if real is None else count, real or np.float32)
    count = _flatten(indptr, indices, place, weight, factor, dst, scale, loops, ends, rows, coef, own)
    return Flat(ends, rows[:count], coef, own)


@njit(**_JIT)
def _mark(indptr, indices, rows, mask, lo, hi):
    for i in range(lo, hi):
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            mask[_U(indices[_U(e)])] = True


def mark_sources(indptr: AnyArray, indices: AnyArray, rows: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> None:
    """Set `mask` [V] at the in-neighbours of `rows`, in the threads of the kernels: they all write the same."""
    before = np.concatenate([[0], np.cumsum(indptr[rows + 1] - indptr[rows])])
    parallel(_mark, [(indptr, indices, rows, mask, a, b) for a, b in row_parts(before, 1)])


@njit(**_JIT)
def _row_sums(indptr, weight, dst, out):
    for i in range(len(dst)):
        total = 0.0
        for e in range(indptr[dst[i]], indptr[dst[i] + 1]):
            total += weight[_U(e)]
        out[i] = total


def row_sums(indptr: AnyArray, weight: AnyArray, dst: npt.NDArray[np.int64], out: npt.NDArray[np.float64]) -> None:
    """Sum of the weights of each destination's in-edges, into float64 [n]."""
    _row_sums(indptr, weight, dst, out)


@njit(inline="always")
def _prefetch_row(flat, row, stride, width):
    line = max(64 // flat.itemsize, 1)
    first = np.int64(row) * stride
    for k in range(0, width, line):
        prefetch(flat, first + k)
    if width:
        # A row that begins inside a line ends in one more.
        prefetch(flat, first + width - 1)


@njit(**_JIT)
def _sums(ends, rows, coef, own, x, F, kind, factor, out):
    flat, stride, last = x.reshape(-1), x.shape[1], len(rows)
    for q in range(min(AHEAD, last)):
        _prefetch_row(flat, rows[q], stride, F)
    for i in range(len(own)):
        j, e = ends[i], ends[i + 1]
        for q in range(j + AHEAD, min(e + AHEAD, last)):
            _prefetch_row(flat, rows[_U(q)], stride, F)
        o = out[_U(i)]
        for k in range(F):
            o[k] = 0
        whole = e - ((e - j) & 3)
        for q in range(j, whole, 4):
            w0, w1, w2, w3 = coef[_U(q)], coef[_U(q + 1)], coef[_U(q + 2)], coef[_U(q + 3)]
            a, b, c, d = x[rows[_U(q)]], x[rows[_U(q + 1)]], x[rows[_U(q + 2)]], x[rows[_U(q + 3)]]
            for k in range(F):
                o[k] += (w0 * widened(a[k]) + w1 * widened(b[k])) + (w2 * widened(c[k]) + w3 * widened(d[k]))
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


def sums(lists: Flat, x: AnyArray, width: int, kind: int, factor: AnyArray, out: AnyArray) -> None:
    """``out[i] = sum over edges q of i of coef[q] * x[rows[q], :width]``, and the own row as `kind` says.

    Args:
        lists: the edges, with coefficients.
        x: the rows, [N, >= width].
        width: F.
        kind: what is added of the own row, see `spmm_rows`.
        factor: [n], for `ADDED`.
        out: [n, F], or [n, 2F] for `BESIDE`.
    """
    _sums(*lists, x, width, kind, factor, out)


@njit(**_JIT)
def _maxima(ends, rows, own, x, F, out, beside):
    flat, stride, last = x.reshape(-1), x.shape[1], len(rows)
    for q in range(min(AHEAD, last)):
        _prefetch_row(flat, rows[q], stride, F)
    for i in range(len(own)):
        j, e = ends[i], ends[i + 1]
        for q in range(j + AHEAD, min(e + AHEAD, last)):
            _prefetch_row(flat, rows[_U(q)], stride, F)
        o = out[_U(i)]
        for k in range(F):
            o[k] = widened(x[rows[_U(j)]][k]) if j < e else 0
        for q in range(j + 1, e):
            a = x[rows[_U(q)]]
            for k in range(F):
                b = widened(a[k])
                # NaN wins over numbers, as in torch.
                o[k] = b if (b > o[k]) | (b != b) else o[k]
        a, o = x[own[_U(i)]], beside[_U(i)]
        for k in range(beside.shape[1]):
            o[k] = widened(a[F + k])


def maxima(lists: Flat, x: AnyArray, width: int, out: AnyArray, beside: AnyArray) -> None:
    """``out[i] = max over edges q of i of x[rows[q], :width]``, 0 without edges; ``beside[i] = x[own[i], width:]``."""
    _maxima(lists.ends, lists.rows, lists.own, x, width, out, beside)


@njit(**_JIT)
def _attend(ends, rows, own, x, D, apart, logits, slope, out):
    H = out.shape[1]
    flat, stride, last = x.reshape(-1), x.shape[1], len(rows)
    width = H * D if apart else D
    longest = 0
    for i in range(len(own)):
        longest = max(longest, ends[i + 1] - ends[i])
    p, top, total = np.empty((longest, H), out.dtype), np.empty(H, out.dtype), np.empty(H, out.dtype)
    side = logits.reshape(-1)
    for q in range(min(AHEAD, last)):
        _prefetch_row(flat, rows[q], stride, width)
    for i in range(len(own)):
        j, e = ends[i], ends[i + 1]
        for q in range(e, min(ends[min(i + 2, len(own))], last)):
            prefetch(side, np.int64(rows[_U(q)]) * 2 * H)
        here = logits[own[_U(i)]]
        for h in range(H):
            top[_U(h)] = -np.inf
            total[_U(h)] = 0
        for q in range(j, e):
            there = logits[rows[_U(q)]]
            for h in range(H):
                z = there[h] + here[H + h]
                z = z if z > 0 else slope * z
                p[_U(q - j), _U(h)] = z
                # Beside "reassoc" a NaN must stay one.
                top[_U(h)] = z if (z > top[_U(h)]) | (z != z) else top[_U(h)]
        for q in range(e - j):
            for h in range(H):
                z = math.exp(p[_U(q), _U(h)] - top[_U(h)])
                p[_U(q), _U(h)] = z
                total[_U(h)] += z
        for q in range(j + AHEAD, min(e + AHEAD, last)):
            _prefetch_row(flat, rows[_U(q)], stride, width)
        o = out[_U(i)]
        for h in range(H):
            for k in range(D):
                o[h, k] = 0
        whole = e - ((e - j) & 3)
        for q in range(j, whole, 4):
            a, b, c, d = x[rows[_U(q)]], x[rows[_U(q + 1)]], x[rows[_U(q + 2)]], x[rows[_U(q + 3)]]
            for h in range(H):
                at, r = h * D if apart else 0, o[_U(h)]
                w0, w1, w2, w3 = (
                    p[_U(q - j), _U(h)],
                    p[_U(q - j + 1), _U(h)],
                    p[_U(q - j + 2), _U(h)],
                    p[_U(q - j + 3), _U(h)],
                )
                a0, b0, c0, d0 = a[at : at + D], b[at : at + D], c[at : at + D], d[at : at + D]
                for k in range(D):
                    r[k] += (w0 * widened(a0[k]) + w1 * widened(b0[k])) + (w2 * widened(c0[k]) + w3 * widened(d0[k]))
        for q in range(whole, e):
            a = x[rows[_U(q)]]
            for h in range(H):
                at, r, w0 = h * D if apart else 0, o[_U(h)], p[_U(q - j), _U(h)]
                a0 = a[at : at + D]
                for k in range(D):
                    r[k] += w0 * widened(a0[k])
        for h in range(H):
            r, w0 = o[_U(h)], 1 / total[_U(h)]
            for k in range(D):
                r[k] *= w0


def attend(lists: Flat, x: AnyArray, apart: bool, logits: AnyArray, slope: float, out: AnyArray) -> None:
    """Softmax attention over the edges of each list, which include the destination itself.

    Args:
        lists: the edges, with loops.
        x: the rows, [N, >= H * D] if each head has columns of its own (`apart`), else [N, >= D].
        apart: see `x`.
        logits: [N, 2H], each row's part of the logits as a source, then as a destination.
        slope: of the leaky ReLU below zero.
        out: [n, H, D].
    """
    width = out.shape[2]
    _attend(lists.ends, lists.rows, lists.own, x, width, apart, logits, out.dtype.type(slope), out)
