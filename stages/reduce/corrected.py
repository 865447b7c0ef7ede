"""Gradients of isolated ranks, weighted by the share of its neighbourhoods that each rank sees.

Grappa-style (arXiv 2602.01872; the weight for each seed, self-normalising and shrinking are this project's).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..comm.base import Group
from ..forward_backward import forward_backward
from ..messages import Fetched, StepRules, WorkDone
from .seed_weighted import SeedWeightedMean

Shrink = Literal["none", "empirical"]


@dataclass(frozen=True)
class CoverageCorrected(SeedWeightedMean):
    """sum of w g over sum of w: over seeds, or over the ranks' minibatches with the mean weight of their seeds.

    The mean is the one number for a minibatch that comes nearest to its seeds' weights, in squares, and whatever
    exchangeable second moments their gradients have, the one whose gradient does too. Where all weights are alike
    nothing changes.
    """

    by_batch: bool = True
    """One weight for a minibatch; else one for each seed."""
    shrink: Shrink = "none"
    """Shrinkage of a minibatch's weight towards that of all ranks: none, or by the share of noise in it (empirical
    Bayes)."""

    def weigh(self, weight: Tensor, group: Group) -> tuple[Tensor, float]:
        if not self.by_batch:
            return super().weigh(weight, group)
        n = len(weight)
        mean = float(weight.mean()) if n else 0.0
        if self.shrink != "none":
            mean = shrunk(mean, float(weight.var()) if n > 1 else 0.0, n, group)
        return torch.full_like(weight, mean), n * mean

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """See `ReducePolicy.contribute`. All ranks call this at the same time."""
        weight, count = fetched.weight, float(len(fetched.y))
        if weight is not None:
            weight, count = self.weigh(weight, rules.group)
        if not len(fetched.y):
            return WorkDone(0.0, 0, 0.0)
        if weight is not None and fetched.y.is_cuda and not weight.is_cuda:
            # Page-locked, so that nobody waits for the copy.
            weight = weight.pin_memory().to(fetched.y.device, non_blocking=True)
        done = forward_backward(
            module, fetched, rules.seed, rules.task, 1.0, rules.matmul_precision, weights=weight, loss=rules.loss
        )
        return WorkDone(done.loss_sum, done.seeds, count)


def shrunk(mean: float, variance: float, n: int, group: Group) -> float:
    """This rank's weight, shrunk towards that of all by empirical Bayes: ``1 + (1 - lambda) (u - 1)``, with u the
    weight over the mean one and lambda the share of noise in the variance between ranks.

    One all-reduce of seven numbers, under ``control``.

    Args:
        mean: of the weights of this rank's seeds.
        variance: of the same.
        n: seeds; a rank without any takes part.
        group: the ranks.
    """
    noise = variance / n if n else 0.0
    here = float(n > 0)
    # The last number is not used: a ring adds tensors of another length in another order, with other bits.
    sums = torch.tensor([here, here * mean, here * mean**2, here * noise, n, n * mean, 0.0], dtype=torch.float64)
    group.all_reduce(sums, "control")
    ranks, total, squares, noises, seeds, weighed, _ = sums.tolist()
    centre = weighed / seeds if seeds else 0.0
    if not n or centre <= 0:
        return mean
    between = max(0.0, squares / ranks - (total / ranks) ** 2)
    signal = max(0.0, between - noises / ranks)
    towards = noise / (noise + signal) if noise + signal > 0 else 0.0
    return 1 + (1 - towards) * (mean / centre - 1)
