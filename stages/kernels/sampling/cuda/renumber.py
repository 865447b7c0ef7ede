"""Numbers new nodes of a bulk in ascending order, and joins the bulk's hops, on the device.

A minibatch's table holds for each of the V nodes a byte that is 1 if it was found, and its number in four bytes.
Programs count nodes that are found but have no number, and, once the host knows how many there are, write them out: the
table's order is ascending.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import ToHost, to_device
from ...runtime.triton_rng import TILE, elements, launch, programs, row_of
from ..device_samples import Counts, DeviceList, Rows, cumulated, prefix_sums
from .draw import Drawn
from .tables import SCAN, Tables

BLOCK = TILE
SCAN_WARPS = 16
"""Warps of a program that scans a table: with fewer its numbers take too many registers for several programs at a
time."""


@triton.jit
def _find_new(found, local, BLOCK: tl.constexpr):
    """This program's nodes, four of a thread side by side; which are new; those of which one is; and numbers there."""
    four = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    mark = tl.load(found + four) != 0
    # Four nodes without a mark cost four bytes, others one read of sixteen.
    some = tl.max(mark.to(tl.int32), axis=1)[:, None] != 0
    number = tl.load(local + four, mask=some, other=0)
    return four, mark & (number < 0), some, number


@triton.jit
def _count(found, local, counts, BLOCK: tl.constexpr):
    p = tl.program_id(0).to(tl.int64)
    _, new, _, _ = _find_new(found + p * BLOCK, local + p * BLOCK, BLOCK)
    tl.store(counts + p, tl.sum(tl.sum(new.to(tl.int32), axis=1), axis=0))


@triton.jit(do_not_specialize=["per_minibatch"])
def _name(found, local, offsets, first, nodes, owner, per_minibatch, BLOCK: tl.constexpr):
    p = tl.program_id(0).to(tl.int64)
    four, new, some, number = _find_new(found + p * BLOCK, local + p * BLOCK, BLOCK)
    own = tl.sum(new.to(tl.int32), axis=1)
    rank = (tl.cumsum(own, axis=0) - own)[:, None] + tl.cumsum(new.to(tl.int32), axis=1) - 1
    q = p // per_minibatch
    begin = tl.load(offsets + p)
    base = (tl.load(first + q) + begin - tl.load(offsets + q * per_minibatch)).to(tl.int32)
    here = ((p % per_minibatch) * BLOCK).to(nodes.dtype.element_ty) + four
    tl.store(nodes + begin + rank, here, mask=new)
    tl.store(owner + begin + rank, tl.zeros_like(rank) + q.to(tl.int32), mask=new)
    tl.store(local + p * BLOCK + four, tl.where(new, base + rank, number), mask=some)


@triton.jit(do_not_specialize=["n"])
def _scatter(values, owner, shift, add, out, n, BLOCK: tl.constexpr):
    i, some = elements(n, BLOCK)
    q = tl.load(owner + i, mask=some, other=0)
    x = tl.load(values + i, mask=some, other=0) + tl.load(add + q, mask=some, other=0)
    tl.store(out + i + tl.load(shift + q, mask=some, other=0), x, mask=some)


@triton.jit
def _translate(
    sources, positions, bounds, shift, local, stride, indices, kept, KEEP: tl.constexpr, BLOCK: tl.constexpr
):
    q = tl.program_id(1).to(tl.int64)
    e = tl.load(bounds + q) + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < tl.load(bounds + q + 1)
    out = e + tl.load(shift + q)
    x = tl.load(sources + e, mask=some, other=0)
    if local is not None:
        x = tl.load(local + q * stride + x.to(tl.int64), mask=some, other=0)
    tl.store(indices + out, x, mask=some)
    if KEEP:
        tl.store(kept + out, tl.load(positions + e, mask=some, other=0), mask=some)


