"""GAT (Velickovic et al., ICLR 2018, equations 1 to 6), and what all models have that attend by heads."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..neighbourhood.base import EdgeCounts, Neighbourhood, aggregate_first
from ..nn.dense import activate, linear, per_head
from .base import ModelConfig
from .parts import ConvParts


class Heads(NamedTuple):
    """Heads of one layer."""

    count: int
    """H."""
    width: int
    """D, columns of each."""
    concat: bool
    """True if they are concatenated; else they are averaged."""
    dropout: float
    """Probability of dropping an attention coefficient."""
    slope: float
    """Slope of the leaky ReLU below zero."""

    @property
    def wide(self) -> int:
        """Columns of all heads side by side."""
        return self.count * self.width

    @property
    def width_out(self) -> int:
        """Columns of the result."""
        return self.wide if self.concat else self.width


class HeadsConv(nn.Module):
    """Base of convolutions that attend by heads."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads, self.head_width, self.concat, self.attention_dropout, self.slope = heads

    @property
    def drop(self) -> float:
        """Probability of dropping a coefficient now: none in evaluation."""
        return self.attention_dropout if self.training else 0.0

    def joined(self, out: Tensor) -> Tensor:
        """[n, H, D] -> [n, H D], or [n, D] when averaged."""
        return out.flatten(1) if self.concat else out.mean(1)


@dataclass(frozen=True)
class HeadsConfig(ModelConfig):
    """Options of models that attend by heads."""

    heads: int = 4
    """H, the number of heads in every layer; a head is `hidden / heads` wide, or as wide as the result in a last layer
    that averages them."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention coefficient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.divided_by("heads")
        self.probability("attention_dropout")


@dataclass(frozen=True)
class AttentionConfig(HeadsConfig):
    """Options of GAT and its kin: heads are concatenated in hidden layers and averaged in the last."""

    activation: str = "elu"
    slope: float = 0.2
    """Slope of the leaky ReLU below zero."""

    def of_layer(self, i: int, width_out: int) -> Heads:
        """Heads of layer i."""
        last = i == self.layers - 1
        width = width_out if last else width_out // self.heads
        return Heads(self.heads, width, not last, self.attention_dropout, self.slope)


class GATConv(HeadsConv):
    """Softmax attention over in-neighbours and the node itself; H heads, concatenated or averaged. Ignores edge
    weights."""

    def __init__(self, width_in: int, heads: Heads) -> None:
        super().__init__(heads)
        self.linear = nn.Linear(width_in, heads.wide, bias=False)
        self.a_src = nn.Parameter(torch.empty(heads.count, heads.width))
        self.a_dst = nn.Parameter(torch.empty(heads.count, heads.width))
        self.bias = nn.Parameter(torch.zeros(heads.width_out))
        for weight in (self.linear.weight, self.a_src, self.a_dst):
            nn.init.xavier_uniform_(weight)

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, width_in] -> [num_dst, heads * head_width], or [num_dst, head_width] when averaged."""
        weight = self.linear.weight
        if not aggregate_first(
            neighbourhood, weight.numel(), before=self.heads * weight.shape[1], after=weight.shape[0]
        ):
            z = linear(h, weight).view(-1, self.heads, self.head_width)
            out = neighbourhood.attend_both(z, self.a_src, self.a_dst, self.slope, self.drop)
            return activate(self.joined(out), self.bias, activation)
        # The same with W after the sum: <a, W h> = <W^T a, h>, and W multiplies each head's sum of h.
        by_head = weight.view(self.heads, self.head_width, -1)
        a_src, a_dst = (torch.einsum("hd,hdf->hf", a, by_head) for a in (self.a_src, self.a_dst))
        return self._combined(neighbourhood.attend_shared(h, a_src, a_dst, self.slope, self.drop), by_head, activation)

    def _combined(self, out: Tensor, by_head: Tensor, activation: str) -> Tensor:
        """[n, H, width_in] sums of each head -> [n, width_out]."""
        if self.concat:
            return per_head(out, by_head, self.bias, activation)
        return linear(out.flatten(1), by_head.transpose(0, 1).flatten(1) / self.heads, self.bias, activation)

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        weight = self.linear.weight
        by_head = weight.view(self.heads, self.head_width, -1)
        both = torch.cat([torch.einsum("hd,hdf->hf", a, by_head) for a in (self.a_src, self.a_dst)])

        def logits(h: Tensor) -> Tensor:
            return linear(h, both)

        if aggregate_first(counts, weight.numel(), before=self.heads * weight.shape[1], after=weight.shape[0]):
            return ConvParts(
                lambda block: block.attend(self.heads, False, self.slope),
                lambda out, activation: self._combined(out.unflatten(1, (self.heads, -1)), by_head, activation),
                logits=logits,
            )

        def combine(out: Tensor, activation: str) -> Tensor:
            return activate(out if self.concat else out.unflatten(1, (self.heads, -1)).mean(1), self.bias, activation)

        return ConvParts(
            lambda block: block.attend(self.heads, True, self.slope),
            combine,
            project=lambda h: linear(h, weight),
            logits=logits,
        )


@dataclass(frozen=True)
class GAT(AttentionConfig):
    """GAT: heads are concatenated in hidden layers and averaged in the last. Cost per layer: one product, one fused
    attention."""

    name: ClassVar[str] = "gat"

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        return GATConv(width_in, self.of_layer(i, width_out))
