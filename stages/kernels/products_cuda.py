"""Products of float32 rows and small weights on a GPU's tensor cores, with what comes before and after them.

Tensor cores multiply numbers of 11 bits (TF32) or 8 (bfloat16). A float32 number is two or three of those and a rest of
2^-24 of it or less, so three products of TF32 parts, or six of bfloat16 parts, summed in float32, are as exact as a
product in float32 (Ootomo and Yokota, IJHPCA 2022): on an H100 layers were 0.4 to 0.8 times as far from float64 as by
cuBLAS.

Bias and activation are applied to a product, and the activation's gradient to its operand, on the way: rows are read
and written once.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .runtime.triton_rng import aligned

RELU, ELU = tl.constexpr(1), tl.constexpr(2)
ACTIVATIONS = {"none": 0, "relu": RELU.value, "elu": ELU.value}
PROGRAMS = 264
"""Programs of a sum over rows, two for each multiprocessor of an H100: rows are cut into as many pieces."""


@triton.jit
def _gradient(g, y, ACTIVATION: tl.constexpr):
    """Gradient before the activation whose result is y."""
    if ACTIVATION == RELU:
        g = tl.where(y > 0, g, 0.0)
    if ACTIVATION == ELU:
        g = tl.where(y > 0, g, g * (y + 1))
    return g


DOUBLED, TRIPLED = "tf32x3", "bf16x6" if isinstance(_gradient, triton.JITFunction) else "ieee"
"""Names of Triton's products of two and of three parts; its interpreter knows no bfloat16 parts."""


