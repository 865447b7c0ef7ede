"""LADIES and FastGCN on the device: the minibatches of a bulk do each hop together; the same bits as
`reference.layerwise`.

The device throws the darts, finds the edges and adds up P at their sources; the host only computes one factor for each
source and hop, by the code of the other kernels, since `expm1` differs between libraries. Darts are thrown in parallel:
all that may be needed, and those beyond the last that counts are dropped. In minibatches whose darts hit too few
columns the rest is drawn by a race as elsewhere: P is added up here, and `layerwise.complete` runs on the host. That is
rare unless nearly all candidates are needed. Weights are added up row by row in the order of the edges, by additions
alone, so that no compiler can fuse them with a product.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.device_memory import completed, to_device
from ...runtime.triton_rng import launch, programs, row_of
from ..device_graph import DeviceGraph
from ..device_samples import Counts, DeviceLayers, DeviceList, Rows, prefix_sums
from ..layerwise import Drawn, budget, clock, complete, dart_word, factors, same_scale, with_replacement
from .compact import compacted
from .draw import BLOCK, cumulated, degrees, total
from .neighbor import check_int32
from .renumber import Group, Hop, forget, joined, merged, named, start
from .tables import Tables, Workspace
from .terms import Terms

ROWS = 128
"""Rows of a program that adds up: one thread each."""


@triton.jit(do_not_specialize=["num_rows", "num_edges", "steps"])
def _flag_edges(
    indptr, sources, nodes, owner, ends, local, flags, num_rows, num_edges, stride, steps, BLOCK: tl.constexpr
):
    """Flag the in-edges whose source has a number in the row's minibatch."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = e < num_edges
    e = tl.where(some, e, 0)
    f = row_of(ends, num_rows, e, steps)
    v = tl.load(nodes + f, mask=some, other=0).to(tl.int64)
    at = tl.load(indptr + v, mask=some, other=0) + e - tl.load(ends + f, mask=some, other=0)
    u = tl.load(sources + at, mask=some, other=0).to(tl.int64)
    q = tl.load(owner + f, mask=some, other=0).to(tl.int64)
    tl.store(flags + e, tl.load(local + q * stride + u, mask=some, other=-1) >= 0, mask=some)


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


def _extract(graph: DeviceGraph, group: Group, tables: Tables) -> Hop:
    """In-edges of the rows whose sources are known."""
    rows = group.rows
    n, ends = len(rows.nodes), cumulated(degrees(graph, rows))
    count = total(ends)
    flags = torch.empty(count, dtype=torch.uint8, device=graph.device)
    if count:
        launch(_flag_edges, programs(count, BLOCK))(
            graph.indptr, graph.indices, rows.nodes, rows.owner, ends, tables.local, flags,
            n, count, tables.stride, n.bit_length(), BLOCK=BLOCK,
        )  # fmt: skip
    drawn = compacted(graph, rows, ends, flags, tables)
    counts = np.diff(drawn.ends[to_device(prefix_sums(group.counts), graph.device)].cpu().numpy())
    check_int32(int(counts.max()))
    return Hop(group, drawn, counts)


@dataclass(frozen=True, eq=False)
class _Sample:
    """SAMPLE of a hop."""

    drawn: list[Drawn]
    """k draws. If darts sufficed and may not repeat, their nodes stay on the device, and `Drawn.nodes` is empty."""
    total: Counts
    """int64 [k], the sum of P."""


