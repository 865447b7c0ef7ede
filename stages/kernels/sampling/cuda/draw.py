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
from ..device_samples import Lists, Rows, cumulated
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


@dataclass(frozen=True)
class Marks:
    """What becomes of the sources of drawn edges."""

    found: Tensor | None = None
    """See `Tables`; None: they are marked nowhere."""
    stride: int = 0
    """Numbers of a minibatch, or tree."""
    keyed: bool = False
    """Sources are written as keys, those of a tree from `stride` times its number on."""

    @classmethod
    def of_tables(cls, tables: Tables | None) -> "Marks":
        """Marks in the tables of a bulk, if there are any."""
        return cls() if tables is None else cls(tables.found, tables.stride)

    def target(self, made: Drawn) -> tuple[Tensor | None, Tensor, Tensor]:
        """Where kernels mark and write edges."""
        return self.found, made.sources, made.sources if made.positions is None else made.positions


def tiles(n: int, s: int, replace: bool) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs that take s draws of n rows, and the tile of each. Draws with replacement are independent: several
    programs may take those of a row."""
    width = 1 << ((min(s, 128) if replace else s) - 1).bit_length()
    rows = max(1, TILE // width)
    shape = {"ROWS": rows, "WIDTH": width, "num_warps": min(32, max(4, width * rows // 256))}
    return (programs(n, rows), programs(s, width)), shape


@triton.jit
def picked(word, degree, column, count, most, REPLACE: tl.constexpr):
    """Places in lists of `degree` edges of the draws in each column, of which a list keeps `count`, `most` at most."""
    bits = draw_word(word, column) >> 32
    if REPLACE:
        pick = ((bits * degree.to(tl.uint64)) >> 32).to(tl.int32)
    else:
        last = (degree - count + column).to(tl.int32)
        pick = ((bits * (last + 1).to(tl.uint64)) >> 32).to(tl.int32)
        # Column 0 repeats nothing. A row without more edges than draws takes all, in order.
        for i in range(1, most):
            mine = tl.sum(tl.where(column == i, pick, 0), axis=1)[:, None]
            repeated = tl.max(((column < i) & (pick == mine)).to(tl.int32), axis=1)[:, None]
            pick = tl.where((column == i) & (repeated > 0), last, pick)
        pick = tl.where(degree <= count, column, pick)
    return pick


@triton.jit
def _put(sources, at, some, e, q, found, edges, positions, stride, KEYED: tl.constexpr, KEEP: tl.constexpr):
    """Write the edges at `at` to places `e`, and mark their sources; KEYED: sources are keys, those of minibatch q from
    `stride` q on."""
    u = tl.load(sources + at, mask=some, other=0)
    tl.store(edges + e, q * stride + u.to(tl.int64) if KEYED else u, mask=some)
    if KEEP:
        tl.store(positions + e, at, mask=some)
    if found is not None:
        # Several programs may write here at once, all the same value.
        tl.store(found + q * stride + u.to(tl.int64), 1, mask=some)


@triton.jit(do_not_specialize=["num_rows", "fanout"])
def _uniform(
    begin, until, sources, nodes, owner, keys, ends, found, edges, positions, num_rows, fanout, stride,
    REPLACE: tl.constexpr, KEYED: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Edges drawn from begin[f] to until[f] for row f."""
    f, live, v, q = tile_of_rows(nodes, owner, num_rows, ROWS)
    start, until = tl.load(begin + f, mask=live, other=0), tl.load(until + f, mask=live, other=0)
    degree = (until - start)[:, None]
    word = node_word(tl.load(keys + q, mask=live, other=0), v)
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    kept = tl.where(degree > 0, fanout, 0) if REPLACE else tl.minimum(degree, fanout)
    pick = picked(word[:, None], degree, column, fanout, fanout, REPLACE)
    e = tl.load(ends + f, mask=live, other=0)[:, None] + column
    some = live[:, None] & (column < kept)
    _put(sources, start[:, None] + pick.to(tl.int64), some, e, q[:, None], found, edges, positions, stride, KEYED, KEEP)


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps"])
def _take(
    begin, sources, owner, ends, places, found, edges, positions, num_rows, num_edges, stride, steps,
    PLACED: tl.constexpr, KEYED: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """First edges of each row, or with PLACED those at `places` in their rows; `ends` gives their number."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # There may be room for more edges than there are.
    some = e < tl.minimum(num_edges, tl.load(ends + num_rows))
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    at = tl.load(places + e, mask=some, other=0).to(tl.int64) if PLACED else e - tl.load(ends + f, mask=some, other=0)
    at += tl.load(begin + f, mask=some, other=0)
    q = tl.load(owner + f, mask=some, other=0).to(tl.int64)
    _put(sources, at, some, e, q, found, edges, positions, stride, KEYED, KEEP)


def total(ends: Tensor) -> int:
    """Number of edges. The host waits for it, since it must allocate memory for them."""
    return int(ends[-1].item())


def kept_of(degree: Tensor, fanout: int, most: int, replace: bool) -> tuple[int, Tensor]:
    """Draws of a list at most, `most` being its edges at most, and int64 [n], edges kept of lists of `degree` edges."""
    if fanout < 0:
        return fanout, degree
    s = fanout if replace else min(fanout, most)
    return s, torch.where(degree > 0, s, 0) if replace else degree.clamp(max=s)


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
    n, lists, marks = len(rows.nodes), graph.lists(rows), Marks.of_tables(tables)
    table = None if fanout < 0 else table
    some = lists.degree if table is None else table.positive.index_select(0, rows.nodes).long()
    s, kept = kept_of(some, fanout, graph.max_degree, replace)
    ends = cumulated(kept)
    room = num_edges
    if room is None:
        room = total(ends) if fanout < 0 or n * s > BOUND else n * s
    made = Drawn.with_room(graph, ends, room, keep)
    if table is None or not n or not room:
        return put(graph.indices, lists, keys, s, made, room, marks, replace=replace)
    places = draw_positions(graph, rows, keys, s, table, kept, ends, room, replace=replace)
    return _taken(graph.indices, lists, made, places, room, marks)


def edges_at(graph: DeviceGraph, rows: Rows, ends: Tensor, places: Tensor, tables: Tables | None) -> Drawn:
    """The edges at `places` in their rows, int32; the sources are marked in `tables`, unless it is None."""
    made = Drawn.with_room(graph, ends, len(places))
    return _taken(graph.indices, graph.lists(rows), made, places, len(places), Marks.of_tables(tables))


def put(
    sources: Tensor, lists: Lists, keys: Tensor, s: int, made: Drawn, room: int, marks: Marks, *, replace: bool
) -> Drawn:
    """`made`, with `s` uniform draws of each list, or all of its edges if it is negative, at most `room` in all."""
    n, keep = len(lists.begin), made.positions is not None
    if s < 0:
        return _taken(sources, lists, made, None, room, marks)
    if n and room:
        grid, shape = tiles(n, s, replace)
        launch(_uniform, *grid)(
            lists.begin, lists.until, sources, lists.rows.nodes, lists.rows.owner, keys, made.ends,
            *marks.target(made), n, s, marks.stride, REPLACE=replace, KEYED=marks.keyed, KEEP=keep, **shape,
        )  # fmt: skip
    return made


def _taken(sources: Tensor, lists: Lists, made: Drawn, places: Tensor | None, room: int, marks: Marks) -> Drawn:
    """`made`, with at most `room` edges: those at `places` in their lists, or all if there are none."""
    n = len(lists.begin)
    if n and room:
        launch(_take, programs(room, BLOCK))(
            lists.begin, sources, lists.rows.owner, made.ends, made.ends if places is None else places,
            *marks.target(made), n, room, marks.stride, n.bit_length(), PLACED=places is not None,
            KEYED=marks.keyed, KEEP=made.positions is not None, BLOCK=BLOCK,
        )  # fmt: skip
    return made
