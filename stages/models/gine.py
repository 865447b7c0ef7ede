"""GINE: GIN with features of edges (Hu, Liu, Gomes, Zitnik, Liang, Pande, Leskovec, ICLR 2020, section 5.1)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...storage.errors import InputError
from ..neighbourhood.base import Neighbourhood, destinations
from ..nn.dense import linear
from .base import ModelConfig


def check_edge_width(edge: Tensor, width: int) -> None:
    """Raise InputError unless features of edges have as many columns as a layer multiplies."""
    if edge.shape[1] != width:
        raise InputError(f"an edge has {edge.shape[1]} features; expected {width}, as many as the model multiplies")


def message(h_src: Tensor, h_dst: Tensor, weight: Tensor | None, edge: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """``relu(h_u + W e_uv + b)``, [e, width_in]."""
    return torch.relu(h_src + F.linear(edge, w, b))


class GINEConv(nn.Module):
    """``MLP((1 + eps) h_v + sum relu(h_u + W e_uv + b))`` with a trainable eps, at first 0, and an MLP of two products
    with a ReLU between them."""

    reads_edges = True

    def __init__(self, width_in: int, edge_width: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.edge = nn.Linear(edge_width, width_in)
        self.mlp = nn.Sequential(nn.Linear(width_in, hidden), nn.ReLU(), nn.Linear(hidden, width_out))

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, width_out]."""
        edge = neighbourhood.edge_features
        check_edge_width(edge, self.edge.in_features)
        total = neighbourhood.apply(message, h, (self.edge.weight, self.edge.bias), edge=edge)
        total = total + (1 + self.eps) * destinations(neighbourhood, h)
        inner, outer = (m for m in self.mlp if isinstance(m, nn.Linear))
        return linear(linear(total, inner.weight, inner.bias, "relu"), outer.weight, outer.bias, activation)


@dataclass(frozen=True)
class GINE(ModelConfig):
    """GIN whose messages read the features of edges. Sums grow with the degree: consider ``norm="batch"``. Cost per
    layer: a row of width_in for each edge, kept for the backward pass, and two products."""

    name: ClassVar[str] = "gine"
    reads_edges: ClassVar[bool] = True

    edge_width: int = 0
    """D, columns of the edges' features. A run takes that of its dataset."""

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        self.positive("edge_width")
        return GINEConv(width_in, self.edge_width, self.hidden, width_out)
