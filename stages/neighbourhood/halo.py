"""Neighbours on other ranks, fetched in one exchange: plain domain-parallel training.

Faster than one rank after the other if memory allows it: one message for each pair of ranks and one pass over the
edges. A layer keeps the rows of other ranks for its backward pass too.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IntArray
from ...storage.errors import InputError
from ...storage.graph import row_ranges, starts_of
from ...storage.minibatch import Block
from ...storage.optional import taken
from ..autograd import once_differentiable
from ..kernels import aggregation_on
from ..kernels.aggregation.attention_args import AttentionRule, EdgeNumbers
from ..kernels.aggregation.lists import InLists
from ..kernels.runtime.device_memory import to_device
from ..memory.arena import empty
from .base import Loops
from .block import BlockNeighbourhood
from .checked import BARE, CheckedNeighbourhood, Factors, Kind, Reduction, UserMessage
from .checks import as_matrix
from .full_batch import FullBatch, GivenRows, Shard, View
from .loops import loops_of_all
from .relations import EdgeTypes, NodeRows, PartTypes, Relation, TypedEdges
from .ring import KIND, Ring


class Halo:
    """Rows that a layer reads, as one block: this rank's rows, then those of the others in the order of ranks. Made
    once for a run."""

    def __init__(self, batch: FullBatch, view: View, given: GivenRows, types: PartTypes | None = None) -> None:
        """
        Args:
            batch: this rank's share of the graph.
            view: the part that the layer needs.
            given: the features.
            types: of the rank's rows and edges; None: there is one of each.
        """
        self.batch, self.view = batch, view
        self.counts = view.counts
        """Rows from each rank."""
        whole = view.shards[0] if len(view.shards) == 1 else together(view)
        lists = whole.lists
        # Rows of other ranks need no names: dropout is applied before they are sent.
        src = np.arange(lists.num_src)
        weight = None if whole.weight is None else whole.weight.numpy()
        block = Block(view.num_dst, src, lists.indptr, lists.indices, weight)
        known = batch.degree_rows[: view.num_src].to(given.dtype)
        degree = known.new_zeros(len(src), *known.shape[1:])
        degree[: view.num_src] = known
        numbers = EdgeNumbers(batch.numbers.first, batch.numbers.own, whole.edge)
        rows = given.edges
        self.edges = None if rows is None else lambda: rows[to_device(whole.edge, rows.device)]
        """Returns the features of the edges."""
        degree = degree.to(given.device or degree.device)
        self.neighbourhood = BlockNeighbourhood(
            block,
            degree,
            edge_types=None if types is None else _types_of(block, view, types, whole.edge, given.device),
            edges=self.edges,
        )
        self.neighbourhood.names, self.neighbourhood.numbers = batch.names[: view.num_src], numbers
        self.neighbourhood.lists = lists
        self.is_typed = types is not None
        """True if the block has rows and edges of several types."""
        self.exchanged_degree: Tensor | None = None
        """Degrees of all rows, including those of other ranks, once they have been needed."""


def _types_of(block: Block, view: View, types: PartTypes, edge: IntArray, device: torch.device | None) -> EdgeTypes:
    """Types of rows and edges. A row of another rank is here because an edge reads it, which says its type."""
    kinds, of_rows = types.of_edges[edge], np.zeros(block.num_src, np.int64)
    of_rows[block.indices] = types.types.ends[kinds, 0]
    of_rows[: view.num_src] = types.of_rows[: view.num_src]
    return EdgeTypes(types.types, lambda: kinds, lambda: of_rows, device)


def together(view: View) -> Shard:
    """All shards as one, with the edges of each row in the order of the rank's part, as before sharding. Rows from
    other ranks follow this rank's own."""
    starts = view.num_src + np.cumsum(view.counts) - view.counts
    indptr = starts_of(view.kept)
    empty, num_edges = view.shards[0].lists.empty, int(indptr[-1])
    indices, edge = empty(num_edges, np.int32), empty(num_edges, view.shards[0].edge.dtype)
    weight = None if view.shards[0].weight is None else torch.from_numpy(empty(num_edges, np.float32))
    for first, stop in row_ranges(indptr):
        rows, sources, edges, weights = [], [], [], []
        for shard, start in zip(view.shards, starts):
            lists = shard.lists
            a, b = (first, stop) if shard.rows is None else np.searchsorted(shard.rows, (first, stop)).tolist()
            of = slice(int(lists.indptr[a]), int(lists.indptr[b]))
            rows.append(np.repeat(shard.rows_of(a, b), lists.kept[a:b]))
            sources.append(lists.indices[of] + (0 if shard.is_own else start))
            edges.append(shard.edge[of])
            weights.append(taken(shard.weight, of))
        of, order = slice(int(indptr[first]), int(indptr[stop])), np.concatenate(edges)
        turn = np.lexsort((order, np.concatenate(rows)))
        indices[of], edge[of] = np.concatenate(sources)[turn], order[turn]
        if weight is not None:
            weight[of] = torch.cat(weights)[torch.from_numpy(turn)]
    return Shard(InLists.from_arrays(indptr, indices, view.num_src + view.remote_rows, empty), None, edge, weight)


