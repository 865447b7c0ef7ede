"""Finds the edges between known nodes on the device, and their weights: a warp walks the in-edges of a row, several
those of a hub, and lists the few that are kept, of all rows in one list. Where they go is known once all are counted.

Weights are added up row by row in the order of the edges, by additions alone, so that no compiler can fuse them with a
product.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import ToHost
from ...runtime.triton_rng import INTERPRETED, TILE, elements, launch, programs, row_at
from ..device_samples import Counts, DeviceList
from ..samples import check_edges
from .renumber import Group
from .tables import Tables, Workspace
from .terms import Terms

CHUNK = 1 << 11 if INTERPRETED else 1 << 8
"""Edges that a warp reads at once."""
WARPS = 1
"""Warps of a program that walks. Most rows are short: more warps would spend most of their instructions on lanes
without an edge, and fewer rows would be under way at a time."""
LONG = 1 << 15
"""In-degree from which a row gets a program of several warps."""
LONG_WARPS = 8
ROOM = 8
"""Edges for each row that there is room for at least, 16 bytes each. If more are kept, the rows are walked again, and
later bulks have more room."""
ROWS = 128
"""Rows of a program that adds up: one thread each."""
BLOCK = TILE


@triton.jit(do_not_specialize=["num_rows", "room", "least", "most"])
def _find_known(
    indptr, sources, nodes, owner, found, listed, counts, kept_row, kept_rank, kept_at, num_rows, room, stride,
    least, most, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count in-edges whose source has a mark, in counts[1:], of each row of `least` edges and more, fewer than `most`;
    and list them in any order: row, rank in the row, and position. Those for which there is no room are only
    counted."""
    f = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    if f == 0:
        tl.store(counts, 0)
    if f < num_rows:
        _, start, degree, q = row_at(indptr, nodes, owner, f)
        ours = (degree >= least) & (degree < most)
        degree = tl.where(ours, degree, 0)
        marks = found + q * stride
        seen = degree * 0
        u = tl.load(sources + start + lane, mask=lane < degree, other=0)
        for j in range(0, degree, CHUNK):
            place = j + lane
            # The next edges are on their way while these are looked up.
            ahead = tl.load(sources + start + place + CHUNK, mask=place + CHUNK < degree, other=0)
            kept = (tl.load(marks + u.to(tl.int64), mask=place < degree, other=0) != 0).to(tl.int32)
            count = tl.sum(kept)
            if count > 0:
                before = tl.cumsum(kept, axis=0) - kept
                to = tl.atomic_add(listed, count.to(tl.int64), sem="relaxed") + before
                some = (kept != 0) & (to < room)
                tl.store(kept_row + to, before * 0 + f, mask=some)
                tl.store(kept_rank + to, seen + before, mask=some)
                tl.store(kept_at + to, start + place, mask=some)
            seen += count
            u = ahead
        tl.store(counts + f + 1, seen.to(tl.int64), mask=ours)