@triton.jit(do_not_specialize=["num_rows", "k", "steps"])
def _start(nodes, ends, owner, local, found, num_rows, k, steps, stride, BLOCK: tl.constexpr):
    """Find each row's minibatch, number the rows from 0 in each, and mark them."""
    f, some = elements(num_rows, BLOCK)
    q = row_of(ends, k, tl.where(some, f, 0), steps)
    tl.store(owner + f, q.to(tl.int32), mask=some)
    at = q * stride + tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    tl.store(local + at, (f - tl.load(ends + q)).to(tl.int32), mask=some)
    tl.store(found + at, 1, mask=some)


@triton.jit(do_not_specialize=["num_rows"])
def _clear(nodes, owner, local, found, num_rows, stride, BLOCK: tl.constexpr):
    """Take away the nodes' numbers and marks."""
    f, some = elements(num_rows, BLOCK)
    at = tl.load(owner + f, mask=some, other=0).to(tl.int64) * stride
    at += tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    tl.store(local + at, -1, mask=some)
    tl.store(found + at, 0, mask=some)


@dataclass(frozen=True, eq=False)
class Group:
    """Rows, and the number of rows of each minibatch."""

    rows: Rows
    counts: Counts


@dataclass(frozen=True, eq=False)
class Hop:
    """Rows of a hop, the edges drawn for them, and the number of edges of each minibatch."""

    group: Group
    drawn: Drawn
    counts: Counts


def start(flat: Tensor, counts: Counts, ends: Tensor, tables: Tables) -> Group:
    """The seeds: numbered from 0 in each minibatch, in their order, and marked.

    Args:
        flat: [sum of counts], of all minibatches, distinct within each.
        counts: seeds of each of the k minibatches, k > 0.
        ends: int64 [k + 1], where each minibatch's end.
        tables: clear ones.
    """
    n, k = len(flat), len(counts)
    owner = torch.empty(n, dtype=torch.int32, device=flat.device)
    launch(_start, programs(n, BLOCK))(
        flat, ends, owner, tables.local, tables.found, n, k, k.bit_length(), tables.stride, BLOCK=BLOCK
    )
    return Group(Rows(flat, owner), counts)


async def named(known: Counts, tables: Tables, dtype: torch.dtype, beside: Tensor) -> tuple[Group, Counts]:
    """Number the nodes that are marked but have no number, in ascending order, from `known` on in each minibatch.

    Args:
        known: nodes that each minibatch has.
        tables: of the bulk.
        dtype: of ids.
        beside: int64, further numbers that the host reads in the same wait.

    Returns:
        The new nodes, and `beside` on the host.
    """
    k, device = len(known), tables.local.device
    counts = torch.empty(k * tables.programs, dtype=torch.int64, device=device)
    launch(_count, len(counts))(tables.found, tables.local, counts, BLOCK=SCAN, num_warps=SCAN_WARPS)
    offsets = cumulated(counts)
    # The host must wait: the next hop's memory depends on the number of nodes found.
    message = await ToHost(torch.cat([beside, offsets[:: tables.programs]]))
    new = np.diff(message[len(beside) :])
    nodes = torch.empty(int(new.sum()), dtype=dtype, device=device)
    rows = Rows(nodes, torch.empty(len(nodes), dtype=torch.int32, device=device))
    if len(nodes):
        args = (tables.found, tables.local, offsets, to_device(known, device), rows.nodes, rows.owner, tables.programs)
        launch(_name, len(counts))(*args, BLOCK=SCAN, num_warps=SCAN_WARPS)
    return Group(rows, new), message[: len(beside)]


async def number(group: Group, drawn: Drawn, known: Counts, tables: Tables) -> tuple[Hop, Group]:
    """Number the nodes that a hop has found; see `named`. The only wait of a hop.

    Returns:
        The hop and its new nodes.
    """
    ends = drawn.ends[to_device(prefix_sums(group.counts), tables.local.device)]
    new, message = await named(known, tables, drawn.sources.dtype, ends)
    return Hop(group, drawn, np.diff(message)), new


