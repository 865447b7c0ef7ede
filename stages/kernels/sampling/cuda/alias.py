"""Weighted draws from alias tables on the device; the bits of `oracles.alias`.

Each draw reads one slot of 8 bytes. A program draws for a tile of rows, one draw of each row after the other, and
compares it with the row's earlier ones in registers. Rows that repeat too much, and rows of few positive weights among
zeros, are few: only they read all their edges, which torch sorts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import to_device
from ...runtime.triton_rng import TILE, draw_word, elements, launch, node_word, programs, tile_of_rows
from ..alias import RACE, SLOT_BITS, tries
from ..device_graph import DeviceGraph, Slots
from ..device_samples import Lists, Rows, cumulated
from ..exponential_race import FRACTION_BITS, TABLE_BITS, log2_table

BLOCK = TILE
FULL = 1 << SLOT_BITS
_FRACTION_BITS, _CELLS = tl.constexpr(FRACTION_BITS), tl.constexpr(1 << TABLE_BITS)
_REST_BITS, _REST = tl.constexpr(32 - TABLE_BITS), tl.constexpr((1 << (32 - TABLE_BITS)) - 1)
NEVER = 0x7FF0_0000_0000_0000
"""The bits of an infinite float64: bits of other positive float64 are ordered as the numbers are."""
_NEVER = tl.constexpr(NEVER)
_RACE = tl.constexpr(RACE)
_LOW = tl.constexpr(FULL - 1)


@triton.jit
def pick(slots, start, degree, word, i, some):
    """The i-th draw of a row: a position in it, int64."""
    bits, d = draw_word(word, i), degree.to(tl.uint64)
    t = (bits >> 32) * d + (((bits & _LOW) * d) >> 32)
    number = (t >> 32).to(tl.int64)
    slot = tl.load(slots + start + number, mask=some, other=0)
    return tl.where((t & _LOW).to(tl.int64) < (slot & _LOW), number, slot >> 32)


@triton.jit(do_not_specialize=["num_rows", "fanout"])
def _independent(
    indptr, slots, positive, nodes, owner, keys, ends, places, num_rows, fanout,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    f, live, v, q = tile_of_rows(nodes, owner, num_rows, ROWS)
    start = tl.load(indptr + v, mask=live, other=0)
    degree = tl.load(indptr + v + 1, mask=live, other=0) - start
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    some = (live & (tl.load(positive + v, mask=live, other=0) > 0))[:, None] & (column < fanout)
    word = node_word(tl.load(keys + q, mask=live, other=0), v)
    at = pick(slots, start[:, None], degree[:, None], word[:, None], column, some)
    tl.store(places + tl.load(ends + f, mask=live, other=0)[:, None] + column, at.to(tl.int32), mask=some)


@triton.jit(do_not_specialize=["num_rows", "fanout", "most"])
def _successive(
    indptr, slots, positive, nodes, owner, keys, ends, places, drawn, num_rows, fanout, most,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Distinct draws of each row, at most `most` of them with repeats, and their number."""
    f, live, v, q = tile_of_rows(nodes, owner, num_rows, ROWS)
    start = tl.load(indptr + v, mask=live, other=0)
    degree = tl.load(indptr + v + 1, mask=live, other=0) - start
    count = tl.load(positive + v, mask=live, other=0)
    word = node_word(tl.load(keys + q, mask=live, other=0), v)
    column = tl.arange(0, WIDTH)[None, :]
    # A row of positive weights that has no more edges than draws takes all, in order.
    whole = (count == degree) & (count <= fanout)
    found = tl.where(whole, count, 0)
    picks = tl.where(whole[:, None], column, -1)
    open_ = live & (count > fanout)
    i = 0
    while (i < most) & (tl.max(open_.to(tl.int32), axis=0) > 0):
        at = pick(slots, start, degree, word, tl.zeros([ROWS], tl.int32) + i, open_).to(tl.int32)
        repeated = tl.max((picks == at[:, None]).to(tl.int32), axis=1) > 0
        new = open_ & (repeated == 0)
        picks = tl.where(new[:, None] & (column == found[:, None]), at[:, None], picks)
        found += new.to(tl.int32)
        open_ = open_ & (found < fanout)
        i += 1
    tl.store(drawn + f, found, mask=live)
    e = tl.load(ends + f, mask=live, other=0)[:, None] + column
    tl.store(places + e, picks, mask=live[:, None] & (column < found[:, None]))


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


