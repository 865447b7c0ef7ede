"""LABOR-0 on the device: each program reads a range of the frontier's in-edges; the same bits as `reference.labor`.

In-edges are hundreds of times as many as kept edges, so nothing is written for each of them: one pass counts the edges
taken, and another recomputes and writes them. Poisson draws decide each edge independently and are the sample. Rows of
exact size first take candidates, by a Poisson draw of somewhat more than they need: candidates have smaller words than
all other edges, so the smallest words are among them if there are enough. Then only candidates are ranked, each row's
in registers. A row with too few of them (one in a million, or more if most of a hub's edges are parallel) takes all its
edges as candidates.
"""

from collections.abc import Sequence
from math import ceil, sqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import completed
from ...runtime.triton_rng import TILE, launch, node_word, programs
from ..device_graph import DeviceGraph
from ..device_samples import Counts, DeviceSample, Rows
from .draw import BLOCK, Drawn, cumulated, degrees, draw
from .labor_race import draw_by_weight
from .neighbor import expand
from .renumber import Group
from .tables import Tables, Workspace

WIDEST = 256
"""Maximum candidates of a row that are compared pair by pair."""


def _wanted(s: int) -> int:
    """Mean number of candidates of a row: a Poisson variable of this mean is below s once in a million times."""
    return s + ceil(5 * sqrt(s)) + 9


@triton.jit
def _read_edges(indptr, sources, nodes, owner, keys, ends, block_rows, num_edges, bound, BLOCK: tl.constexpr):
    """Read the edges of this program's range.

    Returns: A mask of existing edges, the edge among all, its row, the row's first edge and degree, the node's first
        edge in the graph, the source, its word, and whether a Poisson draw of `bound` edges takes it.
    """
    p = tl.program_id(0).to(tl.int64)
    e = p * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    # Rows between the first and last one of the range: usually few, if the graph's degrees are worth sampling.
    begin, end = tl.load(block_rows + p), tl.load(block_rows + p + 1) + 1
    low, high = e * 0 + begin, e * 0 + end
    span = end - begin
    while span > 1:
        middle = (low + high) >> 1
        here = tl.load(ends + middle) <= e
        low, high = tl.where(here, middle, low), tl.where(here, high, middle)
        span = (span + 1) >> 1
    first = tl.load(ends + low)
    degree = tl.load(ends + low + 1) - first
    start = tl.load(indptr + tl.load(nodes + low).to(tl.int64))
    u = tl.load(sources + start + e - first, mask=some, other=0)
    word = node_word(tl.load(keys + tl.load(owner + low)), u)
    least = (word >> 32) * degree.to(tl.uint64) < (bound.to(tl.uint64) << 32)
    return some, e, low, first, degree, start, u, word, some & ((degree <= bound) | least)