class HaloNeighbourhood(CheckedNeighbourhood):
    """Aggregation over the edges of one layer of a full batch."""

    def __init__(self, halo: Halo, ring: Ring) -> None:
        """
        Args:
            halo: the layer's edges.
            ring: the exchanges of this pass. All ranks make the same calls in the same order.
        """
        self._halo, self._ring, self._group, view = halo, ring, ring.group, halo.view
        self.num_dst, self.num_src, self.num_edges = view.num_dst, view.num_src, view.num_edges
        self.spans_ranks, self.names = ring.group.size > 1, halo.batch.names[: view.num_src]
        self._last: tuple[Tensor, int, Tensor] | None = None

    @property
    def degree(self) -> Tensor:
        return self._halo.neighbourhood.degree[: self.num_src]

    @property
    def loops(self) -> Loops | None:
        return loops_of_all(self._halo.neighbourhood.degree_rows[: self.num_src], self.num_dst)

    def is_loop(self, device: torch.device) -> Tensor:
        return self._halo.neighbourhood.is_loop(device)

    def _all(self, h: Tensor) -> Tensor:
        """Rows of this rank, then those of the others."""
        x = as_matrix(h, self.num_src, "h").reshape(h.shape)
        return x if self._group.size == 1 else Exchange.apply(x, self._halo, self._ring)

    def all_once(self, h: Tensor) -> Tensor:
        """Rows of this rank, then those of the others, which come once for several calls with the same h."""
        if self._last is None or self._last[0] is not h or self._last[1] != h._version:
            self._last = h, h._version, self._all(h)
        return self._last[2]

    def as_block(self, h: Tensor) -> tuple[BlockNeighbourhood, Tensor]:
        """The layer as one block over this rank's rows and those of the others that it reads, and h of these rows. All
        ranks call this at the same time, and use the block's degrees at the same time."""
        halo = self._halo
        typed = self._typed if halo.is_typed else None
        block = BlockNeighbourhood(halo.neighbourhood.block, self._all_degrees, edges=halo.edges, edge_types=typed)
        block.lists = halo.neighbourhood.lists
        return block, self._all(h)

    def node_types(self) -> tuple[NodeRows, ...]:
        """See `BlockNeighbourhood.node_types`: of this rank's rows."""
        return tuple(NodeRows(n.name, n.sources[n.sources < self.num_src], n.targets) for n in self._typed.nodes)

    def relations(self) -> tuple["HaloRelation", ...]:
        """See `BlockNeighbourhood.relations`. Every rank makes the same calls, whatever edges it has."""
        return tuple(HaloRelation(r, self) for r in self._typed.relations)

    @property
    def _typed(self) -> TypedEdges:
        return self._halo.neighbourhood._typed

    def _all_degrees(self) -> Tensor:
        halo = self._halo
        if self._group.size > 1 and halo.exchanged_degree is None:
            known = halo.neighbourhood.degree_rows
            rows = (known[:, None] if known.ndim == 1 else known)[: self.num_src].contiguous()
            halo.exchanged_degree = self._all(rows).reshape(-1, *known.shape[1:]).clone()
        return halo.neighbourhood.degree_rows if halo.exchanged_degree is None else halo.exchanged_degree

    @property
    def edge_features(self) -> Tensor:
        return self._halo.neighbourhood.edge_features

    def _reduced(self, kind: Reduction, x: Tensor, factors: Factors = BARE) -> Tensor:
        if self._group.size == 1 or factors.of_sources is None:
            return self._halo.neighbourhood._reduced(kind, self._all(x), factors)
        total = self._halo.neighbourhood._reduced(kind, self._all(x * factors.of_sources[:, None]))
        return total if factors.own is None else total + factors.own[:, None] * x[: self.num_dst]

    def _attend(self, kind: Kind, z: Tensor, a_src: Tensor, dst: Tensor, rule: AttentionRule) -> Tensor:
        return self._halo.neighbourhood._attend(kind, self._all(z), a_src, dst, rule)

    def _applied(self, of: UserMessage, h: Tensor) -> Tensor:
        return self._halo.neighbourhood._applied(of, self._all(h))


