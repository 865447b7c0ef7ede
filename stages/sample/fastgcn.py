"""Layer-wise importance sampling with fixed probabilities (FastGCN; Chen, Ma, Xiao, ICLR 2018), in bulk."""

from dataclasses import dataclass
from typing import ClassVar

from .layerwise import LayerwiseSampler


@dataclass(frozen=True)
class FastGCNSampler(LayerwiseSampler):
    """In each hop, s distinct nodes for the whole minibatch, in proportion to q(u) = sum over *all* rows v of W[v,
    u]^2.

    W, the blocks and `debias` are those of `LadiesSampler`, with q for p. Drawn nodes may have no edge to the
    minibatch, so rows may stay empty: only their own features reach them. q
    costs O(E) once per graph, and a draw O(log V) per node.
    """

    name: ClassVar[str] = "fastgcn"
    every_row: ClassVar[bool] = True