class _Layers:
    """Draws the minibatches of one bulk."""

    def __init__(self, terms: Terms, debias: str, every_row: bool, tables: Tables) -> None:
        self.terms, self.debias, self.every_row, self.tables = terms, debias, every_row, tables
        self.graph, self.weighted = terms.graph, debias != "none" or terms.weight is not None

    def draw(self, group: Group, keys: npt.NDArray[np.uint64], s: int) -> _Sample:
        """Throw darts, and mark the columns that are drawn."""
        k, to = len(keys), self.graph.device
        if self.every_row:
            first, last = (
                torch.zeros(k, dtype=torch.int64, device=to),
                torch.full((k,), self.graph.num_nodes, device=to),
            )
            prefix = self.terms.everywhere[1]
        else:
            ends = to_device(prefix_sums(group.counts), to)
            first, last, prefix = ends[:-1], ends[1:], cumulated(self.terms.mass[group.rows.nodes])
        sums = prefix[last] - prefix[first]
        words = to_device(np.array([dart_word(int(key)) for key in keys], np.uint64).view(np.int64), to)
        repeats = self.debias == "with_replacement"
        limit = s if repeats else budget(s)
        hits = self.terms.throw(None if self.every_row else group.rows, first, last, prefix, words, limit)
        place = hits + torch.arange(k, device=to)[:, None] * self.tables.stride
        if repeats:
            self.tables.found[place[sums > 0]] = 1
            message, whole = hits.cpu().numpy(), sums.cpu().numpy()
            return _Sample([with_replacement(message[q] if whole[q] else message[q, :0]) for q in range(k)], whole)
        order = torch.sort(place.view(-1), stable=True).indices
        again = torch.zeros(k * limit, dtype=torch.bool, device=to)
        again[order[1:]] = place.view(-1)[order].diff() == 0
        new = ~again.view(k, limit) & (sums > 0)[:, None]
        rank = new.cumsum(1)
        self.tables.found[place[new & (rank <= s)]] = 1
        want = s + (self.debias == "bottom_k")
        found, darts, whole = torch.stack([rank[:, -1], 1 + (rank < want).sum(1), sums]).cpu().numpy()
        none, late = np.empty(0, np.int64), self.debias == "bottom_k"
        drawn = [
            Drawn(none, None, clock(int(keys[q]), int(darts[q])) if late and found[q] >= want else np.inf)
            for q in range(k)
        ]
        short = np.flatnonzero((found < want) & (whole > 0))
        if len(short):
            hit = [
                h[n][:s]
                for h, n in zip(hits[to_device(short, to)].cpu().numpy(), new[to_device(short, to)].cpu().numpy())
            ]
            for q, found_, candidates in zip(short.tolist(), hit, self._candidates(group, short)):
                drawn[q] = complete(int(keys[q]), s, found_, limit, int(whole[q]), *candidates)
            marks = np.concatenate([drawn[q].nodes + q * self.tables.stride for q in short.tolist()])
            self.tables.found[to_device(marks, to)] = 1
        return _Sample(drawn, whole)

    def _candidates(
        self, group: Group, short: npt.NDArray[np.int64]
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """For each minibatch in `short`, the columns of P that are not 0, and P there, on the host."""
        if self.every_row:
            mass = self.terms.everywhere[0].cpu().numpy()
            return [(np.arange(len(mass)), mass)] * len(short)
        rows, stride = group.rows, self.tables.stride
        taken = torch.isin(rows.owner, to_device(short, self.graph.device))
        place, mass = (x.cpu().numpy() for x in self.terms.add_up(Rows(rows.nodes[taken], rows.owner[taken]), stride))
        begin, end = np.searchsorted(place, short * stride), np.searchsorted(place, (short + 1) * stride)
        return [(place[a:b] - q * stride, mass[a:b]) for q, a, b in zip(short, begin, end)]

    def weigh(self, hop: Hop, edges: DeviceList, nodes: Group, sample: _Sample) -> Tensor:
        """float32 [edges], weight of each edge; `nodes` are the rows' and the new ones."""
        terms, rows, to = self.terms, hop.group.rows, self.graph.device
        assert edges.positions is not None
        at, count = edges.positions, len(rows.nodes)
        row = torch.repeat_interleave(torch.arange(count, device=to), hop.drawn.ends.diff(), output_size=len(at))
        node_at, row_at = prefix_sums(nodes.counts), prefix_sums(hop.group.counts)
        column = to_device(node_at[:-1], to)[rows.owner[row]] + edges.indices
        if self.every_row:
            mass = terms.everywhere[0][nodes.rows.nodes]
        else:
            mass = torch.zeros(len(nodes.rows.nodes), dtype=torch.int64, device=to)
            own = torch.arange(count, device=to) + to_device(node_at[:-1] - row_at[:-1], to)[rows.owner]
            mass.index_add_(0, own, terms.loop[rows.nodes])
            mass.index_add_(0, column, terms.edges(rows.nodes[row], at))
        message, src = (np.split(x.cpu().numpy(), node_at[1:-1]) for x in (mass, nodes.rows.nodes))
        factor = [
            # `normalise` of the reference multiplies by the inverse, so this does too.
            factors(
                self.debias,
                message[q].astype(np.float64) * (1.0 / max(int(sample.total[q]), 1)),
                src[q],
                int(n),
                sample.drawn[q],
            )
            for q, n in enumerate(hop.group.counts)
        ]
        c = to_device(np.concatenate(factor), to)[column]
        if terms.weight is not None:
            c = terms.weight[at].double() * c
        if same_scale(self.debias):
            sums = torch.empty(count, dtype=torch.float64, device=to)
            launch(_add_in_order, programs(count, ROWS))(c, hop.drawn.ends, sums, count, ROWS=ROWS)
            c = c * torch.where(sums > 0, terms.whole[rows.nodes] / sums, 0.0)[row]
        return c.float()


def layers(
    terms: Terms,
    seeds: Tensor,
    counts: Counts,
    keys: npt.NDArray[np.uint64],
    sizes: Sequence[int],
    *,
    debias: str,
    every_row: bool,
    workspace: Workspace,
) -> DeviceLayers:
    """See `reference.layerwise.ladies`, or with `every_row` `fastgcn`.

    Args:
        terms: of the graph.
        seeds: [sum of counts], minibatch after minibatch, in the dtype of the graph's ids.
        counts: seeds of each of the k minibatches, k > 0.
        keys: uint64 [k, L], on the host.
        sizes: L numbers, nearest the seeds first.
        debias: see `layerwise.DEBIAS`.
        every_row: draw in proportion to the sums over all V rows.
        workspace: keeps the tables.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    tables = workspace.take(len(counts), terms.graph)
    bulk = _Layers(terms, debias, every_row, tables)
    group = start(seeds, counts, tables)
    node_ends, lists, weight = [counts], [], []
    for h, s in enumerate(sizes):
        sample = bulk.draw(group, keys[:, h], s)
        none = torch.empty(0, dtype=torch.int64, device=seeds.device)
        new, _ = completed(named(group.counts, tables, seeds.dtype, none))
        nodes = merged([group, new])
        hop = _extract(terms.graph, group, tables)
        edges = joined([hop], tables)
        lists.append(edges)
        if bulk.weighted:
            weight.append(bulk.weigh(hop, edges, nodes, sample))
        group = nodes
        node_ends.append(nodes.counts)
    forget(group.rows, tables)
    workspace.put_back(tables)
    return DeviceLayers(group.rows, tuple(node_ends), tuple(lists), tuple(weight) if bulk.weighted else None)
