"""Compiled softmax attention: nothing per edge is kept, the backward pass computes coefficients and dropout again.

Source: the online softmax with log-sum-exp of Dao et al. (FlashAttention, NeurIPS 2022) on neighbour lists, as in SAR (Mostafa,
MLSys 2022). Features are contiguous float32 or float64 CPU tensors. `lists`: n destinations, S sources, e edges.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ..arena import empty
from .ahead import prefetch_rows
from .cut import even_parts, row_parts
from .lists import InLists
from .rules import AttentionRule
from .softmax_cpu import CHUNK_ROWS, JIT, constants, dots, keep, leaky, num_chunks
from .threads import parallel

_U = np.uint64


@njit(**JIT)
def _attend_rows(indptr, indices, z, logit_src, logit_dst, slope, key, threshold, keep_scale, out, log_sum, lo, hi):
    H, D, E = z.shape[1], z.shape[2], len(indices)
    flat, end = z.reshape(-1), indptr[hi]
    top = np.empty(H, z.dtype)
    total = np.empty(H, z.dtype)
    p = np.empty(H, z.dtype)
    for v in range(lo, hi):
        j, e = indptr[v], indptr[v + 1]
        prefetch_rows(indices, None, j, e, end, flat, H * D, H * D)
        here, o = logit_dst[_U(v)], out[_U(v)]
        # The logits are scalars, so a pass over them for the maximum is cheaper than rescaling sums of D values.
        own = logit_src[_U(v)]
        for h in range(H):
            top[h] = leaky(own[h] + here[h], slope)
            total[h] = 0
            for k in range(D):
                o[h, k] = 0
        for q in range(j, e):
            there = logit_src[_U(indices[q])]
            for h in range(H):
                top[h] = max(top[h], leaky(there[h] + here[h], slope))
        for q in range(j, e + 1):
            u = _U(indices[q]) if q < e else _U(v)
            number = q if q < e else E + v
            there, row = logit_src[u], z[u]
            for h in range(H):
                p[h] = math.exp(leaky(there[h] + here[h], slope) - top[h])
                total[h] += p[h]
                if threshold > _U(0) and not keep(key, threshold, number, h):
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


@njit(**JIT)
def _attend_backward_dst(indptr, indices, z, logit_src, logit_dst, slope, key, threshold, keep_scale, log_sum, grad, delta, d_dst, lo, hi):
    H, D, E = z.shape[1], z.shape[2], len(indices)
    flat, end = z.reshape(-1), indptr[hi]
    for v in range(lo, hi):
        j, e = indptr[v], indptr[v + 1]
        prefetch_rows(indices, None, j, e, end, flat, H * D, H * D)
        here, g = logit_dst[_U(v)], grad[_U(v)]
        for h in range(H):
            d_dst[v, h] = 0
        for q in range(j, e + 1):
            u = _U(indices[q]) if q < e else _U(v)
            number = q if q < e else E + v
            there, row = logit_src[u], z[u]
            for h in range(H):
                x = there[h] + here[h]
                p = math.exp(leaky(x, slope) - log_sum[v, h])
                inner = z.dtype.type(0)
                if threshold == _U(0) or keep(key, threshold, number, h):
                    a, b = g[h], row[h]
                    for k in range(D):
                        inner += a[k] * b[k]
                    inner *= keep_scale
                d = p * (inner - delta[v, h])
                d_dst[v, h] += d if x > 0 else slope * d


@njit(**JIT)
def _attend_backward_src(
    t_indptr, t_dst, t_edge, z, a_src, logit_src, logit_dst, slope, key, threshold, keep_scale, log_sum, grad, delta, dz, d_src, lo, hi
):
    H, D, E, n = z.shape[1], z.shape[2], len(t_dst), len(logit_dst)
    flat, end = grad.reshape(-1), t_indptr[hi]
    for u in range(lo, hi):
        row, there, o = z[_U(u)], logit_src[_U(u)], dz[_U(u)]
        for h in range(H):
            d_src[u, h] = 0
            for k in range(D):
                o[h, k] = 0
        # A destination is a source of its own row too: one more edge at the end of its list.
        last = t_indptr[u + 1]
        prefetch_rows(t_dst, None, t_indptr[u], last, end, flat, H * D, H * D)
        for q in range(t_indptr[u], last + 1 if u < n else last):
            v = _U(t_dst[q]) if q < last else _U(u)
            number = np.int64(t_edge[q]) if q < last else E + u
            here, g = logit_dst[v], grad[v]
            for h in range(H):
                x = there[h] + here[h]
                p = math.exp(leaky(x, slope) - log_sum[v, h])
                inner = z.dtype.type(0)
                if threshold == _U(0) or keep(key, threshold, number, h):
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


@njit(**JIT)
def _weighted_chunks(weight, z, partial, lo, hi):
    H, D = z.shape[1], z.shape[2]
    for c in range(lo, hi):
        for u in range(c * CHUNK_ROWS, min((c + 1) * CHUNK_ROWS, len(z))):
            row, o = z[_U(u)], partial[_U(c)]
            for h in range(H):
                w, a, b = weight[u, h], o[h], row[h]
                for k in range(D):
                    a[k] += w * b[k]


def _weighted_sum(weight: Tensor, z: Tensor) -> Tensor:
    """sum over u of weight[u, h] * z[u, h]: [S, H], [S, H, D] -> [H, D], always added in the same order."""
    partial = np.zeros((num_chunks(len(z)), *z.shape[1:]), z.numpy().dtype)
    args = (weight.numpy(), z.numpy(), partial)
    parallel(_weighted_chunks, [(*args, a, b) for a, b in even_parts(len(partial), CHUNK_ROWS * z.shape[1] * z.shape[2])])
    return torch.from_numpy(partial.sum(axis=0))


def attend(lists: InLists, z: Tensor, a_src: Tensor, logit_dst: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """Softmax attention over each row's edges and the row itself; no value per edge is kept.

    Args:
        lists: the edges.
        z: [S, H, D]; rows [0, n) are the destinations.
        a_src: [H, D]; the source logit is ``<a_src, z[u]>``.
        logit_dst: [n, H].
        rule: slope and dropout.

    Returns:
        [n, H, D]; [n, H], the logarithm of each softmax's denominator, which the backward pass needs.
    """
    heads, width = z.shape[1:]
    out, log_sum = empty((lists.num_dst, heads, width), z.dtype), empty((lists.num_dst, heads), z.dtype)
    logit_src = dots(z, a_src[None])
    args = (
        lists.indptr,
        lists.indices,
        z.numpy(),
        logit_src.numpy(),
        logit_dst.numpy(),
        *constants(rule, z),
        out.numpy(),
        log_sum.numpy(),
    )
    parallel(_attend_rows, [(*args, a, b) for a, b in row_parts(lists.indptr, heads * (width + 8))])
    return out, log_sum


def attend_backward(
    lists: InLists, z: Tensor, a_src: Tensor, logit_dst: Tensor, rule: AttentionRule, out: Tensor, log_sum: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `attend` with respect to z, a_src and logit_dst; coefficients and dropout are computed again.

    With a_uv the coefficient and m_uv its dropout factor: ``d logit_uv = a_uv (m_uv <grad_v, z_u> - <grad_v, out_v>)``.
    """
    t = lists.transposed
    heads, width = z.shape[1:]
    logit_src, delta = dots(z, a_src[None]), dots(grad, out)
    dz, d_src, d_dst = (empty(t.shape, t.dtype) for t in (z, logit_src, logit_dst))
    logits = (logit_src.numpy(), logit_dst.numpy(), *constants(rule, z), log_sum.numpy(), grad.numpy(), delta.numpy())
    args: tuple[Any, ...] = (lists.indptr, lists.indices, z.numpy(), *logits, d_dst.numpy())
    parallel(_attend_backward_dst, [(*args, a, b) for a, b in row_parts(lists.indptr, heads * (width + 8))])
    args = (t.indptr, t.dst, t.edge, z.numpy(), a_src.numpy(), *logits, dz.numpy(), d_src.numpy())
    parallel(_attend_backward_src, [(*args, a, b) for a, b in row_parts(t.indptr, 2 * heads * (width + 8))])
    return dz, _weighted_sum(d_src, z), d_dst
