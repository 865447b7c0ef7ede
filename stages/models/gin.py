"""GIN (Xu, Hu, Leskovec, Jegelka, ICLR 2019, equation 4.1)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..neighbourhood.base import EdgeCounts, Neighbourhood, aggregate_first
from ..neighbourhood.destinations import Aggregate, Destinations
from ..nn.dense import activate, linear
from .base import ModelConfig
from .parts import ConvParts


class GINConv(nn.Module):
    """``MLP((1 + eps) h_v + sum h_u)`` with a trainable eps, at first 0, and an MLP of two products with a ReLU between
    them."""

    def __init__(self, width_in: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(nn.Linear(width_in, hidden), nn.ReLU(), nn.Linear(hidden, width_out))

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        inner, outer = (m for m in self.mlp if isinstance(m, nn.Linear))
        total = neighbourhood.sum(h, own=(1 + self.eps).expand(neighbourhood.num_dst))
        return linear(linear(total, inner.weight, inner.bias, "relu"), outer.weight, outer.bias, activation)

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        """See `InParts.parts`. The first product may come before the sum, which is linear."""
        inner, outer = (m for m in self.mlp if isinstance(m, nn.Linear))
        own = 1 + self.eps.detach()

        def aggregate(block: Destinations) -> Aggregate:
            return block.sum(own=own.expand(len(block.nodes)).contiguous())

        def combine(h: Tensor, activation: str) -> Tensor:
            return linear(linear(h, inner.weight, inner.bias, "relu"), outer.weight, outer.bias, activation)

        if aggregate_first(counts, inner.weight.numel(), before=inner.in_features, after=inner.out_features):
            return ConvParts(aggregate, combine)
        return ConvParts(
            aggregate,
            lambda h, activation: linear(activate(h, inner.bias, "relu"), outer.weight, outer.bias, activation),
            project=lambda h: linear(h, inner.weight),
        )


@dataclass(frozen=True)
class GIN(ModelConfig):
    """GIN. Sums grow with the degree: consider ``norm="batch"``. Cost per layer: one aggregation of width_in, two
    products."""

    name: ClassVar[str] = "gin"

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        return GINConv(width_in, self.hidden, width_out)
