"""Logits, inner products and softmax denominators in Triton. Same results as `cpu.softmax`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.triton_rng import launch
from ..attention_args import DeviceEdges
from .sums import COLUMNS, HELD, UNROLL, edges_of, head_tile, row_of, walk_lists

_LANES = tl.constexpr(32)


@triton.jit(do_not_specialize=["n"])
def _dot_rows(
    x, y, out, n,
    H: tl.constexpr, D: tl.constexpr, X_ROW: tl.constexpr, X_HEAD: tl.constexpr, Y_ROW: tl.constexpr,
    Y_HEAD: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    v = i.to(tl.int64)
    each = (i < n)[:, None] & (h < H)[None, :]
    total = tl.zeros([BR, BH], x.dtype.element_ty)
    for first in tl.static_range(0, D, BD):
        k = first + tl.arange(0, BD)
        both = each[:, :, None] & (k < D)[None, None, :]
        a = tl.load(x + v[:, None, None] * X_ROW + (h[:, None] * X_HEAD + k[None, :])[None], both, 0)
        b = tl.load(y + v[:, None, None] * Y_ROW + (h[:, None] * Y_HEAD + k[None, :])[None], both, 0)
        total += tl.sum(a * b, 2)
    tl.store(out + v[:, None] * H + h[None, :], total, each)


def dots(x: Tensor, y: Tensor) -> Tensor:
    n, heads, width = x.shape
    # The stride of a single column may be anything.
    assert width < 2 or (x.stride(2) == 1 and y.stride(2) == 1)
    if not x.numel():
        return x.new_zeros(n, heads)
    out = x.new_empty(n, heads)
    # Four warps for as much as attention gives to one: nothing is read twice here.
    shape = {name: head_tile(heads, width, COLUMNS)[name] for name in ("BH", "BD")}
    shape["BR"] = max(HELD // (shape["BH"] * shape["BD"]), 1)
    y_row = y.stride(0) if len(y) == n else 0
    strides = {"X_ROW": x.stride(0), "X_HEAD": x.stride(1), "Y_ROW": y_row, "Y_HEAD": y.stride(1)}
    grid = -(-n // shape["BR"]), -(-heads // shape["BH"])
    launch(_dot_rows, *grid)(x, y, out, n, H=heads, D=width, **strides, **shape)
    return out


def weighted_sum(weight: Tensor, z: Tensor) -> Tensor:
    return torch.einsum("uh,uhd->hd", weight, z)


def add_outer(out: Tensor, weight: Tensor, a: Tensor) -> None:
    out[: len(weight)].addcmul_(weight[..., None], a[None])


@triton.jit
def leaky(x, SLOPE: tl.constexpr):
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def _raise(top, total, logit, here):
    """Running maximum and sum of exponentials after one more logit."""
    new = tl.where(here, tl.maximum(top, logit), top)
    # Before the first logit both are -inf, and their difference is undefined.
    shift = tl.where(new == float("-inf"), 0.0, new)
    return new, tl.where(here, total * tl.exp(top - shift) + tl.exp(logit - shift), total)


@triton.jit(do_not_specialize=["n"])
def _log_sums(
    begin, end, rows, indices, logit_src, logit_dst, log_sum, n, H,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, TO_ROWS: tl.constexpr, INTO: tl.constexpr, OWN: tl.constexpr,
    SKIP: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    h = tl.arange(0, BH)
    inside = i < n
    both = inside[:, None] & (h < H)[None, :]
    start, stop = edges_of(begin, end, i, inside, LIMIT)
    v = row_of(rows, i, inside)
    total = tl.zeros([BR, BH], log_sum.dtype.element_ty)
    top = total - float("inf")
    place = log_sum + (v if TO_ROWS else i.to(tl.int64))[:, None] * H + h[None, :]
    if INTO:
        top = tl.load(place, both, float("-inf"))
        total = tl.where(top == float("-inf"), total, total + 1)
    if logit_dst is not None:
        mine = tl.load(logit_dst + v[:, None] * H + h[None, :], both, 0)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = (q < stop)[:, None] & both
            u = tl.load(indices + q, q < stop, 0).to(tl.int64)
            if SKIP:
                here = here & (u != v)[:, None]
            x = tl.load(logit_src + u[:, None] * H + h[None, :], here, 0)
            if logit_dst is not None:
                # pyrefly: ignore[unbound-name]
                x = leaky(x + mine, SLOPE)
            top, total = _raise(top, total, x, here)
    if OWN:
        # pyrefly: ignore[unbound-name]
        x = leaky(tl.load(logit_src + v[:, None] * H + h[None, :], both, 0) + mine, SLOPE)
        top, total = _raise(top, total, x, both)
    tl.store(place, top + tl.log(total), both)


def log_denominators(edges: DeviceEdges, logits: tuple[Tensor, Tensor | None], log_sum: Tensor, into: bool) -> None:
    """Store the logarithm of the sum of the exponentials of each list's logits in `log_sum`; with `into`, including its
    old value, with `edges.own` also that of the list's own row, in place of its edges from there."""
    heads, (lists, rule, _, rows, own) = logits[0].shape[1], edges
    lanes = triton.next_power_of_2(max(heads, 1))
    rows_per = max(_LANES.value // lanes, 1)

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        launch(_log_sums, -(-len(begin) // rows_per))(
            begin, end, rows, lists.indices, *logits, result, len(begin), heads, LIMIT=lists.limit, SLOPE=rule.slope,
            TO_ROWS=whole, INTO=into and whole, OWN=own and whole, SKIP=own, UNROLL=UNROLL, BR=rows_per, BH=lanes,
            num_warps=1,
        )  # fmt: skip

    if (found := walk_lists(lists, rows, log_sum, walk)) is not None:
        rest, partial = found
        pieces = edges._replace(lists=rest.pieces, rows=rest.rows_at(rows, rest.long), own=False)
        log_denominators(pieces, (partial, None), log_sum, True)
