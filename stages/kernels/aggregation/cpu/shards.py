"""Compiled updates of a result by one edge shard after another; gathers and scatter-additions of rows.

An edge shard: ``lists: InLists`` over n lists, S source rows and e edges; ``rows``, int32 or int64 [n], ascending and
distinct: the row of the result that each list belongs to (None: list i belongs to row i); ``edge``, int32 or int64 [e]:
each edge's position among all edges of those rows (None: its position in the lists). The result has N >= n rows; rows
without edges in the shard are unchanged.

Source: sequential aggregation, SAR (Mostafa, MLSys 2022, arXiv 2111.06483). A row of the result is computed by one
thread, its edges in their order, so the number of threads does not change a bit. Matrices are contiguous float32 or
float64 CPU tensors.
"""

import numpy as np
from torch import Tensor

from ....memory.arena import empty
from ....memory.lazy_rows import base_and_ids
from ...runtime.jit import CONTRACTED, njit
from ...runtime.threads import parallel
from ..lists import IntArray, WeightedLists
from .lists import of_row, row_at, rows_array
from .prefetch import prefetch_rows
from .row_ranges import even_parts, row_parts

_U = np.uint64


@njit(**CONTRACTED)
def _add_sums(indptr, indices, ids, coef, x, rows, scale, out, lo, hi):
    F, end, weighted = x.shape[1], indptr[hi], len(coef) > 0
    flat = x.reshape(-1)
    for i in range(lo, hi):
        j, e = indptr[i], indptr[i + 1]
        prefetch_rows(indices, ids, j, e, end, flat, F, F)
        v = row_at(rows, i)
        o, s = out[v], of_row(scale, v, x)
        whole = e - ((e - j) & 3)
        for q in range(j, whole, 4):
            w0, w1, w2, w3 = (
                s * coef[_U(q)] if weighted else s,
                s * coef[_U(q + 1)] if weighted else s,
                s * coef[_U(q + 2)] if weighted else s,
                s * coef[_U(q + 3)] if weighted else s,
            )
            a, b = x[row_at(ids, indices[q])], x[row_at(ids, indices[q + 1])]
            c, d = x[row_at(ids, indices[q + 2])], x[row_at(ids, indices[q + 3])]
            for k in range(F):
                o[k] += (w0 * a[k] + w1 * b[k]) + (w2 * c[k] + w3 * d[k])
        for q in range(whole, e):
            w = s * coef[_U(q)] if weighted else s
            a = x[row_at(ids, indices[q])]
            for k in range(F):
                o[k] += w * a[k]


def spmm_into(of: WeightedLists, x: Tensor, out: Tensor) -> None:
    """``out[rows[i], :D] += row_scale[rows[i]] * sum over edges e of list i of coef[e] * x[indices[e]]``, in place.

    Args:
        of: the shard's edges.
        x: [S, D], or lazy rows (`stages.memory.lazy_rows`).
        out: [N, >= D]; columns from D on are left alone.
    """
    assert out.is_contiguous() and out.shape[1] >= x.shape[1]
    lists, (base, ids) = of.lists, base_and_ids(x)
    w, s = rows_array(of.coef, base), rows_array(of.row_scale, base)
    args = (lists.indptr, lists.indices, ids, w, base, of.rows, s, out.numpy())
    parallel(_add_sums, [(*args, a, b) for a, b in row_parts(lists.indptr, x.shape[1])])


@njit(**CONTRACTED)
def _raise_maxima(indptr, indices, ids, edge, x, rows, out, arg, lo, hi):
    F, end = x.shape[1], indptr[hi]
    flat = x.reshape(-1)
    for i in range(lo, hi):
        j, e = indptr[i], indptr[i + 1]
        prefetch_rows(indices, ids, j, e, end, flat, F, F)
        v = row_at(rows, i)
        o, g = out[v], arg[v]
        for q in range(j, e):
            a, position = x[row_at(ids, indices[q])], np.int64(row_at(edge, q))
            for k in range(F):
                # A NaN wins over numbers, as in torch.
                better = (a[k] > o[k]) | ((a[k] != a[k]) & (o[k] == o[k]))
                tie = (a[k] == o[k]) | ((a[k] != a[k]) & (o[k] != o[k]))
                better |= (g[k] < 0) | (tie & (position < g[k]))
                o[k] = a[k] if better else o[k]
                g[k] = position if better else g[k]


def maximum_into(of: WeightedLists, x: Tensor, out: Tensor, arg: Tensor) -> None:
    """Raise the running maxima `out` by the shard's edges, in place. A tie goes to the smallest position, whatever the
    order of the shards; a NaN wins over numbers.

    Args:
        of: the shard's edges.
        x: [S, D], or lazy rows (`stages.memory.lazy_rows`).
        out: [N, D]; values count only for rows that had an edge before.
        arg: int64 [N, D], the position of the winning edge; -1 if there was none yet.
    """
    assert out.is_contiguous() and arg.is_contiguous()
    lists, (base, ids) = of.lists, base_and_ids(x)
    args = (lists.indptr, lists.indices, ids, of.edge, base, of.rows, out.numpy(), arg.numpy())
    parallel(_raise_maxima, [(*args, a, b) for a, b in row_parts(lists.indptr, x.shape[1])])


@njit(**CONTRACTED)
def _add_rows(out, ids, x, lo, hi):
    F, flat = x.shape[1], out.reshape(-1)
    for i in range(lo, hi):
        prefetch_rows(ids, None, i, i + 1, hi, flat, F, F)
        o, a = out[_U(ids[i])], x[_U(i)]
        for k in range(F):
            o[k] += a[k]


def add_rows(out: Tensor, ids: IntArray, x: Tensor) -> None:
    """``out[ids[i]] += x[i]``, in place.

    Args:
        out: [N, ...].
        ids: int32 or int64 [n], distinct and in range.
        x: [n, ...].
    """
    assert out.is_contiguous() and x.is_contiguous() and out.shape[1:] == x.shape[1:] and len(ids) == len(x)
    width = x.shape[1:].numel()
    args = (out.numpy().reshape(len(out), width), ids, x.numpy().reshape(len(x), width))
    parallel(_add_rows, [(*args, a, b) for a, b in even_parts(len(ids), width)])


@njit(**CONTRACTED)
def _take_rows(x, named, ids, scale, out, lo, hi):
    F, flat, scaled = x.shape[1], x.reshape(-1), len(scale) > 0
    for i in range(lo, hi):
        prefetch_rows(ids, named, i, i + 1, hi, flat, F, F)
        u = _U(ids[i])
        o, a = out[_U(i)], x[row_at(named, u)]
        if scaled:
            s = scale[u]
            for k in range(F):
                o[k] = s * a[k]
        else:
            for k in range(F):
                o[k] = a[k]


def take_rows(x: Tensor, ids: IntArray, factor: Tensor | None = None) -> Tensor:
    """``factor[ids[i]] * x[ids[i]]``, [n, ...].

    Args:
        x: [S, ...], or lazy rows (`stages.memory.lazy_rows`).
        ids: int32 or int64 [n], in range.
        factor: [S] of x's dtype; ones when absent.
    """
    out = empty((len(ids), *x.shape[1:]), x.dtype)
    base, named = base_and_ids(x)
    assert base.flags.c_contiguous
    width = x.shape[1:].numel()
    scale = rows_array(factor, base)
    args = (base.reshape(len(base), width), named, ids, scale, out.numpy().reshape(len(ids), width))
    parallel(_take_rows, [(*args, a, b) for a, b in even_parts(len(ids), width)])
    return out
