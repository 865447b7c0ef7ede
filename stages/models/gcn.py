"""GCN (Kipf, Welling, ICLR 2017, equations 2 and 8)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..neighbourhood.base import Neighbourhood, destinations
from .base import ModelConfig


class GCNConv(nn.Module):
    """``D^-1/2 (A + I) D^-1/2 h W + b`` with D the in-degrees of the *whole* graph plus one; the narrower side is aggregated.

    A self loop that is in the graph stays beside the one added here.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, hood: Neighbourhood, h: Tensor) -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        first = self.linear.out_features < self.linear.in_features
        scale = (hood.degree.to(h.dtype) + 1).rsqrt()[:, None]
        h = (self.linear(h) if first else h) * scale
        out = (hood.sum(h) + destinations(hood, h)) * destinations(hood, scale)
        return (out if first else self.linear(out)) + self.bias


@dataclass(frozen=True)
class GCN(ModelConfig):
    """GCN. Cost per layer: one aggregation of min(width_in, width_out) columns, one product.

    Under sampling the sum over neighbours is scaled up to the whole neighbourhood.
    """

    name: ClassVar[str] = "gcn"

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        """See `ModelConfig.conv`."""
        return GCNConv(width_in, width_out)
