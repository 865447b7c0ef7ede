"""GATv2 (Brody, Alon, Yahav, ICLR 2022, equation 7)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..neighbourhood.base import Neighbourhood, destinations
from ..neighbourhood.checks import full_precision
from ..nn.dense import activate, linear
from .gat import AttentionConfig, Heads, HeadsConv
from .gine import check_edge_width


class GATv2Conv(HeadsConv):
    """Softmax attention over in-neighbours and the node itself, with the logits ``<a, leaky_relu(W h_u + U h_v + E
    e_uv)>``; the sum is over ``W h_u``, biases included. H heads, concatenated or averaged. Ignores edge weights.

    The node's edge to itself has the mean of the features of the other in-edges that are present, and takes the place
    of the graph's self loops.
    """

    keeps_edges = True

    def __init__(self, width_in: int, heads: Heads, edge_width: int) -> None:
        super().__init__(heads)
        self.reads_edges = edge_width > 0
        self.source = nn.Linear(width_in, heads.wide)
        self.target = nn.Linear(width_in, heads.wide)
        self.edge = nn.Linear(edge_width, heads.wide, bias=False) if edge_width else None
        self.a = nn.Parameter(torch.empty(heads.count, heads.width))
        self.bias = nn.Parameter(torch.zeros(heads.width_out))
        for weight in (self.source.weight, self.target.weight, self.a, *(self.edge.parameters() if self.edge else ())):
            nn.init.xavier_uniform_(weight)
        for bias in (self.source.bias, self.target.bias):
            nn.init.zeros_(bias)

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, heads * head_width], or [num_dst, head_width] when averaged."""
        shape = (-1, self.heads, self.head_width)
        z = full_precision(linear(h, self.source.weight, self.source.bias)).view(shape)
        own = full_precision(linear(destinations(neighbourhood, h), self.target.weight, self.target.bias)).view(shape)
        z_own, to_itself, loops = destinations(neighbourhood, z), own, neighbourhood.is_loop(h.device)
        edge = loops.to(z.dtype)[:, None, None].expand(-1, self.heads, 1)
        if self.edge is not None:
            features = neighbourhood.edge_features
            check_edge_width(features, self.edge.in_features)
            edge = torch.cat([full_precision(linear(features, self.edge.weight)).view(shape), edge], 2)
            mean = mean_over_edges(neighbourhood, features, loops)
            to_itself = own + full_precision(linear(mean, self.edge.weight)).view(shape)
        logit = self._logits(z_own + to_itself, self.a)
        # Relative to the row's own logit, so that the largest of none is 0 as the edge to itself.
        beside = torch.cat([own, logit[:, :, None]], 2)
        with torch.no_grad():
            largest = neighbourhood.apply(
                self._relative, z.detach(), (self.a,), "max", edge.detach(), beside.detach()
            ).clamp(min=0)
        beside = torch.cat([beside, largest[:, :, None]], 2)
        total = neighbourhood.apply(self._message, z, (self.a,), "plain", edge, beside)
        itself = torch.exp(-largest)[:, :, None]
        whole = total[:, :, -1:] + itself
        out = (total[:, :, :-1] + self._dropped(itself) * z_own) / whole
        return activate(self.joined(out), self.bias, activation)

    def _logits(self, added: Tensor, a: Tensor) -> Tensor:
        """[n, H, D] -> [n, H]."""
        return (F.leaky_relu(added, self.slope) * a).sum(-1)

    def _relative(self, z: Tensor, beside: Tensor, weight: Tensor | None, edge: Tensor, a: Tensor) -> Tensor:
        """Logits of edges, less the logit of the destination itself, 0 for self loops, [e, H]. `edge` ends with a
        column that is 1 for these."""
        added = z + beside[:, :, : self.head_width]
        if self.edge is not None:
            added = added + edge[:, :, :-1]
        return (self._logits(added, a) - beside[:, :, self.head_width]).masked_fill(edge[:, :, -1] > 0, 0.0)

    def _message(self, z: Tensor, beside: Tensor, weight: Tensor | None, edge: Tensor, a: Tensor) -> Tensor:
        """``[share * z | share]`` of edges, [e, H, D + 1]. Shares are not divided by their sum yet."""
        share = torch.exp(self._relative(z, beside, weight, edge, a) - beside[:, :, -1])
        share = share.masked_fill(edge[:, :, -1] > 0, 0.0)[:, :, None]
        return torch.cat([self._dropped(share) * z, share], 2)

    def _dropped(self, share: Tensor) -> Tensor:
        return F.dropout(share, self.attention_dropout, self.training)


def mean_over_edges(neighbourhood: Neighbourhood, edge: Tensor, loops: Tensor) -> Tensor:
    """Mean of values of the edges but `loops` over those present into each row, [num_dst, D]; zeros for a row without
    any."""
    counted = torch.cat([edge, torch.ones_like(edge[:, :1])], 1).masked_fill(loops[:, None], 0)
    total = neighbourhood.apply(
        lambda h_src, h_dst, weight, edge: edge, neighbourhood.degree[:, None], reduce="plain", edge=counted
    )
    return total[:, :-1] / total[:, -1:].clamp(min=1)


@dataclass(frozen=True)
class GATv2(AttentionConfig):
    """GATv2: heads are concatenated in hidden layers and averaged in the last. The order in which a node attends to its
    neighbours depends on the node, unlike in GAT. Cost per layer: two products, and rows for each edge."""

    name: ClassVar[str] = "gatv2"

    edge_width: int = -1
    """D, columns of the edges' features that attention reads; -1: as many as the dataset has; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.width_or_none("edge_width")

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        return GATv2Conv(width_in, self.of_layer(i, width_out), max(0, self.edge_width))
