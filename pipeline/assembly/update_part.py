"""How parameters are trained: loss, optimiser, schedule, measures and checkpoints, and the user's own code for them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...stages.evaluate.measures import ALWAYS, METRICS, Measures, main_metric
from ...stages.messages import Loss
from ..config.optimizer import make_optimizer
from ..config.schema import CheckpointEvery, Train
from ..custom.made import made_optimizer
from ..custom.own_code import OwnCode


@dataclass(frozen=True, eq=False)
class UpdatePart:
    """The part of a job that updates parameters."""

    task: Any
    train: Train
    checkpoint: CheckpointEvery = field(default_factory=CheckpointEvery)
    code: OwnCode = field(default_factory=OwnCode)
    """The user's own code."""
    loss: Loss | None = None
    """The user's own loss, or the configuration's; None: the default of a multi-class or multi-label task."""
    check: bool = False
    """Check the invariants of every message."""
    ranks_sources: bool = False
    """Links are ranked among other sources too: see `Links.ranked`."""

    def optimizer(self, model: nn.Module, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Create the optimiser of some of a model's parameters."""
        if (own := made_optimizer(self.code, parameters)) is not None:
            return own
        names = {id(p): name for name, p in model.named_parameters()}
        return make_optimizer(self.train, [(names.get(id(p), ""), p) for p in parameters])

    @property
    def measures(self) -> Measures:
        """Metrics of validations and tests."""
        train, code, task = self.train, self.code, self.task
        monitored = (train.monitor or main_metric(task)).removeprefix("-")
        wanted = {*train.metrics, monitored, *ALWAYS.get(task, ())} - {"accuracy", *code.metrics}
        names = [name for name in METRICS[task] if name in wanted]
        return Measures(task, names, code.metrics, self.loss, train.monitor, ranks_sources=self.ranks_sources)
