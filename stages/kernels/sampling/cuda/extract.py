"""Finds the edges between known nodes on the device, and their weights: several warps walk the in-edges of a row, once
to count and once to write. Few edges are kept, so nothing is written for the others.

Weights are added up row by row in the order of the edges, by additions alone, so that no compiler can fuse them with a
product.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.triton_rng import INTERPRETED, TILE, launch, programs, row_at
from ..device_samples import DeviceList
from .draw import cumulated
from .neighbor import check_int32
from .renumber import Group
from .tables import Tables
from .terms import Terms

CHUNK = 1 << 11 if INTERPRETED else 1 << 10
"""Edges that are read at once: a hub's are soon through."""
WALKED = 4
"""Rows that a program walks, one after the other."""
WARPS = 4
ROWS = 128
"""Rows of a program that adds up: one thread each."""
BLOCK = TILE


@triton.jit(do_not_specialize=["num_rows"])
def _count_known(indptr, sources, nodes, owner, found, counts, num_rows, stride, CHUNK: tl.constexpr):
    """Count the in-edges of each row whose source has a mark."""
    p = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    # Rows side by side go to different programs: hubs often have neighbouring ids.
    for f in range(p, num_rows, tl.num_programs(0)):
        _, start, degree, q = row_at(indptr, nodes, owner, f)
        marks = found + q * stride
        seen = tl.zeros([CHUNK], tl.int32)
        u = tl.load(sources + start + lane, mask=lane < degree, other=0)
        for j in range(0, degree, CHUNK):
            place = j + lane
            # The next edges are on their way while these are looked up.
            ahead = tl.load(sources + start + place + CHUNK, mask=place + CHUNK < degree, other=0)
            seen += (tl.load(marks + u.to(tl.int64), mask=place < degree, other=0) != 0).to(tl.int32)
            u = ahead
        tl.store(counts + f, tl.sum(seen))


@triton.jit(do_not_specialize=["num_rows"])
def _write_known(
    indptr, sources, nodes, owner, found, local, kept_ends, row_ends, node_ends, loop, sums, ends, indices, positions,
    columns, mass, num_rows, stride, EVERY_ROW: tl.constexpr, WEIGHTED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write those edges, and unless EVERY_ROW add up P at their sources."""
    p = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    # Rows side by side go to different programs: hubs often have neighbouring ids.
    for f in range(p, num_rows, tl.num_programs(0)):
        v, start, degree, q = row_at(indptr, nodes, owner, f)
        first, base = tl.load(row_ends + q), tl.load(node_ends + q)
        out, end = tl.load(kept_ends + f), tl.load(kept_ends + f + 1)
        tl.store(ends + f + q + 1, (end - tl.load(kept_ends + first)).to(tl.int32))
        own = tl.load(loop + v)
        if not EVERY_ROW:
            tl.atomic_add(mass + base + f - first, own, sem="relaxed")
        j = degree * 0
        # Until the last edge is found.
        while (out < end) & (j < degree):
            place = j + lane
            u = tl.load(sources + start + place, mask=place < degree, other=0).to(tl.int64)
            kept = (tl.load(found + q * stride + u, mask=place < degree, other=0) != 0).to(tl.int32)
            count = tl.sum(kept)
            if count > 0:
                to = out + tl.cumsum(kept, axis=0) - kept
                number = tl.load(local + q * stride + u, mask=kept != 0, other=0)
                at = start + place
                tl.store(indices + to, number, mask=kept != 0)
                tl.store(positions + to, at, mask=kept != 0)
                tl.store(columns + to, base + number, mask=kept != 0)
                if not EVERY_ROW:
                    term = at * 0 + own
                    if WEIGHTED:
                        term = tl.load(sums + at + 1, mask=kept != 0, other=0)
                        term -= tl.load(sums + at, mask=kept != 0, other=0)
                    # Whole numbers: the order of additions does not matter.
                    tl.atomic_add(mass + base + number, term, mask=kept != 0, sem="relaxed")
            out += count
            j += CHUNK


@triton.jit(do_not_specialize=["num_edges"])
def _invert(columns, mass, owner, first, last, prefix, out, num_edges, BLOCK: tl.constexpr):
    """1 / p of the source of each edge."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
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
    f = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = f < num_rows
    at = tl.load(ends + f, mask=live, other=0)
    count = tl.load(ends + f + 1, mask=live, other=0) - at
    sums = tl.zeros([ROWS], tl.float64)
    for i in range(tl.max(count, 0).to(tl.int32)):
        sums += tl.load(values + at + i, mask=i < count, other=0.0)
    tl.store(out + f, sums, mask=live)


@triton.jit(do_not_specialize=["num_rows"])
def _scale_rows(values, ends, sums, whole, nodes, out, num_rows, ROWS: tl.constexpr):
    """Values of each row, scaled so that they add up to `whole` of its node."""
    f = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = f < num_rows
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


def extract(
    terms: Terms, group: Group, row_ends: Tensor, nodes: Group, node_ends: Tensor, tables: Tables, every_row: bool
) -> Extracted:
    """In-edges of the rows whose sources are known. The host waits for the number of each minibatch.

    Args:
        terms: of the graph.
        group: the rows.
        row_ends: int64 [k + 1], where each minibatch's end.
        nodes: all nodes, which have numbers and marks.
        node_ends: likewise.
        tables: of the bulk.
        every_row: see `layerwise.layers`.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    graph, rows = terms.graph, group.rows
    n, k, to = len(rows.nodes), len(group.counts), graph.device
    known = (graph.indptr, graph.indices, rows.nodes, rows.owner, tables.found)
    counts = torch.empty(n, dtype=torch.int32, device=to)
    grid, options = programs(n, WALKED), {"CHUNK": CHUNK, "num_warps": WARPS}
    launch(_count_known, grid)(*known, counts, n, tables.stride, **options)
    kept = cumulated(counts)
    ends = kept[row_ends].cpu().numpy()
    edges = ends[1:] - ends[:-1]
    check_int32(int(edges.max()))
    lists = DeviceList(
        torch.zeros(n + k, dtype=torch.int32, device=to),
        torch.empty(int(ends[-1]), dtype=torch.int32, device=to),
        torch.empty(int(ends[-1]), dtype=torch.int64, device=to),
        group.counts,
        edges,
    )
    columns = torch.empty(int(ends[-1]), dtype=torch.int64, device=to)
    mass = torch.zeros(0 if every_row else len(nodes.rows.nodes), dtype=torch.int64, device=to)
    launch(_write_known, grid)(
        *known, tables.local, kept, row_ends, node_ends, terms.loop, terms.loop if terms.sums is None else terms.sums,
        lists.indptr, lists.indices, lists.positions, columns, mass, n, tables.stride,
        EVERY_ROW=every_row, WEIGHTED=terms.sums is not None, **options,
    )  # fmt: skip
    return Extracted(lists, kept, columns, mass)


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
