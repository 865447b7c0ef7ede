"""Compiled softmax attention: stores nothing per edge; the backward pass recomputes coefficients and dropout.

Source: the online softmax with log-sum-exp of Dao et al. (FlashAttention, NeurIPS 2022) on neighbour lists, as in SAR
(Mostafa, MLSys 2022). Features are contiguous float32 or float64 CPU tensors. `lists`: n destinations, S sources, e
edges.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....memory.arena import empty
from ...runtime.jit import REASSOCIATED, njit
from ...runtime.threads import parallel
from ..attention_args import AttentionEdges, BackwardRows
from .lists import row_at
from .prefetch import prefetch_rows
from .row_ranges import even_parts, row_parts
from .softmax import CHUNK_ROWS, constants, dots, edge_number, keep, leaky, num_chunks, numbering

_U = np.uint64


@njit(**REASSOCIATED)
def _attend_rows(indptr, indices, rows, own, names, z, logit_src, logit_dst, rule, before, out, log_sum, lo, hi):
    """Lists lo..hi-1. `before`: None, or the logarithms of the denominators of the current content of `out`; it may be
    `log_sum` itself."""
    H, D, E = z.shape[1], z.shape[2], len(indices)
    slope, key, threshold, keep_scale = rule
    flat, end = z.reshape(-1), indptr[hi]
    top = np.empty(H, z.dtype)
    total = np.empty(H, z.dtype)
    p = np.empty(H, z.dtype)
    for i in range(lo, hi):
        j, e = indptr[i], indptr[i + 1]
        last = e + 1 if own else e
        if j == last:
            continue
        prefetch_rows(indices, None, j, e, end, flat, H * D, H * D)
        v = row_at(rows, i)
        here, o = logit_dst[v], out[v]
        # The logits are scalars, so a pass over them for the maximum is cheaper than rescaling sums of D values.
        start = logit_src[v if own else _U(indices[j])]
        for h in range(H):
            top[h] = leaky(start[h] + here[h], slope)
            if before is not None:
                top[h] = max(top[h], before[v, h])
        for q in range(j, last):
            u = _U(indices[q]) if q < e else v
            # Its own edge, the last, takes the place of the loops that the row has.
            if own and u == v and q < e:
                continue
            there = logit_src[u]
            for h in range(H):
                top[h] = max(top[h], leaky(there[h] + here[h], slope))
        for h in range(H):
            if before is None:
                total[h] = 0
                for k in range(D):
                    o[h, k] = 0
            else:
                # exp(-inf) is 0: nothing was there. The old sum has its `keep_scale` already.
                total[h] = math.exp(before[v, h] - top[h])
                w = total[h] / keep_scale
                for k in range(D):
                    o[h, k] *= w
        for q in range(j, last):
            u = _U(indices[q]) if q < e else v
            if own and u == v and q < e:
                continue
            name = edge_number(names, q, e, E, v)
            there, row = logit_src[u], z[u]
            for h in range(H):
                p[h] = math.exp(leaky(there[h] + here[h], slope) - top[h])
                total[h] += p[h]
                if threshold > _U(0) and not keep(key, threshold, name, h):
                    p[h] = 0
            for h in range(H):
                w, a, b = p[h], o[h], row[h]
                for k in range(D):
                    a[k] += w * b[k]
        for h in range(H):
            s = keep_scale / total[h]
            a = o[h]
            for k in range(D):
                a[k] *= s
            log_sum[v, h] = top[h] + math.log(total[h])


@njit(**REASSOCIATED)
def _attend_backward_dst(indptr, indices, rows, own, names, z, softmax, d_dst, lo, hi):
    H, D, E = z.shape[1], z.shape[2], len(indices)
    logit_src, logit_dst, rule, log_sum, grad, delta = softmax
    slope, key, threshold, keep_scale = rule
    flat, end = z.reshape(-1), indptr[hi]
    for i in range(lo, hi):
        j, e = indptr[i], indptr[i + 1]
        prefetch_rows(indices, None, j, e, end, flat, H * D, H * D)
        v = row_at(rows, i)
        here, g = logit_dst[v], grad[v]
        for q in range(j, e + 1 if own else e):
            u = _U(indices[q]) if q < e else v
            if own and u == v and q < e:
                continue
            name = edge_number(names, q, e, E, v)
            there, row = logit_src[u], z[u]
            for h in range(H):
                x = there[h] + here[h]
                p = math.exp(leaky(x, slope) - log_sum[v, h])
                inner = z.dtype.type(0)
                if threshold == _U(0) or keep(key, threshold, name, h):
                    a, b = g[h], row[h]
                    for k in range(D):
                        inner += a[k] * b[k]
                    inner *= keep_scale
                d = p * (inner - delta[v, h])
                d_dst[v, h] += d if x > 0 else slope * d


@njit(**REASSOCIATED)
def _attend_backward_src(t_indptr, t_dst, t_edge, rows, own_rows, names, z, a_src, softmax, dz, d_src, lo, hi):
    H, D, E = z.shape[1], z.shape[2], len(t_dst)
    logit_src, logit_dst, rule, log_sum, grad, delta = softmax
    slope, key, threshold, keep_scale = rule
    flat, end = grad.reshape(-1), t_indptr[hi]
    for u in range(lo, hi):
        row, there, o = z[_U(u)], logit_src[_U(u)], dz[_U(u)]
        for h in range(H):
            d_src[u, h] = 0
            for k in range(D):
                o[h, k] = 0
        # A destination is also a source for itself: one more edge at the end of its list.
        last = t_indptr[u + 1]
        prefetch_rows(t_dst, rows, t_indptr[u], last, end, flat, H * D, H * D)
        for q in range(t_indptr[u], last + 1 if u < own_rows else last):
            v = row_at(rows, t_dst[q]) if q < last else _U(u)
            if u < own_rows and v == _U(u) and q < last:
                continue
            name = edge_number(names, np.int64(t_edge[q]) if q < last else np.int64(E), E, E, v)
            here, g = logit_dst[v], grad[v]
            for h in range(H):
                x = there[h] + here[h]
                p = math.exp(leaky(x, slope) - log_sum[v, h])
                inner = z.dtype.type(0)
                if threshold == _U(0) or keep(key, threshold, name, h):
                    a, b, c = g[h], row[h], o[h]
                    for k in range(D):
                        inner += a[k] * b[k]
                    inner *= keep_scale
                    weight = p * keep_scale
                    for k in range(D):
                        c[k] += weight * a[k]
                d = p * (inner - delta[v, h])
                d_src[u, h] += d if x > 0 else slope * d
        for h in range(H):
            d, c, a = d_src[u, h], o[h], a_src[h]
            for k in range(D):
                c[k] += d * a[k]


@njit(**REASSOCIATED)
def _weighted_chunks(weight, z, partial, lo, hi):
    H, D = z.shape[1], z.shape[2]
    for c in range(lo, hi):
        for u in range(c * CHUNK_ROWS, min((c + 1) * CHUNK_ROWS, len(z))):
            row, o = z[_U(u)], partial[_U(c)]
            for h in range(H):
                w, a, b = weight[u, h], o[h], row[h]
                for k in range(D):
                    a[k] += w * b[k]


def weighted_sum(weight: Tensor, z: Tensor) -> Tensor:
    """sum over u of weight[u, h] * z[u, h]: [S, H], [S, H, D] -> [H, D], always added in the same order."""
    partial = np.zeros((num_chunks(len(z)), *z.shape[1:]), z.numpy().dtype)
    args, width = (weight.numpy(), z.numpy(), partial), CHUNK_ROWS * z.shape[1:].numel()
    parallel(_weighted_chunks, [(*args, a, b) for a, b in even_parts(len(partial), width)])
    return torch.from_numpy(partial.sum(axis=0))


@njit(**REASSOCIATED)
def _add_outer_rows(weight, a, out, lo, hi):
    H, D = a.shape
    for v in range(lo, hi):
        o = out[_U(v)]
        for h in range(H):
            w, b, c = weight[v, h], a[h], o[h]
            for k in range(D):
                c[k] += w * b[k]


def add_outer(out: Tensor, weight: Tensor, a: Tensor) -> None:
    """``out[v, h] += weight[v, h] * a[h]``, in place: [N, H, D], [n, H] for the first n rows, [H, D]."""
    assert out.is_contiguous() and weight.is_contiguous() and a.is_contiguous()
    args = (weight.numpy(), a.numpy(), out.numpy())
    parallel(_add_outer_rows, [(*args, lo, hi) for lo, hi in even_parts(len(weight), a.shape[0] * a.shape[1])])


def attend_into(
    edges: AttentionEdges, z: Tensor, a_src: Tensor, logit_dst: Tensor, out: Tensor, log_sum: Tensor, new: bool = False
) -> None:
    """Softmax attention over each row's edges and, if ``edges.own``, once over the row itself, beside which edges from
    a row to itself do not count. No value per edge is kept.

    Over one edge shard of many, in place: its edges join the softmax of the shards before, and after all shards, in any
    order, `out` and `log_sum` are those of one call over all edges. Rows without an edge so far stay (0, -inf).

    Args:
        edges: all edges, or those of a shard.
        z: [S, H, D], the source rows; if a row attends to itself, it has its own number.
        a_src: [H, D]; the source logit is ``<a_src, z[u]>``.
        logit_dst: [N, H].
        out: [N, H, D], normalised over the edges seen so far; 0 before the first shard.
        log_sum: [N, H], the logarithm of the softmax's denominator so far; -inf before the first shard.
        new: the shard is the first one, before which `out` and `log_sum` may hold anything.
    """
    lists, (heads, width) = edges.lists, z.shape[1:]
    args = (lists.indptr, lists.indices, edges.rows, edges.own, numbering(edges.numbers), z.numpy())
    logits = (dots(z, a_src[None]).numpy(), logit_dst.numpy(), constants(edges.rule, z))
    results = (None if new else log_sum.numpy(), out.numpy(), log_sum.numpy())
    parallel(_attend_rows, [(*args, *logits, *results, a, b) for a, b in row_parts(lists.indptr, heads * (width + 8))])


def attend_from(edges: AttentionEdges, z: Tensor, a_src: Tensor, of: BackwardRows) -> tuple[Tensor, Tensor]:
    """Gradients of `attend_into` with respect to z and a_src, or one shard's contribution to them; adds that of
    logit_dst to ``of.d_logit``. Recomputes coefficients and dropout.

    With a_uv the coefficient and m_uv its dropout factor: ``d logit_uv = a_uv (m_uv <grad_v, z_u> - <grad_v, out_v>)``.

    Args:
        edges: as in `attend_into`.
        z: [S, H, D].
        a_src: [H, D].
        of: the destinations.

    Returns:
        [S, H, D], of z; [H, D], of a_src.
    """
    lists, t, (heads, width) = edges.lists, edges.lists.transposed, z.shape[1:]
    logit_src = dots(z, a_src[None])
    dz, d_src = empty(z.shape, z.dtype), empty(logit_src.shape, z.dtype)
    names, rule, rows_of_z = numbering(edges.numbers), constants(edges.rule, z), z.numpy()
    softmax = logit_src.numpy(), of.logit.numpy(), rule, of.log_sum.numpy(), of.grad.numpy(), of.delta.numpy()
    args: Any = (lists.indptr, lists.indices, edges.rows, edges.own, names, rows_of_z, softmax, of.d_logit.numpy())
    parallel(_attend_backward_dst, [(*args, a, b) for a, b in row_parts(lists.indptr, heads * (width + 8))])
    back = (t.indptr, t.dst, t.edge, edges.rows, lists.num_dst if edges.own else 0, names)
    args = (*back, rows_of_z, a_src.numpy(), softmax, dz.numpy(), d_src.numpy())
    parallel(_attend_backward_src, [(*args, a, b) for a, b in row_parts(t.indptr, 2 * heads * (width + 8))])
    return dz, weighted_sum(d_src, z)
