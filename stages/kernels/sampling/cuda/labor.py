"""LABOR-0 on the device: a warp walks the in-edges of one row after the other; the same bits as `oracles.labor`.

In-edges are hundreds of times as many as kept edges, so nothing is written for each of them, and each is read once. The
number of edges that a row of exact size keeps is known before: min(fanout, degree). Its warp takes the edges whose
words are below a bound for candidates, somewhat more than the row needs, puts them into memory of its own, which stays
in the cache, and finds by bisection the bound that the row's number of words are below. A row with too few candidates
or more than there is room for (one in a thousand, or more if most of a hub's edges are parallel) is bisected in whole:
each step reads it again. Poisson draws decide each edge independently; one pass counts the edges of each row, and
another writes them.

With weights it is a race whose rows share the numbers of their sources: all in-edges of the rows get a time, and torch
sorts them.
"""

from collections.abc import Callable
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .....storage.array_kinds import IdArray
from ...runtime.device_memory import completed
from ...runtime.triton_rng import INTERPRETED, launch, node_word, programs, row_at
from ..device_graph import DeviceGraph
from ..device_samples import DeviceSample, Rows, cumulated
from ..draws import LaborDraws
from .alias import NEVER, finish_times, ranked, spread
from .draw import BOUND, Drawn, draw, edges_at, total
from .neighbor import Seeds, expand
from .renumber import Group
from .tables import Tables

CHUNK = 1 << 11 if INTERPRETED else 1 << 7
"""Edges that a warp reads at once."""
ROWS = 32
"""Rows that a program draws for, one after the other: enough that starting it does not count."""
LONG = 1 << 15
"""In-degree from which a row gets a program of several warps."""
LONG_WARPS = 8
WIDEST = 1 << 12
"""Maximum candidates of a row; where that is too few, rows are bisected in whole."""


def _wanted(s: int) -> int:
    """Mean number of candidates of a row: a Poisson variable of this mean is below s once in a thousand times."""
    return s + ceil(3 * sqrt(s)) + 3


def _width(s: int) -> int:
    """Room for a row's candidates."""
    bound = _wanted(s)
    return min(WIDEST, 1 << (bound + ceil(4 * sqrt(bound))).bit_length())


@triton.jit
def _before(taken, part, CHUNK: tl.constexpr):
    """The number of elements before each that are taken, and of all. The four parts' numbers share one word, so that
    lanes add them up together: its fields hold CHUNK."""
    FIELD: tl.constexpr = 8 if CHUNK < 256 else 16  # pyrefly: ignore[bad-assignment]
    ONES: tl.constexpr = 0x01010101 if CHUNK < 256 else 0x0001000100010001  # pyrefly: ignore[bad-assignment]
    MASK: tl.constexpr = 0xFF if CHUNK < 256 else 0xFFFF  # pyrefly: ignore[bad-assignment]
    if CHUNK < 256:
        one = taken.to(tl.int32)
    else:
        one = taken.to(tl.int64)
    own = tl.sum(one << (FIELD * part), axis=0)
    # Field i has all parts up to i.
    whole = tl.sum(own, axis=0) * ONES
    before = tl.cumsum(own, axis=0) - own + (whole << FIELD)
    return ((before[None, :] >> (FIELD * part)) & MASK).to(tl.int32), ((whole >> (3 * FIELD)) & MASK).to(tl.int32)


@triton.jit
def _put_edges(sources, start, place, kept, out, marks, edges, positions):
    """Write the edges at `place` of the row, in their order from `out` on, and mark their sources."""
    one = kept.to(tl.int32)
    out += tl.cumsum(one, axis=0) - one
    at = start + place
    u = tl.load(sources + at, mask=kept, other=0)
    tl.store(edges + out, u, mask=kept)
    tl.store(positions + out, at, mask=kept)
    # Several programs may write here at once, all the same value.
    tl.store(marks + u.to(tl.int64), 1, mask=kept)


