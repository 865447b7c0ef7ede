"""Sums over in-neighbour lists in a device's memory: adds up the pieces of all other kernels too. See
`cuda.backend`."""

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ....memory.lazy_rows import device_base_and_ids
from ...runtime.triton_rng import aligned, launch
from ..lists import DeviceLists, Rest

UNROLL, SUMMED = 4, 2
"""Edges of each row that are read at a time, at most, and where rows are summed: many lists have one or two."""
TILE = 512
"""Numbers of a tile: 16 bytes for each of 128 threads, in float32."""
COLUMNS = 256
"""Columns of a tile at most, where a row may be divided."""
HELD, NARROW = 1024, 128
"""Numbers of a row, with its heads, in one warp of attention at most; numbers below which it takes several rows."""
# Additions to a row of the result beside its neighbours: see `cpu.backend`.
NOTHING, ADDED, BESIDE, FROM_BESIDE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


def tile(width: int, most: int = COLUMNS) -> tuple[int, int]:
    """Rows and columns of a program's tile, powers of two."""
    columns = min(1 << (width - 1).bit_length(), most)
    return max(TILE // columns, 1), columns


def head_tile(heads: int, width: int, most: int | None = None) -> dict[str, int]:
    """Tile of a program of attention: rows x heads x columns, powers of two, and its warps.

    A row belongs to one warp where it fits, with all its heads: sums along it need no barrier, and neither its list nor
    its coefficients are read twice. A program of one row waits for no longer list than its own.

    Args:
        heads: H.
        width: D.
        most: columns at most; all columns when absent.
    """
    columns = 1 << (max(width, 1) - 1).bit_length()
    columns = columns if most is None else min(columns, most)
    together = min(1 << (max(heads, 1) - 1).bit_length(), max(HELD // columns, 1))
    rows = max(NARROW // (columns * together), 1)
    return {"BR": rows, "BH": together, "BD": columns, "num_warps": min(max(columns * together // HELD, 1), 8)}


def unrolled(shape: dict[str, int], numbers: int) -> int:
    """Edges of each row that a program of this tile reads at a time: fewer of wide rows, which take the registers."""
    return min(max(numbers // (shape["BR"] * shape["BH"] * shape["BD"]), 1), UNROLL)


@triton.jit
def row_of(rows, i, inside):
    """Row of the result that list i belongs to: ``rows[i]``, or i; int64."""
    v = i.to(tl.int64)
    if rows is not None:
        v = tl.load(rows + i, inside, 0).to(tl.int64)
    return v


@triton.jit
def edges_of(begin, end, i, inside, LIMIT: tl.constexpr):
    """First edge of list i, and the end of its edges, LIMIT at most."""
    start = tl.load(begin + i, inside, 0)
    return start, tl.minimum(tl.load(end + i, inside, 0), start + LIMIT)


@triton.jit(do_not_specialize=["n", "own_rows"])
def _sum_rows(
    begin, end, rows, indices, coef, x, ids, scale, source_scale, own, out, n, units, x_units, out_units, own_rows,
    UNIT: tl.constexpr, LIMIT: tl.constexpr, TO_ROWS: tl.constexpr, ADD: tl.constexpr, KIND: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    F, x_stride, out_stride = units * UNIT, x_units * UNIT, out_units * UNIT
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BF + tl.arange(0, BF)
    inside, columns = i < n, k < F
    both = inside[:, None] & columns[None, :]
    start, stop = edges_of(begin, end, i, inside, LIMIT)
    v = row_of(rows, i, inside)
    if rows is not None:
        # Lists without a row.
        inside = inside & (v >= 0)
        both = inside[:, None] & columns[None, :]
    total = tl.zeros([BR, BF], x.dtype.element_ty)
    if scale is not None:
        s = tl.load(scale + v, inside, 0)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            if source_scale is not None:
                factor = tl.load(source_scale + u, here, 0)
            if ids is not None:
                u = tl.load(ids + u, here, 0).to(tl.int64)
            a = tl.load(x + u[:, None] * x_stride + k[None, :], here[:, None] & columns[None, :], 0)
            # Without an edge, `a` is 0 and its factor may be any finite number.
            if coef is not None:
                a *= tl.load(coef + q, here, 0).to(total.dtype)[:, None]
            if source_scale is not None:
                # pyrefly: ignore[unbound-name]
                a *= factor[:, None]
            if scale is not None:
                # pyrefly: ignore[unbound-name]
                a = tl.where(here[:, None], a * s[:, None], 0)
            total += a
    at = v if TO_ROWS else i.to(tl.int64)
    place = out + at[:, None] * out_stride + k[None, :]
    if ADD:
        total += tl.load(place, both, 0)
    mine = both & (i < own_rows)[:, None]
    if KIND != NOTHING:
        itself = i.to(tl.int64)
        if ids is not None:
            itself = tl.load(ids + i, i < own_rows, 0).to(tl.int64)
        row = x + itself[:, None] * x_stride + k[None, :]
        if KIND == ADDED:
            total += tl.where(mine, tl.load(own + i, i < own_rows, 0)[:, None] * tl.load(row, mine, 0), 0)
        if KIND == BESIDE:
            tl.store(place + F, tl.load(row, mine, 0), mine)
        if KIND == FROM_BESIDE:
            total += tl.load(row + F, mine, 0)
    tl.store(place, total, both)


class Scales(NamedTuple):
    """Factors of the rows that are summed, and what is added to the first rows of the result."""

    coef: Tensor | None = None
    """[e]."""
    row_scale: Tensor | None = None
    """[N] of x's dtype."""
    source_scale: Tensor | None = None
    """[S] of x's dtype, beside `coef`: ``source_scale[indices[e]]``."""
    kind: tl.constexpr = NOTHING
    """Addition to the first `own_rows` rows."""
    own: Tensor | None = None
    """[own_rows] of x's dtype, if `kind` needs it."""
    own_rows: int = 0


PLAIN = Scales()


def add_lists(
    lists: DeviceLists, rows: Tensor | None, x: Tensor, out: Tensor, by: Scales = PLAIN, add: bool = False
) -> None:
    """``out[rows[i], :width] (+)= row_scale[rows[i]] * sum over edges e of list i of coef[e] * x[indices[e], :width]``;
    `width` is the columns of x or of out, whichever has fewer.

    Args:
        lists: n lists over S rows.
        rows: [n], distinct, or -1, whose lists are skipped; list i belongs to row i when absent.
        x: [S, >= width], with contiguous rows, or lazy rows (`stages.memory.lazy_rows`), which are read in place.
        out: [N, >= width], with contiguous rows, of x's dtype.
        by: factors and additions.
        add: add to `out`, rather than overwrite it.
    """
    base, ids = device_base_and_ids(x)
    width = min(x.shape[1], out.shape[1])
    rows_per, columns = tile(width)

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        n, unit = begin.shape[0], aligned(width, base.stride(0), result.stride(0))
        launch(_sum_rows, -(-n // rows_per), -(-width // columns))(
            begin, end, rows, lists.indices, by.coef, base, ids, by.row_scale, by.source_scale, by.own, result, n,
            width // unit, base.stride(0) // unit, result.stride(0) // unit, by.own_rows if whole else 0, UNIT=unit,
            LIMIT=lists.limit, TO_ROWS=whole, ADD=add and whole, KIND=by.kind if whole else NOTHING, UNROLL=SUMMED,
            BR=rows_per, BF=columns,
        )  # fmt: skip

    sum_lists(lists, rows, out[:, :width], walk)


Walk = Callable[[Tensor, Tensor, Tensor | None, Tensor, bool], None]
"""Launches a kernel: begin and end of each list, its row or None, where sums are stored, and whether these are rows of
the result, not of pieces."""


def walk_lists(lists: DeviceLists, rows: Tensor | None, out: Tensor, walk: Walk) -> tuple[Rest, Tensor] | None:
    """Results of lists in `out`, [N, ...]: of the begin of each. Returns the pieces of long ones, and their results."""
    if not (lists.num_dst and out.numel()):
        return None
    walk(lists.begin, lists.end, rows, out, True)
    rest = lists.rest
    if rest is None or not len(rest.of):
        return None
    partial = out.new_empty(len(rest.of), *out.shape[1:])
    walk(rest.begin, rest.end, rest.rows_at(rows, rest.of), partial, False)
    return rest, partial


def sum_lists(lists: DeviceLists, rows: Tensor | None, out: Tensor, walk: Walk) -> None:
    """`walk_lists`, whose results of pieces are added."""
    if (found := walk_lists(lists, rows, out, walk)) is not None:
        rest, partial = found
        add_lists(rest.pieces, rest.rows_at(rows, rest.long), partial.flatten(1), out.view(len(out), -1), add=True)