class HaloRelation(Relation):
    """Edges of one relation over several ranks. See `Relation`; calls read the rows of this rank, and those of the
    others come in one exchange for all calls in turn with one h."""

    def __init__(self, relation: Relation, over: HaloNeighbourhood) -> None:
        sources = relation.sources[relation.sources < over.num_src]
        super().__init__(relation._of, relation.lists, sources, None)
        self._over, self.num_src = over, over.num_src

    @property
    def compact(self) -> "Relation":
        """Not over several ranks. Raises InputError."""
        raise InputError(
            "relation.compact and relation.ends name rows of one process, but rows of other ranks are read too; call "
            "the relation itself with all rows, or train with one rank"
        )

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Not over several ranks. Raises InputError."""
        return self.compact.ends(device)

    def _all(self, h: Tensor) -> Tensor:
        return self._over.all_once(h)


class Exchange(torch.autograd.Function):
    """``apply(x, halo, ring)``: [num_src, ...] -> [num_src + B, ...]. `halo` has the `view` of the rows that travel and
    the `counts` of those from each rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, halo: Any, ring: Ring) -> Tensor:
        ctx.rest = halo, ring
        both = empty((len(x) + sum(halo.counts), *x.shape[1:]), x.dtype, x.device)
        both[: len(x)] = x
        lengths = [len(w) for w in halo.view.wanted]
        parts = aggregation_on(x.device).take_rows(x, halo.view.wanted_on(x.device)).split(lengths)
        ring.wait(
            lambda _: ring.group.all_to_all(list(parts), KIND, list(both[len(x) :].split(halo.counts))),
            "rows of all ranks",
        )
        return both

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        halo, ring = ctx.rest
        n, wanted = halo.view.num_src, halo.view.wanted
        grad = grads[0].contiguous()
        lengths = [len(w) for w in wanted]
        back = empty((sum(lengths), *grad.shape[1:]), grad.dtype, grad.device).split(lengths)
        ring.wait(
            lambda _: ring.group.all_to_all(list(grad[n:].split(halo.counts)), KIND, list(back)),
            "gradients of all ranks",
        )
        dx = grad[:n].clone()
        for q, rows in enumerate(back):
            # One rank after the other: several may have read the same row.
            aggregation_on(dx.device).add_rows(dx, halo.view.wanted_on(dx.device, q), rows)
        return dx, None, None