@triton.jit(do_not_specialize=["num_edges", "bound"])
def _count(
    indptr, sources, nodes, owner, keys, ends, block_rows, counts, row_begin, row_end, num_edges, bound,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Count the edges that are taken in this range, and up to each row's begin and end in it."""
    some, e, f, first, degree, _, _, _, taken = _read_edges(
        indptr, sources, nodes, owner, keys, ends, block_rows, num_edges, bound, BLOCK
    )  # fmt: skip
    one = taken.to(tl.int32)
    upto = tl.cumsum(one, axis=0)
    tl.store(counts + tl.program_id(0), tl.sum(one))
    tl.store(row_begin + f, upto - one, mask=some & (e == first))
    tl.store(row_end + f, upto, mask=some & (e == first + degree - 1))


@triton.jit(do_not_specialize=["num_edges", "bound"])
def _write(
    indptr, sources, nodes, owner, keys, ends, block_rows, offsets, row_begin, taken_ends, found, edges, positions,
    words, places,
    num_edges, bound, stride, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the edges taken: the sample, marked, or with EXACT the candidates' words and their positions in the row."""
    some, e, f, first, degree, start, u, word, taken = _read_edges(
        indptr, sources, nodes, owner, keys, ends, block_rows, num_edges, bound, BLOCK
    )  # fmt: skip
    one = taken.to(tl.int32)
    before = tl.load(offsets + tl.program_id(0)) + tl.cumsum(one, axis=0) - one
    base = tl.load(taken_ends + f)
    whole = tl.load(taken_ends + f + 1) - base == degree
    out = base + tl.where(whole, e - first, before - tl.load(row_begin + f))
    taken = some & (taken | whole)
    if EXACT:
        tl.store(words + out, word.to(tl.int64, bitcast=True), mask=taken)
        tl.store(places + out, (e - first).to(tl.int32), mask=taken)
    else:
        tl.store(edges + out, u, mask=taken)
        tl.store(positions + out, start + e - first, mask=taken)
        # Several programs may write here at once, all the same value.
        tl.store(found + tl.load(owner + f).to(tl.int64) * stride + u.to(tl.int64), 1, mask=taken)


@triton.jit(do_not_specialize=["num_rows", "fanout"])
def _pick_of_few(
    indptr, sources, nodes, owner, taken_ends, words, places, ends, found, edges, positions, num_rows, fanout, stride,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Keep the candidates of the smallest words, of equal ones the first, in rows of at most WIDTH of them."""
    f = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = f < num_rows
    base = tl.load(taken_ends + f, mask=live, other=0)
    count = tl.load(taken_ends + f + 1, mask=live, other=0) - base
    count = tl.where(count <= WIDTH, count, 0)
    column = tl.arange(0, WIDTH)[None, :]
    some = column < count[:, None]
    word = tl.load(words + base[:, None] + column, mask=some, other=0).to(tl.uint64, bitcast=True)
    rank = tl.zeros([ROWS, WIDTH], tl.int32)
    # A row that keeps all needs no ranks.
    for i in range(tl.max(tl.where(count > fanout, count, 0)).to(tl.int32)):
        # -1 is the largest word, which comes before none.
        other = tl.load(words + base + i, mask=i < count, other=-1).to(tl.uint64, bitcast=True)[:, None]
        rank += ((other < word) | ((other == word) & (i < column))).to(tl.int32)
    kept = some & (rank < fanout)
    one = kept.to(tl.int32)
    out = tl.load(ends + f, mask=live, other=0)[:, None] + tl.cumsum(one, axis=1) - one
    start = tl.load(indptr + tl.load(nodes + f, mask=live, other=0).to(tl.int64))
    at = start[:, None] + tl.load(places + base[:, None] + column, mask=kept, other=0)
    u = tl.load(sources + at, mask=kept, other=0)
    tl.store(edges + out, u, mask=kept)
    tl.store(positions + out, at, mask=kept)
    q = tl.load(owner + f, mask=live, other=0).to(tl.int64)[:, None]
    tl.store(found + q * stride + u.to(tl.int64), 1, mask=kept)


@triton.jit(do_not_specialize=["fanout"])
def _pick_of_many(
    indptr,
    sources,
    nodes,
    owner,
    taken_ends,
    words,
    places,
    ends,
    found,
    edges,
    positions,
    many,
    fanout,
    stride,
    BLOCK: tl.constexpr,
):
    """Like `_pick_of_few` for one long row: bit by bit, the largest word that fewer than `fanout` are below."""
    f = tl.load(many + tl.program_id(0))
    base = tl.load(taken_ends + f)
    count = (tl.load(taken_ends + f + 1) - base).to(tl.int32)
    one = (base * 0 + 1).to(tl.uint64)
    last, bit = one - one, one << 63
    below = count * 0
    for _ in range(64):
        trial = last | bit
        smaller = count * 0
        for j in range(0, count, BLOCK):
            i = j + tl.arange(0, BLOCK)
            word = tl.load(words + base + i, mask=i < count, other=-1).to(tl.uint64, bitcast=True)
            smaller += tl.sum((word < trial).to(tl.int32))
        enough = smaller >= fanout
        last, below = tl.where(enough, last, trial), tl.where(enough, below, smaller)
        bit >>= 1
    equal, written = below, tl.load(ends + f)
    start = tl.load(indptr + tl.load(nodes + f).to(tl.int64))
    marks = found + tl.load(owner + f).to(tl.int64) * stride
    for j in range(0, count, BLOCK):
        i = j + tl.arange(0, BLOCK)
        word = tl.load(words + base + i, mask=i < count, other=0).to(tl.uint64, bitcast=True)
        tie = ((i < count) & (word == last)).to(tl.int32)
        kept = (i < count) & ((word < last) | ((tie > 0) & (equal + tl.cumsum(tie, axis=0) <= fanout)))
        own = kept.to(tl.int32)
        out = written + tl.cumsum(own, axis=0) - own
        at = start + tl.load(places + base + i, mask=kept, other=0)
        u = tl.load(sources + at, mask=kept, other=0)
        tl.store(edges + out, u, mask=kept)
        tl.store(positions + out, at, mask=kept)
        tl.store(marks + u.to(tl.int64), 1, mask=kept)
        equal += tl.sum(tie)
        written += tl.sum(own)


def _draw(graph: DeviceGraph, rows: Rows, keys: Tensor, s: int, tables: Tables, poisson: bool) -> Drawn:
    """Draw one hop. The host waits for the number of in-edges, and for the number taken."""
    if s < 0:
        return draw(graph, rows, keys, s, tables, replace=False, table=None, keep=True)
    n, degree, to = len(rows.nodes), degrees(graph, rows), graph.device
    exact, bound = not poisson, s if poisson else _wanted(s)
    ends, kept = cumulated(degree), cumulated(degree.clamp(max=s) if exact else degree)
    count, room = torch.stack([ends[-1], kept[-1]]).tolist()

    def made(room: int) -> tuple[Tensor, Tensor]:
        return torch.empty(room, dtype=graph.indices.dtype, device=to), torch.empty(room, dtype=torch.int64, device=to)

    if not count:
        return Drawn(kept, *made(0))
    stretches = programs(count, BLOCK)
    # Row of the first edge of each range, and after the last range that of the last edge.
    borders = torch.arange(0, (stretches + 1) * BLOCK, BLOCK, device=to).clamp_(max=count - 1)
    block_rows = torch.searchsorted(ends, borders, right=True) - 1
    known = (graph.indptr, graph.indices, rows.nodes, rows.owner)
    looked = (*known, keys, ends, block_rows)
    counts = torch.empty(stretches, dtype=torch.int64, device=to)
    row_begin, row_end = torch.zeros(2, n, dtype=torch.int64, device=to)
    launch(_count, stretches)(*looked, counts, row_begin, row_end, count, bound, BLOCK=BLOCK)
    offsets = cumulated(counts)
    row_begin += offsets[ends[:-1] // BLOCK]
    row_end += offsets[(ends[1:] - 1).clamp_(min=0) // BLOCK]
    taken = torch.where(degree > 0, row_end - row_begin, 0)
    if exact:
        taken = torch.where(taken < s, degree, taken)
    taken_ends = cumulated(taken)
    width = min(WIDEST, 1 << (bound + ceil(3 * sqrt(bound))).bit_length())
    longer = cumulated(taken > width)
    total, long = torch.stack([taken_ends[-1], longer[-1]]).tolist()
    edges, positions = made(room if exact else total)
    words = torch.empty(total if exact else 0, dtype=torch.int64, device=to)
    places = torch.empty(total if exact else 0, dtype=torch.int32, device=to)
    launch(_write, stretches)(
        *looked, offsets, row_begin, taken_ends, tables.found, edges, positions, words, places,
        count, bound, tables.stride, EXACT=exact, BLOCK=BLOCK,
    )  # fmt: skip
    if not exact:
        return Drawn(taken_ends, edges, positions)
    target = (*known, taken_ends, words, places, kept, tables.found, edges, positions)
    tile = max(1, TILE // width)
    launch(_pick_of_few, programs(n, tile))(*target, n, s, tables.stride, ROWS=tile, WIDTH=width)
    if long:
        many = torch.searchsorted(longer[1:], torch.arange(1, long + 1, device=to))
        launch(_pick_of_many, long)(*target, many, s, tables.stride, BLOCK=BLOCK)
    return Drawn(kept, edges, positions)


def labor(
    graph: DeviceGraph,
    seeds: Tensor,
    counts: Counts,
    keys: Tensor,
    fanout: Sequence[int],
    *,
    poisson: bool,
    weight: Tensor | None,
    again: bool,
    workspace: Workspace,
) -> DeviceSample:
    """See `reference.labor.labor`.

    Args:
        graph: in-neighbour lists.
        seeds: see `cuda.neighbor.expand`, as `counts` and `workspace`.
        counts: int64 [k].
        keys: int64 [k], the bits of the streams.
        fanout: L numbers.
        poisson: decide each edge independently.
        weight: float32 [E], or None; see `reference.labor.labor`.
        again: see `cuda.neighbor.expand`.
        workspace: keeps the tables.
    """

    async def draw_hop(group: Group, h: int, s: int, tables: Tables) -> Drawn:
        if weight is not None and s >= 0:
            return draw_by_weight(graph, group.rows, keys, s, weight, tables)
        return _draw(graph, group.rows, keys, s, tables, poisson)

    return completed(expand(graph, seeds, counts, fanout, draw_hop, again=again, workspace=workspace))
