"""Everything that one rank needs to train."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from ...stages.comm.base import Group
from ...stages.messages import Part, Placement, RankJob, StepRules, Validation
from ...storage.checkpoint import CheckpointStore
from ...storage.ledger import Ledger
from ..assembly.update_part import UpdatePart
from ..config.systems import System
from ..custom.callback import Callbacks, no_callbacks
from ..telemetry.control import Control
from ..telemetry.timers import Clock
from .progress import Progress

Validate = Callable[[nn.Module], Validation]
"""Exact validation of a model. Collective: all ranks call it at the same time and get the same answer."""


@dataclass(frozen=True)
class Member:
    """A rank among the others."""

    group: Group
    ledger: Ledger
    """Counts its bytes; `group` counts in it too."""
    clock: Clock
    """Counts its seconds."""
    generation: int = 0
    """See `RankJob.generation`."""


@dataclass(frozen=True)
class RankControl(Control):
    """`Control` of a rank, with the run's callbacks, and what is told of it: its seconds, and how far it has come."""

    callbacks: Callbacks = field(default_factory=no_callbacks)
    """Called after steps, validations and epochs of this rank; each may ask to end training."""
    clock: Clock = field(default_factory=Clock)
    """Counts this rank's seconds."""
    progress: Progress = field(default_factory=Progress)
    """The rank's position and sums, which training changes."""


@dataclass(frozen=True, eq=False)
class TrainContext:
    """Everything that one rank needs to train."""

    system: System
    job: RankJob
    data: Placement | Part
    model: nn.Module
    update: UpdatePart
    checkpoints: CheckpointStore | None = None
    """Read by every rank, written by the leader."""
    validate: Validate | None = None
    control: RankControl = field(default_factory=RankControl)

    @property
    def total_epochs(self) -> int:
        """Epochs of the whole run."""
        return max(p.last_epoch for p in self.system.schedule.phases(self.job.epochs, self.model))

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Create the optimiser that the configuration names."""
        return self.update.optimizer(self.model, parameters)

    @property
    def step_rules(self) -> StepRules:
        """Settings of forward and backward, the same for the whole run."""
        update, group = self.update, self.job.group
        precision = update.train.matmul_precision
        return StepRules(self.job.seed, update.task, precision, group, self.optimizer, update.loss)

    def call(self, event: str) -> None:
        """Call the callbacks that wait for an event."""
        self.control.callbacks.call(event)
