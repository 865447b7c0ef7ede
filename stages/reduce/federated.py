"""FedAvg: clients train separately for some steps before their parameters are averaged (McMahan et al., AISTATS
2017)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from ..forward_backward import forward_backward
from ..messages import Fetched, StepRules, WorkDone
from .seed_weighted import AllSeedsMean


@dataclass(frozen=True)
class LocalSteps(AllSeedsMean):
    """Every client starts from the common parameters and takes `steps` steps on its own seeds. The new common
    parameters are the mean of the clients' results, weighted by their seeds.

    A client's change is passed on as a gradient, which one step of size one subtracts (Reddi et al., ICLR 2021, section
    2): a round costs one all-reduce, as a step with summed gradients does. Clients keep no state between rounds. A rank
    without simulated clients is one client.
    """

    shares_batch_norm: ClassVar[bool] = False
    has_local_optimizers: ClassVar[bool] = True

    steps: int = 1

    def optimizer(self, parameters: list[nn.Parameter], rules: StepRules) -> torch.optim.Optimizer:
        """See `ReducePolicy.optimizer`: takes the mean itself; the run's optimiser is used by the clients."""
        return torch.optim.SGD(parameters, lr=1.0)

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        """See `ReducePolicy.contribute`: changes of this rank's clients, times their seeds."""
        parameters = [p for p in module.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in parameters]
        moved = [torch.zeros_like(p) for p in start]
        loss_sum, seeds = 0.0, 0
        # The rank's number, as that of a simulated client, gives it dropout of its own.
        for client in fetched.clients or (replace(fetched, index=rules.group.rank),):
            count = len(client.y)
            if not count:
                continue
            local = rules.optimizer(parameters)
            for step in range(self.steps):
                work = replace(client, index=client.index * self.steps + step)
                done = forward_backward(
                    module, work, rules.seed, rules.task, 1.0, rules.matmul_precision, loss=rules.loss
                )
                for p in parameters:
                    if p.grad is not None:
                        p.grad.div_(count)
                local.step()
                local.zero_grad(set_to_none=True)
                if step == 0:  # at the common parameters, as a step with summed gradients reports it
                    loss_sum, seeds = loss_sum + done.loss_sum, seeds + done.seeds
            with torch.no_grad():
                for p, before, total in zip(parameters, start, moved):
                    total.add_(before - p, alpha=count)
                    p.copy_(before)
        for p, total in zip(parameters, moved):
            p.grad = total
        return WorkDone(loss_sum, seeds)