@triton.jit
def _put_smallest(word, place, some, below, high, fanout, sources, start, out, marks, edges, positions):
    """Keep the `fanout` smallest words, of equal ones the first; `below` of them are below `high`, at least
    `fanout`."""
    low, cut = high ^ high, high
    while (below != fanout) & (high - low > 1):
        cut = low + ((high - low) >> 1)
        below = tl.sum((some & (word < cut)).to(tl.int32))
        more = below > fanout
        low, high = tl.where(more, low, cut), tl.where(more, cut, high)
    kept = some & (word < cut)
    if below != fanout:
        # Words that are equal are all that is between the two.
        tie = some & (word == low)
        kept = some & (word < low)
        need = fanout - tl.sum(kept.to(tl.int32))
        kept = kept | (tie & (tl.cumsum(tie.to(tl.int32), axis=0) <= need))
    _put_edges(sources, start, place, kept, out, marks, edges, positions)


@triton.jit
def _put_smallest_of_row(sources, start, degree, key, fanout, out, marks, edges, positions, CHUNK: tl.constexpr):
    """`_put_smallest` of a row whose words are computed anew at each step."""
    high = (degree * 0 - 1).to(tl.int64).to(tl.uint64)
    low, cut, below = high ^ high, high, degree
    lane = tl.arange(0, CHUNK)
    while (below != fanout) & (high - low > 1):
        cut = low + ((high - low) >> 1)
        below = 0
        for j in range(0, degree, CHUNK):
            some = j + lane < degree
            word = node_word(key, tl.load(sources + start + j + lane, mask=some, other=0))
            below += tl.sum((some & (word < cut)).to(tl.int32))
        more = below > fanout
        low, high = tl.where(more, low, cut), tl.where(more, cut, high)
    ties = 0
    if below != fanout:
        cut, below = low, 0
        for j in range(0, degree, CHUNK):
            some = j + lane < degree
            word = node_word(key, tl.load(sources + start + j + lane, mask=some, other=0))
            below += tl.sum((some & (word < cut)).to(tl.int32))
    need = fanout - below
    for j in range(0, degree, CHUNK):
        some = j + lane < degree
        word = node_word(key, tl.load(sources + start + j + lane, mask=some, other=0))
        tie = (some & (word == cut)).to(tl.int32)
        kept = some & ((word < cut) | ((tie > 0) & (ties + tl.cumsum(tie, axis=0) <= need)))
        _put_edges(sources, start, j + lane, kept, out, marks, edges, positions)
        ties += tl.sum(tie)
        out += tl.sum(kept.to(tl.int32))


