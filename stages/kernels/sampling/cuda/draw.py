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

from ...runtime.triton_rng import TILE, draw_word, launch, node_word, programs, row_of, tile_of_rows
from ..device_graph import DeviceGraph, Slots
from ..device_samples import Rows
from .alias import draw_positions
from .tables import Tables

BLOCK = TILE
BOUND = 1 << 28
"""Edges up to which memory is allocated for the maximum number; above, the host waits for the actual number."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Sampled edges of some rows, row after row, on the device."""

    ends: Tensor
    """int64 [n+1]: the edges of row f are ends[f] to ends[f+1]."""
    sources: Tensor
    """[at least ends[n]], ids."""
    positions: Tensor | None
    """int64, likewise, positions in the graph's edge arrays; if requested."""

    @classmethod
    def with_room(cls, graph: DeviceGraph, ends: Tensor, room: int, keep: bool = True) -> "Drawn":
        """Memory for `room` edges that are to be drawn, with positions if `keep`."""
        sources = torch.empty(max(room, 1), dtype=graph.indices.dtype, device=graph.device)
        return cls(ends, sources, torch.empty_like(sources, dtype=torch.int64) if keep else None)


def cumulated(counts: Tensor) -> Tensor:
    """int64 [n+1]: sums of all counts before each."""
    out = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=out[1:])
    return out


def tiles(n: int, s: int, replace: bool) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs that take s draws of n rows, and the tile of each. Draws with replacement are independent: several
    programs may take those of a row."""
    width = 1 << ((min(s, 128) if replace else s) - 1).bit_length()
    rows = max(1, TILE // width)
    shape = {"ROWS": rows, "WIDTH": width, "num_warps": min(32, max(4, width * rows // 256))}
    return (programs(n, rows), programs(s, width)), shape


@triton.jit
def picked(word, degree, column, fanout, REPLACE: tl.constexpr):
    """Edges that a list of `degree` keeps, and the places in it of the draws in each column."""
    bits = draw_word(word, column) >> 32
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
    return kept, pick


@triton.jit
def drawn(start, until, keys, ends, f, live, v, q, fanout, REPLACE: tl.constexpr, WIDTH: tl.constexpr):
    """Draws of a tile of rows (`tile_of_rows`) from edges start to until of each: positions, places among all drawn
    edges, and which of them there are; [rows, WIDTH]."""
    degree = (until - start)[:, None]
    word = node_word(tl.load(keys + q, mask=live, other=0), v)
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    kept, pick = picked(word[:, None], degree, column, fanout, REPLACE)
    place = tl.load(ends + f, mask=live, other=0)[:, None] + column
    return start[:, None] + pick.to(tl.int64), place, live[:, None] & (column < kept)


@triton.jit(do_not_specialize=["num_rows", "fanout"])
def _uniform(
    indptr, sources, nodes, owner, keys, ends, found, edges, positions, num_rows, fanout, stride,
    REPLACE: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    f, live, v, q = tile_of_rows(nodes, owner, num_rows, ROWS)
    start, until = tl.load(indptr + v, mask=live, other=0), tl.load(indptr + v + 1, mask=live, other=0)
    at, e, some = drawn(start, until, keys, ends, f, live, v, q, fanout, REPLACE, WIDTH)
    u = tl.load(sources + at, mask=some, other=0)
    tl.store(edges + e, u, mask=some)
    if KEEP:
        tl.store(positions + e, at, mask=some)
    if found is not None:
        # Several programs may write here at once, all the same value.
        tl.store(found + q[:, None] * stride + u.to(tl.int64), 1, mask=some)


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps"])
def _take(
    indptr, sources, nodes, owner, ends, places, found, edges, positions, num_rows, num_edges, stride, steps,
    PLACED: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """First edges of each row, or with PLACED those at `places` in their rows; `ends` gives their number."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # There may be room for more edges than there are.
    some = e < tl.minimum(num_edges, tl.load(ends + num_rows))
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    at = tl.load(places + e, mask=some, other=0).to(tl.int64) if PLACED else e - tl.load(ends + f, mask=some, other=0)
    at += tl.load(indptr + tl.load(nodes + f, mask=some, other=0).to(tl.int64), mask=some, other=0)
    u = tl.load(sources + at, mask=some, other=0)
    tl.store(edges + e, u, mask=some)
    if KEEP:
        tl.store(positions + e, at, mask=some)
    if found is not None:
        tl.store(found + tl.load(owner + f, mask=some, other=0).to(tl.int64) * stride + u.to(tl.int64), 1, mask=some)


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
    tables: Tables | None,
    *,
    replace: bool,
    table: Slots | None,
    keep: bool,
    num_edges: int | None = None,
) -> Drawn:
    """Draw up to `fanout` in-edges of each row and mark their sources in `tables`.

    Args:
        graph: in-neighbour lists.
        rows: n of them.
        keys: int64 [k], the bits of the stream of each minibatch.
        fanout: -1 takes every in-edge.
        tables: of the bulk; None: nothing is marked.
        replace: draw independently.
        table: draw in proportion to the weights that it is made of, or None.
        keep: also return positions.
        num_edges: in-edges of all rows, where all are taken and the host knows their number.

    The host waits for all in-edges, for weighted draws without replacement, and for more than BOUND edges.
    """
    n, degree = len(rows.nodes), degrees(graph, rows)
    s = fanout if replace else min(fanout, graph.max_degree)
    if fanout < 0:
        kept = degree
    else:
        some = degree if table is None else table.positive.index_select(0, rows.nodes).long()
        kept = torch.where(some > 0, s, 0) if replace else some.clamp(max=s)
    ends = cumulated(kept)
    room = num_edges
    if room is None:
        room = total(ends) if fanout < 0 or n * s > BOUND else n * s
    made = Drawn.with_room(graph, ends, room, keep)
    if not n or not room:
        return made
    if fanout >= 0 and table is None:
        grid, shape = tiles(n, s, replace)
        known, (target, stride) = (graph.indptr, graph.indices, rows.nodes, rows.owner), _target(made, tables)
        launch(_uniform, *grid)(*known, keys, ends, *target, n, s, stride, REPLACE=replace, KEEP=keep, **shape)
        return made
    places = None
    if fanout >= 0:
        assert table is not None
        places = draw_positions(graph, rows, keys, s, table, kept, ends, room, replace=replace)
    return _taken(graph, rows, made, places, room, tables)


