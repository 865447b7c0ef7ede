"""GCN (Kipf, Welling, ICLR 2017, equations 2 and 8)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..neighbourhood.base import EdgeCounts, Neighbourhood, destinations
from ..neighbourhood.destinations import Aggregate, Destinations
from ..neighbourhood.loops import gcn_norm, gcn_scale, loops_of_all
from ..nn.dense import activate, linear
from .base import AggregateFirst, ModelConfig
from .gine import check_edge_width
from .parts import ConvParts


class GCNConv(AggregateFirst):
    """``D^-1/2 (A + I) D^-1/2 h W + b`` with D the in-degrees of the *whole* graph plus one.

    A node that has a self loop keeps it, with its weight, in place of the one that is added: as PyG's.
    """

    reads_loops = True

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(width_out))

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        if self.aggregates_first(neighbourhood):
            return self.combine(self.aggregate(neighbourhood, h), activation)
        return activate(self.aggregate(neighbourhood, linear(h, self.weight)), self.bias, activation)

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        loops = loops_of_all(degree, len(degree))
        scale = (degree + 1).rsqrt() if loops is None else gcn_scale(loops)

        def aggregate(block: Destinations) -> Aggregate:
            here = scale[nodes := torch.from_numpy(block.nodes)]
            own = here * here
            if loops is not None:
                times = 1 if block.reach is None else torch.from_numpy(block.reach)
                own = own * (loops.weight[nodes] - loops.present[nodes] * times)
            return block.sum(factor=scale, own=own, scale=here)

        if self.aggregates_first(counts):
            return ConvParts(aggregate, self.combine)
        return ConvParts(
            aggregate,
            lambda h, activation: activate(h, self.bias, activation),
            project=lambda h: linear(h, self.weight),
        )

    def aggregate(self, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `AggregateFirst.aggregate`: the normalised sum."""
        scale, own = gcn_norm(neighbourhood, h.dtype)
        return neighbourhood.sum(h, factor=scale, own=own) * destinations(neighbourhood, scale)[:, None]

    def combine(self, aggregated: Tensor, activation: str = "none") -> Tensor:
        return linear(aggregated, self.linear.weight, self.bias, activation)


def _times_weight(h_src: Tensor, h_dst: Tensor, weight: Tensor | None, edge: Tensor) -> Tensor:
    return edge * h_src


class EdgeGCNConv(nn.Module):
    """GCN with learnt weights of edges: row v is ``W (sum over in-edges of w_uv c_uv h_u + c_vv h_v) + b``.

    ``w_uv = softplus(<a, e_uv> + s)`` for features e of the edge, at first 1 for every edge. The constants are those of
    `GCNConv`, ``c_uv = 1 / sqrt((d_u + 1) (d_v + 1))``, times the edge's weight in the graph if it has one, with d the
    in-degrees of the *whole* graph, which do not depend on w. A self loop of the graph is an edge with a
    learnt weight, in place of ``c_vv h_v``.
    """

    reads_edges = reads_loops = True

    def __init__(self, width_in: int, width_out: int, edge_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(width_out))
        self.a = nn.Parameter(torch.zeros(1, edge_width))
        self.s = nn.Parameter(torch.full((1,), math.log(math.e - 1)))

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        edge, weight = neighbourhood.edge_features, self.linear.weight
        check_edge_width(edge, self.a.shape[1])
        product_first = weight.shape[0] < weight.shape[1]
        scale, own = gcn_norm(neighbourhood, h.dtype)
        rows = linear(h, weight) if product_first else h
        weights = F.softplus(F.linear(edge, self.a, self.s))
        total = neighbourhood.apply(_times_weight, rows * scale[:, None], edge=weights)
        itself = destinations(neighbourhood, rows) * own[:, None]
        out = (total + itself) * destinations(neighbourhood, scale)[:, None]
        return activate(out, self.bias, activation) if product_first else linear(out, weight, self.bias, activation)


@dataclass(frozen=True)
class GCN(ModelConfig):
    """GCN. Cost per layer: one aggregation, one product; whichever is cheaper comes first.

    Under sampling the sum over neighbours is scaled up to the whole neighbourhood.
    """

    name: ClassVar[str] = "gcn"

    edge_width: int = 0
    """D, columns of the edges' features, from which the model learns each edge's weight: ``softplus(<a, e_uv> + s)``;
    -1: as many as the dataset has; 0: weights are not learnt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.width_or_none("edge_width")

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        if self.edge_width > 0:
            return EdgeGCNConv(width_in, width_out, self.edge_width)
        return GCNConv(width_in, width_out)
