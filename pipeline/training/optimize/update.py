"""Update of parameters by a step's gradient: clip it, set the learning rate, step, average the parameters."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from ....stages.messages import Phase, StepRules
from ....stages.policies import ReducePolicy
from ...config.schema import Train
from .averaging import ParameterAverage
from .schedules import lr_factor


class Update:
    """The optimiser of a phase with its learning-rate schedule, gradient clipping and average of parameters."""

    def __init__(
        self,
        train: Train,
        reduce: ReducePolicy,
        rules: StepRules,
        phase: Phase,
        module: nn.Module,
        steps: int,
        total_epochs: int,
    ) -> None:
        """
        Args:
            train: the options.
            reduce: makes the optimiser.
            rules: of the run.
            phase: whose steps these are.
            module: what the phase trains.
            steps: in an epoch.
            total_epochs: of the whole run.
        """
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = list(named.values())
        self.optimizer = reduce.optimizer(self.parameters, rules)
        self.average = ParameterAverage(named, train.ema) if train.ema is not None else None
        self._schedule, self._clip_norm, self._steps = train.schedule, train.clip_norm, steps
        self.is_constant = train.schedule.name == "constant" and not train.schedule.warmup
        self.last_factor = 1.0
        """What the schedule multiplied learning rates by at the last step."""
        self._lrs = [group["lr"] for group in self.optimizer.param_groups]
        # A phase with an optimiser of its own has a schedule of its own.
        self._first = phase.first_epoch if phase.fresh_optimizer else 0
        self._epochs = phase.epochs if phase.fresh_optimizer else total_epochs

    def step(self, epoch: int, step: int, history: list[dict[str, float]]) -> None:
        """Take an optimiser step along the gradients that the parameters hold.

        Args:
            epoch: of the run.
            step: of the epoch.
            history: of the run's epochs so far.
        """
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self._clip_norm)
        if not self.is_constant:
            self.last_factor = self.factor(epoch, step, history)
            for group, lr in zip(self.optimizer.param_groups, self._lrs):
                group["lr"] = lr * self.last_factor
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    def factor(self, epoch: int, step: int, history: list[dict[str, float]]) -> float:
        """Factor of the schedule on learning rates at a step; see `step`."""
        seen = (r["val_accuracy"] for r in history if r["epoch"] >= self._first and "val_accuracy" in r)
        return lr_factor(self._schedule, epoch - self._first, step, self._steps, self._epochs, seen)

    def averaged(self) -> AbstractContextManager[None]:
        """The module's parameters are their average inside the block, where one is kept."""
        return nullcontext() if self.average is None else self.average.in_place()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint and for the next phase."""
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        return state if self.average is None else {**state, "average": self.average.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, or from a checkpoint's record."""
        saved = state["optimizer"]
        self.optimizer.load_state_dict(saved)
        # torch casts all state to the parameters' dtype, and NAdam's products, which are float32, to other bits.
        for k, p in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            for name, value in saved["state"].get(k, {}).items():
                if isinstance(value, Tensor) and value.dtype != self.optimizer.state[p][name].dtype:
                    self.optimizer.state[p][name] = value.clone()
        if self.average is not None and "average" in state:
            self.average.load_state_dict(state["average"])
