"""Softmax attention on a device whose heads all read the same rows: `cuda.attention` applied to h instead of z = W_h h.

A row of x is read once for all heads of a program. Rows that need no gradient, such as features, have a backward pass
of their own: along the lists by destination, whose sums of rows give the gradient of `a_src` at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....memory.lazy_rows import device_base_and_ids, head
from ... import products_cuda
from ...runtime.triton_rng import launch
from ..attention_args import AttentionEdges, BackwardRows, DeviceEdges, SharedAttention
from .attention import sum_attended
from .attention_backward import gradients_by_src, one_edge
from .edge_dropout import edge_name, own_name
from .softmax import dots, log_denominators
from .sums import edges_of, head_tile, row_of, sum_lists

_TILES = 8
"""Tiles of a program, which share one sum for `a_src`, where rows need no gradient."""


@triton.jit(do_not_specialize=["n", "E", "key"])
def _backward_shared_dst(
    begin, end, rows, indices, first, own_names, edge, key, x, ids, logit_src, logit_dst, log_sum, grad, out, d_dst,
    weighted, n, E,
    H: tl.constexpr, D: tl.constexpr, X_ROW: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr,
    BR: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """List i belongs to row i, whose own edge counts too, or is a piece of the list of ``rows[i]``. A program takes
    `ROWS` tiles of rows, one after the other, and stores the sum of all their rows of x times the gradients of their
    logits in `weighted`, [programs, H, D]."""
    groups: tl.constexpr = (H + BH - 1) // BH
    program = tl.program_id(0) // groups
    h = tl.program_id(0) % groups * BH + tl.arange(0, BH)
    k = tl.arange(0, BD)
    heads, columns = h < H, k < D
    cells, place = (heads[:, None] & columns[None, :])[None], (h[:, None] * D + k[None, :])[None]
    rows_of_x = tl.zeros([BR, BH, BD], x.dtype.element_ty)
    for tile in range(ROWS):
        i = (program * ROWS + tile) * BR + tl.arange(0, BR)
        inside = i < n
        each, wanted = inside[:, None] & heads[None, :], inside[:, None, None] & cells
        start, stop = edges_of(begin, end, i, inside, LIMIT)
        v = row_of(rows, i, inside)
        number = v[:, None] * H + h[None, :]
        mine, log = tl.load(logit_dst + number, each, 0), tl.load(log_sum + number, each, 0)
        result = (v * (H * D))[:, None, None] + place
        g = tl.load(grad + result, wanted, 0)
        delta = tl.sum(g * tl.load(out + result, wanted, 0), 2)
        total = tl.zeros([BR, BH], x.dtype.element_ty)
        for j in range(tl.max(stop - start, 0).to(tl.int32)):
            q = start + j
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            at = row_of(ids, u, here)
            a = tl.load(x + at[:, None] * X_ROW + k[None, :], here[:, None] & columns[None, :], 0)[:, None, :]
            both = here[:, None] & heads[None, :]
            # The row's own edge takes the place of the loops that it has.
            counts = both & (u != v)[:, None]
            y = tl.load(logit_src + u[:, None] * H + h[None, :], both, 0) + mine
            name = edge_name(first, edge, q, v, here) if THRESHOLD > 0 else u
            _, d = one_edge(g, a, y, log, delta, name, counts, h, key, SLOPE, THRESHOLD, KEEP)
            total += d
            rows_of_x += d[:, :, None] * a
        if rows is None:
            at = row_of(ids, v, inside)
            a = tl.load(x + at[:, None] * X_ROW + k[None, :], inside[:, None] & columns[None, :], 0)[:, None, :]
            y = tl.load(logit_src + number, each, 0) + mine
            name = own_name(own_names, E, v, inside) if THRESHOLD > 0 else v
            _, d = one_edge(g, a, y, log, delta, name, each, h, key, SLOPE, THRESHOLD, KEEP)
            total += d
            rows_of_x += d[:, :, None] * a
        tl.store(d_dst + i.to(tl.int64)[:, None] * H + h[None, :], total, each)
    tl.store(weighted + program.to(tl.int64) * (H * D) + place, tl.sum(rows_of_x, 0)[None], cells)


def _gradients_of_constant_rows(
    edges: DeviceEdges, x: Tensor, ids: Tensor | None, made: SharedAttention, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of a_src [H, D] and of the destinations' logits [N, H]; x needs none."""
    (lists, rule, names, _, _), (out, *logits), (heads, width) = edges, made, grad.shape[1:]
    shape = head_tile(heads, width) | {"ROWS": _TILES}
    d_src, d_dst = x.new_zeros(heads, width), torch.zeros_like(made.logit_dst)

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        programs = -(-len(begin) // (shape["BR"] * shape["ROWS"]))
        weighted = x.new_empty(programs, heads, width)
        launch(_backward_shared_dst, programs * -(-heads // shape["BH"]))(
            begin, end, rows, lists.indices, *names, rule.key, x, ids, *logits, grad, out, result, weighted,
            len(begin), lists.num_edges, H=heads, D=width, X_ROW=x.stride(0), LIMIT=lists.limit,
            SLOPE=rule.slope, THRESHOLD=rule.threshold, KEEP=rule.keep_scale, **shape,
        )  # fmt: skip
        d_src.add_(weighted.sum(0))

    sum_lists(lists, None, d_dst, walk)
    return d_src, d_dst


def _shared(x: Tensor, heads: int) -> Tensor:
    """[S, F] -> [S, H, F], the same memory for each head."""
    return x[:, None].expand(-1, heads, -1)


def _first(x: Tensor, n: int) -> tuple[Tensor, Tensor | None]:
    """`device_base_and_ids` of the first n rows."""
    base, ids = device_base_and_ids(x)
    return (base[:n], None) if ids is None else (base, ids[:n])


def _logits(x: Tensor, a: Tensor, n: int) -> Tensor:
    """[>= n, F], [H, F] -> [n, H], in the dtype of x: autocast leaves products with a given output alone."""
    base, ids = _first(x, n)
    if products_cuda.takes(base, a):
        return products_cuda.rows_by_weight(base[None], a[None], ids=ids)
    return torch.mm(head(x, n), a.T, out=base.new_empty(n, len(a)))


def _gradient_of_a(d_logit: Tensor, x: Tensor) -> Tensor:
    """[n, H], [>= n, F] -> [H, F], the sum over n rows of their outer products."""
    base, ids = _first(x, len(d_logit))
    if products_cuda.takes(base, d_logit):
        return products_cuda.sums_over_rows(base[None], d_logit[None], ids=ids)[0][0].T
    return d_logit.T @ head(x, len(d_logit))


def attend_shared(edges: AttentionEdges, x: Tensor, a_src: Tensor, a_dst: Tensor) -> SharedAttention:
    there, (heads, width), n = edges.to_device(x.device), a_src.shape, edges.lists.num_dst
    base, ids = device_base_and_ids(x)
    logits = _logits(x, a_src, len(x)), _logits(x, a_dst, n)
    results = out, log_sum = base.new_empty(n, heads, width), torch.empty_like(logits[1])
    log_denominators(there, logits, log_sum, False)
    sum_attended(there, _shared(base, heads), logits, None, results, ids)
    return SharedAttention(out, *logits, log_sum)


def attend_shared_backward(
    edges: AttentionEdges, x: Tensor, a_src: Tensor, a_dst: Tensor, made: SharedAttention, grad: Tensor, needs_x: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    there, heads, n = edges.to_device(x.device), len(a_src), edges.lists.num_dst
    if not needs_x:
        d_src, d_dst = _gradients_of_constant_rows(there, *device_base_and_ids(x), made, grad)
        return None, d_src, _gradient_of_a(d_dst, x)
    out, logit_src, logit_dst, log_sum = made
    of = BackwardRows(logit_dst, log_sum, grad, dots(grad, out), torch.zeros_like(logit_dst))
    dx, d_logit = gradients_by_src(there, _shared(x, heads), a_src, logit_src, of, True)
    dx[:n].addmm_(of.d_logit, a_dst)
    return dx, _gradient_of_a(d_logit, x), _gradient_of_a(of.d_logit, x)
