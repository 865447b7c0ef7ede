"""Drawing in-edges of the rows of a whole bulk on the device: uniform or weighted, with or without replacement, or all.

A program processes a tile of rows and draws: all random numbers of the tile at once, then Floyd's algorithm column by
column, in registers (Bentley, CACM 30(9), 1987). Drawn edges are written to their final place and marked in the
minibatch's table at the same time, so an edge costs its source's cache line, its own 4 or 8 bytes, and one mark. If
every in-edge of a row must be read, a program takes a range of edges, not of rows: hubs cost no more than others.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import to_device
from ...runtime.triton_rng import TILE, draw_word, launch, node_word, programs, row_of
from ..device_graph import DeviceGraph, Weights
from ..device_samples import Rows
from ..exponential_race import FRACTION_BITS, TABLE_BITS, log2_table
from .tables import Tables

BLOCK = TILE
BOUND = 1 << 28
"""Edges up to which memory is allocated for the maximum number; above, the host waits for the actual number."""
_FRACTION_BITS, _CELLS = tl.constexpr(FRACTION_BITS), tl.constexpr(1 << TABLE_BITS)
_REST_BITS, _REST = tl.constexpr(32 - TABLE_BITS), tl.constexpr((1 << (32 - TABLE_BITS)) - 1)
_NEVER = tl.constexpr(0x7FF0_0000_0000_0000)
"""The bits of an infinite float64: bits of other float64 are ordered as the numbers are."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Sampled edges of some rows, row after row, on the device."""

    ends: Tensor
    """int64 [n+1]: the edges of row f are ends[f] to ends[f+1]."""
    sources: Tensor
    """[at least ends[n]], ids."""
    positions: Tensor | None
    """int64, likewise, positions in the graph's edge arrays; if requested."""


def cumulated(counts: Tensor) -> Tensor:
    """int64 [n+1]: sums of all counts before each."""
    out = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=out[1:])
    return out


