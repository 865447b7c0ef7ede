"""Attention by heads: its options, and the base of convolutions that attend."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from .base import ModelConfig


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
    """Probability of dropping an attention coefficient, by torch's generator."""

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