@triton.jit(do_not_specialize=["num_edges"])
def _finish_times(
    begin, sources, nodes, owner, keys, edge_row, edge_place, weight, table, finish, num_edges,
    SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finishing time of each edge, at `edge_place` in the list `edge_row`, as the bits of a float64. With SHARED it
    depends on the edge's source, whatever the row, otherwise on the row and the place."""
    e, some = elements(num_edges, BLOCK)
    f, place = tl.load(edge_row + e, mask=some, other=0), tl.load(edge_place + e, mask=some, other=0)
    at = tl.load(begin + f, mask=some, other=0) + place
    key = tl.load(keys + tl.load(owner + f, mask=some, other=0), mask=some, other=0)
    w = tl.load(weight + at, mask=some, other=0)
    if SHARED:
        word = node_word(key, tl.load(sources + at, mask=some, other=0))
    else:
        word = draw_word(node_word(key, tl.load(nodes + f, mask=some, other=0).to(tl.int64)), place + _RACE)
    done = exponential(word >> 32, table).to(tl.float64) / tl.where(w > 0, w, 1).to(tl.float64)
    tl.store(finish + e, tl.where(w > 0, done.to(tl.int64, bitcast=True), _NEVER), mask=some)


def finish_times(
    sources: Tensor, lists: Lists, keys: Tensor, weight: Tensor, *, shared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Race of all edges of some lists: int64 [e] each, the list of an edge, its place there, and its finishing time as
    the bits of a float64, NEVER without a positive weight. The host waits.

    Args:
        sources: [E].
        lists: n of them.
        keys: int64 [k], the bits of the stream of each minibatch.
        weight: [E].
        shared: edges of one source have the same number in all lists.
    """
    row, at = spread(lists.degree)
    finish, log, rows = torch.empty_like(at), to_device(log2_table(), at.device), lists.rows
    launch(_finish_times, programs(len(row), BLOCK))(
        lists.begin, sources, rows.nodes, rows.owner, keys, row, at, weight, log, finish, len(row),
        SHARED=shared, BLOCK=BLOCK,
    )  # fmt: skip
    return row, at, finish


def ranked(keys: Tensor, row: Tensor) -> Tensor:
    """int64 [e]: elements by row, each row's by ascending key; ties go to the earlier."""
    order = torch.sort(keys, stable=True).indices
    return order[torch.sort(row[order], stable=True).indices]


def draw_positions(
    graph: DeviceGraph, rows: Rows, keys: Tensor, fanout: int, table: Slots, kept: Tensor, ends: Tensor, room: int,
    *, replace: bool,
) -> Tensor:  # fmt: skip
    """int32 [at least `room`]: positions in their rows of the edges drawn for n rows, n > 0. The host waits unless
    `replace`.

    Args:
        graph: in-neighbour lists.
        rows: n of them.
        keys: int64 [k], the bits of the stream of each minibatch.
        fanout: edges of a row at most.
        table: alias tables.
        kept: int64 [n], edges of each row.
        ends: int64 [n + 1], where the edges of each row end.
        room: at least their number.
        replace: draw independently.
    """
    n = len(rows.nodes)
    places = torch.empty(room, dtype=torch.int32, device=graph.device)
    known = (graph.indptr, table.slots, table.positive, rows.nodes, rows.owner, keys, ends, places)
    # Draws with replacement are independent: they may be in several programs.
    width = 1 << ((min(fanout, 128) if replace else fanout) - 1).bit_length()
    tile = max(1, TILE // width)
    if replace:
        launch(_independent, programs(n, tile), programs(fanout, width))(*known, n, fanout, ROWS=tile, WIDTH=width)
        return places
    found = torch.empty(n, dtype=torch.int32, device=graph.device)
    launch(_successive, programs(n, tile))(*known, found, n, fanout, tries(fanout), ROWS=tile, WIDTH=width)
    lacking = (found < kept).nonzero().flatten()
    if len(lacking):
        _draw_rest(graph, rows, keys, fanout, table, kept, ends, places, found, lacking)
    return places


def _draw_rest(
    graph: DeviceGraph, rows: Rows, keys: Tensor, fanout: int, table: Slots, kept: Tensor, ends: Tensor,
    places: Tensor, found: Tensor, lacking: Tensor,
) -> None:  # fmt: skip
    """Write all `places` of the rows `lacking`, of which the first `found` are there."""
    kept, found = kept[lacking], found[lacking].long()
    lists = graph.lists(Rows(rows.nodes[lacking], rows.owner[lacking]))
    row, at, finish = finish_times(graph.indices, lists, keys, table.weight, shared=False)
    # Rows that take all edges of positive weight have them in order.
    everything = (table.positive.index_select(0, lists.rows.nodes) <= fanout)[row]
    finish = torch.where(everything & (finish != NEVER), at, finish)
    first = cumulated(lists.degree)
    # What is drawn already comes first, in its order.
    drawn, i = spread(found)
    finish[first[drawn] + places[ends[lacking][drawn] + i]] = i - (1 << 40)
    order = ranked(finish, row)
    target, i = spread(kept)
    places[ends[lacking][target] + i] = (order[first[target] + i] - first[target]).int()


def spread(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Group of each element, and its number in it, of groups of `counts` [n] elements. The host waits."""
    group = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return group, torch.arange(len(group), device=counts.device) - (counts.cumsum(0) - counts)[group]