@triton.jit(do_not_specialize=["num_edges", "num_rows"])
def _write_known(
    sources, nodes, owner, local, kept_row, kept_rank, kept_at, kept_ends, row_ends, node_ends, loop, sums, ends,
    indices, positions, columns, mass, num_edges, num_rows, stride,
    EVERY_ROW: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put the edges listed where they belong, and unless EVERY_ROW add up P at their sources."""
    i, some = elements(num_rows, BLOCK)
    q = tl.load(owner + i, mask=some, other=0).to(tl.int64)
    first = tl.load(row_ends + q, mask=some, other=0)
    end = tl.load(kept_ends + i + 1, mask=some, other=0) - tl.load(kept_ends + first, mask=some, other=0)
    tl.store(ends + i + q + 1, end.to(tl.int32), mask=some)
    if not EVERY_ROW:
        # Whole numbers: the order of additions does not matter.
        own = tl.load(loop + tl.load(nodes + i, mask=some, other=0).to(tl.int64), mask=some, other=0)
        column = tl.load(node_ends + q, mask=some, other=0) + i - first
        tl.atomic_add(mass + column, own, mask=some, sem="relaxed")
    some = i < num_edges
    f = tl.load(kept_row + i, mask=some, other=0).to(tl.int64)
    at = tl.load(kept_at + i, mask=some, other=0)
    q = tl.load(owner + f, mask=some, other=0).to(tl.int64)
    u = tl.load(sources + at, mask=some, other=0).to(tl.int64)
    number = tl.load(local + q * stride + u, mask=some, other=0)
    column = tl.load(node_ends + q, mask=some, other=0) + number
    to = tl.load(kept_ends + f, mask=some, other=0) + tl.load(kept_rank + i, mask=some, other=0)
    tl.store(indices + to, number, mask=some)
    tl.store(positions + to, at, mask=some)
    tl.store(columns + to, column, mask=some)
    if not EVERY_ROW:
        if WEIGHTED:
            term = tl.load(sums + at + 1, mask=some, other=0) - tl.load(sums + at, mask=some, other=0)
        else:
            term = tl.load(loop + tl.load(nodes + f, mask=some, other=0).to(tl.int64), mask=some, other=0)
        tl.atomic_add(mass + column, term, mask=some, sem="relaxed")


@triton.jit(do_not_specialize=["num_edges"])
def _invert(columns, mass, owner, first, last, prefix, out, num_edges, BLOCK: tl.constexpr):
    """1 / p of the source of each edge."""
    e, some = elements(num_edges, BLOCK)
    column = tl.load(columns + e, mask=some, other=0)
    q = tl.load(owner + column, mask=some, other=0)
    begin, end = tl.load(first + q, mask=some, other=0), tl.load(last + q, mask=some, other=0)
    total = tl.load(prefix + end, mask=some, other=0) - tl.load(prefix + begin, mask=some, other=0)
    one = tl.full([BLOCK], 1.0, tl.float64)
    # `normalise` of the reference multiplies by the inverse, so this does too.
    p = tl.load(mass + column, mask=some, other=1).to(tl.float64) * (one / tl.maximum(total, 1).to(tl.float64))
    tl.store(out + e, one / p, mask=some)


@triton.jit(do_not_specialize=["num_rows"])
def _add_in_order(values, ends, out, num_rows, ROWS: tl.constexpr):
    """out[f] is the sum of values[ends[f]:ends[f + 1]], from the first to the last."""
    f, live = elements(num_rows, ROWS)
    at = tl.load(ends + f, mask=live, other=0)
    count = tl.load(ends + f + 1, mask=live, other=0) - at
    sums = tl.zeros([ROWS], tl.float64)
    for i in range(tl.max(count, 0).to(tl.int32)):
        sums += tl.load(values + at + i, mask=i < count, other=0.0)
    tl.store(out + f, sums, mask=live)


@triton.jit(do_not_specialize=["num_rows"])
def _scale_rows(values, ends, sums, whole, nodes, out, num_rows, ROWS: tl.constexpr):
    """Values of each row, scaled so that they add up to `whole` of its node."""
    f, live = elements(num_rows, ROWS)
    at = tl.load(ends + f, mask=live, other=0)
    count = tl.load(ends + f + 1, mask=live, other=0) - at
    total = tl.load(sums + f, mask=live, other=0.0)
    goal = tl.load(whole + tl.load(nodes + f, mask=live, other=0).to(tl.int64), mask=live, other=0.0)
    by = tl.where(total > 0, goal / tl.where(total > 0, total, 1.0), 0.0)
    for i in range(tl.max(count, 0).to(tl.int32)):
        value = tl.load(values + at + i, mask=i < count, other=0.0)
        tl.store(out + at + i, (value * by).to(tl.float32), mask=i < count)


@dataclass(frozen=True, eq=False)
class Extracted:
    """Edges of a hop."""

    edges: DeviceList
    ends: Tensor
    """int64 [n + 1], where the edges of each row end."""
    columns: Tensor
    """int64 [e], the source of each among the nodes of the bulk."""
    mass: Tensor
    """int64, P at each node; of draws in proportion to P over all rows, empty."""


class Walk:
    """Edges between known nodes, from when the device is told to find them until they are written.

    The host goes on while the device walks. It learns in a later message how many there are, and calls `arrived`
    before more nodes get marks.
    """

    def __init__(self, terms: Terms, group: Group, row_ends: Tensor, tables: Tables, workspace: Workspace) -> None:
        """
        Args:
            terms: of the graph.
            group: the rows.
            row_ends: int64 [k + 1], where each minibatch's end.
            tables: of the bulk, where the known nodes have numbers and marks.
            workspace: knows how many edges of a row earlier bulks kept.
        """
        self._terms, self.group, self._row_ends, self._tables = terms, group, row_ends, tables
        self._workspace, self._edges = workspace, np.zeros(len(group.counts), np.int64)
        self._list(max(ROOM, workspace.edges_per_row) * len(group.rows.nodes))
        self._ends = self._counts.cumsum_(0)

    def _list(self, room: int) -> None:
        rows, graph = self.group.rows, self._terms.graph
        # Both halves of what is allocated below begin at multiples of 16 bytes, so the kernels are compiled once.
        room = -(-room // 4) * 4
        n, to, self._room = len(rows.nodes), graph.device, room
        self._counts = torch.empty(n + 1, dtype=torch.int64, device=to)
        self._row, self._rank = torch.empty(2, room, dtype=torch.int32, device=to)
        self._at = torch.empty(room, dtype=torch.int64, device=to)
        args = (
            graph.indptr, graph.indices, rows.nodes, rows.owner, self._tables.found,
            torch.zeros(1, dtype=torch.int64, device=to), self._counts, self._row, self._rank, self._at,
            n, room, self._tables.stride,
        )  # fmt: skip
        grid = programs(n, 1)
        launch(_find_known, grid)(*args, 0, LONG, CHUNK=CHUNK * WARPS, num_warps=WARPS)
        if graph.max_degree >= LONG:
            launch(_find_known, grid)(*args, LONG, (1 << 31) - 1, CHUNK=CHUNK * LONG_WARPS, num_warps=LONG_WARPS)

    @property
    def sizes(self) -> Tensor:
        """int64 [k + 1], edges before each minibatch: `arrived` expects them on the host."""
        return self._ends.index_select(0, self._row_ends)

    def arrived(self, sizes: Counts) -> None:
        """Walk again if there was not enough room.

        Raises:
            RunError: a minibatch has more edges than its lists can index.
        """
        self._edges = np.diff(sizes)
        check_edges(int(self._edges.max()))
        if sizes[-1] > self._room:
            most = int(sizes[-1])
            # A quarter more, since bulks differ.
            self._workspace.edges_per_row = -(-5 * most // (4 * len(self.group.rows.nodes)))
            self._list(most)

    async def counted(self) -> None:
        """`arrived`, of a message of their own."""
        self.arrived(await ToHost(self.sizes))

    def written(self, nodes: Group, node_ends: Tensor, every_row: bool) -> Extracted:
        """The edges, each row's in the graph's order, once `arrived` was called.

        Args:
            nodes: all known nodes.
            node_ends: int64 [k + 1], where each minibatch's end.
            every_row: see `layerwise.layers`.
        """
        terms, rows, e = self._terms, self.group.rows, int(self._edges.sum())
        n, to = len(rows.nodes), terms.graph.device
        indptr = torch.zeros(n + len(self._edges), dtype=torch.int32, device=to)
        indices = torch.empty(e, dtype=torch.int32, device=to)
        positions, columns = (torch.empty(e, dtype=torch.int64, device=to) for _ in range(2))
        lists = DeviceList(indptr, indices, positions, self.group.counts, self._edges)
        mass = torch.zeros(0 if every_row else len(nodes.rows.nodes), dtype=torch.int64, device=to)
        launch(_write_known, programs(max(e, n), BLOCK))(
            terms.graph.indices, rows.nodes, rows.owner, self._tables.local, self._row, self._rank, self._at,
            self._ends, self._row_ends, node_ends, terms.loop, terms.loop if terms.sums is None else terms.sums,
            lists.indptr, lists.indices, lists.positions, columns, mass, e, n, self._tables.stride,
            EVERY_ROW=every_row, WEIGHTED=terms.sums is not None, BLOCK=BLOCK,
        )  # fmt: skip
        return Extracted(lists, self._ends, columns, mass)


def inverted(found: Extracted, mass: Tensor, nodes: Group, first: Tensor, last: Tensor, prefix: Tensor) -> Tensor:
    """float64 [e], 1 / p of the source of each edge, of the mass P of all nodes; see `Terms.throw`."""
    e = len(found.columns)
    out = torch.empty(e, dtype=torch.float64, device=mass.device)
    if e:
        launch(_invert, programs(e, BLOCK))(
            found.columns, mass, nodes.rows.owner, first, last, prefix, out, e, BLOCK=BLOCK
        )
    return out


def scaled(terms: Terms, group: Group, found: Extracted, values: Tensor) -> Tensor:
    """float32 [e], the values of each row scaled to add up to the sum of its weights."""
    n, out = len(group.rows.nodes), torch.empty(len(values), dtype=torch.float32, device=values.device)
    sums = torch.empty(n, dtype=torch.float64, device=values.device)
    grid = programs(n, ROWS)
    launch(_add_in_order, grid)(values, found.ends, sums, n, ROWS=ROWS)
    launch(_scale_rows, grid)(values, found.ends, sums, terms.whole, group.rows.nodes, out, n, ROWS=ROWS)
    return out
