"""Backward pass of softmax attention in Triton: recomputes coefficients and dropout.

Rows of z are read once by destination, for the gradient of `logit_dst`, and rows of the result's gradient once by
source, for both others. See `cuda.attention` for the forward pass.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_args import AttentionRule, EdgeNumbers
from ..lists import DeviceLists, InLists, IntArray, on_device
from .edge_dropout import edge_name, own_name, survives
from .softmax import dots, leaky, weighted_sum
from .sums import TILE, add_lists, row_of

_WALK = 2
"""Edges of each row read at a time in the backward pass, which needs more registers."""


@triton.jit
def logit_gradient(x, p, inner, delta, SLOPE: tl.constexpr):
    """Gradient of a logit before the ReLU, x, from its coefficient p, and <grad_v, z_u> times its dropout factor."""
    d = p * (inner - delta)
    return tl.where(x > 0, d, d * SLOPE)


@triton.jit(do_not_specialize=["n", "E", "key"])
def _backward_dst(
    begin, end, rows, indices, first, own_names, edge, key, z, logit_src, logit_dst, log_sum, grad, delta, d_dst,
    n, E, H, D, z_row, z_head,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, TO_ROWS: tl.constexpr,
    OWN: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(0) % H
    i = tl.program_id(0) // H * BR + tl.arange(0, BR)
    k = tl.arange(0, BD)
    inside, columns = i < n, k < D
    both = inside[:, None] & columns[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    v = row_of(rows, i, inside)
    mine, log = tl.load(logit_dst + v * H + h, inside, 0), tl.load(log_sum + v * H + h, inside, 0)
    out, g = tl.load(delta + v * H + h, inside, 0), tl.load(grad + (v * H + h)[:, None] * D + k[None, :], both, 0)
    total = tl.zeros([BR], z.dtype.element_ty)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            a = tl.load(z + (u * z_row + h * z_head)[:, None] + k[None, :], here[:, None] & columns[None, :], 0)
            x = tl.load(logit_src + u * H + h, here, 0) + mine
            inner = tl.sum(g * a, 1)
            if THRESHOLD > 0:
                inner = tl.where(survives(key, edge_name(first, edge, q, v, here), h, THRESHOLD), inner * KEEP, 0.0)
            d = tl.where(here, logit_gradient(x, tl.exp(leaky(x, SLOPE) - log), inner, out, SLOPE), 0.0)
            total += d
    if OWN:
        x = tl.load(logit_src + v * H + h, inside, 0) + mine
        a = tl.load(z + (v * z_row + h * z_head)[:, None] + k[None, :], both, 0)
        inner = tl.sum(g * a, 1)
        if THRESHOLD > 0:
            inner = tl.where(survives(key, own_name(own_names, E, v, inside), h, THRESHOLD), inner * KEEP, 0.0)
        d = tl.where(inside, logit_gradient(x, tl.exp(leaky(x, SLOPE) - log), inner, out, SLOPE), 0.0)
        total += d
    place = d_dst + (v if TO_ROWS else i.to(tl.int64)) * H + h
    if TO_ROWS:
        total += tl.load(place, inside, 0)
    tl.store(place, total, inside)


@triton.jit
def _one_head(total, d, grad, a, there, v, name, here, h, k, columns, key, logit_dst, log_sum, delta, H, D,
    SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the edge to v to `total`, the gradient of the source's row, and to `d`, that of its
    logit."""
    at = v * H + h
    g = tl.load(grad + at[:, None] * D + k[None, :], here[:, None] & columns[None, :], 0)
    x = there + tl.load(logit_dst + at, here, 0)
    p = tl.where(here, tl.exp(leaky(x, SLOPE) - tl.load(log_sum + at, here, 0)), 0.0)
    inner, w = tl.sum(g * a, 1), p
    if THRESHOLD > 0:
        kept = survives(key, name, h, THRESHOLD)
        inner, w = tl.where(kept, inner * KEEP, 0.0), tl.where(kept, p * KEEP, 0.0)
    return total + w[:, None] * g, d + logit_gradient(x, p, inner, tl.load(delta + at, here, 0), SLOPE)


