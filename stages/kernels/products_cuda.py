"""Products of float32 rows and small weights on a GPU's tensor cores, with what comes before and after them.

Tensor cores multiply numbers of 8 bits (bfloat16). A float32 number is the sum of three of those, so the six largest
products of such parts, summed in float32, are as exact as a product in float32 (Ootomo and Yokota, IJHPCA 2022, for two
parts): on an H200, for layers of GraphSAGE and GAT, at most half as far from float64 as cuBLAS. Tensor cores do not
round a sum but cut it off, so small products come first, and only a few products are summed there: the rest is added as
usual. An infinite number gives NaN, and so does one that rounds to infinity, from 3.39e38 on. Of numbers below 2^-110
that are not whole multiples of 2^-133, the smallest bfloat16 number, the rest is lost.

Bias and activation are applied to a product, and the activation's gradient to its operand, on the way: rows are read
and written once.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .runtime.triton_rng import aligned, launch

RELU, ELU = tl.constexpr(1), tl.constexpr(2)
ACTIVATIONS = {"none": 0, "relu": RELU.value, "elu": ELU.value}
PROGRAMS = 264
"""Programs of a sum over rows at most, unless it has more tiles: as many as an H200 runs at a time."""
NARROW = {"BM": 64, "BD": 16, "BK": 32, "num_warps": 4}
"""Tile of a product of few columns, such as logits of heads."""


@triton.jit
def _gradient(g, y, ACTIVATION: tl.constexpr):
    """Gradient before the activation whose result is y."""
    if ACTIVATION == RELU:
        g = tl.where(y > 0, g, 0.0)
    if ACTIVATION == ELU:
        g = tl.where(y > 0, g, g * (y + 1))
    return g


@triton.jit
def _rounded(x):
    """The nearest number of 8 bits, away from zero if there are two."""
    return ((x.to(tl.uint32, bitcast=True) + 0x8000) & 0xFFFF0000).to(tl.float32, bitcast=True)


_COMPILED = tl.constexpr(isinstance(_rounded, triton.JITFunction))


@triton.jit
def _bfloat16(x):
    """A number of 8 bits, as bfloat16: its bits are moved, since the device's own conversion is slow."""
    if not _COMPILED:
        # Triton's interpreter knows no bfloat16.
        return x
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _parts(x):
    """Three bfloat16 numbers, the largest first, whose sum is x."""
    high = _rounded(x)
    rest = x - high
    middle = _rounded(rest)
    return _bfloat16(high), _bfloat16(middle), _bfloat16(rest - middle)


@triton.jit
def _nearest(x):
    """The nearest bfloat16 number, of two the even one, as torch rounds; what is not a number stays so."""
    if not _COMPILED:
        bits = x.to(tl.uint32, bitcast=True)
        even = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
        return tl.where(x == x, even, x)
    return x.to(tl.bfloat16)


@triton.jit
def _product(a, b, LOW: tl.constexpr):
    """a b in float32. Left out are the products of parts that are 2^-24 of the largest or less; with `LOW` the product
    is of both as bfloat16."""
    if LOW:
        return tl.dot(_nearest(a), _nearest(b))
    a1, a2, a3 = _parts(a)
    b1, b2, b3 = _parts(b)
    total = tl.dot(a3, b1)
    total = tl.dot(a2, b2, total)
    total = tl.dot(a1, b3, total)
    total = tl.dot(a2, b1, total)
    total = tl.dot(a1, b2, total)
    return tl.dot(a1, b1, total)


