"""Gradients of isolated ranks, weighed by how much of its neighbourhoods each rank sees.

Grappa-style (arXiv 2602.01872; the estimators beyond the mean coverage of a batch, self-normalising and shrinking are
this project's).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ..comm.base import Group
from ..messages import Fetched, StepRules, WorkDone
from ..train import forward_backward
from .seed_weighted import SeedWeightedMean

Shrink = Literal["none", "constant", "empirical", "james-stein", "ess"]


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
    """How a minibatch's weight is drawn towards that of all ranks: not at all; by `strength`; by what is noise in it
    (empirical Bayes); by positive-part James-Stein; or as far as leaves an effective sample size of `strength` of the
    seeds."""
    strength: float = 0.5

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """See `ReducePolicy.contribute`. All ranks call this at the same time."""
        weight = fetched.weight
        if weight is None:
            return self._learn(module, fetched, rules, None, len(fetched.y))
        if not self.by_batch:
            return self._learn(module, fetched, rules, weight, float(weight.sum()))
        n = len(weight)
        mean = float(weight.mean()) if n else 0.0
        if self.shrink != "none":
            mean = shrunk(mean, float(weight.var()) if n > 1 else 0.0, n, self, rules.group)
        return self._learn(module, fetched, rules, weight.new_full((n,), mean), n * mean)

    def _learn(
        self, module: nn.Module, fetched: Fetched, rules: StepRules, weight: torch.Tensor | None, count: float
    ) -> WorkDone:
        if not len(fetched.y):
            return WorkDone(0.0, 0, 0.0)
        done = forward_backward(module, fetched, rules.seed, rules.task, 1.0, rules.matmul_precision, weight)
        return WorkDone(done.loss_sum, done.seeds, count)


def shrunk(mean: float, variance: float, n: int, policy: CoverageCorrected, group: Group) -> float:
    """This rank's weight, drawn towards that of all: ``1 + (1 - lambda) (u - 1)`` with u the weight over the mean one.

    One all-reduce of seven numbers, under ``control``.

    Args:
        mean: of the weights of this rank's seeds.
        variance: of the same.
        n: seeds; a rank without any takes part.
        policy: how.
        group: the ranks.
    """
    noise = variance / n if n else 0.0
    here = float(n > 0)
    sums = torch.tensor(
        [here, here * mean, here * mean**2, here * noise, n, n * mean, n * mean**2], dtype=torch.float64
    )
    group.all_reduce(sums, "control")
    ranks, total, squares, noises, seeds, weighed, weighed_squares = sums.tolist()
    centre = weighed / seeds if seeds else 0.0
    if not n or centre <= 0:
        return mean
    between = max(0.0, squares / ranks - (total / ranks) ** 2)
    match policy.shrink:
        case "constant":
            towards = policy.strength
        case "empirical":
            signal = max(0.0, between - noises / ranks)
            towards = noise / (noise + signal) if noise + signal > 0 else 0.0
        case "james-stein":
            spread = ranks * between
            towards = min(1.0, max(0.0, (ranks - 3) * noises / ranks / spread)) if spread > 0 else 0.0
        case _:
            relative = max(0.0, weighed_squares / seeds / centre**2 - 1)
            towards = max(0.0, 1 - math.sqrt((1 / policy.strength - 1) / relative)) if relative > 0 else 0.0
    return 1 + (1 - towards) * (mean / centre - 1)
