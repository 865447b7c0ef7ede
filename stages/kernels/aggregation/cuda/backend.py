"""Aggregation over in-neighbour lists in a device's memory: Triton kernels, no atomics, the same bits from run to run.

Same names, arguments and results as `cpu.backend`; tensors lie on one CUDA device, or on the CPU under Triton's
interpreter, which must be on (``TRITON_INTERPRET=1``) before this module is imported. Lists, `rows`, `edge` and `ids`
are NumPy arrays on the host; the lists travel to the device once (`InLists.to_device`), the others in every call.

Reading rows of x bounds all of these kernels: e rows of D numbers, against one row written for each list. So

* a program has a tile of rows x columns: neighbouring threads read neighbouring columns of one source row, in whole
  sectors;
* edges are walked a few at a time: their reads do not wait for each other, and hide each other's latency;
* sums live in registers; a row of the result is written once;
* a list of thousands of edges is divided (`lists`), so that no program works long after the others are done;
* gradients gather through the transposed lists, so no two programs ever add to the same number; attention's backward
  pass stores a number for each edge and head on the way (`attention_backward`), freed when it returns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .....storage.optional import moved, taken
from ....memory.lazy_rows import LazyRows, device_base_and_ids
from ...runtime.triton_rng import launch
from ..lists import DeviceLists, InLists, IntArray, WeightedLists, on_device, rows_on
from .attention import attend_into
from .attention_backward import attend_from
from .attention_shared import attend_shared, attend_shared_backward
from .softmax import add_outer, dots, weighted_sum
from .sums import ADDED, BESIDE, FROM_BESIDE, NOTHING, UNROLL, Scales, add_lists, row_of, sum_lists, tile, walk_lists

__all__ = [
    "add_outer", "add_rows", "attend_from", "attend_into", "attend_shared", "attend_shared_backward", "dots", "maximum",
    "maximum_from", "maximum_into", "spmm", "spmm_backward", "spmm_from",
    "spmm_into", "take_rows", "weighted_sum",
]  # fmt: skip


def _sum(of: WeightedLists, x: Tensor, columns: int, kind: tl.constexpr, own: Tensor | None = None) -> Tensor:
    lists, out = of.lists, torch.empty(of.lists.num_dst, columns, dtype=x.dtype, device=x.device)
    by = Scales(of.coef, of.row_scale, None, kind, own, lists.num_dst)
    add_lists(lists.to_device(x.device), None, x, out, by)
    return out


def _gradient(of: WeightedLists, grad: Tensor, width: int, kind: tl.constexpr, own: Tensor | None = None) -> Tensor:
    """Sums along the transposed lists, over rows of the result."""
    lists, rows = of.lists, rows_on(of.rows, grad.device)
    back, edge = lists.to_device(grad.device).transposed
    weight, out = moved(taken(of.coef, edge), grad.dtype), grad.new_empty(lists.num_src, width)
    add_lists(back.over_rows(rows), None, grad, out, Scales(weight, None, of.row_scale, kind, own, lists.num_dst))
    return out


def spmm(of: WeightedLists, x: Tensor, own: Tensor | None = None) -> Tensor:
    kind = BESIDE if of.beside else NOTHING if own is None else ADDED
    return _sum(of, x, x.shape[1] << of.beside, kind, own)


def spmm_backward(of: WeightedLists, grad: Tensor, own: Tensor | None = None) -> Tensor:
    kind = FROM_BESIDE if of.beside else NOTHING if own is None else ADDED
    return _gradient(of, grad, grad.shape[1] >> of.beside, kind, own)


def spmm_into(of: WeightedLists, x: Tensor, out: Tensor) -> None:
    assert out.is_contiguous() and out.shape[1] >= x.shape[1]
    by = Scales(of.coef, of.row_scale)
    add_lists(of.lists.to_device(x.device), rows_on(of.rows, x.device), x, out, by, add=True)


def spmm_from(of: WeightedLists, grad: Tensor, width: int) -> Tensor:
    return _gradient(of, grad, width, NOTHING)


# Position of an edge: its place in the lists; given for each edge; given for each edge and column.
_PLACE, _GIVEN, _GIVEN_BY_COLUMN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit(do_not_specialize=["n"])
def _max_rows(
    begin, end, rows, indices, position, x, out, arg, n, F,
    LIMIT: tl.constexpr, TO_ROWS: tl.constexpr, INTO: tl.constexpr, POSITION: tl.constexpr, BR: tl.constexpr,
    BF: tl.constexpr,
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


def _maxima(
    lists: DeviceLists, rows: Tensor | None, position: Tensor | None, x: Tensor, out: Tensor, arg: Tensor, into: bool
) -> None:
    width = x.shape[1]
    rows_per, columns = tile(width)

    winners, kind = [], 0 if position is None else position.ndim

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, best: Tensor, whole: bool) -> None:
        winners.append(arg if whole else arg.new_empty(best.shape))
        launch(_max_rows, -(-len(begin) // rows_per), -(-width // columns))(
            begin, end, rows if whole else None, lists.indices, position, x, best, winners[-1], len(begin), width,
            LIMIT=lists.limit, TO_ROWS=whole, INTO=into and whole, POSITION=kind, BR=rows_per, BF=columns,
        )  # fmt: skip

    if (found := walk_lists(lists, rows, out, walk)) is not None:
        rest, best = found
        _maxima(rest.pieces, rest.rows_at(rows, rest.long), winners[-1], best, out, arg, True)


def maximum(lists: InLists, x: Tensor) -> tuple[Tensor, Tensor]:
    x, _ = device_base_and_ids(x if not isinstance(x, LazyRows) else x.gathered())
    out = x.new_empty(lists.num_dst, x.shape[1])
    arg = torch.empty_like(out, dtype=torch.int32 if lists.num_edges < 2**31 - 1 else torch.int64)
    _maxima(lists.to_device(x.device), None, None, x, out, arg, False)
    return out, arg


def maximum_into(of: WeightedLists, x: Tensor, out: Tensor, arg: Tensor) -> None:
    assert out.is_contiguous() and arg.is_contiguous()
    _maxima(of.lists.to_device(x.device), rows_on(of.rows, x.device), rows_on(of.edge, x.device), x, out, arg, True)


@triton.jit(do_not_specialize=["n"])
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


def maximum_from(of: WeightedLists, arg: Tensor, grad: Tensor) -> Tensor:
    out, width = grad.new_empty(of.lists.num_src, grad.shape[1]), grad.shape[1]
    back, positions = of.lists.to_device(grad.device).transposed
    dst = back.over_rows(rows_on(of.rows, grad.device)).indices
    given = rows_on(of.edge, grad.device)
    rows_per, columns = tile(width)
    shape = {"LIMIT": back.limit, "UNROLL": UNROLL, "BR": rows_per, "BF": columns}

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        n = len(begin)
        grid = -(-n // rows_per), -(-width // columns)
        launch(_max_backward_rows, *grid)(begin, end, dst, positions, given, arg, grad, result, n, width, **shape)

    sum_lists(back, None, out, walk)
    return out


def add_rows(out: Tensor, ids: IntArray | Tensor, x: Tensor) -> None:
    """See `cpu.shards.add_rows`; `ids` may lie on the device."""
    assert out.is_contiguous() and x.is_contiguous() and out.shape[1:] == x.shape[1:] and len(ids) == len(x)
    # The ids are distinct, so the order of additions does not matter.
    out.index_add_(0, _index_on_device(ids, x.device), x)


def take_rows(x: Tensor, ids: IntArray | Tensor, factor: Tensor | None = None) -> Tensor:
    """See `cpu.shards.take_rows`; `ids` may lie on the device."""
    assert x.is_contiguous()
    at = _index_on_device(ids, x.device)
    taken = x.index_select(0, at)
    return taken if factor is None else taken.mul_(factor.index_select(0, at).reshape(-1, *[1] * (x.ndim - 1)))


def _index_on_device(ids: IntArray | Tensor, device: torch.device) -> Tensor:
    return ids if isinstance(ids, Tensor) else on_device(ids, device)
