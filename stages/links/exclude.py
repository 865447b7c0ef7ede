"""Samples without the edges of the pairs that a minibatch is to predict."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, contains, keys_of
from ...storage.minibatch import Block, Bulk, MiniBatch, nested_blocks
from ...storage.typed.graph_types import GraphTypes
from ..assignment import BulkRequest
from ..placement.row_owners import Owners
from ..sample.base import Sampler
from .plan import LinkRequest

if TYPE_CHECKING:
    from torch import Tensor

    from ..placement.row_owners_cuda import OwnersOnDevice

OfPairs = Callable[[npt.NDArray[np.integer]], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class WithoutOwnEdges:
    """A sampler whose minibatches lack the edges of their positive pairs and the reverses, all of them where there are
    several. In a graph with types these are edges of the pairs' relation and of the relations that have its edges
    reversed; edges of other relations between the same nodes stay.

    They are taken out of the drawn sample, as DGL does. The rest is a uniform sample of the other in-edges, in which a
    row may have fewer than its fanout; weights estimate the sum over the other in-edges without bias, as they did over
    all. Both ends of a pair are seeds, so no node is lost.
    """

    inner: Sampler

    @property
    def name(self) -> str:
        """See `Sampler.name`."""
        return self.inner.name

    @property
    def host_only(self) -> bool:
        """See `sample.base.check_kernel`."""
        return getattr(self.inner, "host_only", False)

    @property
    def rows_travel(self) -> bool:
        """See `sample.base.check_kernel`."""
        return getattr(self.inner, "rows_travel", False)

    @property
    def iterations(self) -> int:
        """See `sample.base.check_kernel`."""
        return getattr(self.inner, "iterations", 0)

    @property
    def draws_by_owners_on_device(self) -> bool:
        """See `Sampler`."""
        return getattr(self.inner, "draws_by_owners_on_device", False)

    @property
    def num_layers(self) -> int:
        """L."""
        return self.inner.num_layers

    @property
    def edge_ids(self) -> bool:
        """See `Sampler.edge_ids`."""
        return self.inner.edge_ids

    def record(self) -> dict[str, Any]:
        """See `Sampler.record`."""
        return {**self.inner.record(), "without": "own edges"}

    def check(self, graph: Graph) -> None:
        """See `Sampler.check`."""
        self.inner.check(graph)

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """See `Sampler.sample`."""
        drawn, types = self.inner.sample(graph, request, kernel, workspace), graph.types
        return _left(drawn, request, types, lambda ids, _: _relations(graph)[ids])

    def sample_by_owners(self, owners: Owners, request: BulkRequest) -> Bulk:
        """See `Sampler.sample_by_owners`."""
        drawn, types = self.inner.sample_by_owners(owners, request), owners.rows.graph.types
        # Edges of other ranks name their relations: see `sample.remote_nodewise`.
        return _left(drawn, request, types, lambda ids, own: ids % own.num_relations)

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        """See `Sampler.sample_on_device`."""
        from ..kernels.runtime.device_memory import completed
        from ..kernels.sampling.device_graph import number_on_device
        from .exclude_cuda import OwnRelations, without_own_edges

        drawn, types = self.inner.sample_on_device(graph, request, workspace), graph.types
        kinds: OwnRelations | None = None
        if types is not None:
            kinds = OwnRelations(types, lambda ids: number_on_device(graph, "edge_type")[ids])
        assert isinstance(request, LinkRequest)
        nested = all(m.nested for m in drawn.minibatches)
        return completed(without_own_edges(drawn, request.positives, kinds, nested=nested))

    async def sample_by_owners_on_device(self, owners: "OwnersOnDevice", request: BulkRequest) -> Bulk:
        """Like `sample_by_owners`, with the inner sampler's coroutine of this name. Awaits as often on every rank."""
        from .exclude_cuda import OwnRelations, without_own_edges

        inner: Any = self.inner
        drawn, types = await inner.sample_by_owners_on_device(owners, request), owners.rows.graph.types
        kinds: OwnRelations | None = None
        if types is not None:

            def relations(ids: "Tensor", count: int = types.num_relations) -> "Tensor":
                return ids % count

            kinds = OwnRelations(types, relations)
        assert isinstance(request, LinkRequest)
        return await without_own_edges(
            drawn, request.positives, kinds, nested=inner.expand == "new", device=owners.device
        )


def _relations(graph: Graph) -> npt.NDArray[Any]:
    assert graph.edge_type is not None
    return graph.edge_type


def _left(
    drawn: Bulk,
    request: BulkRequest,
    types: GraphTypes | None,
    relations: Callable[[npt.NDArray[np.integer], GraphTypes], npt.NDArray[Any]],
) -> Bulk:
    assert isinstance(request, LinkRequest)

    def may_be_own(ids: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        assert types is not None
        return np.isin(relations(ids, types), types.own_relations)

    among = None if types is None else may_be_own
    left = tuple(without_pairs(m, p, among) for m, p in zip(drawn.minibatches, request.positives, strict=True))
    return replace(drawn, minibatches=left)


def without_pairs(minibatch: MiniBatch, pairs: PairArray, among: OfPairs | None = None) -> MiniBatch:
    """A minibatch without the edges of some pairs of its seeds, and their reverses.

    Args:
        minibatch: its seeds ascend. Its arrays of edges are overwritten.
        pairs: int64 [b, 2], nodes that are seeds.
        among: says by their `Block.edge_id` which edges may be those of pairs; None: all.
    """
    seeds = minibatch.seeds
    size, local = len(seeds), np.searchsorted(seeds, pairs)
    # By destination, then source, as positions among the seeds.
    own = np.unique(np.concatenate([keys_of(local[:, 1], local[:, 0], size), keys_of(local[:, 0], local[:, 1], size)]))
    if not minibatch.nested:
        return replace(minibatch, blocks=tuple(_without(block, own, size, among) for block in minibatch.blocks))
    outer = _without(minibatch.blocks[0], own, size, among)
    if outer is minibatch.blocks[0]:
        return minibatch
    ends = (minibatch.blocks[-1].num_dst, *(block.num_src for block in reversed(minibatch.blocks)))
    blocks = nested_blocks(outer.src, ends, outer.indptr, outer.indices, outer.weight, outer.edge_id)
    return replace(minibatch, blocks=blocks)


def _without(block: Block, own: npt.NDArray[np.int64], size: int, among: OfPairs | None) -> Block:
    """The block without edges between its first `size` rows that are among `own`, in the same memory."""
    starts = block.indptr[: size + 1]
    between = np.flatnonzero(block.indices[: starts[-1]] < size)
    destination = np.searchsorted(starts, between, side="right") - 1
    gone = between[contains(own, keys_of(destination, block.indices[between], size))]
    if among is not None and len(gone):
        assert block.edge_id is not None
        gone = gone[among(block.edge_id[gone])]
    if not len(gone):
        return block
    kept = np.delete(np.arange(starts[-1]), gone)

    def left(of_edges: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # The first rows move towards the others, which are many more.
        of_edges[len(gone) : starts[-1]] = of_edges[kept]
        return of_edges[len(gone) :]

    indptr = block.indptr - block.indptr.dtype.type(len(gone))
    indptr[: size + 1] = starts - np.searchsorted(gone, starts)
    return Block(
        block.num_dst,
        block.src,
        indptr,
        left(block.indices),
        None if block.weight is None else left(block.weight),
        None if block.edge_id is None else left(block.edge_id),
    )