@triton.jit(do_not_specialize=["n", "E", "key", "own_rows"])
def _backward_src(
    begin, end, rows, dst, position, first, own_names, edge, key, z, a_src, logit_src, logit_dst, log_sum, grad,
    delta, dz, d_src,
    n, E, own_rows, H, D, z_row, z_head,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, OWN: tl.constexpr,
    SHARED: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """List i belongs to source ``rows[i]``, or i; its gradients are stored at position i."""
    low, high = 0, H
    block = tl.program_id(0)
    if not SHARED:
        low = block % H
        high = low + 1
        block = block // H
    i = block * BR + tl.arange(0, BR)
    k = tl.arange(0, BD)
    inside, columns = i < n, k < D
    both = inside[:, None] & columns[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    u = row_of(rows, i, inside)
    total = tl.zeros([BR, BD], z.dtype.element_ty)
    for h in range(low, high):
        a = tl.load(z + (u * z_row + h * z_head)[:, None] + k[None, :], both, 0)
        there = tl.load(logit_src + u * H + h, inside, 0)
        d = tl.zeros([BR], z.dtype.element_ty)
        for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
            for t in tl.static_range(UNROLL):
                q = start + j + t
                here = q < stop
                v = tl.load(dst + q, here, 0).to(tl.int64)
                name = edge_name(first, edge, tl.load(position + q, here, 0).to(tl.int64), v, here)
                total, d = _one_head(
                    total, d, grad, a, there, v, name, here, h, k, columns, key, logit_dst, log_sum, delta, H, D,
                    SLOPE, THRESHOLD, KEEP,
                )  # fmt: skip
        if OWN:
            here = u < own_rows
            name = own_name(own_names, E, u, here)
            total, d = _one_head(
                total, d, grad, a, there, u, name, here, h, k, columns, key, logit_dst, log_sum, delta, H, D, SLOPE,
                THRESHOLD, KEEP,
            )  # fmt: skip
        tl.store(d_src + i.to(tl.int64) * H + h, d, inside)
        total += d[:, None] * tl.load(a_src + h * D + k, columns, 0)[None, :]
        if not SHARED:
            tl.store(dz + (i.to(tl.int64) * H + h)[:, None] * D + k[None, :], total, both)
    if SHARED:
        tl.store(dz + i.to(tl.int64)[:, None] * D + k[None, :], total, both)


def gradients_by_src(
    there: DeviceLists,
    at: Tensor | None,
    numbers: EdgeNumbers | None,
    z: Tensor,
    a_src: Tensor,
    logits: tuple[Tensor, Tensor],
    rule: AttentionRule,
    log_sum: Tensor,
    grad: Tensor,
    delta: Tensor,
    own: bool,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of z, [S, H, D], or if `shared` [S, D], summed over the heads that share it, and of the source logits,
    [S, H].

    Args:
        there: lists by destination.
        at: rows of the destinations, or all.
        numbers: see `EdgeNumbers`.
        z: [S, H, D].
        a_src: [H, D].
        logits: [S, H] of the sources, [N, H] of the destinations.
        rule: slope and dropout.
        log_sum: [N, H].
        grad: [N, H, D], of the result.
        delta: [N, H], its inner products with the result.
        own: true if each destination attends to itself.
        shared: true if the heads of z are the same memory.
    """
    names = (None, None, None) if numbers is None else numbers.on(z.device)
    heads, width = z.shape[1:]
    back, position = there.transposed
    back = back if at is None else back.over(at[back.indices])
    shape = whole_rows(width)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, whole: bool) -> tuple[Tensor, Tensor]:
        n = len(begin)
        dz, d_src = z.new_empty(n, *z.shape[2 if shared else 1 :]), z.new_empty(n, heads)
        if n and heads:
            launched: Any = _backward_src[(-(-n // shape["BR"]) * (1 if shared else heads),)]
            launched(
                begin, end, rows, back.indices, position, *names, rule.key, z, a_src, *logits, log_sum, grad, delta,
                dz, d_src,
                n, there.num_edges, there.num_dst, heads, width, z.stride(0), z.stride(1), LIMIT=there.limit,
                SLOPE=rule.slope,
                THRESHOLD=rule.threshold, KEEP=rule.keep_scale, OWN=own and whole, SHARED=shared, **shape,
            )  # fmt: skip
        return dz, d_src

    dz, d_src = launch(back.begin, back.end, None, True)
    if (rest := back.rest) is not None:
        for result, partial in zip((dz, d_src), launch(rest.begin, rest.end, rest.of, False)):
            flat = partial.flatten(1)
            add_lists(rest.pieces, rest.long, flat, result.view(len(result), -1), flat.shape[1], add=True)
    return dz, d_src


def whole_rows(width: int) -> dict[str, int]:
    """Tile of a program that takes inner products of rows."""
    columns = 1 << (max(width, 1) - 1).bit_length()
    return {"BR": max(TILE // columns, 1), "BD": columns, "UNROLL": _WALK}


def attend_from(
    lists: InLists,
    rows: IntArray | None,
    numbers: EdgeNumbers | None,
    z: Tensor,
    a_src: Tensor,
    logit_dst: Tensor,
    rule: AttentionRule,
    log_sum: Tensor,
    grad: Tensor,
    delta: Tensor,
    d_dst: Tensor,
    own: bool,
) -> tuple[Tensor, Tensor]:
    """See `cpu.attention.attend_from`."""
    assert not (own and rows is not None)
    there, at = lists.on(z.device), None if rows is None else on_device(rows, z.device)
    names = (None, None, None) if numbers is None else numbers.on(z.device)
    logits, (heads, width) = (dots(z, a_src[None]), logit_dst), z.shape[1:]
    shape = whole_rows(width)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        n = len(begin)
        if n and heads:
            launched: Any = _backward_dst[(-(-n // shape["BR"]) * heads,)]
            launched(
                begin, end, rows, there.indices, *names, rule.key, z, *logits, log_sum, grad, delta, result,
                n, lists.num_edges, heads, width, z.stride(0), z.stride(1), LIMIT=there.limit, SLOPE=rule.slope,
                THRESHOLD=rule.threshold, KEEP=rule.keep_scale, TO_ROWS=whole, OWN=own and whole, **shape,
            )  # fmt: skip

    launch(there.begin, there.end, at, d_dst, True)
    if (rest := there.rest) is not None:
        partial = d_dst.new_empty(len(rest.of), heads)
        launch(rest.begin, rest.end, rest.of if at is None else at[rest.of], partial, False)
        add_lists(rest.pieces, rest.long if at is None else at[rest.long], partial, d_dst, heads, add=True)
    dz, d_src = gradients_by_src(there, at, numbers, z, a_src, logits, rule, log_sum, grad, delta, own, False)
    return dz, weighted_sum(d_src, z)


def attend_backward(
    lists: InLists,
    z: Tensor,
    a_src: Tensor,
    logit_dst: Tensor,
    rule: AttentionRule,
    out: Tensor,
    log_sum: Tensor,
    grad: Tensor,
    numbers: EdgeNumbers | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `cpu.attention.attend_backward`."""
    d_dst = torch.zeros_like(logit_dst)
    dz, da_src = attend_from(
        lists, None, numbers, z, a_src, logit_dst, rule, log_sum, grad, dots(grad, out), d_dst, True
    )
    return dz, da_src, d_dst
