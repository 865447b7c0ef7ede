"""Neighbourhoods over a minibatch's blocks on the device that sampled them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..kernels import aggregation_backend
from ..kernels.aggregation.lists import DeviceLists
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.frames import Frame
from .block import ListNeighbourhood
from .checked import Reduction
from .relations import no_types
from .relations_cuda import DeviceTypedRows


def _no_kinds(ids: Tensor) -> Tensor:
    raise no_types()


@dataclass(frozen=True, eq=False)
class EdgesOnDevice:
    """Properties of a graph's edges that layers read on a device. Edges are given by their `Block.edge_id`, int64
    [e]."""

    types: GraphTypes = SINGLE
    """Types of the graph."""
    kinds: Callable[[Tensor], Tensor] = _no_kinds
    """Returns the relation of each edge, [e]; not called of a graph with one type of them."""
    rows: Callable[[Tensor], Tensor] | None = None
    """Returns the features of the edges, [e, D]; None: the model reads none."""
    weights: Callable[[Tensor | None], Tensor | None] | None = None
    """Returns the edges' own weights, [e], or None if all are 1; None: they are those of the sample."""


NO_EDGES = EdgesOnDevice()
"""Of a graph with one type of nodes and edges, of edges whose features no layer reads."""


class ResidentNeighbourhood(ListNeighbourhood):
    """`ListNeighbourhood` over lists on a device: no call waits for the device."""

    def __init__(
        self,
        bulk: ResidentBulk | Frame,
        q: int,
        hop: int,
        degree: Callable[[], Tensor],
        edges: EdgesOnDevice = NO_EDGES,
    ) -> None:
        """
        Args:
            bulk: holds the minibatch.
            q: its position there.
            hop: 0 is nearest the seeds.
            degree: returns [num_src] on the device, see `ListNeighbourhood`.
            edges: types and features of the edges.
        """
        read = edges.rows
        super().__init__(
            degree, aggregation_backend("cuda"), edges=None if read is None else lambda: read(self._positions)
        )
        self._of_edges = edges
        if (own := edges.weights) and isinstance(bulk, ResidentBulk):
            self.given_weight = lambda: own(bulk.positions_of(q, hop))
        self._where = bulk, q, hop
        self.lists = lists = bulk.block(q, hop)
        self.num_dst, self.num_src, self.num_edges = lists.num_dst, lists.num_src, lists.num_edges

    @property
    def _positions(self) -> Tensor:
        """`Block.edge_id` on the device."""
        bulk, q, hop = self._where
        assert isinstance(bulk, ResidentBulk), "a recorded step knows no edges"
        found = bulk.positions_of(q, hop)
        assert found is not None, "the sampler keeps edge_ids"
        return found

    @cached_property
    def _typed(self) -> DeviceTypedRows:
        edges, (bulk, q, _) = self._of_edges, self._where
        if edges.types.is_single:
            raise no_types()
        assert isinstance(bulk, ResidentBulk)
        types, nodes = edges.types, bulk.nodes_of(q)[: self.num_src]
        ends = torch.tensor(types.offsets[1:], device=nodes.device)
        of_rows = torch.searchsorted(ends, nodes.long(), right=True) % len(types.node_types)
        kinds = edges.kinds(self._positions)
        return DeviceTypedRows(self, types, of_rows, kinds, self.lists, self.weight)

    @cached_property
    def weight(self) -> Tensor | None:
        """`Block.weight` on the device, float32 [e]."""
        bulk, q, hop = self._where
        return bulk.weight_of(q, hop)

    def _sum_scale(self, dtype: torch.dtype) -> Tensor:
        bulk, q, hop = self._where
        return self.degree[: self.num_dst].to(dtype) * bulk.inverse_kept(q, hop, dtype)

    def _row_scale(self, reduce: Reduction, dtype: torch.dtype) -> Tensor | None:
        bulk, q, hop = self._where
        if self.weight is None and reduce != "sum":
            return bulk.inverse_kept(q, hop, dtype)
        return super()._row_scale(reduce, dtype)

    def _rows_on(self, lists: DeviceLists, device: torch.device) -> Tensor:
        if not isinstance(self._where[0], Frame):
            return super()._rows_on(lists, device)
        # Padding follows the last edge, and is given to the last row.
        edges = torch.arange(len(lists.indices), dtype=lists.indptr.dtype, device=device)
        return torch.searchsorted(lists.indptr[1:-1], edges, right=True)


def resident_neighbourhoods(
    bulk: ResidentBulk, q: int, degree: Callable[[], Tensor], edges: EdgesOnDevice
) -> tuple[ResidentNeighbourhood, ...]:
    """Neighbourhoods of minibatch q, outermost first; `degree` gives the degree of each of its nodes, [n], on the
    device."""
    hops = reversed(range(bulk.num_hops))
    return tuple(
        ResidentNeighbourhood(bulk, q, h, lambda n=int(bulk.node_ends[h + 1][q]): degree()[:n], edges) for h in hops
    )