@triton.jit(do_not_specialize=["num_rows", "fanout"])
def _uniform(
    indptr, sources, nodes, owner, keys, ends, found, edges, positions, num_rows, fanout, stride,
    REPLACE: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    f = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = f < num_rows
    v = tl.load(nodes + f, mask=live, other=0).to(tl.int64)
    q = tl.load(owner + f, mask=live, other=0).to(tl.int64)
    start = tl.load(indptr + v, mask=live, other=0)
    degree = (tl.load(indptr + v + 1, mask=live, other=0) - start)[:, None]
    word = node_word(tl.load(keys + q, mask=live, other=0), v)
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    bits = draw_word(word[:, None], column) >> 32
    if REPLACE:
        kept = tl.where(degree > 0, fanout, 0)
        pick = (bits * degree.to(tl.uint64)) >> 32
    else:
        kept = tl.minimum(degree, fanout)
        last = (degree - fanout + column).to(tl.int32)
        pick = ((bits * (last + 1).to(tl.uint64)) >> 32).to(tl.int32)
        # Column 0 repeats nothing. A row without more edges than draws takes all, in order.
        for i in range(1, fanout):
            mine = tl.sum(tl.where(column == i, pick, 0), axis=1)[:, None]
            repeated = tl.max(((column < i) & (pick == mine)).to(tl.int32), axis=1)[:, None]
            pick = tl.where((column == i) & (repeated > 0), last, pick)
        pick = tl.where(degree <= fanout, column, pick)
    some = live[:, None] & (column < kept)
    at = start[:, None] + pick.to(tl.int64)
    u = tl.load(sources + at, mask=some, other=0)
    e = tl.load(ends + f, mask=live, other=0)[:, None] + column
    tl.store(edges + e, u, mask=some)
    if KEEP:
        tl.store(positions + e, at, mask=some)
    # Several programs may write here at once, all the same value.
    tl.store(found + q[:, None] * stride + u.to(tl.int64), 1, mask=some)


@triton.jit(do_not_specialize=["num_rows", "fanout", "steps"])
def _in_proportion(
    indptr, sources, sums, nodes, owner, keys, ends, found, edges, positions, num_rows, fanout, stride, steps,
    KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    f = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = f < num_rows
    v = tl.load(nodes + f, mask=live, other=0).to(tl.int64)
    q = tl.load(owner + f, mask=live, other=0).to(tl.int64)
    start = tl.load(indptr + v, mask=live, other=0)
    stop = tl.load(indptr + v + 1, mask=live, other=0)
    base = tl.load(sums + start, mask=live, other=0)
    total = tl.load(sums + stop, mask=live, other=0) - base
    word = node_word(tl.load(keys + q, mask=live, other=0), v)
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    some = live[:, None] & (column < fanout) & (total > 0)[:, None]
    bound = tl.where(total > 0, total, 1).to(tl.uint64)[:, None]
    dart = (draw_word(word[:, None], column) % bound).to(tl.int64) + base[:, None]
    # The first edge of the row whose sum is above the dart.
    low, high = dart * 0 + start[:, None], dart * 0 + stop[:, None] - 1
    for _ in range(steps):
        middle = (low + high) >> 1
        open_ = some & (low < high)
        above = tl.load(sums + middle + 1, mask=open_, other=0) > dart
        high = tl.where(open_ & above, middle, high)
        low = tl.where(open_ & (above == 0), middle + 1, low)
    u = tl.load(sources + low, mask=some, other=0)
    e = tl.load(ends + f, mask=live, other=0)[:, None] + column
    tl.store(edges + e, u, mask=some)
    if KEEP:
        tl.store(positions + e, low, mask=some)
    tl.store(found + q[:, None] * stride + u.to(tl.int64), 1, mask=some)


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps"])
def _take(
    indptr, sources, nodes, owner, ends, order, all_ends, found, edges, positions, num_rows, num_edges, stride, steps,
    ORDERED: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """First edges of each row, or with ORDERED the first of `order`, which lists all rows' edges; `ends` gives their
    number."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    at = e - tl.load(ends + f, mask=some, other=0)
    if ORDERED:
        base = tl.load(all_ends + f, mask=some, other=0)
        at = tl.load(order + base + at, mask=some, other=0) - base
    at += tl.load(indptr + tl.load(nodes + f, mask=some, other=0).to(tl.int64), mask=some, other=0)
    u = tl.load(sources + at, mask=some, other=0)
    tl.store(edges + e, u, mask=some)
    if KEEP:
        tl.store(positions + e, at, mask=some)
    tl.store(found + tl.load(owner + f, mask=some, other=0).to(tl.int64) * stride + u.to(tl.int64), 1, mask=some)


@triton.jit
def exponential(bits, table):
    """See `exponential_race.exponentials`; int64."""
    x = bits.to(tl.int64) + 1
    # A float64 holds x exactly, and its exponent is the highest bit.
    top = (x.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
    mantissa = (x << (32 - top)) - 0x100000000
    cell, rest = mantissa >> _REST_BITS, mantissa & _REST
    below = tl.load(table + cell)
    after = tl.load(table + tl.minimum(cell + 1, _CELLS))
    return ((32 - top) << _FRACTION_BITS) - (below + (((after - below) * rest) >> _REST_BITS))


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps"])
def _race(
    indptr, weight, nodes, owner, keys, ends, table, finish, row, num_rows, num_edges, steps, BLOCK: tl.constexpr
):
    """Finishing time of each in-edge of each row, as the bits of a float64; and its row."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    i = e - tl.load(ends + f, mask=some, other=0)
    v = tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    w = tl.load(weight + tl.load(indptr + v, mask=some, other=0) + i, mask=some, other=0)
    key = tl.load(keys + tl.load(owner + f, mask=some, other=0), mask=some, other=0)
    time = exponential(draw_word(node_word(key, v), i) >> 32, table)
    done = time.to(tl.float64) / tl.where(w > 0, w, 1).to(tl.float64)
    tl.store(finish + e, tl.where(w > 0, done.to(tl.int64, bitcast=True), _NEVER), mask=some)
    tl.store(row + e, f, mask=some)


def ranked(keys: Tensor, row: Tensor) -> Tensor:
    """int64 [e]: elements by row, each row's by ascending key; ties go to the earlier."""
    order = torch.sort(keys, stable=True).indices
    return order[torch.sort(row[order], stable=True).indices]


def total(ends: Tensor) -> int:
    """Number of edges. The host waits for it, since it must allocate memory for them."""
    return int(ends[-1].item())


def degrees(graph: DeviceGraph, rows: Rows) -> Tensor:
    """int64 [n]."""
    start = graph.indptr.index_select(0, rows.nodes)
    return graph.indptr[1:].index_select(0, rows.nodes) - start


def draw(
    graph: DeviceGraph,
    rows: Rows,
    keys: Tensor,
    fanout: int,
    tables: Tables,
    *,
    replace: bool,
    weights: Weights | None,
    keep: bool,
) -> Drawn:
    """Draw up to `fanout` in-edges of each row and mark their sources in `tables`.

    Args:
        graph: in-neighbour lists.
        rows: n of them.
        keys: int64 [k], the bits of the stream of each minibatch.
        fanout: -1 takes every in-edge.
        tables: of the bulk.
        replace: draw independently.
        weights: draw in proportion to these, or None.
        keep: also return positions.

    The host waits only if `total` is called: for all in-edges, for races, and for more than BOUND edges.
    """
    n, degree = len(rows.nodes), degrees(graph, rows)
    s = fanout if replace else min(fanout, graph.max_degree)
    if fanout < 0:
        kept = degree
    elif weights is None:
        kept = torch.where(degree > 0, s, 0) if replace else degree.clamp(max=s)
    else:
        # Differences of all prefix sums, so that no row needs to be read.
        sums = weights.sums if replace else weights.positive
        some = sums[graph.indptr[1:].index_select(0, rows.nodes)] - sums[graph.indptr.index_select(0, rows.nodes)]
        kept = torch.where(some > 0, s, 0) if replace else some.clamp(max=s)
    ends = cumulated(kept)
    all_, racing = fanout < 0, weights is not None and not replace
    room = total(ends) if all_ or racing or n * s > BOUND else n * s
    edges = torch.empty(max(room, 1), dtype=graph.indices.dtype, device=graph.device)
    positions = torch.empty(max(room, 1), dtype=torch.int64, device=graph.device) if keep else None
    if not n or not room:
        return Drawn(ends, edges, positions)
    steps = n.bit_length()
    known = (graph.indptr, graph.indices)
    if all_ or racing:
        order = all_ends = ends
        if not all_:
            assert weights is not None
            all_ends = cumulated(degree)
            order = _finishers(graph, rows, keys, weights, all_ends)
        launch(_take, programs(room, BLOCK))(
            *known, rows.nodes, rows.owner, ends, order, all_ends, tables.found, edges,
            edges if positions is None else positions,
            n, room, tables.stride, steps, ORDERED=not all_, KEEP=keep, BLOCK=BLOCK,
        )  # fmt: skip
        return Drawn(ends, edges, positions)
    # Draws with replacement are independent: they may be in several programs.
    width = 1 << ((min(s, 128) if replace else s) - 1).bit_length()
    tile = max(1, TILE // width)
    warps = min(32, max(4, width * tile // 256))
    target = (ends, tables.found, edges, edges if positions is None else positions)
    grid = (programs(n, tile), programs(s, width))
    if weights is None:
        launch(_uniform, *grid)(
            *known, rows.nodes, rows.owner, keys, *target, n, s, tables.stride,
            REPLACE=replace, KEEP=keep, ROWS=tile, WIDTH=width, num_warps=warps,
        )  # fmt: skip
    else:
        launch(_in_proportion, *grid)(
            *known, weights.sums, rows.nodes, rows.owner, keys, *target, n, s, tables.stride,
            graph.max_degree.bit_length(),
            KEEP=keep, ROWS=tile, WIDTH=width, num_warps=warps,
        )  # fmt: skip
    return Drawn(ends, edges, positions)


def _finishers(graph: DeviceGraph, rows: Rows, keys: Tensor, weights: Weights, all_ends: Tensor) -> Tensor:
    """int64 [all in-edges of the rows]: by row, in the order of their finishing times."""
    n, count = len(rows.nodes), total(all_ends)
    finish = torch.empty(count, dtype=torch.int64, device=graph.device)
    row = torch.empty(count, dtype=torch.int32, device=graph.device)
    table = to_device(log2_table(), graph.device)
    launch(_race, programs(count, BLOCK))(
        graph.indptr,
        weights.weight,
        rows.nodes,
        rows.owner,
        keys,
        all_ends,
        table,
        finish,
        row,
        n,
        count,
        n.bit_length(),
        BLOCK=BLOCK,
    )
    return ranked(finish, row)
