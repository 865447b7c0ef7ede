"""GCN (Kipf, Welling, ICLR 2017, equations 2 and 8)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..neighbourhood.base import EdgeCounts, Neighbourhood, destinations
from ..neighbourhood.destinations import Destinations
from ..nn.dense import activate, linear
from .base import AggregateFirst, ModelConfig
from .parts import ConvParts


class GCNConv(AggregateFirst):
    """``D^-1/2 (A + I) D^-1/2 h W + b`` with D the in-degrees of the *whole* graph plus one.

    A self loop in the graph stays, beside the one added here.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(width_out))

    @property
    def weight(self) -> Tensor:
        """See `AggregateFirst.weight`."""
        return self.linear.weight

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        if self.aggregates_first(neighbourhood):
            return self.combine(self.aggregate(neighbourhood, h), activation)
        return activate(self.aggregate(neighbourhood, linear(h, self.weight)), self.bias, activation)

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        """See `InParts.parts`."""
        scale = (degree + 1).rsqrt()

        def aggregate(block: Destinations) -> Tensor:
            here = scale[torch.from_numpy(block.nodes)]
            return block.sum(factor=scale, own=here * here, scale=here)

        if self.aggregates_first(counts):
            return ConvParts(aggregate, self.combine)
        return ConvParts(
            aggregate,
            lambda h, activation: activate(h, self.bias, activation),
            project=lambda h: linear(h, self.weight),
        )

    def aggregate(self, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `AggregateFirst.aggregate`: the normalised sum."""
        scale = (neighbourhood.degree.to(h.dtype) + 1).rsqrt()
        here = destinations(neighbourhood, scale)
        return neighbourhood.sum(h, factor=scale, own=here) * here[:, None]

    def combine(self, aggregated: Tensor, activation: str = "none") -> Tensor:
        """See `AggregateFirst.combine`."""
        return linear(aggregated, self.linear.weight, self.bias, activation)


@dataclass(frozen=True)
class GCN(ModelConfig):
    """GCN. Cost per layer: one aggregation, one product; whichever is cheaper comes first.

    Under sampling the sum over neighbours is scaled up to the whole neighbourhood.
    """

    name: ClassVar[str] = "gcn"

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        """See `ModelConfig.conv`."""
        return GCNConv(width_in, width_out)
