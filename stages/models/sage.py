"""GraphSAGE with the mean aggregator (Hamilton, Ying, Leskovec, NeurIPS 2017, algorithm 1 and section 3.3)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..neighbourhood.base import Neighbourhood, destinations
from .base import ModelConfig


class SAGEConv(nn.Module):
    """``W_self h_v + W_neigh mean(h_u) + b``, without the paper's L2 normalisation. The narrower side is aggregated."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out, bias=False)

    def forward(self, hood: Neighbourhood, h: Tensor) -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        w = self.neighbours
        mean = hood.mean(w(h)) if w.out_features < w.in_features else w(hood.mean(h))
        return self.own(destinations(hood, h)) + mean


@dataclass(frozen=True)
class SAGE(ModelConfig):
    """GraphSAGE, mean aggregator. Cost per layer: one aggregation of min(width_in, width_out) columns, two products."""

    name: ClassVar[str] = "sage"

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        """See `ModelConfig.conv`."""
        return SAGEConv(width_in, width_out)
