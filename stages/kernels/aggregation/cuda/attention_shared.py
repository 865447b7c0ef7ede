"""Softmax attention on a device whose heads all read the same rows: `cuda.attention` applied to h instead of z = W_h h.

A program holds up to four heads of its rows, each a tile of its own in registers: a row of x is read once for all of
them, and the heads of an edge share the cost of finding it. Widths are compile-time constants: if they are multiples of
4 a thread reads 16 bytes, and a warp has a row to itself, so that each coefficient is computed by one warp instead of
four.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_args import AttentionRule, EdgeNumbers
from ..lists import DeviceLists, InLists
from .attention_backward import gradients_by_src, logit_gradient, whole_rows
from .edge_dropout import edge_name, own_name, survives
from .softmax import dots, leaky, log_denominators
from .sums import TILE, UNROLL, add_lists, row_of, tile

_HEADS, _HELD = 4, 8 * TILE
"""Maximum heads of one program, and numbers in all their tiles: 32 registers of each of 128 threads."""


@triton.jit
def _per_head(values, v, first_head, inside, H: tl.constexpr, HEADS: tl.constexpr):
    """[BR] for each of HEADS heads."""
    found = ()
    for g in tl.static_range(HEADS):
        found += (tl.load(values + v * H + first_head + g, inside, 0),)
    return found


@triton.jit
def _add_heads(total, a, u, name, here, mine, log, logit_src, first_head, key,
    H: tl.constexpr, HEADS: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Add the edges from u to each head of `total`: their rows `a`, [BR, BD], times coefficients."""
    there = _per_head(logit_src, u, first_head, here, H, HEADS)
    found = ()
    for g in tl.static_range(HEADS):
        w = tl.where(here, tl.exp(leaky(there[g] + mine[g], SLOPE) - log[g]), 0.0)
        if THRESHOLD > 0:
            w = tl.where(survives(key, name, first_head + g, THRESHOLD), w * KEEP, 0.0)
        found += (total[g] + w[:, None] * a,)
    return found