def _put(values: Tensor, group: Group, shift: Counts, add: Counts, out: Tensor) -> None:
    """out[i + shift[q]] = values[i] + add[q] for row i of minibatch q."""
    n, device = len(group.rows.owner), out.device
    if n:
        launch(_scatter, programs(n, BLOCK))(
            values, group.rows.owner, to_device(shift, device), to_device(add, device), out, n, BLOCK=BLOCK
        )


def merged(groups: list[Group]) -> Group:
    """Rows of all groups, each minibatch's side by side, in the order of the groups."""
    counts = np.sum([g.counts for g in groups], axis=0)
    like = groups[0].rows
    rows = Rows(like.nodes.new_empty(int(counts.sum())), like.owner.new_empty(int(counts.sum())))
    at, none = prefix_sums(counts)[:-1], np.zeros(len(counts), np.int64)
    for g in groups:
        shift = at - prefix_sums(g.counts)[:-1]
        _put(g.rows.nodes, g, shift, none, rows.nodes)
        _put(g.rows.owner, g, shift, none, rows.owner)
        at = at + g.counts
    return Group(rows, counts)


def joined(hops: list[Hop], tables: Tables | None) -> DeviceList:
    """Edges of these hops as one list, their sources translated to numbers; without tables they are numbers."""
    rows, edges = np.sum([h.group.counts for h in hops], axis=0), np.sum([h.counts for h in hops], axis=0)
    k, first = len(rows), hops[0].drawn
    device = first.ends.device
    indptr = torch.zeros(int(rows.sum()) + k, dtype=torch.int32, device=device)
    indices = torch.empty(int(edges.sum()), dtype=torch.int32, device=device)
    positions = None if first.positions is None else torch.empty(len(indices), dtype=torch.int64, device=device)
    row_at, seen = prefix_sums(rows + 1)[:-1] + 1, np.zeros(k, np.int64)
    for h in hops:
        shift = row_at - prefix_sums(h.group.counts)[:-1]
        _put(h.drawn.ends[1:], h.group, shift, seen - prefix_sums(h.counts)[:-1], indptr)
        row_at, seen = row_at + h.group.counts, seen + h.counts
    _join(hops, [h.drawn.sources for h in hops], indices, tables, positions)
    return DeviceList(indptr, indices, positions, rows, edges)


def joined_numbers(hops: list[Hop], numbers: list[Tensor]) -> Tensor:
    """Numbers of the edges of these hops, in the order of `joined`."""
    out = torch.empty(sum(int(h.counts.sum()) for h in hops), dtype=numbers[0].dtype, device=numbers[0].device)
    _join(hops, numbers, out, None, None)
    return out


def _join(hops: list[Hop], numbers: list[Tensor], out: Tensor, tables: Tables | None, positions: Tensor | None) -> None:
    """Put numbers of the edges of each hop, translated if there are tables, into `out`, and positions beside them."""
    at = prefix_sums(np.sum([h.counts for h in hops], axis=0))[:-1]
    local, stride = (None, 0) if tables is None else (tables.local, tables.stride)
    for h, x in zip(hops, numbers):
        bounds = prefix_sums(h.counts)
        longest = int(h.counts.max(initial=0))
        if longest:
            launch(_translate, programs(longest, BLOCK), len(h.counts))(
                x, x if positions is None else h.drawn.positions, to_device(bounds, out.device),
                to_device(at - bounds[:-1], out.device), local, stride, out, out if positions is None else positions,
                KEEP=positions is not None, BLOCK=BLOCK,
            )  # fmt: skip
        at = at + h.counts


def forget(rows: Rows, tables: Tables) -> None:
    """Clear the tables at a bulk's nodes; all other entries are clear."""
    n = len(rows.nodes)
    launch(_clear, programs(n, BLOCK))(
        rows.nodes, rows.owner, tables.local, tables.found, n, tables.stride, BLOCK=BLOCK
    )