@triton.jit(do_not_specialize=["num_rows", "fanout", "bound", "least", "most"])
def _keep_smallest(
    indptr, sources, nodes, owner, keys, ends, words, places, found, edges, positions,
    num_rows, fanout, bound, stride, least, most, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Draw for rows of `least` edges and more, fewer than `most`: the edges of the smallest words, of equal ones the
    first."""
    p = tl.program_id(0).to(tl.int64)
    PARTS: tl.constexpr = 4  # pyrefly: ignore[bad-assignment]
    LANES: tl.constexpr = CHUNK // PARTS
    part = tl.arange(0, PARTS)[:, None]
    lane, column = part * LANES + tl.arange(0, LANES)[None, :], tl.arange(0, WIDTH)
    words += p * WIDTH
    places += p * WIDTH
    # Rows side by side go to different programs: hubs often have neighbouring ids.
    for f in range(p, num_rows, tl.num_programs(0)):
        _, start, degree, q = row_at(indptr, nodes, owner, f)
        key = tl.load(keys + q)
        if (degree >= least) & (degree < most):
            out = tl.load(ends + f)
            marks = found + q * stride
            u = tl.load(sources + start + lane, mask=lane < degree, other=0)
            if degree <= fanout:
                for j in range(0, degree, CHUNK):
                    at = start + j + lane
                    some = j + lane < degree
                    u = tl.load(sources + at, mask=some, other=0)
                    tl.store(edges + out + j + lane, u, mask=some)
                    tl.store(positions + out + j + lane, at, mask=some)
                    tl.store(marks + u.to(tl.int64), 1, mask=some)
            else:
                # No result depends on its rounding.
                share = tl.minimum(bound.to(tl.float32) / degree.to(tl.float32) * 4294967296.0, 4294967040.0)
                limit = share.to(tl.int64).to(tl.uint64)
                count = 0
                # The warp's last row has been read before its memory is written again.
                tl.debug_barrier()
                for j in range(0, degree, CHUNK):
                    place = j + lane
                    # The next edges are on their way while these are looked at.
                    ahead = tl.load(sources + start + place + CHUNK, mask=place + CHUNK < degree, other=0)
                    word = node_word(key, u)
                    taken = (place < degree) & ((word >> 32) < limit)
                    before, whole = _before(taken, part, CHUNK)
                    to = count + before
                    taken = taken & (to < WIDTH)
                    tl.store(words + to, word.to(tl.int64, bitcast=True), mask=taken)
                    tl.store(places + to, place, mask=taken)
                    count += whole
                    u = ahead
                tl.debug_barrier()
                if (count < fanout) | (count > WIDTH):
                    _put_smallest_of_row(sources, start, degree, key, fanout, out, marks, edges, positions, CHUNK)
                else:
                    some = column < count
                    word = tl.load(words + column, mask=some, other=0).to(tl.uint64, bitcast=True)
                    place = tl.load(places + column, mask=some, other=0)
                    _put_smallest(
                        word, place, some, count, limit << 32, fanout, sources, start, out, marks, edges, positions
                    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "fanout", "least", "most"])
def _keep_below(
    indptr, sources, nodes, owner, keys, ends, counts, found, edges, positions, num_rows, fanout, stride, least, most,
    WRITE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Decide each edge of rows of `least` edges and more, fewer than `most`: count those that are kept, or write
    them."""
    p = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    # Rows side by side go to different programs: hubs often have neighbouring ids.
    for f in range(p, num_rows, tl.num_programs(0)):
        _, start, degree, q = row_at(indptr, nodes, owner, f)
        key = tl.load(keys + q)
        if (degree >= least) & (degree < most):
            marks = found + q * stride
            count = degree * 0
            out = tl.load(ends + f) if WRITE else start
            limit = fanout.to(tl.uint64) << 32
            for j in range(0, degree, CHUNK):
                some = j + lane < degree
                word = node_word(key, tl.load(sources + start + j + lane, mask=some, other=0))
                kept = some & ((degree <= fanout) | ((word >> 32) * degree.to(tl.uint64) < limit))
                if WRITE:
                    _put_edges(sources, start, j + lane, kept, out + count, marks, edges, positions)
                count += tl.sum(kept.to(tl.int32))
            if not WRITE:
                tl.store(counts + f, count)


def _walk(kernel: Any, graph: DeviceGraph, rows: Rows, *args: Any, WIDTH: int = 0, **options: Any) -> None:
    """Launch a kernel that walks rows: a warp for each row, several for long ones and for many candidates."""
    n, warps = programs(len(rows.nodes), ROWS), max(1, WIDTH >> 8)
    options |= {"WIDTH": WIDTH} if WIDTH else {}
    launch(kernel, n)(*args, 0, LONG, CHUNK=CHUNK * warps, num_warps=warps, **options)
    if graph.max_degree >= LONG:
        warps = max(warps, LONG_WARPS)
        launch(kernel, n)(*args, LONG, (1 << 31) - 1, CHUNK=CHUNK * warps, num_warps=warps, **options)


def keep_smallest(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, tables: Tables, into: Drawn) -> None:
    """Draw min(s, degree) edges of each row, and mark their sources in `tables`."""
    n, s = len(rows.nodes), min(s, max(1, graph.max_degree))
    width = _width(s)
    room = programs(n, ROWS) * width
    words, places = (torch.empty(room, dtype=t, device=keys.device) for t in (torch.int64, torch.int32))
    known = graph.indptr, graph.indices, rows.nodes, rows.owner, keys
    _walk(
        _keep_smallest, graph, rows, *known, into.ends, words, places, tables.found, into.sources, into.positions,
        n, s, _wanted(s), tables.stride, WIDTH=width,
    )  # fmt: skip


def keep_below(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, tables: Tables, into: Drawn | None) -> Tensor:
    """Decide each edge of each row with chance s / degree. Without `into`, int64 [n], the numbers of those that are
    kept; else they go there, and their sources are marked in `tables`."""
    counts = torch.zeros(len(rows.nodes), dtype=torch.int32, device=keys.device)
    known, rest = (graph.indptr, graph.indices, rows.nodes, rows.owner, keys), (len(counts), s, tables.stride)
    to = (counts, counts, counts) if into is None else (into.ends, into.sources, into.positions)
    _walk(_keep_below, graph, rows, *known, to[0], counts, tables.found, *to[1:], *rest, WRITE=into is not None)
    return counts.long()


def draw_by_weight(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, weight: Tensor, tables: Tables) -> Drawn:
    """Draw up to `s` in-edges of each row, in its order, and mark their sources in `tables`. The host waits for their
    numbers."""
    lists = graph.lists(rows)
    row, _, finish = finish_times(graph.indices, lists, keys, weight, shared=True)
    first, kept = cumulated(lists.degree), torch.zeros_like(lists.begin)
    kept.index_add_(0, row, (finish != NEVER).long())
    kept.clamp_(max=s)
    target, i = spread(kept)
    places = ranked(finish, row)[first[target] + i] - first[target]
    width = graph.max_degree + 1
    places = (torch.sort(target * width + places).values % width).int()
    return edges_at(graph, rows, cumulated(kept), places, tables)


def _draw(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, tables: Tables, poisson: bool) -> Drawn:
    """Draw one hop. The host waits for the number of edges of Poisson draws, and for others if there may be too many to
    allocate memory for."""
    if s < 0:
        return draw(graph, rows, keys, s, tables, replace=False, table=None, keep=True)
    if poisson:
        ends = cumulated(keep_below(graph, rows, keys, s, tables, None))
        made = Drawn.with_room(graph, ends, total(ends))
        keep_below(graph, rows, keys, s, tables, made)
        return made
    ends = cumulated(graph.lists(rows).degree.clamp_(max=s))
    s = min(s, max(1, graph.max_degree))
    most = len(rows.nodes) * s
    made = Drawn.with_room(graph, ends, total(ends) if most > BOUND else most)
    keep_smallest(graph, rows, keys, s, tables, made)
    return made


TypedDraw = Callable[[Rows, IdArray, Tables], Drawn]
"""Draws rows of a graph with types in a hop, given the fanout of each relation."""


def labor(
    graph: DeviceGraph, seeds: Seeds, keys: Tensor, asked: LaborDraws, weight: Tensor | None, typed: TypedDraw | None
) -> DeviceSample:
    """See `cpu.labor.labor`.

    Args:
        graph: in-neighbour lists.
        seeds: see `cuda.neighbor.expand`.
        keys: int64 [k], the bits of the streams.
        asked: how hops are drawn; with `typed` fanouts are int64 [L, R].
        weight: that of `asked`, on the device.
        typed: of a graph with types.
    """

    async def draw_hop(group: Group, h: int, s: int, tables: Tables) -> Drawn:
        if typed is not None:
            return typed(group.rows, np.asarray(asked.fanout[h]), tables)
        if weight is not None and s >= 0:
            return draw_by_weight(graph, group.rows, keys, s, weight, tables)
        return _draw(graph, group.rows, keys, s, tables, asked.poisson)

    return completed(expand(graph, seeds, asked, draw_hop))