@triton.jit(do_not_specialize=["n", "E", "key"])
def _attend_shared_rows(
    begin, end, rows, indices, first, own_names, edge, key, x, logit_src, logit_dst, log_sum, out, n, E,
    H: tl.constexpr, D: tl.constexpr, X_ROW: tl.constexpr, HEADS: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """List i belongs to row i, whose own edge counts too, or is a piece of the list of ``rows[i]``."""
    # Heads of the same rows run side by side.
    first_head = tl.program_id(0) % (H // HEADS) * HEADS
    i = tl.program_id(0) // (H // HEADS) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BD + tl.arange(0, BD)
    inside, columns = i < n, k < D
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    v = row_of(rows, i, inside)
    mine, log = (
        _per_head(logit_dst, v, first_head, inside, H, HEADS),
        _per_head(log_sum, v, first_head, inside, H, HEADS),
    )
    total = ()
    for _ in tl.static_range(HEADS):
        total += (tl.zeros([BR, BD], x.dtype.element_ty),)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            a = tl.load(x + u[:, None] * X_ROW + k[None, :], here[:, None] & columns[None, :], 0)
            name = q
            if THRESHOLD > 0:
                name = edge_name(first, edge, q, v, here)
            total = _add_heads(
                total, a, u, name, here, mine, log, logit_src, first_head, key, H, HEADS, SLOPE, THRESHOLD, KEEP
            )
    both = inside[:, None] & columns[None, :]
    if rows is None:
        a = tl.load(x + v[:, None] * X_ROW + k[None, :], both, 0)
        name = v
        if THRESHOLD > 0:
            name = own_name(own_names, E, v, inside)
        total = _add_heads(
            total, a, v, name, inside, mine, log, logit_src, first_head, key, H, HEADS, SLOPE, THRESHOLD, KEEP
        )
    for g in tl.static_range(HEADS):
        tl.store(out + (i.to(tl.int64) * H + first_head + g)[:, None] * D + k[None, :], total[g], both)


@triton.jit
def _logit_gradients(a, u, name, here, g, mine, log, delta, logit_src, first_head, key,
    H: tl.constexpr, HEADS: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """For each head, [BR], gradients of the logits of the edges from u, whose rows are `a`."""
    there = _per_head(logit_src, u, first_head, here, H, HEADS)
    found = ()
    for h in tl.static_range(HEADS):
        x, inner = there[h] + mine[h], tl.sum(g[h] * a, 1)
        if THRESHOLD > 0:
            inner = tl.where(survives(key, name, first_head + h, THRESHOLD), inner * KEEP, 0.0)
        d = logit_gradient(x, tl.exp(leaky(x, SLOPE) - log[h]), inner, delta[h], SLOPE)
        found += (tl.where(here, d, 0.0),)
    return found


@triton.jit
def _plus(x, d, a, HEADS: tl.constexpr):
    """For each head, ``x + d``, or times the rows `a`."""
    found = ()
    for h in tl.static_range(HEADS):
        if a is None:
            found += (x[h] + d[h],)
        else:
            found += (x[h] + d[h][:, None] * a,)
    return found


@triton.jit(do_not_specialize=["n", "E", "key"])
def _backward_shared_dst(
    begin, end, rows, indices, first, own_names, edge, key, x, logit_src, logit_dst, log_sum, grad, delta, d_dst,
    weighted, n, E,
    H: tl.constexpr, D: tl.constexpr, X_ROW: tl.constexpr, HEADS: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Like `_attend_shared_rows`. With `weighted`, [row tiles, H, D], each program also stores there the sum of rows of
    x times the gradients of their logits."""
    first_head = tl.program_id(0) % (H // HEADS) * HEADS
    i = tl.program_id(0) // (H // HEADS) * BR + tl.arange(0, BR)
    k = tl.arange(0, BD)
    inside, columns = i < n, k < D
    both = inside[:, None] & columns[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    v = row_of(rows, i, inside)
    mine, log = (
        _per_head(logit_dst, v, first_head, inside, H, HEADS),
        _per_head(log_sum, v, first_head, inside, H, HEADS),
    )
    out = _per_head(delta, v, first_head, inside, H, HEADS)
    g, total, rows_of_x = (), (), ()
    for h in tl.static_range(HEADS):
        g += (tl.load(grad + (v * H + first_head + h)[:, None] * D + k[None, :], both, 0),)
        total += (tl.zeros([BR], x.dtype.element_ty),)
        if weighted is not None:
            rows_of_x += (tl.zeros([BR, BD], x.dtype.element_ty),)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            a = tl.load(x + u[:, None] * X_ROW + k[None, :], here[:, None] & columns[None, :], 0)
            name = q
            if THRESHOLD > 0:
                name = edge_name(first, edge, q, v, here)
            d = _logit_gradients(
                a, u, name, here, g, mine, log, out, logit_src, first_head, key, H, HEADS, SLOPE, THRESHOLD, KEEP
            )
            total = _plus(total, d, None, HEADS)
            if weighted is not None:
                rows_of_x = _plus(rows_of_x, d, a, HEADS)
    if rows is None:
        a = tl.load(x + v[:, None] * X_ROW + k[None, :], both, 0)
        name = v
        if THRESHOLD > 0:
            name = own_name(own_names, E, v, inside)
        d = _logit_gradients(
            a, v, name, inside, g, mine, log, out, logit_src, first_head, key, H, HEADS, SLOPE, THRESHOLD, KEEP
        )
        total = _plus(total, d, None, HEADS)
        if weighted is not None:
            rows_of_x = _plus(rows_of_x, d, a, HEADS)
    for h in tl.static_range(HEADS):
        tl.store(d_dst + i.to(tl.int64) * H + first_head + h, total[h], inside)
        if weighted is not None:
            place = (tl.program_id(0) // (H // HEADS)).to(tl.int64) * H + first_head + h
            tl.store(weighted + place * D + k, tl.sum(rows_of_x[h], 0), columns)


def _together(heads: int, numbers: int) -> int:
    """Number of heads in one program, if the tile of each has so many numbers."""
    return next(g for g in range(_HEADS, 0, -1) if heads % g == 0 and (g == 1 or g * numbers <= _HELD))


def _arguments(
    there: DeviceLists, x: Tensor, heads: int, rule: AttentionRule, shape: dict[str, int]
) -> tuple[int, dict[str, Any]]:
    """Grid for a tile of rows, and compile-time constants."""
    together = _together(heads, shape["BR"] * shape["BD"])
    arguments = {
        "H": heads,
        "D": x.shape[1],
        "X_ROW": x.stride(0),
        "HEADS": together,
        "LIMIT": there.limit,
        "SLOPE": rule.slope,
    }
    return heads // together, arguments | shape | {"THRESHOLD": rule.threshold, "KEEP": rule.keep_scale}


def _logits(x: Tensor, a: Tensor) -> Tensor:
    """[n, F], [H, F] -> [n, H], in the dtype of x: autocast leaves products with a given output alone."""
    return torch.mm(x, a.T, out=x.new_empty(len(x), len(a)))


def attend_shared(
    lists: InLists, x: Tensor, a_src: Tensor, a_dst: Tensor, rule: AttentionRule, numbers: EdgeNumbers | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """See `cpu.attention_shared.attend_shared`."""
    there, (heads, width), n = lists.on(x.device), a_src.shape, lists.num_dst
    logit_src, logit_dst = _logits(x, a_src), _logits(x[:n], a_dst)
    out, log_sum = x.new_empty(n, heads, width), torch.empty_like(logit_dst)
    log_denominators(there, None, logit_src, logit_dst, rule.slope, log_sum, False, True)
    names = (None, None, None) if numbers is None else numbers.on(x.device)
    rows_per, columns = tile(width)
    groups, arguments = _arguments(there, x, heads, rule, {"BR": rows_per, "BD": columns, "UNROLL": UNROLL})

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor) -> None:
        if len(begin) and result.numel():
            launched: Any = _attend_shared_rows[-(-len(begin) // rows_per) * groups, -(-width // columns)]
            inputs = x, logit_src, logit_dst, log_sum
            launched(
                begin,
                end,
                rows,
                there.indices,
                *names,
                rule.key,
                *inputs,
                result,
                len(begin),
                lists.num_edges,
                **arguments,
            )

    launch(there.begin, there.end, None, out)
    if (rest := there.rest) is not None:
        partial = out.new_empty(len(rest.of), heads, width)
        launch(rest.begin, rest.end, rest.of, partial)
        add_lists(rest.pieces, rest.long, partial.flatten(1), out.view(n, -1), heads * width, add=True)
    return out, logit_dst, log_sum


def attend_shared_backward(
    lists: InLists,
    x: Tensor,
    a_src: Tensor,
    a_dst: Tensor,
    rule: AttentionRule,
    out: Tensor,
    logit_dst: Tensor,
    log_sum: Tensor,
    grad: Tensor,
    needs_x: bool,
    numbers: EdgeNumbers | None = None,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """See `cpu.attention_shared.attend_shared_backward`."""
    there, (heads, width), n = lists.on(x.device), a_src.shape, lists.num_dst
    logits, delta, d_dst = (_logits(x, a_src), logit_dst), dots(grad, out), torch.zeros_like(logit_dst)
    names = (None, None, None) if numbers is None else numbers.on(x.device)
    groups, arguments = _arguments(there, x, heads, rule, shape := whole_rows(width))
    d_src = a_src.new_zeros(heads, width)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor) -> None:
        if len(begin) and heads:
            tiles = -(-len(begin) // shape["BR"])
            weighted = None if needs_x else x.new_empty(tiles, heads, width)
            launched: Any = _backward_shared_dst[(tiles * groups,)]
            inputs = x, *logits, log_sum, grad, delta
            launched(
                begin,
                end,
                rows,
                there.indices,
                *names,
                rule.key,
                *inputs,
                result,
                weighted,
                len(begin),
                lists.num_edges,
                **arguments,
            )
            if weighted is not None:
                d_src.add_(weighted.sum(0))

    launch(there.begin, there.end, None, d_dst)
    if (rest := there.rest) is not None:
        partial = d_dst.new_empty(len(rest.of), heads)
        launch(rest.begin, rest.end, rest.of, partial)
        add_lists(rest.pieces, rest.long, partial, d_dst, heads, add=True)
    if not needs_x:
        return None, d_src, d_dst.T @ x[:n]
    shared = x[:, None].expand(-1, heads, -1)
    dx, d_logit = gradients_by_src(there, None, numbers, shared, a_src, logits, rule, log_sum, grad, delta, True, True)
    dx[:n].addmm_(d_dst, a_dst)
    return dx, d_logit.T @ x, d_dst.T @ x[:n]
