"""Compiled softmax attention whose heads all read the same rows: `cpu.attention` applied to h instead of z = W_h h.

Attention is linear in what it sums, so ``sum_u a_uvh W_h h_u = W_h sum_u a_uvh h_u``. If there are many more sources
than destinations, as in a sampled block, multiplying by W after the sum saves most of the products, and no [S, H, D]
tensor is made. Nothing per edge is stored: the backward pass recomputes coefficients and dropout.

`lists`: n destinations, S sources, e edges. H heads, F columns. x may be lazy (`stages.memory.lazy_rows`).
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....memory.arena import empty
from ....memory.lazy_rows import base_and_ids
from ...runtime.jit import REASSOCIATED, njit
from ...runtime.threads import parallel
from ..attention_args import AttentionEdges, SharedAttention
from .lists import row_at
from .prefetch import prefetch_rows
from .row_ranges import even_parts, row_parts
from .softmax import CHUNK_ROWS, chunk_parts, constants, dots, edge_number, keep, leaky, num_chunks, numbering

_U = np.uint64
TILE = 16
"""Edges whose coefficients are computed together; their rows stay in the first-level cache while each head reads
them."""


@njit(**REASSOCIATED)
def _dots(a, x, rows, out, count):
    """out[t] = <a, x[rows[t]]> for the first `count` rows, four at a time: they share the loads of a."""
    F, t = len(a), 0
    while t + 4 <= count:
        b, c, d, e = x[rows[t]], x[rows[t + 1]], x[rows[t + 2]], x[rows[t + 3]]
        p = q = r = s = x.dtype.type(0)
        for k in range(F):
            p += a[k] * b[k]
            q += a[k] * c[k]
            r += a[k] * d[k]
            s += a[k] * e[k]
        out[t], out[t + 1], out[t + 2], out[t + 3] = p, q, r, s
        t += 4
    while t < count:
        b = x[rows[t]]
        p = x.dtype.type(0)
        for k in range(F):
            p += a[k] * b[k]
        out[t] = p
        t += 1


@njit(**REASSOCIATED)
def _add_rows(o, x, rows, weight, count):
    """o += sum of weight[t] * x[rows[t]] over the first `count` rows, four at a time: they share the loads and stores
    of o."""
    F, t = len(o), 0
    while t + 4 <= count:
        a, b, c, d = x[rows[t]], x[rows[t + 1]], x[rows[t + 2]], x[rows[t + 3]]
        p, q, r, s = weight[t], weight[t + 1], weight[t + 2], weight[t + 3]
        for k in range(F):
            o[k] += (p * a[k] + q * b[k]) + (r * c[k] + s * d[k])
        t += 4
    while t < count:
        a, p = x[rows[t]], weight[t]
        for k in range(F):
            o[k] += p * a[k]
        t += 1


@njit(**REASSOCIATED)
def _logit_rows(x, ids, a, out, lo, hi):
    H, F = a.shape
    flat, heads = x.reshape(-1), np.arange(H).astype(np.uint64)
    for u in range(lo, hi):
        if ids is not None:
            prefetch_rows(ids, None, u, u + 1, hi, flat, F, F)
        _dots(x[row_at(ids, u)], a, heads, out[_U(u)], H)


def _logits(x: Tensor, a: Tensor) -> Tensor:
    """<a[h], x[u]>, [S, H]."""
    base, ids = base_and_ids(x)
    out = empty((len(x), len(a)), a.dtype)
    args = (base, ids, a.numpy(), out.numpy())
    parallel(_logit_rows, [(*args, lo, hi) for lo, hi in even_parts(len(x), a.numel())])
    return out


@njit(**REASSOCIATED)
def _name_tile(q, j, e, v, indices, ids, source, row):
    """Sources and rows of edges q..q+TILE-1 of destination v, whose last edge, e, is its own. Returns their number."""
    count = min(TILE, e + 1 - q)
    for t in range(count):
        source[t] = _U(indices[q + t]) if q + t < e else _U(v)
        row[t] = row_at(ids, source[t])
    return count


@njit(**REASSOCIATED)
def _attend_rows(indptr, indices, ids, names, x, a_dst, logit_src, logit_dst, rule, out, log_sum, lo, hi):
    H, F, E = logit_src.shape[1], x.shape[1], len(indices)
    slope, key, threshold, keep_scale = rule
    flat, end = x.reshape(-1), indptr[hi]
    source, row = np.empty(TILE, np.uint64), np.empty(TILE, np.uint64)
    top, total = np.empty(H, x.dtype), np.empty(H, x.dtype)
    p, heads = np.empty(TILE, x.dtype), np.arange(H).astype(np.uint64)
    for v in range(lo, hi):
        j, e = indptr[v], indptr[v + 1]
        prefetch_rows(indices, ids, j, e, end, flat, F, F)
        here, own, o = logit_dst[_U(v)], logit_src[_U(v)], out[_U(v)]
        _dots(x[row_at(ids, v)], a_dst, heads, here, H)
        for h in range(H):
            top[h] = leaky(own[h] + here[h], slope)
            total[h] = 0
            for k in range(F):
                o[h, k] = 0
        # The logits are scalars, so a pass over them for the maximum is cheaper than rescaling sums of F values.
        for q in range(j, e):
            if _U(indices[q]) == _U(v):
                continue
            there = logit_src[_U(indices[q])]
            for h in range(H):
                top[h] = max(top[h], leaky(there[h] + here[h], slope))
        for q in range(j, e + 1, TILE):
            count = _name_tile(q, j, e, v, indices, ids, source, row)
            for h in range(H):
                for t in range(count):
                    p[t] = leaky(logit_src[source[t], h] + here[h], slope) - top[h]
                for t in range(count):
                    p[t] = math.exp(p[t])
                # The row's own edge, the last, takes the place of the loops that it has.
                for t in range(min(count, e - q)):
                    if source[t] == _U(v):
                        p[t] = 0
                for t in range(count):
                    total[h] += p[t]
                if threshold > _U(0):
                    for t in range(count):
                        if not keep(key, threshold, edge_number(names, q + t, e, E, v), h):
                            p[t] = 0
                _add_rows(o[h], x, row, p, count)
        for h in range(H):
            s = keep_scale / total[h]
            a = o[h]
            for k in range(F):
                a[k] *= s
            log_sum[v, h] = top[h] + math.log(total[h])


@njit(**REASSOCIATED)
def _logit_gradient(x, p, inner, delta, kept, keep_scale, slope):
    """Gradient of a logit before the ReLU, x, from its coefficient p and inner = <grad_v, x_u>."""
    # An infinite row that was dropped has no gradient: `inner` is then not used.
    g = p * (inner * keep_scale - delta) if kept else -p * delta
    return g if x > 0 else slope * g


@njit(**REASSOCIATED)
def _backward_dst(indptr, indices, ids, names, x, softmax, d_dst, to_dst, to_src, lo, hi):
    """Chunks lo..hi-1 of destinations. `to_dst`, [chunks, H, F], receives the gradient of `a_dst`; `to_src`, unless
    it is empty, that of `a_src`, if x needs none."""
    # Checked at run time: a version of its own takes two seconds to compile.
    from_rows = len(to_src) > 0
    logit_src, logit_dst, rule, log_sum, grad, delta = softmax
    H, F, E, n = logit_src.shape[1], x.shape[1], len(indices), len(logit_dst)
    slope, key, threshold, keep_scale = rule
    flat = x.reshape(-1)
    source, row = np.empty(TILE, np.uint64), np.empty(TILE, np.uint64)
    p, d = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    for c in range(lo, hi):
        last = min((c + 1) * CHUNK_ROWS, n)
        end = indptr[last]
        for v in range(c * CHUNK_ROWS, last):
            j, e = indptr[v], indptr[v + 1]
            prefetch_rows(indices, ids, j, e, end, flat, F, F)
            here, g, o = logit_dst[_U(v)], grad[_U(v)], d_dst[_U(v)]
            for h in range(H):
                o[h] = 0
            for q in range(j, e + 1, TILE):
                count = _name_tile(q, j, e, v, indices, ids, source, row)
                for h in range(H):
                    _dots(g[h], x, row, d, count)
                    for t in range(count):
                        p[t] = leaky(logit_src[source[t], h] + here[h], slope) - log_sum[v, h]
                    for t in range(count):
                        p[t] = math.exp(p[t])
                    for t in range(min(count, e - q)):
                        if source[t] == _U(v):
                            p[t] = 0
                    for t in range(count):
                        kept = threshold == _U(0) or keep(key, threshold, edge_number(names, q + t, e, E, v), h)
                        d[t] = _logit_gradient(
                            logit_src[source[t], h] + here[h], p[t], d[t], delta[v, h], kept, keep_scale, slope
                        )
                        o[h] += d[t]
                    if from_rows:
                        _add_rows(to_src[c, h], x, row, d, count)
            row[0] = row_at(ids, v)
            for h in range(H):
                _add_rows(to_dst[c, h], x, row, o[h : h + 1], 1)


@njit(**REASSOCIATED)
def _backward_src(t_indptr, t_dst, t_edge, names, x, a_src, a_dst, softmax, d_dst, dx, to_src, lo, hi):
    """Chunks lo..hi-1 of sources. `to_src`, [chunks, H, F], receives the gradient of `a_src`."""
    logit_src, logit_dst, rule, log_sum, grad, delta = softmax
    H, F, E, n = logit_src.shape[1], x.shape[1], len(t_dst), len(logit_dst)
    slope, key, threshold, keep_scale = rule
    flat, by_head = grad.reshape(-1), grad.reshape(-1, F)
    row = np.empty(TILE * H, np.uint64)
    p, d, d_src = np.empty(TILE * H, x.dtype), np.empty(TILE * H, x.dtype), np.empty(H, x.dtype)
    heads = np.arange(H).astype(np.uint64)
    for c in range(lo, hi):
        stop = min((c + 1) * CHUNK_ROWS, len(x))
        end = t_indptr[stop]
        for u in range(c * CHUNK_ROWS, stop):
            a, there, o = x[_U(u)], logit_src[_U(u)], dx[_U(u)]
            for h in range(H):
                d_src[h] = 0
            for k in range(F):
                o[k] = 0
            # A destination is also a source for itself: one more edge at the end of its list.
            e = t_indptr[u + 1]
            last = e + 1 if u < n else e
            prefetch_rows(t_dst, None, t_indptr[u], e, end, flat, H * F, H * F)
            for q in range(t_indptr[u], last, TILE):
                count = min(TILE, last - q) * H
                for i in range(count):
                    g, h = q + i // H, i % H
                    v = _U(t_dst[g]) if g < e else _U(u)
                    row[i] = v * _U(H) + _U(h)
                    p[i] = leaky(there[h] + logit_dst[v, h], slope) - log_sum[v, h]
                for i in range(count):
                    p[i] = math.exp(p[i])
                for i in range(min(count, (e - q) * H)):
                    if _U(t_dst[q + i // H]) == _U(u):
                        p[i] = 0
                _dots(a, by_head, row, d, count)
                for i in range(count):
                    g, h = q + i // H, i % H
                    v = _U(t_dst[g]) if g < e else _U(u)
                    position = np.int64(t_edge[g]) if g < e else np.int64(E)
                    kept = threshold == _U(0) or keep(key, threshold, edge_number(names, position, E, E, v), h)
                    d_src[h] += _logit_gradient(
                        there[h] + logit_dst[v, h], p[i], d[i], delta[v, h], kept, keep_scale, slope
                    )
                    p[i] = p[i] * keep_scale if kept else p[i] * 0
                _add_rows(o, by_head, row, p, count)
            _add_rows(o, a_src, heads, d_src, H)
            if u < n:
                _add_rows(o, a_dst, heads, d_dst[_U(u)], H)
            for h in range(H):
                s, b = d_src[h], to_src[c, h]
                for k in range(F):
                    b[k] += s * a[k]


def attend_shared(edges: AttentionEdges, x: Tensor, a_src: Tensor, a_dst: Tensor) -> SharedAttention:
    """`cpu.attention.attend_into` over all edges, every head summing the rows of x.

    Args:
        edges: the edges.
        x: [S, F]; rows [0, n) are the destinations.
        a_src: [H, F].
        a_dst: [H, F]; head h of edge (u, v) has the logit ``leaky_relu(<a_src[h], x[u]> + <a_dst[h], x[v]>)``.
    """
    lists, (heads, width), (base, ids) = edges.lists, a_src.shape, base_and_ids(x)
    out = empty((lists.num_dst, heads, width), x.dtype)
    logit_src = _logits(x, a_src)
    logit_dst, log_sum = (empty((lists.num_dst, heads), x.dtype) for _ in range(2))
    args = (lists.indptr, lists.indices, ids, numbering(edges.numbers), base, a_dst.numpy())
    softmax = (logit_src.numpy(), logit_dst.numpy(), constants(edges.rule, a_src), out.numpy(), log_sum.numpy())
    parallel(_attend_rows, [(*args, *softmax, a, b) for a, b in row_parts(lists.indptr, heads * (width + 8))])
    return SharedAttention(out, logit_src, logit_dst, log_sum)


def attend_shared_backward(
    edges: AttentionEdges, x: Tensor, a_src: Tensor, a_dst: Tensor, made: SharedAttention, grad: Tensor, needs_x: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of `attend_shared` with respect to x (None unless needed), a_src and a_dst.

    With a_uv the coefficient and m_uv its dropout factor: ``d logit_uv = a_uv (m_uv <grad_v, x_u> - <grad_v, out_v>)``.
    If x needs no gradient, one pass over the destinations gives both others.
    """
    lists, (heads, width), (base, ids) = edges.lists, a_src.shape, base_and_ids(x)
    delta, d_dst = dots(grad, made.out).numpy(), empty(made.logit_dst.shape, x.dtype).numpy()
    names, rule = numbering(edges.numbers), constants(edges.rule, a_src)
    _, logit_src, logit_dst, log_sum = (each.numpy() for each in made)
    softmax = logit_src, logit_dst, rule, log_sum, grad.numpy(), delta
    to_dst = np.zeros((num_chunks(lists.num_dst), heads, width), base.dtype)
    to_src = np.zeros((num_chunks(len(x)) if needs_x else len(to_dst), heads, width), base.dtype)
    none = to_src[:0] if needs_x else to_src
    args: Any = (lists.indptr, lists.indices, ids, names, base, softmax, d_dst, to_dst, none)
    parallel(_backward_dst, [(*args, a, b) for a, b in chunk_parts(lists.indptr, heads * (width + 8))])
    dx = None
    if needs_x:
        t, dx = lists.transposed, empty((lists.num_src, width), x.dtype)
        args = (t.indptr, t.dst, t.edge, names, base, a_src.numpy(), a_dst.numpy(), softmax, d_dst, dx.numpy(), to_src)
        parallel(_backward_src, [(*args, a, b) for a, b in chunk_parts(t.indptr, 2 * heads * (width + 8))])
    return dx, torch.from_numpy(to_src.sum(axis=0)), torch.from_numpy(to_dst.sum(axis=0))
