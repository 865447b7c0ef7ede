"""Bulk sampling of what is not later than a moment, on the device: bits of `sample.temporal`.

Seeds of one minibatch and moment grow a *tree*, which shares nothing with others, so a node is numbered by tree and id.
There may be a tree for each seed: tables of all nodes, as `neighbor` has for each minibatch, would not fit. So the keys
of a hop's edges, tree V + source, are sorted. Those that are new are the first of their kind, and the next hop's rows;
their order, by tree and then by node, is that of minibatches. Edges look up their sources among all keys found.

Rows are in the order of time: a binary search finds the end of what a row may draw from. The host waits once a hop,
for the numbers of edges and new nodes, and before that where all edges are taken or many might be drawn (`ROOM`).

An edge costs what it costs `neighbor` but for marks, the sort of a 64-bit key, and two searches among the keys found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .....storage.optional import taken
from ...runtime.device_memory import ToHost, completed, to_device
from ...runtime.triton_rng import TILE, elements, launch, programs
from ..device_samples import Counts, Lists, Rows, cumulated, prefix_sums
from ..device_times import DeviceTimes, NodesInTrees, TimedDraws, TimedSample
from ..samples import check_edges
from .draw import Drawn, Marks, kept_of, put, total
from .renumber import Group, Hop, joined, joined_numbers, merged

BLOCK = TILE
NONE = torch.iinfo(torch.int64).max
"""Key of no node; larger than all others."""
AT_ONCE = 1 << 26
"""Edges that the minibatches drawn together are expected to have, at about 80 bytes each; more are drawn in pieces."""
ROOM = 1 << 22
"""Edges up to which memory is allocated for the maximum number, and sorted. Above, the host waits for the actual
number, which takes less time than the sort of so many."""


@triton.jit(do_not_specialize=["num_rows", "steps"])
def _ends_until(indptr, time, nodes, owner, moments, out, num_rows, steps, BLOCK: tl.constexpr):
    """End of the edges of each row that are not later than the moment of its tree."""
    f, some = elements(num_rows, BLOCK)
    v = tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    moment = tl.load(moments + tl.load(owner + f, mask=some, other=0).to(tl.int64), mask=some, other=0)
    low, high = tl.load(indptr + v, mask=some, other=0), tl.load(indptr + v + 1, mask=some, other=0)
    for _ in range(steps):
        middle = (low + high) >> 1
        left = low < high
        here = left & (tl.load(time + middle, mask=left, other=0) <= moment)
        low, high = tl.where(here, middle + 1, low), tl.where(left & (here == 0), middle, high)
    tl.store(out + f, low, mask=some)


@triton.jit(do_not_specialize=["n"])
def _look_up(numbers, at, out, n, BLOCK: tl.constexpr):
    i, some = elements(n, BLOCK)
    x = tl.load(numbers + tl.load(at + i, mask=some, other=0), mask=some, other=0)
    tl.store(out + i, x, mask=some)


def look_up(numbers: Tensor, at: Tensor) -> Tensor:
    """``numbers[at]``, of numbers on the device or in locked memory of the host; `at` is int64."""
    out = torch.empty(len(at), dtype=numbers.dtype, device=at.device)
    if len(at):
        launch(_look_up, programs(len(at), BLOCK))(numbers, at, out, len(at), BLOCK=BLOCK)
    return out


@dataclass(frozen=True, eq=False)
class Trees:
    """Seeds of k minibatches, and the T trees that they grow."""

    nodes: Tensor
    """int64 [n], the seeds, minibatch after minibatch."""
    tree: Tensor
    """int32 [n], the tree of each. Those of a minibatch follow those of the one before."""
    counts: Counts
    """int64 [k], seeds of each."""
    first: Counts
    """int64 [k+1], first tree of each."""
    moments: Tensor
    """[T], of the dtype of the times of edges."""
    keys: Tensor
    """int64 [L, T], the bits of the stream of each hop and tree."""
    num_rows: int
    """Lists of all seeds: `_Segments`."""


@dataclass(frozen=True, eq=False)
class _Segments:
    """Lists that the nodes of a hop may draw from: one for each, or with types one for each relation into its type."""

    lists: Lists
    """S of them, each with its tree, up to the end of what is not too late."""
    timed: Tensor | None
    """bool [S], False for edges that have been there always; None: all are timed."""
    of_nodes: Tensor | None
    """int64 [n+1], where the rows of each node begin; None: a row is a node."""


def _lists_until(times: DeviceTimes, rows: Rows, moments: Tensor) -> Lists:
    """The edges of each row that are not later than the moment of its tree, its owner."""
    out = torch.empty(len(rows.nodes), dtype=torch.int64, device=times.device)
    if len(out):
        lists = times.lists
        launch(_ends_until, programs(len(out), BLOCK))(
            lists.indptr, times.time, rows.nodes, rows.owner, moments, out, len(out), lists.max_degree.bit_length(),
            BLOCK=BLOCK,
        )  # fmt: skip
    return Lists(rows, times.lists.indptr[rows.nodes], out)


def _rows_of(times: DeviceTimes, nodes: Tensor) -> Tensor:
    """int64 [n], number of rows of each node of a graph with types."""
    assert times.by_type is not None
    offsets, _, count, _ = times.by_type
    return count[torch.searchsorted(offsets, nodes, right=True) - 1]


def segments(times: DeviceTimes, nodes: Tensor, tree: Tensor, moments: Tensor, num_rows: int) -> _Segments:
    """The `_Segments` of n nodes in their trees; `num_rows` is S."""
    if times.by_type is None:
        return _Segments(_lists_until(times, Rows(nodes, tree), moments), None, None)
    offsets, first, count, timed = times.by_type
    kind = torch.searchsorted(offsets, nodes, right=True) - 1
    own = count[kind]
    ends, to = cumulated(own), nodes.device
    of = torch.repeat_interleave(torch.arange(len(nodes), device=to), own, output_size=num_rows)
    rank = torch.arange(num_rows, device=to) - ends[of]
    base = first[kind] + (nodes - offsets[kind]) * own
    rows = Rows(base[of] + rank, tree[of])
    return _Segments(_lists_until(times, rows, moments), timed[kind[of], rank], ends)


def _draw(
    times: DeviceTimes, of: _Segments, keys: Tensor, fanout: int, asked: TimedDraws, keep: bool
) -> tuple[Drawn, Tensor]:
    """Edges drawn of each list, `Drawn.sources` being their keys, NONE where there is room for more; and the number of
    each list, int64 [S]."""
    lists, to = of.lists, times.device
    if asked.last and fanout >= 0:
        latest = torch.maximum(lists.begin, lists.until - fanout)
        lists = replace(lists, begin=latest if of.timed is None else torch.where(of.timed, latest, lists.begin))
    s, kept = kept_of(lists.degree, fanout, times.lists.max_degree, asked.replace)
    ends, most = cumulated(kept), len(kept) * s
    room = total(ends) if fanout < 0 or most > ROOM else most
    edges = torch.full((max(room, 1),), NONE, dtype=torch.int64, device=to)
    made = Drawn(ends, edges, torch.empty_like(edges) if keep else None)
    marks = Marks(stride=times.num_nodes, keyed=True)
    return put(times.lists.indices, lists, keys, s, made, room, marks, replace=asked.replace), kept


class _Known:
    """The keys found so far, and the number of each in its minibatch."""

    def __init__(self, keys: Tensor, counts: Counts) -> None:
        """
        Args:
            keys: int64 [n], of the seeds, minibatch after minibatch.
            counts: seeds of each.
        """
        to = keys.device
        self.counts = counts
        self.sorted, order = torch.sort(torch.cat([keys, torch.full((1,), NONE, dtype=torch.int64, device=to)]))
        within = np.arange(counts.sum()) - np.repeat(prefix_sums(counts)[:-1], counts)
        self._number = to_device(np.append(within, 0).astype(np.int32), to)[order]

    def new_among(self, found: Tensor) -> Tensor:
        """int64 [e+1], how many before each of these sorted keys are new, each counted once; NONE is none."""
        new = found != self.sorted[torch.searchsorted(self.sorted, found)]
        new[1:] &= found[1:] != found[:-1]
        return cumulated(new.long())

    def add(self, keys: Tensor, of: Tensor, counts: Counts) -> None:
        """Number new keys, which ascend; `of` is the minibatch of each, and `counts` how many each has."""
        to = keys.device
        shift = to_device(self.counts - prefix_sums(counts)[:-1], to)
        number = (torch.arange(len(keys), device=to) + shift[of.long()]).int()
        self.sorted, order = torch.sort(torch.cat([self.sorted, keys]))
        self._number = torch.cat([self._number, number])[order]
        self.counts = self.counts + counts

    def numbers(self, keys: Tensor) -> Tensor:
        """int32 [e], the number of each of these keys, all of which are known."""
        return self._number[torch.searchsorted(self.sorted, keys)]


async def _grow(times: DeviceTimes, trees: Trees, asked: TimedDraws) -> TimedSample:
    V, to, k = max(times.num_nodes, 1), times.device, len(trees.counts)
    minibatch = to_device(np.repeat(np.arange(k, dtype=np.int32), np.diff(trees.first)), to)
    bounds = to_device(trees.first * V, to)
    weighs, keep = asked.weight is not None or times.by_type is not None, asked.keep_positions
    node, tree = trees.nodes, trees.tree
    key = tree.long() * V + node
    known = _Known(key, trees.counts)
    group = Group(Rows(key, minibatch[tree.long()]), trees.counts)
    groups, node_ends, edge_ends, hops, weights = [group], [trees.counts], [], [], []
    edges, num_rows = np.zeros(k, np.int64), trees.num_rows
    all_rows = num_rows
    for h, s in enumerate(asked.fanout):
        if asked.replace:
            # Before memory is allocated for them.
            check_edges(s * int(group.counts.max(initial=0)))
        of = segments(times, node, tree, trees.moments, num_rows)
        drawn, kept = _draw(times, of, trees.keys[h], s, asked, keep or weighs)
        ends = drawn.ends if of.of_nodes is None else drawn.ends[of.of_nodes]
        found = torch.sort(drawn.sources).values
        before = known.new_among(found)
        beside = [ends[to_device(prefix_sums(group.counts), to)], before[torch.searchsorted(found, bounds)]]
        if times.by_type is not None:
            # The next hop's rows: sources are below V, and NONE is counted as new nowhere.
            beside.append((_rows_of(times, found % V) * before.diff()).sum().view(1))
        # The host must wait: the next hop's memory depends on the number of nodes found.
        message = await ToHost(torch.cat(beside))
        counts, new = np.diff(message[: k + 1]), np.diff(message[k + 1 : 2 * k + 2])
        count, num_edges = int(new.sum()), int(counts.sum())
        num_rows = count if times.by_type is None else int(message[-1])
        all_rows += num_rows
        edges = edges + counts
        check_edges(int(edges.max(initial=0)))
        key = found[torch.searchsorted(before[1:], torch.arange(1, count + 1, device=to))]
        # What is as long as the edges goes as soon as it was read: the last hop's would be there with the joined lists.
        del found, before, beside
        tree = torch.div(key, V, rounding_mode="floor")
        node, tree = key - tree * V, tree.int()
        new_group = Group(Rows(key, minibatch[tree.long()]), new)
        known.add(key, new_group.rows.owner, new)
        positions = taken(drawn.positions, slice(num_edges))
        if weighs:
            weights.append(_weights(times, of, kept, positions, asked.weight, num_edges))
        sources = known.numbers(drawn.sources[:num_edges])
        hops.append(Hop(group, Drawn(ends, sources, positions if keep else None), counts))
        del drawn, positions, of, kept
        group = new_group
        groups.append(group)
        node_ends.append(known.counts)
        edge_ends.append(edges)
    del known, key, node, tree
    own = joined_numbers(hops, weights) if weighs else None
    lists = (replace(joined(hops, None), weight=own),)
    nodes = merged(groups)
    tree = torch.div(nodes.rows.nodes, V, rounding_mode="floor")
    rows = Rows((nodes.rows.nodes - tree * V).to(times.lists.indices.dtype), nodes.rows.owner)
    in_trees = NodesInTrees(rows.nodes, tree.int(), trees.moments, all_rows)
    return TimedSample(rows, tuple(node_ends), lists, tuple(edge_ends), in_trees)


def _weights(
    times: DeviceTimes, of: _Segments, kept: Tensor, positions: Tensor | None, weight: Tensor | None, num_edges: int
) -> Tensor:
    """float32 [e], weights of the edges drawn: each stands for those of its list until the moment, over those kept."""
    scale = of.lists.degree.double() / kept.clamp(min=1).double()
    each = torch.repeat_interleave(scale, kept, output_size=num_edges)
    if weight is not None:
        assert positions is not None
        each = weight[positions].double() * each
    return each.float()


def temporal(times: DeviceTimes, trees: Trees, asked: TimedDraws) -> TimedSample:
    """Grow trees: see `sample.temporal.TemporalSampler`.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    return completed(_grow(times, trees, asked))


