"""Compiled aggregation over in-neighbour lists: row-parallel, no atomics, the same bits for any number of threads.

Each function divides the rows of its result into parts of similar work; one thread computes a row, its edges in their
order. Gradients gather through the transposed lists. Functions named `_into` and `_from` process one edge shard of
many, and its gradient: see `cpu.shards`. `reference` has the same functions in plain torch. Features are contiguous
float32 or float64 CPU tensors. `lists`: n destinations, S sources, e edges.
"""

import numpy as np
import torch
from torch import Tensor

from .....storage.optional import moved, taken
from ....memory.arena import empty
from ....memory.lazy_rows import LazyRows, base_and_ids
from ...runtime.jit import CONTRACTED, njit
from ...runtime.threads import parallel
from ..lists import InLists, WeightedLists
from .attention import add_outer, attend_from, attend_into, weighted_sum
from .attention_shared import attend_shared, attend_shared_backward
from .lists import row_at, rows_array
from .row_ranges import row_parts
from .shards import add_rows, maximum_into, spmm_into, take_rows
from .softmax import dots
from .spmm_rows import ADDED, BESIDE, FROM_BESIDE, NOTHING, spmm_rows

__all__ = [
    "add_outer", "add_rows", "attend_from", "attend_into", "attend_shared", "attend_shared_backward", "dots", "maximum",
    "maximum_from", "maximum_into", "spmm", "spmm_backward", "spmm_from",
    "spmm_into", "take_rows", "weighted_sum",
]  # fmt: skip
_U = np.uint64


def _spmm(of: WeightedLists, x: Tensor, width: int, columns: int, own: tuple[int, Tensor | None, int]) -> Tensor:
    """`own`: what is added of the own rows, see `spmm_rows`, their factors, and their number."""
    lists, (kind, factors, own_rows) = of.lists, own
    out = empty((lists.num_dst, columns), x.dtype)
    base, ids = base_and_ids(x)
    w, s, o = (rows_array(values, base) for values in (of.coef, of.row_scale, factors))
    with_own = 0 if kind == NOTHING else own_rows
    args = (lists.indptr, lists.indices, ids, w, base, width, s, kind, o, with_own, out.numpy())
    parallel(spmm_rows, [(*args, a, b) for a, b in row_parts(lists.indptr, width)])
    return out


def spmm(of: WeightedLists, x: Tensor, own: Tensor | None = None) -> Tensor:
    """``out[v] = row_scale[v] * sum over edges e of v of coef[e] * x[indices[e]]  +  own[v] * x[v]``; an empty sum is
    0.

    Args:
        of: the edges.
        x: [S, D].
        own: [n] of x's dtype; zeros when absent.
    """
    kind = BESIDE if of.beside else NOTHING if own is None else ADDED
    return _spmm(of, x, x.shape[1], x.shape[1] << of.beside, (kind, own, of.lists.num_dst))


def spmm_backward(of: WeightedLists, grad: Tensor, own: Tensor | None = None) -> Tensor:
    """Gradient of `spmm` with respect to x: [n, D], or [n, 2D] with rows beside -> [S, D]."""
    kind = FROM_BESIDE if of.beside else NOTHING if own is None else ADDED
    return _gradient(of, grad, grad.shape[1] >> of.beside, kind, own)


def spmm_from(of: WeightedLists, grad: Tensor, width: int) -> Tensor:
    """Gradient of `spmm_into` with respect to x: [N, >= width] -> [S, width]; columns of `grad` from `width` on are not
    read."""
    return _gradient(of, grad, width, NOTHING)


def _gradient(of: WeightedLists, grad: Tensor, width: int, kind: int, own: Tensor | None = None) -> Tensor:
    """Sums along the transposed lists, whose edges have their coefficients, and their rows' factors."""
    lists, t, rows = of.lists, of.lists.transposed, of.rows
    weight = moved(taken(of.coef, torch.from_numpy(t.edge)), grad.dtype)
    if (scale := of.row_scale) is not None:
        scale = (scale if rows is None else scale[torch.from_numpy(rows)])[torch.from_numpy(t.dst)]
        weight = scale if weight is None else weight.mul_(scale)
    # Destination i of the transposed lists is row rows[i] of the gradient, read in place.
    given = grad if rows is None else LazyRows(grad.numpy(), rows)
    back = WeightedLists(InLists(t.indptr, t.dst, lists.num_dst), weight)
    return _spmm(back, given, width, width, (kind, own, lists.num_dst))


@njit(**CONTRACTED)
def _max_rows(indptr, indices, ids, x, out, arg, lo, hi):
    F = x.shape[1]
    for i in range(lo, hi):
        j, e = indptr[i], indptr[i + 1]
        o, g = out[_U(i)], arg[_U(i)]
        if j == e:
            for k in range(F):
                o[k] = 0
                g[k] = -1
            continue
        a = x[row_at(ids, indices[j])]
        for k in range(F):
            o[k] = a[k]
            g[k] = j
        for q in range(j + 1, e):
            a = x[row_at(ids, indices[q])]
            for k in range(F):
                # The first NaN wins over numbers, as in torch.
                better = (a[k] > o[k]) | ((a[k] != a[k]) & (o[k] == o[k]))
                o[k] = a[k] if better else o[k]
                g[k] = q if better else g[k]


@njit(**CONTRACTED)
def _max_backward_rows(indptr, dst, edge, rows, positions, arg, grad, out, lo, hi):
    F = grad.shape[1]
    for u in range(lo, hi):
        o = out[_U(u)]
        for k in range(F):
            o[k] = 0
        for q in range(indptr[u], indptr[u + 1]):
            v, e = row_at(rows, dst[q]), edge[q] if positions is None else positions[_U(edge[q])]
            g, m = grad[v], arg[v]
            for k in range(F):
                o[k] += g[k] if m[k] == e else np.float32(0)


def maximum(lists: InLists, x: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value over each row's edges.

    Returns:
        [n, D] values, 0 for rows without an edge; [n, D] int32 or int64, the first edge that attains each, or -1.
    """
    shape = (lists.num_dst, x.shape[1])
    out = empty(shape, x.dtype)
    arg = empty(shape, torch.int32 if lists.num_edges < 2**31 - 1 else torch.int64)
    base, ids = base_and_ids(x)
    args = (lists.indptr, lists.indices, ids, base, out.numpy(), arg.numpy())
    parallel(_max_rows, [(*args, a, b) for a, b in row_parts(lists.indptr, x.shape[1])])
    return out, arg


def maximum_from(of: WeightedLists, arg: Tensor, grad: Tensor) -> Tensor:
    """Gradient with respect to x of `maximum`, or of `maximum_into` after all shards: [N, D] -> [S, D].

    Args:
        of: the edges.
        arg: int32 or int64 [N, D], the positions of the winning edges.
        grad: [N, D].
    """
    t = of.lists.transposed
    out = empty((of.lists.num_src, grad.shape[1]), grad.dtype)
    args = (t.indptr, t.dst, t.edge, of.rows, of.edge, arg.numpy(), grad.numpy(), out.numpy())
    parallel(_max_backward_rows, [(*args, a, b) for a, b in row_parts(t.indptr, grad.shape[1])])
    return out
