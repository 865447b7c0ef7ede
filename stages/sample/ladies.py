"""Layer-dependent importance sampling (LADIES; Zou, Hu, Wang, Jiang, Sun, Gu, NeurIPS 2019), in bulk."""

from dataclasses import dataclass
from typing import ClassVar

from .layerwise import LayerwiseSampler


@dataclass(frozen=True)
class LadiesSampler(LayerwiseSampler):
    """In each hop, s distinct nodes for the whole minibatch, in proportion to p(u) = sum over its rows v of W[v, u]^2.

    W = D^-1 (A + I) with the edge weights, or ones. The drawn nodes join the rows (so that every destination is a
    source too), and the block holds every edge of the graph between rows and sources. The loop that I adds enters only
    the probabilities; a drawn node may be a row itself. Fewer than s candidates: all of them.

    What a kept edge (v, u) of weight a counts in a sum (`Block.weight`), by `debias`:

    * ``ratio`` (default, the authors'): proportional to a / p(u), scaled so that a row's coefficients add up to all its
      edges' weights. The mean is a ratio estimator: little variance, but biased, even where every edge was kept.
    * ``bottom_k``: a / (1 - exp(-p(u) t)) for a drawn node, t being when the next one would have come (rank
      conditioning; Cohen and Kaplan, PODC 2007), a for a node that is a row. Sums are unbiased.
    * ``with_replacement``: s draws with replacement; a times count / (s p(u)) for a drawn node, a for a row. Sums are
      unbiased.
    * ``none``: proportional to a, scaled as in ``ratio``. Biased: likely nodes count too much.

    All but ``with_replacement`` draw the same blocks; ``mean`` divides by the row's sum of coefficients and so is
    consistent, not unbiased. Must not be confused with FastGCN, whose p does not look at the minibatch.
    It takes one pass over the in-edges of the rows, per hop. MLSys 2024 leaves debiasing out; the authors' code uses
    ``ratio``.
    """

    name: ClassVar[str] = "ladies"
