"""Everything that one rank needs to train."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...stages.messages import Loss, Part, Placement, RankJob, StepRules, Validation
from ...storage.checkpoint import CheckpointStore
from ..config.optimizer import make_optimizer
from ..config.schema import CheckpointEvery, Train
from ..config.systems import System
from ..custom.callback import Callbacks
from ..custom.made import made_optimizer
from ..custom.own_code import OwnCode
from ..telemetry.events import Emit

Validate = Callable[[nn.Module], Validation]
"""Exact validation of a model. Collective: all ranks call it at the same time and get the same answer."""


@dataclass(frozen=True, eq=False)
class TrainContext:
    """Everything that one rank needs to train."""

    system: System
    job: RankJob
    data: Placement | Part
    task: Any
    model: nn.Module
    train: Train
    checkpoints: CheckpointStore | None
    """Read by every rank, written by the leader."""
    checkpoint_every: CheckpointEvery
    validate: Validate | None
    emit: Emit
    stop: Callable[[], bool]
    """Polled between steps; true ends the run with a checkpoint."""
    check: bool = False
    save: Callable[[], bool] = lambda: False
    """Polled between steps; true writes a checkpoint, once."""
    code: OwnCode = field(default_factory=OwnCode)
    """The user's own code."""
    callbacks: Callbacks | None = None
    """Callbacks of the run, if there are any."""
    loss: Loss | None = None
    """See `StepRules.loss`."""

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Create the optimiser that the configuration names."""
        if (own := made_optimizer(self.code, parameters)) is not None:
            return own
        names = {id(p): name for name, p in self.model.named_parameters()}
        return make_optimizer(self.train, [(names.get(id(p), ""), p) for p in parameters])

    @property
    def step_rules(self) -> StepRules:
        """Settings of forward and backward, the same for the whole run."""
        precision, group = self.train.matmul_precision, self.job.group
        return StepRules(self.job.seed, self.task, precision, group, self.optimizer, self.loss)

    def call(self, event: str) -> None:
        """Call the callbacks that wait for an event."""
        if self.callbacks is not None:
            self.callbacks.call(event)
