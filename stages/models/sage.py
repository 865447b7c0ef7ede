"""GraphSAGE with the mean and the pooling aggregator (Hamilton, Ying, Leskovec, NeurIPS 2017, algorithm 1, sections 3.1
and 3.3)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ..neighbourhood.base import EdgeCounts, Neighbourhood, destinations
from ..neighbourhood.destinations import Destinations
from ..nn.dense import activate, linear
from .base import AggregateFirst, ModelConfig
from .parts import ConvParts


class SAGEConv(AggregateFirst):
    """``W_self h_v + W_neigh mean(h_u) + b``, without the paper's L2 normalisation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out, bias=False)

    @property
    def weight(self) -> Tensor:
        """See `AggregateFirst.weight`: that of the neighbours."""
        return self.neighbours.weight

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        own, neighbours = self.own.weight, self.neighbours.weight
        if self.aggregates_first(neighbourhood):
            return self.combine(self.aggregate(neighbourhood, h), activation)
        if neighbourhood.num_src == neighbourhood.num_dst:
            near, itself = linear(h, torch.cat([neighbours, own])).split(len(own), dim=1)
        else:
            near, itself = linear(h, neighbours), linear(destinations(neighbourhood, h), own)
        return activate(neighbourhood.mean(near) + itself, self.own.bias, activation)

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        if self.aggregates_first(counts):
            return ConvParts(Destinations.mean_beside, self.combine)
        both = torch.cat([self.neighbours.weight, self.own.weight])
        return ConvParts(
            Destinations.mean_plus_own,
            lambda h, activation: activate(h, self.own.bias, activation),
            project=lambda h: linear(h, both),
        )

    def aggregate(self, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `AggregateFirst.aggregate`: the mean, and the row itself beside it."""
        return neighbourhood.mean_beside(h)

    def combine(self, aggregated: Tensor, activation: str = "none") -> Tensor:
        return linear(
            aggregated, torch.cat([self.neighbours.weight, self.own.weight], dim=1), self.own.bias, activation
        )


class SAGEPoolConv(nn.Module):
    """``W_self h_v + W_neigh max(relu(W_pool h_u + b_pool)) + b``; zeros stand for the maximum of no neighbours."""

    def __init__(self, width_in: int, pool: int, width_out: int) -> None:
        super().__init__()
        self.pool = nn.Linear(width_in, pool)
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(pool, width_out, bias=False)

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        most = neighbourhood.max(linear(h, self.pool.weight, self.pool.bias, "relu"))
        own = linear(destinations(neighbourhood, h), self.own.weight)
        return activate(linear(most, self.neighbours.weight) + own, self.own.bias, activation)

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        pool = len(self.pool.weight)

        def project(h: Tensor) -> Tensor:
            return torch.cat([linear(h, self.pool.weight, self.pool.bias, "relu"), linear(h, self.own.weight)], dim=1)

        def combine(h: Tensor, activation: str) -> Tensor:
            most = linear(h[:, :pool].contiguous(), self.neighbours.weight)
            return activate(most + h[:, pool:], self.own.bias, activation)

        return ConvParts(lambda block: block.max_beside(pool), combine, project)


@dataclass(frozen=True)
class SAGE(ModelConfig):
    """GraphSAGE. Cost per layer: one aggregation, one product of twice its width, whichever is cheaper first; ``max``
    takes one product more, for all sources."""

    name: ClassVar[str] = "sage"

    aggregator: Literal["mean", "max"] = "mean"
    """Aggregator of the neighbours; ``max`` pools them after a product to `hidden` columns and a ReLU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregator not in ("mean", "max"):
            raise InputError(f"sage: aggregator is '{self.aggregator}'; expected mean or max")

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        return (
            SAGEConv(width_in, width_out)
            if self.aggregator == "mean"
            else SAGEPoolConv(width_in, self.hidden, width_out)
        )