def edges_at(graph: DeviceGraph, rows: Rows, ends: Tensor, places: Tensor, tables: Tables | None) -> Drawn:
    """The edges at `places` in their rows, int32; the sources are marked in `tables`, unless it is None."""
    return _taken(graph, rows, Drawn.with_room(graph, ends, len(places)), places, len(places), tables)


def _target(made: Drawn, tables: Tables | None) -> tuple[tuple[Tensor | None, Tensor, Tensor], int]:
    """Where kernels mark and write edges, and the stride of the marks."""
    found, stride = (None, 0) if tables is None else (tables.found, tables.stride)
    return (found, made.sources, made.sources if made.positions is None else made.positions), stride


def _taken(
    graph: DeviceGraph, rows: Rows, made: Drawn, places: Tensor | None, room: int, tables: Tables | None
) -> Drawn:
    """`made`, with at most `room` edges: those at `places` in their rows, or all if there are none."""
    n, (target, stride) = len(rows.nodes), _target(made, tables)
    if room:
        launch(_take, programs(room, BLOCK))(
            graph.indptr, graph.indices, rows.nodes, rows.owner, made.ends, made.ends if places is None else places,
            *target, n, room, stride, n.bit_length(), PLACED=places is not None, KEEP=made.positions is not None,
            BLOCK=BLOCK,
        )  # fmt: skip
    return made
