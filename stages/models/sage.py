"""GraphSAGE with the mean aggregator (Hamilton, Ying, Leskovec, NeurIPS 2017, algorithm 1 and section 3.3)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..dense import activate, linear
from ..neighbourhood.base import Neighbourhood, aggregate_first, destinations
from .base import ModelConfig


class SAGEConv(nn.Module):
    """``W_self h_v + W_neigh mean(h_u) + b``, without the paper's L2 normalisation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out, bias=False)

    def forward(self, hood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        own, neighbours = self.own.weight, self.neighbours.weight
        if aggregate_first(hood, neighbours.numel(), before=neighbours.shape[1], after=neighbours.shape[0]):
            return linear(hood.mean_beside(h), torch.cat([neighbours, own], dim=1), self.own.bias, activation)
        if hood.num_src == hood.num_dst:
            near, itself = linear(h, torch.cat([neighbours, own])).split(len(own), dim=1)
        else:
            near, itself = linear(h, neighbours), linear(destinations(hood, h), own)
        return activate(hood.mean(near) + itself, self.own.bias, activation)


@dataclass(frozen=True)
class SAGE(ModelConfig):
    """GraphSAGE, mean aggregator. Cost per layer: one aggregation, one product of twice its width; whichever is cheaper comes first."""

    name: ClassVar[str] = "sage"

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        """See `ModelConfig.conv`."""
        return SAGEConv(width_in, width_out)