@triton.jit(do_not_specialize=["n"])
def _rows_by_weight(
    x, y, weight, bias, out, n, D, units, x_row, x_head, y_row, y_head, w_row, w_head, out_row,
    UNIT: tl.constexpr, TRANSPOSED: tl.constexpr, ACTIVATION: tl.constexpr, GRADIENT: tl.constexpr,
    PARTS: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[i, h D + d] = activation(sum over k of gradient(x[h, i, k], y[h, i, k]) weight[h, d, k] + bias[h D + d])."""
    K = units * UNIT
    h = tl.program_id(2)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    rows, columns = (i < n)[:, None], (d < D)[None, :]
    row = i.to(tl.int64)[:, None]
    x += h.to(tl.int64) * (x_head * UNIT)
    weight += h * (w_head * UNIT)
    if y is not None:
        y += h.to(tl.int64) * (y_head * UNIT)
    total = tl.zeros([BM, BD], tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        both = rows & (k < K)[None, :]
        a = tl.load(x + row * (x_row * UNIT) + k[None, :], both, 0.0)
        if y is not None:
            a = _gradient(a, tl.load(y + row * (y_row * UNIT) + k[None, :], both, 0.0), GRADIENT)
        if TRANSPOSED:
            at = k[:, None] * (w_row * UNIT) + d[None, :]
        else:
            at = d[None, :] * (w_row * UNIT) + k[:, None]
        b = tl.load(weight + at, columns & (k < K)[:, None], 0.0)
        total = tl.dot(a, b, total, input_precision=PARTS)
    if bias is not None:
        total += tl.load(bias + h * D + d[None, :], columns, 0.0)
    if ACTIVATION == RELU:
        total = tl.where(total > 0, total, 0.0)
    if ACTIVATION == ELU:
        total = tl.where(total > 0, total, tl.exp(total) - 1)
    tl.store(out + row * out_row + h * D + d[None, :], total, rows & columns)


@triton.jit(do_not_specialize=["n", "piece"])
def _sums_over_rows(
    g, y, a, weights, biases, n, piece, d_units, k_units, g_row, g_head, y_row, y_head, a_row, a_head,
    UNIT: tl.constexpr, GRADIENT: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """weights[s, h, d, k] is the sum over rows i of piece s of gradient(g[h, i, d], y[h, i, d]) a[h, i, k]; biases
    [s, h, d] that of gradient(g[h, i, d], y[h, i, d])."""
    D, K = d_units * UNIT, k_units * UNIT
    s, h = tl.program_id(1), tl.program_id(2)
    tiles = tl.cdiv(K, BK)
    d = tl.program_id(0) // tiles * BD + tl.arange(0, BD)
    k = tl.program_id(0) % tiles * BK + tl.arange(0, BK)
    g += h.to(tl.int64) * (g_head * UNIT)
    a += h.to(tl.int64) * (a_head * UNIT)
    if y is not None:
        y += h.to(tl.int64) * (y_head * UNIT)
    total = tl.zeros([BD, BK], tl.float32)
    alone = tl.zeros([BD], tl.float32)
    for first in range(0, piece, BM):
        i = s * piece + first + tl.arange(0, BM)
        row, rows = i.to(tl.int64)[:, None], (i < n)[:, None]
        both = rows & (d < D)[None, :]
        t = tl.load(g + row * (g_row * UNIT) + d[None, :], both, 0.0)
        if y is not None:
            t = _gradient(t, tl.load(y + row * (y_row * UNIT) + d[None, :], both, 0.0), GRADIENT)
        b = tl.load(a + row * (a_row * UNIT) + k[None, :], rows & (k < K)[None, :], 0.0)
        total = tl.dot(tl.trans(t), b, total, input_precision=PARTS)
        if biases is not None:
            alone += tl.sum(t, 0)
    at = (s * tl.num_programs(2) + h).to(tl.int64) * D + d
    tl.store(weights + at[:, None] * K + k[None, :], total, (d < D)[:, None] & (k < K)[None, :])
    if biases is not None:
        tl.store(biases + at, alone, (d < D) & (tl.program_id(0) % tiles == 0))


def rows_by_weight(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    result: Tensor | None = None,
    of: str = "none",
) -> Tensor:
    """Each head's rows by that head's weight, side by side: ``activation(concat_h(g(x[h]) weight[h]^T) + bias)``.

    Args:
        x: float32 [H, n, K], rows contiguous.
        weight: float32 [H, D, K], contiguous rows or columns.
        bias: float32 [H * D].
        activation: of the product.
        result: [H, n, K], rows contiguous: x is the gradient of this result of the activation `of`, and g(x) that of
            its argument. None: g(x) is x.
        of: see `result`.

    Returns:
        [n, H * D].
    """
    heads, n, width = x.shape
    columns = weight.shape[1]
    out = x.new_empty(n, heads * columns)
    if not out.numel():
        return out
    transposed = weight.stride(2) != 1
    w_head, w_row = weight.stride(0), weight.stride(2 if transposed else 1)
    y = x if result is None else result
    unit = aligned(width, *x.stride()[:2], *y.stride()[:2], w_head, w_row)
    # Transposed weights would be turned round for products in TF32.
    parts = TRIPLED if transposed else DOUBLED
    launched: Any = _rows_by_weight[-(-n // 128), -(-columns // 64), heads]
    launched(
        x, result, weight, bias, out, n, columns, width // unit, x.stride(1) // unit, x.stride(0) // unit,
        y.stride(1) // unit, y.stride(0) // unit, w_row // unit, w_head // unit, out.stride(0), UNIT=unit,
        TRANSPOSED=transposed, ACTIVATION=ACTIVATIONS[activation], GRADIENT=ACTIVATIONS[of], PARTS=parts, BM=128, BD=64,
        BK=32, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


def sums_over_rows(
    g: Tensor, a: Tensor, result: Tensor | None, of: str, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Sums over rows of each head's outer products, and of its gradients alone, in an order that the shapes determine.

    Args:
        g: float32 [H, n, D], rows contiguous.
        a: float32 [H, n, K], likewise.
        result: see `rows_by_weight`, of g.
        of: likewise.
        with_bias: whether to return the second.

    Returns:
        [H, D, K] and [H * D].
    """
    heads, n, columns = g.shape
    width = a.shape[2]
    BM, BD, BK, warps = (32, 64, 64, 4) if columns <= 64 else (32, 128, 128, 8)
    tiles = -(-columns // BD) * -(-width // BK)
    piece = BM * max(4, -(-n * tiles * heads // (PROGRAMS * BM)))
    pieces = max(1, -(-n // piece))
    weights = g.new_empty(pieces, heads, columns, width)
    biases = g.new_empty(pieces, heads * columns) if with_bias else None
    y = g if result is None else result
    unit = aligned(columns, width, *g.stride()[:2], *y.stride()[:2], *a.stride()[:2])
    launched: Any = _sums_over_rows[tiles, pieces, heads]
    launched(
        g, result, a, weights, biases, n, piece, columns // unit, width // unit, g.stride(1) // unit,
        g.stride(0) // unit, y.stride(1) // unit, y.stride(0) // unit, a.stride(1) // unit, a.stride(0) // unit,
        UNIT=unit, GRADIENT=ACTIVATIONS[of], PARTS=TRIPLED, BM=BM, BD=BD, BK=BK, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return weights.sum(0), None if biases is None else biases.sum(0)
