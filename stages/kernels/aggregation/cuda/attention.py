"""Softmax attention in a device's memory: nothing per edge is kept, the backward pass computes coefficients and dropout
again.

Same names, arguments and results as `cpu.attention` and `cpu.attention_shared`, and the same coefficients are dropped.
See `cuda.backend` for where tensors lie and how work is cut.

Source: the online softmax with log-sum-exp of Dao et al. (FlashAttention, NeurIPS 2022) on neighbour lists. It is in
two launches. The first walks the logits alone, H numbers an edge, and leaves the logarithm of each softmax's
denominator. With that known, the second is a plain weighted sum of rows, which is where the bytes are: its pieces of
long lists add up like any other sums, and each row of z is read once for each head. The backward pass reads rows of z
once by destination, for the gradient of `logit_dst`, and rows of the result's gradient once by source, for both others.

Heads that share their rows are in `cuda.attention_shared`; by source they walk here, reading the rows with a stride of
0 from head to head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....random import GOLDEN, M1, M2, NODE
from ..attention_args import AttentionRule, EdgeNumbers
from ..lists import DeviceLists, InLists, IntArray, on_device
from .sums import TILE, UNROLL, add_lists, row_of, tile

_GOLDEN, _NODE, _M1, _M2 = (
    tl.constexpr(int(GOLDEN)),
    tl.constexpr(int(NODE)),
    tl.constexpr(int(M1)),
    tl.constexpr(int(M2)),
)
_LANES = tl.constexpr(32)
_WALK = 2
"""Edges of each row whose reads are under way together in the backward pass, which has more to remember."""


@triton.jit
def _dot_rows(x, y, out, n, H, D, x_row, x_head, y_row, y_head, BR: tl.constexpr, BD: tl.constexpr):
    i = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    inside, v, h = i < n, i // H, i % H
    total = tl.zeros([BR], x.dtype.element_ty)
    for first in range(0, D, BD):
        k = first + tl.arange(0, BD)
        both = inside[:, None] & (k < D)[None, :]
        a = tl.load(x + (v * x_row + h * x_head)[:, None] + k[None, :], both, 0)
        total += tl.sum(a * tl.load(y + (v * y_row + h * y_head)[:, None] + k[None, :], both, 0), 1)
    tl.store(out + i, total, inside)


def dots(x: Tensor, y: Tensor) -> Tensor:
    """See `cpu.softmax.dots`."""
    n, heads, width = x.shape
    # The stride of a single column may be anything.
    assert width < 2 or (x.stride(2) == 1 and y.stride(2) == 1)
    out = x.new_zeros(n, heads)
    if x.numel():
        rows, columns = tile(width)
        launched: Any = _dot_rows[(-(-n * heads // rows),)]
        y_row = y.stride(0) if len(y) == n else 0
        launched(x, y, out, n * heads, heads, width, *x.stride()[:2], y_row, y.stride(1), BR=rows, BD=columns)
    return out


def weighted_sum(weight: Tensor, z: Tensor) -> Tensor:
    """See `cpu.attention.weighted_sum`."""
    return torch.einsum("uh,uhd->hd", weight, z)


def add_outer(out: Tensor, weight: Tensor, a: Tensor) -> None:
    """See `cpu.attention.add_outer`."""
    out[: len(weight)].addcmul_(weight[..., None], a[None])


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _M1
    z = (z ^ (z >> 27)) * _M2
    return z ^ (z >> 31)


@triton.jit
def survives(key, name, h, THRESHOLD: tl.constexpr):
    """Whether the coefficient of edge `name` and head h is kept: see `AttentionRule.key`."""
    word = _mix(name.to(tl.uint64) * _NODE + key.to(tl.uint64))
    draw = tl.zeros_like(word) + (h + 1)
    return (_mix(draw * _GOLDEN + word) >> 32) >= THRESHOLD


@triton.jit
def edge_name(first, edge, q, v, here):
    """What dropout calls edge q of row v."""
    name = q
    if edge is not None:
        name = tl.load(edge + q, here, 0).to(tl.int64)
    if first is not None:
        name += tl.load(first + v, here, 0)
    return name


@triton.jit
def own_name(own_names, E, v, here):
    """What dropout calls the row's own edge."""
    name = v + E
    if own_names is not None:
        name = tl.load(own_names + v, here, 0)
    return name


@triton.jit
def leaky(x, SLOPE: tl.constexpr):
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def _raise(top, total, logit, here):
    """The running maximum and sum of exponentials with one more logit each."""
    new = tl.where(here, tl.maximum(top, logit), top)
    # Before the first logit both are -inf, and their difference is nothing.
    shift = tl.where(new == float("-inf"), 0.0, new)
    return new, tl.where(here, total * tl.exp(top - shift) + tl.exp(logit - shift), total)


