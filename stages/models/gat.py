"""GAT (Velickovic et al., ICLR 2018, equations 1 to 6)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..neighbourhood.base import EdgeCounts, Neighbourhood, aggregate_first
from ..nn.dense import activate, linear, per_head
from .heads import AttentionConfig, Heads, HeadsConv
from .parts import ConvParts


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
