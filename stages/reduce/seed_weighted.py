"""Mean over all seeds of a step, on any rank and in any minibatch."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...storage.optional import present
from ..comm.base import Group, Overlap, nothing
from ..forward_backward import forward_backward
from ..messages import Fetched, StepRules, WorkDone
from ..policies import Statistics
from .batch_norm import GlobalBatchNorm, RunningStatistics

EXTRA_NUMBERS = 2
"""Numbers that travel with the gradients."""
LACKING = 4096
"""Stands for a parameter without a gradient beside the flag, in one number: sums over so many ranks are exact."""


@dataclass(frozen=True)
class SeedWeightedMean:
    """One flat all-reduce carries the summed gradients, the number of seeds behind them, and a flag.

    A rank without work contributes zeros, so uneven inputs need no special case and cannot deadlock. With every train
    node in the step this is the full-batch gradient (sum / all train nodes).
    """

    allows_recording: ClassVar[bool] = True
    shares_batch_norm: ClassVar[bool] = True
    has_local_optimizers: ClassVar[bool] = False

    def optimizer(self, parameters: list[nn.Parameter], rules: StepRules) -> torch.optim.Optimizer:
        """See `ReducePolicy.optimizer`: the run's."""
        return rules.optimizer(parameters)

    def weigh(self, weight: Tensor, group: Group) -> tuple[Tensor, float]:
        """See `ReducePolicy.weigh`: seeds keep their weights."""
        return weight, float(weight.sum())

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """See `ReducePolicy.contribute`: every seed counts the same, or its `Fetched.weight`."""
        weight, count = fetched.weight, None
        if weight is not None:
            weight, count = self.weigh(weight, rules.group)
        done = forward_backward(
            module, fetched, rules.seed, rules.task, 1.0, rules.matmul_precision, weights=weight, loss=rules.loss
        )
        return replace(done, weight=count)

    def statistics(self, module: nn.Module, group: Group) -> Statistics:
        """See `ReducePolicy.statistics`: each minibatch is normalised by itself."""
        return RunningStatistics(module, group)

    def reduce(
        self, parameters: list[nn.Parameter], count: float, group: Group, flag: bool = False, overlap: Overlap = nothing
    ) -> tuple[float, bool]:
        """See `ReducePolicy.reduce`: sums over ranks, divided by the seeds of all."""
        if group.size == 1:
            grads = present(p.grad for p in parameters)
            if count and grads:
                # On a device in a few launches, whatever the number of parameters.
                torch._foreach_div_(grads, count)
            return count, flag
        # As on one rank, a step leaves alone what no rank has a gradient of. A rank without seeds lacks none.
        lacks = bool(count) and any(p.grad is None for p in parameters)
        # The count travels as a gradient-typed number: exact below 2**24 seeds a step in float32.
        message = parameters[0].new_tensor([count, flag + LACKING * lacks])
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters] + [message]
        )
        group.all_reduce(flat, "gradients", overlap)
        total, flags = flat[-EXTRA_NUMBERS:].tolist()
        given = torch.tensor([flags < LACKING or p.grad is not None for p in parameters], dtype=torch.int32)
        if flags >= LACKING:
            group.all_reduce(given, "control")
        parts = flat.split([p.numel() for p in parameters] + [EXTRA_NUMBERS])
        for p, part, has_gradient in zip(parameters, parts, given.tolist()):
            p.grad = (part.view_as(p).div(total) if total else torch.zeros_like(p)) if has_gradient else None
        return total, flags % LACKING > 0


@dataclass(frozen=True)
class AllSeedsMean(SeedWeightedMean):
    """`SeedWeightedMean` for ranks that hold pieces of one batch: batch normalisation is over all of them."""

    allows_recording: ClassVar[bool] = False

    def statistics(self, module: nn.Module, group: Group) -> Statistics:
        return GlobalBatchNorm(module, group)