@triton.jit(do_not_specialize=["n"])
def _log_sums(
    begin, end, rows, indices, logit_src, logit_dst, log_sum, n, H,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, TO_ROWS: tl.constexpr, INTO: tl.constexpr, OWN: tl.constexpr,
    BR: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    h = tl.arange(0, BH)
    inside = i < n
    both = inside[:, None] & (h < H)[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    v = row_of(rows, i, inside)
    total = tl.zeros([BR, BH], log_sum.dtype.element_ty)
    top = total - float("inf")
    place = log_sum + (v if TO_ROWS else i.to(tl.int64))[:, None] * H + h[None, :]
    if INTO:
        top = tl.load(place, both, float("-inf"))
        total = tl.where(top == float("-inf"), total, total + 1)
    if logit_dst is not None:
        mine = tl.load(logit_dst + v[:, None] * H + h[None, :], both, 0)
    for j in range(tl.max(stop - start, 0).to(tl.int32)):
        q = start + j
        here = (q < stop)[:, None] & both
        u = tl.load(indices + q, q < stop, 0).to(tl.int64)
        x = tl.load(logit_src + u[:, None] * H + h[None, :], here, 0)
        if logit_dst is not None:
            x = leaky(x + mine, SLOPE)
        top, total = _raise(top, total, x, here)
    if OWN:
        x = leaky(tl.load(logit_src + v[:, None] * H + h[None, :], both, 0) + mine, SLOPE)
        top, total = _raise(top, total, x, both)
    tl.store(place, top + tl.log(total), both)


def log_denominators(
    lists: DeviceLists,
    rows: Tensor | None,
    logit_src: Tensor,
    logit_dst: Tensor | None,
    slope: float,
    log_sum: Tensor,
    into: bool,
    own: bool,
) -> None:
    """The logarithm of the sum of the exponentials of each list's logits, and of what `log_sum` holds if `into`, to
    `log_sum`."""
    heads = logit_src.shape[1]
    lanes = triton.next_power_of_2(max(heads, 1))
    rows_per = max(_LANES.value // lanes, 1)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        if len(begin) and heads:
            launched: Any = _log_sums[(-(-len(begin) // rows_per),)]
            launched(
                begin, end, rows, lists.indices, logit_src, logit_dst, result, len(begin), heads, LIMIT=lists.limit, SLOPE=slope,
                TO_ROWS=whole, INTO=into and whole, OWN=own and whole, BR=rows_per, BH=lanes, num_warps=1,
            )  # fmt: skip

    launch(lists.begin, lists.end, rows, log_sum, True)
    if (rest := lists.rest) is not None:
        partial = log_sum.new_empty(len(rest.of), heads)
        launch(rest.begin, rest.end, rest.of if rows is None else rows[rest.of], partial, False)
        log_denominators(
            rest.pieces, rest.long if rows is None else rows[rest.long], partial, None, slope, log_sum, True, False
        )


@triton.jit(do_not_specialize=["n", "E", "key"])
def _attend_rows(
    begin, end, rows, indices, first, own_names, edge, key, z, logit_src, logit_dst, log_sum, before, out, n, E, H, D, z_row, z_head,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, TO_ROWS: tl.constexpr, OWN: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # Heads of the same rows run side by side.
    h = tl.program_id(0) % H
    i = tl.program_id(0) // H * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BD + tl.arange(0, BD)
    inside, columns = i < n, k < D
    both = inside[:, None] & columns[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    v = row_of(rows, i, inside)
    mine, log = tl.load(logit_dst + v * H + h, inside, 0), tl.load(log_sum + v * H + h, inside, 0)
    total = tl.zeros([BR, BD], z.dtype.element_ty)
    place = out + ((v if TO_ROWS else i.to(tl.int64)) * H + h)[:, None] * D + k[None, :]
    if before is not None:
        old = tl.load(before + v * H + h, inside, 0)
        total += tl.load(place, both, 0) * tl.where(old == float("-inf"), 0.0, tl.exp(old - log))[:, None]
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            a = tl.load(z + (u * z_row + h * z_head)[:, None] + k[None, :], here[:, None] & columns[None, :], 0)
            w = tl.where(here, tl.exp(leaky(tl.load(logit_src + u * H + h, here, 0) + mine, SLOPE) - log), 0.0)
            if THRESHOLD > 0:
                w = tl.where(survives(key, edge_name(first, edge, q, v, here), h, THRESHOLD), w * KEEP, 0.0)
            total += w[:, None] * a
    if OWN:
        a = tl.load(z + (v * z_row + h * z_head)[:, None] + k[None, :], both, 0)
        w = tl.exp(leaky(tl.load(logit_src + v * H + h, inside, 0) + mine, SLOPE) - log)
        if THRESHOLD > 0:
            w = tl.where(survives(key, own_name(own_names, E, v, inside), h, THRESHOLD), w * KEEP, 0.0)
        total += w[:, None] * a
    tl.store(place, total, both)


def _attend(
    lists: InLists,
    rows: IntArray | None,
    numbers: EdgeNumbers | None,
    z: Tensor,
    logit_src: Tensor,
    logit_dst: Tensor,
    rule: AttentionRule,
    before: Tensor | None,
    out: Tensor,
    log_sum: Tensor,
    own: bool,
) -> None:
    there, at = lists.on(z.device), None if rows is None else on_device(rows, z.device)
    heads, width = z.shape[1:]
    log_denominators(there, at, logit_src, logit_dst, rule.slope, log_sum, before is not None, own)
    names = (None, None, None) if numbers is None else numbers.on(z.device)
    rows_per, columns = tile(width)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        n = len(begin)
        if n and heads and width:
            launched: Any = _attend_rows[-(-n // rows_per) * heads, -(-width // columns)]
            launched(
                begin, end, rows, there.indices, *names, rule.key, z, logit_src, logit_dst, log_sum, before if whole else None, result,
                n, lists.num_edges, heads, width, z.stride(0), z.stride(1), LIMIT=there.limit, SLOPE=rule.slope,
                THRESHOLD=rule.threshold, KEEP=rule.keep_scale, TO_ROWS=whole, OWN=own and whole, UNROLL=UNROLL, BR=rows_per, BD=columns,
            )  # fmt: skip

    launch(there.begin, there.end, at, out, True)
    if (rest := there.rest) is not None:
        partial = out.new_empty(len(rest.of), heads, width)
        launch(rest.begin, rest.end, rest.of if at is None else at[rest.of], partial, False)
        onto = rest.long if at is None else at[rest.long]
        add_lists(rest.pieces, onto, partial.flatten(1), out.view(len(out), -1), heads * width, add=True)


def attend(
    lists: InLists, z: Tensor, a_src: Tensor, logit_dst: Tensor, rule: AttentionRule, numbers: EdgeNumbers | None = None
) -> tuple[Tensor, Tensor]:
    """See `cpu.attention.attend`."""
    out, log_sum = z.new_empty(lists.num_dst, *z.shape[1:]), torch.empty_like(logit_dst)
    _attend(lists, None, numbers, z, dots(z, a_src[None]), logit_dst, rule, None, out, log_sum, True)
    return out, log_sum


def attend_into(
    lists: InLists,
    rows: IntArray | None,
    numbers: EdgeNumbers | None,
    z: Tensor,
    a_src: Tensor,
    logit_dst: Tensor,
    rule: AttentionRule,
    out: Tensor,
    log_sum: Tensor,
    own: bool,
) -> None:
    """See `cpu.attention.attend_into`."""
    assert not (own and rows is not None)
    _attend(lists, rows, numbers, z, dots(z, a_src[None]), logit_dst, rule, log_sum.clone(), out, log_sum, own)


@triton.jit
def logit_gradient(x, p, inner, delta, SLOPE: tl.constexpr):
    """The gradient of a logit before the ReLU, x, from its coefficient p, and <grad_v, z_u> times what dropout made of
    it."""
    d = p * (inner - delta)
    return tl.where(x > 0, d, d * SLOPE)


@triton.jit(do_not_specialize=["n", "E", "key"])
def _backward_dst(
    begin, end, rows, indices, first, own_names, edge, key, z, logit_src, logit_dst, log_sum, grad, delta, d_dst,
    n, E, H, D, z_row, z_head,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, TO_ROWS: tl.constexpr, OWN: tl.constexpr,
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
    """`total` and `d` with what the edge to v adds: to the gradient of the source's row, and of its logit."""
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
    begin, end, rows, dst, position, first, own_names, edge, key, z, a_src, logit_src, logit_dst, log_sum, grad, delta, dz, d_src,
    n, E, own_rows, H, D, z_row, z_head,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, OWN: tl.constexpr, SHARED: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """List i is of source ``rows[i]``, or i, and its gradients go to place i."""
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
                    total,
                    d,
                    grad,
                    a,
                    there,
                    v,
                    name,
                    here,
                    h,
                    k,
                    columns,
                    key,
                    logit_dst,
                    log_sum,
                    delta,
                    H,
                    D,
                    SLOPE,
                    THRESHOLD,
                    KEEP,
                )
        if OWN:
            here = u < own_rows
            name = own_name(own_names, E, u, here)
            total, d = _one_head(
                total,
                d,
                grad,
                a,
                there,
                u,
                name,
                here,
                h,
                k,
                columns,
                key,
                logit_dst,
                log_sum,
                delta,
                H,
                D,
                SLOPE,
                THRESHOLD,
                KEEP,
            )
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
        numbers: what dropout calls the edges.
        z: [S, H, D].
        a_src: [H, D].
        logits: [S, H] of the sources, [N, H] of the destinations.
        rule: slope and dropout.
        log_sum: [N, H].
        grad: [N, H, D], of the result.
        delta: [N, H], its inner products with the result.
        own: whether each destination attends to itself.
        shared: whether the heads of z are the same memory.
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
                begin, end, rows, back.indices, position, *names, rule.key, z, a_src, *logits, log_sum, grad, delta, dz, d_src,
                n, there.num_edges, there.num_dst, heads, width, z.stride(0), z.stride(1), LIMIT=there.limit, SLOPE=rule.slope,
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
    """The tile of a program that takes inner products of rows."""
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
