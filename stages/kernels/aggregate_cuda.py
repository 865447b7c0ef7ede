"""Aggregation over in-neighbour lists in a device's memory: Triton kernels, no atomics, the same bits from run to run.

Same names, arguments and results as `aggregate_cpu`; tensors lie on one CUDA device, or on the CPU under Triton's interpreter, which
must be on (``TRITON_INTERPRET=1``) before this module is imported. Lists, `rows`, `edge` and `ids` are NumPy arrays on the host; the
lists travel to the device once (`InLists.on`), the others in every call.

Reading rows of x bounds all of these kernels: e rows of D numbers, against one row written for each list. So

* a program has a tile of rows x columns: neighbouring threads read neighbouring columns of one source row, in whole sectors;
* edges are walked `UNROLL` at a time: their reads do not wait for each other, and hide each other's latency;
* sums live in registers; a row of the result is written once;
* a list of thousands of edges is cut (`lists_cuda`), so that no program works long after the others are done;
* gradients gather through the transposed lists, so no two programs ever add to the same number.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .lists import InLists, IntArray
from .lists_cuda import DeviceLists, on_device

UNROLL = 4
"""Edges of each row whose reads are under way together."""
TILE = 512
"""Numbers of a tile: 16 bytes for each of 128 threads, in float32."""
# What a row of the result gets beside its neighbours: see `aggregate_cpu`.
_NOTHING, _ADDED, _BESIDE, _FROM_BESIDE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


def tile(width: int, most: int = 256) -> tuple[int, int]:
    """Rows and columns of a program's tile, powers of two."""
    columns = min(triton.next_power_of_2(width), most)
    return max(TILE // columns, 1), columns


@triton.jit
def row_of(rows, i, inside):
    """The row of the result that list i belongs to: ``rows[i]``, or i; int64."""
    v = i.to(tl.int64)
    if rows is not None:
        v = tl.load(rows + i, inside, 0).to(tl.int64)
    return v


@triton.jit
def _sum_rows(
    begin, end, rows, indices, coef, x, scale, own, out, n, F, x_stride, out_stride, own_rows,
    LIMIT: tl.constexpr, TO_ROWS: tl.constexpr, ADD: tl.constexpr, KIND: tl.constexpr, UNROLL: tl.constexpr,
    BR: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BF + tl.arange(0, BF)
    inside, columns = i < n, k < F
    both = inside[:, None] & columns[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    v = row_of(rows, i, inside)
    total = tl.zeros([BR, BF], x.dtype.element_ty)
    if scale is not None:
        s = tl.load(scale + v, inside, 0)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            a = tl.load(x + u[:, None] * x_stride + k[None, :], here[:, None] & columns[None, :], 0)
            # Where there is no edge, `a` is 0 and its factor may be anything finite.
            if coef is not None:
                a *= tl.load(coef + q, here, 0).to(total.dtype)[:, None]
            if scale is not None:
                a = tl.where(here[:, None], a * s[:, None], 0)
            total += a
    at = v if TO_ROWS else i.to(tl.int64)
    place = out + at[:, None] * out_stride + k[None, :]
    if ADD:
        total += tl.load(place, both, 0)
    mine = both & (i < own_rows)[:, None]
    if KIND == _ADDED:
        factor = tl.load(own + i, i < own_rows, 0)[:, None]
        total += tl.where(mine, factor * tl.load(x + i.to(tl.int64)[:, None] * x_stride + k[None, :], mine, 0), 0)
    if KIND == _BESIDE:
        tl.store(place + F, tl.load(x + i.to(tl.int64)[:, None] * x_stride + k[None, :], mine, 0), mine)
    if KIND == _FROM_BESIDE:
        total += tl.load(x + i.to(tl.int64)[:, None] * x_stride + F + k[None, :], mine, 0)
    tl.store(place, total, both)


def add_lists(
    lists: DeviceLists,
    rows: Tensor | None,
    x: Tensor,
    out: Tensor,
    width: int,
    coef: Tensor | None = None,
    row_scale: Tensor | None = None,
    add: bool = False,
    kind: tl.constexpr = _NOTHING,
    own: Tensor | None = None,
    own_rows: int = 0,
) -> None:
    """``out[rows[i], :width] (+)= row_scale[rows[i]] * sum over edges e of list i of coef[e] * x[indices[e], :width]``.

    Args:
        lists: n lists over S rows.
        rows: [n], distinct; list i belongs to row i when absent.
        x: [S, >= width], with contiguous rows.
        out: [N, >= width], with contiguous rows, of x's dtype.
        width: columns.
        coef: [e].
        row_scale: [N] of x's dtype.
        add: whether to add to what `out` holds, or to write over it.
        kind: what the first `own_rows` rows get besides.
        own: [own_rows] of x's dtype, where `kind` needs it.
        own_rows: see `kind`.
    """
    rows_per, columns = tile(width)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        n = len(begin)
        if n and width:
            grid = triton.cdiv(n, rows_per), triton.cdiv(width, columns)
            launched: Any = _sum_rows[grid]
            launched(
                begin, end, rows, lists.indices, coef, x, row_scale, own, result, n, width, x.stride(0), result.stride(0),
                own_rows if whole else 0, LIMIT=lists.limit, TO_ROWS=whole, ADD=add and whole, KIND=kind if whole else _NOTHING,
                UNROLL=UNROLL, BR=rows_per, BF=columns,
            )  # fmt: skip

    launch(lists.begin, lists.end, rows, out, True)
    if (rest := lists.rest) is not None:
        partial = out.new_empty(len(rest.of), width)
        launch(rest.begin, rest.end, rest.of if rows is None else rows[rest.of], partial, False)
        add_lists(rest.pieces, rest.long if rows is None else rows[rest.long], partial, out, width, add=True)


def _towards_sources(
    lists: DeviceLists, rows: Tensor | None, coef: Tensor | None, row_scale: Tensor | None, dtype: torch.dtype
) -> tuple[DeviceLists, Tensor | None]:
    """The transposed lists, over rows of the result, and what each of their edges counts."""
    back, edge = lists.transposed
    if rows is not None:
        back = back.over(rows[back.indices])
    weight = None if coef is None else coef[edge].to(dtype)
    if row_scale is not None:
        scale = row_scale[back.indices]
        weight = scale if weight is None else weight.mul_(scale)
    return back, weight


def _on(array: IntArray | None, like: Tensor) -> Tensor | None:
    return None if array is None else on_device(array, like.device)


def spmm(lists: InLists, x: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None, own: Tensor | None = None) -> Tensor:
    """See `aggregate_cpu.spmm`."""
    out = x.new_empty(lists.num_dst, x.shape[1])
    kind = _NOTHING if own is None else _ADDED
    add_lists(lists.on(x.device), None, x, out, x.shape[1], coef, row_scale, kind=kind, own=own, own_rows=lists.num_dst)
    return out


def spmm_backward(
    lists: InLists, grad: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None, own: Tensor | None = None
) -> Tensor:
    """See `aggregate_cpu.spmm_backward`."""
    out = grad.new_empty(lists.num_src, grad.shape[1])
    back, weight = _towards_sources(lists.on(grad.device), None, coef, row_scale, grad.dtype)
    kind = _NOTHING if own is None else _ADDED
    add_lists(back, None, grad, out, grad.shape[1], weight, kind=kind, own=own, own_rows=lists.num_dst)
    return out


def spmm_beside(lists: InLists, x: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None) -> Tensor:
    """See `aggregate_cpu.spmm_beside`."""
    out = x.new_empty(lists.num_dst, 2 * x.shape[1])
    add_lists(lists.on(x.device), None, x, out, x.shape[1], coef, row_scale, kind=_BESIDE, own_rows=lists.num_dst)
    return out


def spmm_beside_backward(lists: InLists, grad: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None) -> Tensor:
    """See `aggregate_cpu.spmm_beside_backward`."""
    width = grad.shape[1] // 2
    out = grad.new_empty(lists.num_src, width)
    back, weight = _towards_sources(lists.on(grad.device), None, coef, row_scale, grad.dtype)
    add_lists(back, None, grad, out, width, weight, kind=_FROM_BESIDE, own_rows=lists.num_dst)
    return out


def spmm_into(
    lists: InLists, rows: IntArray | None, x: Tensor, out: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None
) -> None:
    """See `shards_cpu.spmm_into`."""
    assert out.is_contiguous() and out.shape[1] >= x.shape[1]
    add_lists(lists.on(x.device), _on(rows, x), x, out, x.shape[1], coef, row_scale, add=True)


def spmm_from(
    lists: InLists, rows: IntArray | None, grad: Tensor, width: int, coef: Tensor | None = None, row_scale: Tensor | None = None
) -> Tensor:
    """See `aggregate_cpu.spmm_from`."""
    out = grad.new_empty(lists.num_src, width)
    back, weight = _towards_sources(lists.on(grad.device), _on(rows, grad), coef, row_scale, grad.dtype)
    add_lists(back, None, grad, out, width, weight)
    return out


# What an edge's position is: its place in the lists; given for each edge; given for each edge and column.
_PLACE, _GIVEN, _GIVEN_BY_COLUMN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _max_rows(
    begin, end, rows, indices, position, x, out, arg, n, F,
    LIMIT: tl.constexpr, TO_ROWS: tl.constexpr, INTO: tl.constexpr, POSITION: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BF + tl.arange(0, BF)
    inside, columns = i < n, k < F
    both = inside[:, None] & columns[None, :]
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    at = row_of(rows, i, inside) if TO_ROWS else i.to(tl.int64)
    place = at[:, None] * F + k[None, :]
    best, winner = tl.zeros([BR, BF], x.dtype.element_ty), tl.full([BR, BF], -1, tl.int64)
    if INTO:
        best, winner = tl.load(out + place, both, 0), tl.load(arg + place, both, -1).to(tl.int64)
    for j in range(tl.max(stop - start, 0).to(tl.int32)):
        q = start + j
        here = q < stop
        seen = here[:, None] & columns[None, :]
        u = tl.load(indices + q, here, 0).to(tl.int64)
        a = tl.load(x + u[:, None] * F + k[None, :], seen, 0)
        if POSITION == _PLACE:
            p = q[:, None] + tl.zeros_like(winner)
        elif POSITION == _GIVEN:
            p = tl.load(position + q, here, 0).to(tl.int64)[:, None] + tl.zeros_like(winner)
        else:
            p = tl.load(position + u[:, None] * F + k[None, :], seen, 0).to(tl.int64)
        # The first NaN wins over numbers, and of equals the first edge.
        tie = (a == best) | ((a != a) & (best != best))
        better = (winner < 0) | (a > best) | ((a != a) & (best == best)) | (tie & (p < winner))
        best = tl.where(seen & better, a, best)
        winner = tl.where(seen & better, p, winner)
    tl.store(out + place, best, both)
    tl.store(arg + place, winner.to(arg.dtype.element_ty), both)


def _maxima(lists: DeviceLists, rows: Tensor | None, position: Tensor | None, x: Tensor, out: Tensor, arg: Tensor, into: bool) -> None:
    width = x.shape[1]
    rows_per, columns = tile(width)

    def launch(begin: Tensor, end: Tensor, rows: Tensor | None, best: Tensor, winner: Tensor, whole: bool) -> None:
        n, kind = len(begin), 0 if position is None else position.ndim
        if n and width:
            launched: Any = _max_rows[triton.cdiv(n, rows_per), triton.cdiv(width, columns)]
            launched(
                begin, end, rows, lists.indices, position, x, best, winner, n, width, LIMIT=lists.limit, TO_ROWS=whole,
                INTO=into and whole, POSITION=kind, BR=rows_per, BF=columns,
            )  # fmt: skip

    launch(lists.begin, lists.end, rows, out, arg, True)
    if (rest := lists.rest) is not None:
        shape = len(rest.of), width
        best, winner = out.new_empty(shape), arg.new_empty(shape)
        launch(rest.begin, rest.end, None, best, winner, False)
        _maxima(rest.pieces, rest.long if rows is None else rows[rest.long], winner, best, out, arg, True)


def maximum(lists: InLists, x: Tensor) -> tuple[Tensor, Tensor]:
    """See `aggregate_cpu.maximum`."""
    out = x.new_empty(lists.num_dst, x.shape[1])
    arg = torch.empty_like(out, dtype=torch.int32 if lists.num_edges < 2**31 - 1 else torch.int64)
    _maxima(lists.on(x.device), None, None, x, out, arg, False)
    return out, arg


def maximum_into(lists: InLists, rows: IntArray | None, edge: IntArray | None, x: Tensor, out: Tensor, arg: Tensor) -> None:
    """See `shards_cpu.maximum_into`."""
    assert out.is_contiguous() and arg.is_contiguous()
    _maxima(lists.on(x.device), _on(rows, x), _on(edge, x), x, out, arg, True)


@triton.jit
def _max_backward_rows(
    begin, end, dst, edge, position, arg, grad, out, n, F,
    LIMIT: tl.constexpr, UNROLL: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BF + tl.arange(0, BF)
    inside, columns = i < n, k < F
    start = tl.load(begin + i, inside, 0)
    stop = tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)
    total = tl.zeros([BR, BF], grad.dtype.element_ty)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            seen = here[:, None] & columns[None, :]
            v = tl.load(dst + q, here, 0).to(tl.int64)
            p = tl.load(edge + q, here, 0).to(tl.int64)
            if position is not None:
                p = tl.load(position + p, here, 0).to(tl.int64)
            place = v[:, None] * F + k[None, :]
            won = seen & (tl.load(arg + place, seen, -1) == p[:, None])
            # Only the rows that won are read.
            total += tl.load(grad + place, won, 0)
    tl.store(out + i.to(tl.int64)[:, None] * F + k[None, :], total, inside[:, None] & columns[None, :])


def maximum_backward(lists: InLists, arg: Tensor, grad: Tensor) -> Tensor:
    """See `aggregate_cpu.maximum_backward`."""
    return maximum_from(lists, None, None, arg, grad)


def maximum_from(lists: InLists, rows: IntArray | None, edge: IntArray | None, arg: Tensor, grad: Tensor) -> Tensor:
    """See `aggregate_cpu.maximum_from`."""
    out, width = grad.new_empty(lists.num_src, grad.shape[1]), grad.shape[1]
    back, positions = lists.on(grad.device).transposed
    dst = back.indices if rows is None else on_device(rows, grad.device)[back.indices]
    given = _on(edge, grad)
    rows_per, columns = tile(width)

    def launch(begin: Tensor, end: Tensor, result: Tensor) -> None:
        n = len(begin)
        if n and width:
            launched: Any = _max_backward_rows[triton.cdiv(n, rows_per), triton.cdiv(width, columns)]
            launched(
                begin, end, dst, positions, given, arg, grad, result, n, width, LIMIT=back.limit, UNROLL=UNROLL, BR=rows_per, BF=columns
            )

    launch(back.begin, back.end, out)
    if (rest := back.rest) is not None:
        partial = out.new_empty(len(rest.of), width)
        launch(rest.begin, rest.end, partial)
        add_lists(rest.pieces, rest.long, partial, out, width, add=True)
    return out


def add_rows(out: Tensor, ids: IntArray, x: Tensor) -> None:
    """See `shards_cpu.add_rows`."""
    assert out.is_contiguous() and x.is_contiguous() and out.shape[1:] == x.shape[1:] and len(ids) == len(x)
    # The ids are distinct, so the order of additions cannot show.
    out.index_add_(0, on_device(ids, x.device), x)


def take_rows(x: Tensor, ids: IntArray, factor: Tensor | None = None) -> Tensor:
    """See `shards_cpu.take_rows`."""
    assert x.is_contiguous()
    at = on_device(ids, x.device)
    taken = x.index_select(0, at)
    return taken if factor is None else taken.mul_(factor.index_select(0, at).reshape(-1, *[1] * (x.ndim - 1)))
