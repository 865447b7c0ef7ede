"""Samples without the edges of the pairs that a minibatch is to predict."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.array_kinds import AnyArray, IdArray, Mask
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, contains, keys_of
from ...storage.minibatch import Block, Bulk, MiniBatch, nested_blocks
from ...storage.optional import when_present
from ..assignment import BulkRequest
from ..placement.row_owners import Owners
from ..sample.base import Sampler
from .own_edges import EdgeKinds, own_keys
from .plan import LinkRequest

if TYPE_CHECKING:
    from ..placement.row_owners_cuda import OwnersOnDevice


LEFT_OUT = {"host_only": False, "rows_travel": False, "iterations": 0, "draws_by_owners_on_device": False}
"""Attributes of `Sampler` that are those of the inner one, or else these."""


@dataclass(frozen=True)
class WithoutOwnEdges:
    """A sampler whose minibatches lack the edges of their positive pairs and the reverses, all of them where there are
    several. In a graph with types these are edges of the pairs' relation and of the relations that have its edges
    reversed; edges of other relations between the same nodes stay. Where pairs are of several relations, these are the
    edge u -> v of the pair's own one, and v -> u of those that have its edges reversed: see `own_edges.ways`.

    They are taken out of the drawn sample, as DGL does. The rest is a uniform sample of the other in-edges, in which a
    row may have fewer than its fanout; weights estimate the sum over the other in-edges without bias, as they did over
    all. Both ends of a pair are seeds, so no node is lost.
    """

    inner: Sampler

    @property
    def name(self) -> str:
        return self.inner.name

    def __getattr__(self, name: str) -> Any:
        """As the inner sampler, of attributes that a sampler may leave out."""
        if name in LEFT_OUT:
            return getattr(self.inner, name, LEFT_OUT[name])
        raise AttributeError(name)

    @property
    def num_layers(self) -> int:
        """L."""
        return self.inner.num_layers

    @property
    def edge_ids(self) -> bool:
        return self.inner.edge_ids

    def record(self) -> dict[str, Any]:
        return {**self.inner.record(), "without": "own edges"}

    def check(self, graph: Graph) -> None:
        self.inner.check(graph)

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        drawn = self.inner.sample(graph, request, kernel, workspace)
        return _left(drawn, request, EdgeKinds(graph.types, lambda ids: graph.edge_relations[ids]))

    def sample_by_owners(self, owners: Owners, request: BulkRequest) -> Bulk:
        return _left(self.inner.sample_by_owners(owners, request), request, EdgeKinds.in_ids(owners.rows.graph.types))

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        from ..kernels.runtime.device_memory import completed
        from ..kernels.sampling.device_graph import number_on_device
        from .exclude_cuda import without_own_edges

        drawn = self.inner.sample_on_device(graph, request, workspace)
        kinds = EdgeKinds(graph.types, lambda ids: number_on_device(graph, "edge_type")[ids])
        assert isinstance(request, LinkRequest)
        return completed(without_own_edges(drawn, request, kinds, nested=all(m.nested for m in drawn.minibatches)))

    async def sample_by_owners_on_device(self, owners: "OwnersOnDevice", request: BulkRequest) -> Bulk:
        """Like `sample_by_owners`, with the inner sampler's coroutine of this name. Awaits as often on every rank."""
        from .exclude_cuda import without_own_edges

        inner: Any = self.inner
        drawn = await inner.sample_by_owners_on_device(owners, request)
        kinds = EdgeKinds.in_ids(owners.rows.graph.types)
        assert isinstance(request, LinkRequest)
        return await without_own_edges(drawn, request, kinds, nested=inner.expand == "new", device=owners.device)


def _left(drawn: Bulk, request: BulkRequest, kinds: EdgeKinds) -> Bulk:
    assert isinstance(request, LinkRequest)
    of_pairs = request.relations or (None,) * len(request.positives)
    work = zip(drawn.minibatches, request.positives, of_pairs, strict=True)
    return replace(drawn, minibatches=tuple(without_pairs(m, p, kinds, of) for m, p, of in work))


def without_pairs(minibatch: MiniBatch, pairs: PairArray, kinds: EdgeKinds, relation: PairArray | None) -> MiniBatch:
    """A minibatch without the edges of some pairs of its seeds, and their reverses.

    Args:
        minibatch: its seeds ascend. Its arrays of edges are overwritten.
        pairs: int64 [b, 2], nodes that are seeds.
        kinds: of its edges.
        relation: int64 [b], of the pairs, where those of several are predicted.
    """
    seeds = minibatch.seeds
    own = _OwnEdges.from_positions(np.searchsorted(seeds, pairs), relation, kinds, len(seeds))
    if not minibatch.nested:
        return replace(minibatch, blocks=tuple(own.left_out(block) for block in minibatch.blocks))
    outer = own.left_out(minibatch.blocks[0])
    if outer is minibatch.blocks[0]:
        return minibatch
    ends = (minibatch.blocks[-1].num_dst, *(block.num_src for block in reversed(minibatch.blocks)))
    blocks = nested_blocks(outer.src, ends, outer.indptr, outer.indices, outer.weight, outer.edge_id)
    return replace(minibatch, blocks=blocks)


@dataclass(frozen=True, eq=False)
class _OwnEdges:
    """Edges that are left out of the blocks of a minibatch."""

    keys: IdArray
    """Ascending: by destination, then source, as positions among the seeds, then by relation where pairs have one."""
    size: int
    """Number of seeds."""
    kinds: EdgeKinds
    by_relation: bool

    @classmethod
    def from_positions(cls, local: PairArray, relation: PairArray | None, kinds: EdgeKinds, size: int) -> "_OwnEdges":
        """
        Args:
            local: int64 [b, 2], pairs as positions among the seeds.
            relation: see `without_pairs`, as `kinds`.
            kinds: see there.
            size: number of seeds.
        """
        return cls(np.unique(own_keys(local, relation, kinds.types, size)), size, kinds, relation is not None)

    def left_out(self, block: Block) -> Block:
        """The block without these edges, in the same memory."""
        starts = block.indptr[: self.size + 1]
        between = np.flatnonzero(block.indices[: starts[-1]] < self.size)
        destination = np.searchsorted(starts, between, side="right") - 1
        gone = between[self._have(block, between, keys_of(destination, block.indices[between], self.size))]
        if not len(gone):
            return block
        kept = np.delete(np.arange(starts[-1]), gone)

        def left(of_edges: AnyArray) -> AnyArray:
            # The first rows move towards the others, which are many more.
            of_edges[len(gone) : starts[-1]] = of_edges[kept]
            return of_edges[len(gone) :]

        indptr = block.indptr - block.indptr.dtype.type(len(gone))
        indptr[: self.size + 1] = starts - np.searchsorted(gone, starts)
        return Block(
            block.num_dst,
            block.src,
            indptr,
            left(block.indices),
            when_present(left, block.weight),
            when_present(left, block.edge_id),
        )

    def _have(self, block: Block, edges: IdArray, keys: IdArray) -> Mask:
        """True for each of some edges of a block, with keys without relations, that is one of these."""
        if self.kinds.types.is_single:
            return contains(self.keys, keys)
        assert block.edge_id is not None
        if self.by_relation:
            kind = self.kinds.of_edges(block.edge_id[edges]).astype(np.int64)
            return contains(self.keys, keys * self.kinds.types.num_relations + kind)
        found = contains(self.keys, keys)
        kind = self.kinds.of_edges(block.edge_id[edges[found]])
        found[found] = np.isin(kind, self.kinds.types.own_relations)
        return found