def degrees_until(times: DeviceTimes, of_bulk: NodesInTrees, sums: Tensor | None) -> Tensor:
    """float64 [n], in-edges of each node that are not later than the moment of its tree; with `sums` of the weights
    before each edge, float64 [E+1], their weight."""
    nodes = of_bulk.nodes.long()
    of = segments(times, nodes, of_bulk.tree, of_bulk.moments, of_bulk.num_rows)
    if sums is None:
        own = of.lists.degree.double()
    else:
        own = look_up(sums, of.lists.until) - look_up(sums, of.lists.begin)
    if of.of_nodes is None:
        return own
    out, first, count = torch.zeros_like(nodes, dtype=torch.float64), of.of_nodes[:-1], of.of_nodes.diff()
    # In the order of relations, so that the bits are the host's.
    padded = torch.cat([own, own.new_zeros(times.most_rows)])
    for j in range(times.most_rows):
        out += torch.where(count > j, padded[first + j], 0.0)
    return out


def pieces(k: int, seeds: int, fanout: Sequence[int], times: DeviceTimes) -> list[slice]:
    """Ranges of k minibatches that are drawn together, of at most so many seeds each."""
    edges, reached, most = 0.0, float(seeds), max(1.0, times.edges_of_end)
    for s in fanout:
        reached *= most if s < 0 else s * times.most_rows
        if s < 0:
            # A tree reads each row once.
            reached = min(reached, float(seeds) * len(times.lists.indices))
        edges += reached
    step = int(max(1, min(k, AT_ONCE // max(1.0, edges))))
    return [slice(at, min(k, at + step)) for at in range(0, k, step)]