@triton.jit(do_not_specialize=["n"])
def _rows_by_weight(
    x, ids, y, weight, bias, out, n, D, units, x_row, x_head, y_row, y_head, w_row, w_head, out_row,
    UNIT: tl.constexpr, TRANSPOSED: tl.constexpr, ACTIVATION: tl.constexpr, GRADIENT: tl.constexpr, LOW: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[i, h D + d] = activation(sum over k of gradient(x[h, i, k], y[h, i, k]) weight[h, d, k] + bias[h D + d]);
    row i of x is that of `ids`, if there are any."""
    K = units * UNIT
    h = tl.program_id(1)
    # Programs of the same rows run side by side: these are read from memory once.
    tiles = tl.cdiv(D, BD)
    d = tl.program_id(0) % tiles * BD + tl.arange(0, BD)
    i = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    rows, columns = (i < n)[:, None], (d < D)[None, :]
    row = i.to(tl.int64)[:, None]
    place = row
    if ids is not None:
        place = tl.load(ids + i, i < n, 0).to(tl.int64)[:, None]
    x += h.to(tl.int64) * (x_head * UNIT)
    weight += h * (w_head * UNIT)
    if y is not None:
        y += h.to(tl.int64) * (y_head * UNIT)
    total = tl.zeros([BM, BD], tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        both = rows & (k < K)[None, :]
        a = tl.load(x + place * (x_row * UNIT) + k[None, :], both, 0.0)
        if y is not None:
            a = _gradient(a, tl.load(y + row * (y_row * UNIT) + k[None, :], both, 0.0), GRADIENT)
        if TRANSPOSED:
            at = k[:, None] * (w_row * UNIT) + d[None, :]
        else:
            at = d[None, :] * (w_row * UNIT) + k[:, None]
        b = tl.load(weight + at, columns & (k < K)[:, None], 0.0)
        total += _product(a, b, LOW)
    if bias is not None:
        total += tl.load(bias + h * D + d[None, :], columns, 0.0)
    if ACTIVATION == RELU:
        total = tl.where(total > 0, total, 0.0)
    if ACTIVATION == ELU:
        total = tl.where(total > 0, total, tl.exp(total) - 1)
    tl.store(out + row * out_row + h * D + d[None, :], total, rows & columns)


@triton.jit(do_not_specialize=["n", "piece", "of_piece"])
def _sums_over_rows(
    g, ids, y, a, weights, biases, n, piece, of_piece, d_units, k_units, g_row, g_head, y_row, y_head, a_row, a_head,
    UNIT: tl.constexpr, GRADIENT: tl.constexpr, LOW: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """weights[s, h, d, k] is the sum over rows i of piece s of gradient(g[h, i, d], y[h, i, d]) a[h, i, k]; biases
    [s, h, d] that of gradient(g[h, i, d], y[h, i, d]). Row i of g is that of `ids`, if there are any."""
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
        place = row
        if ids is not None:
            place = tl.load(ids + i, i < n, 0).to(tl.int64)[:, None]
        t = tl.load(g + place * (g_row * UNIT) + d[None, :], both, 0.0)
        if y is not None:
            t = _gradient(t, tl.load(y + row * (y_row * UNIT) + d[None, :], both, 0.0), GRADIENT)
        b = tl.load(a + row * (a_row * UNIT) + k[None, :], rows & (k < K)[None, :], 0.0)
        total += _product(tl.trans(t), b, LOW)
        if biases is not None:
            alone += tl.sum(t, 0)
    weights += s.to(tl.int64) * of_piece + h.to(tl.int64) * (D * K)
    tl.store(weights + d[:, None] * K + k[None, :], total, (d < D)[:, None] & (k < K)[None, :])
    if biases is not None:
        biases += s.to(tl.int64) * of_piece + h * D
        tl.store(biases + d, alone, (d < D) & (tl.program_id(0) % tiles == 0))


def takes(*tensors: Tensor) -> bool:
    """True if these kernels multiply such tensors: float32, with contiguous rows, on a device whose tensor cores know
    bfloat16."""
    return all(t.dtype == torch.float32 and t.is_cuda and t.stride(-1) == 1 for t in tensors) and _has_parts(
        tensors[0].device
    )


@functools.cache
def _has_parts(device: torch.device) -> bool:
    """True if the device's tensor cores multiply bfloat16: from NVIDIA's Ampere on."""
    return torch.cuda.get_device_capability(device)[0] >= 8


def rows_by_weight(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    result: Tensor | None = None,
    of: str = "none",
    ids: Tensor | None = None,
    low: bool = False,
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
        ids: [n], the rows of x that are multiplied; all, in their order, when absent.
        low: round both operands to bfloat16.

    Returns:
        [n, H * D].
    """
    heads, n, width = x.shape
    n = n if ids is None else len(ids)
    columns = weight.shape[1]
    out = x.new_empty(n, heads * columns)
    if not out.numel():
        return out
    transposed = weight.stride(2) != 1
    w_head, w_row = weight.stride(0), weight.stride(2 if transposed else 1)
    y = x if result is None else result
    unit = aligned(width, *x.stride()[:2], *y.stride()[:2], w_head, w_row)
    # More registers of a thread would leave a multiprocessor one program at a time.
    tile = NARROW if columns <= NARROW["BD"] else {"BM": 128, "BD": 64, "BK": 32, "num_warps": 8, "maxnreg": 128}
    launch(_rows_by_weight, -(-columns // tile["BD"]) * -(-n // tile["BM"]), heads)(
        x, ids, result, weight, bias, out, n, columns, width // unit, x.stride(1) // unit, x.stride(0) // unit,
        y.stride(1) // unit, y.stride(0) // unit, w_row // unit, w_head // unit, out.stride(0), UNIT=unit,
        TRANSPOSED=transposed, ACTIVATION=ACTIVATIONS[activation], GRADIENT=ACTIVATIONS[of], LOW=low, num_stages=3,
        **tile,
    )  # fmt: skip
    return out


def sums_over_rows(
    g: Tensor,
    a: Tensor,
    result: Tensor | None = None,
    of: str = "none",
    with_bias: bool = False,
    ids: Tensor | None = None,
    low: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Sums over rows of each head's outer products, and of its gradients alone, in an order that the shapes determine.

    Args:
        g: float32 [H, n, D], rows contiguous.
        a: float32 [H, n, K], likewise.
        result: see `rows_by_weight`, of g.
        of: likewise.
        with_bias: whether to return the second.
        ids: [n], the rows of g that are multiplied; all, in their order, when absent.
        low: see `rows_by_weight`.

    Returns:
        [H, D, K] and [H * D].
    """
    heads, n, width = a.shape
    columns = g.shape[2]
    if not width and heads * columns and with_bias:
        _, alone = sums_over_rows(g, g.new_zeros(1, 1, 1).expand(heads, n, 1), result, of, True, ids)
        return g.new_empty(heads, columns, 0), alone
    if not heads * columns * width:
        return g.new_empty(heads, columns, width), g.new_empty(heads * columns) if with_bias else None
    BM, BD, BK = (32, 128, 16) if width <= 16 else (32, 64, 64 if width <= 64 else 128)
    tiles = -(-columns // BD) * -(-width // BK)
    piece = BM * max(4, -(-n // (max(PROGRAMS // (tiles * heads), 1) * BM)))
    pieces = max(1, -(-n // piece))
    whole = heads * columns * width
    sums = g.new_empty(pieces, whole + (heads * columns if with_bias else 0))
    y = g if result is None else result
    unit = aligned(columns, width, *g.stride()[:2], *y.stride()[:2], *a.stride()[:2])
    launch(_sums_over_rows, tiles, pieces, heads)(
        g, ids, result, a, sums, sums[:, whole:] if with_bias else None, n, piece, sums.stride(0), columns // unit,
        width // unit, g.stride(1) // unit, g.stride(0) // unit, y.stride(1) // unit, y.stride(0) // unit,
        a.stride(1) // unit, a.stride(0) // unit,
        UNIT=unit, GRADIENT=ACTIVATIONS[of], LOW=low, BM=BM, BD=BD, BK=BK, num_warps=4, num_stages=3,
    )  # fmt: skip
    total = sums.sum(0)
    return total[:whole].view(heads, columns, width), total[whole:] if with_bias else None
