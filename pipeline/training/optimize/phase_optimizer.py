"""The optimiser of a phase and what goes with its steps: clipping, the learning rate, averaged parameters."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....stages.learned.table import LearnedTable
from ....stages.messages import Phase, StepRules, Validation
from ....stages.policies import ReducePolicy
from ....storage.optional import present
from ...assembly.update_part import UpdatePart
from ...custom.made import follows_metric, made_scheduler, plain
from .averaging import ParameterAverage
from .schedules import lr_factor

CLIP_EPSILON = 1e-6
"""Added to a norm before the division by it, as torch does."""


@dataclass(frozen=True)
class ScheduleSpan:
    """Epochs that a learning-rate schedule goes through."""

    first: int
    epochs: int
    steps: int
    """In an epoch."""

    @classmethod
    def of_phase(cls, phase: Phase, steps: int, total_epochs: int) -> "ScheduleSpan":
        """A phase with an optimiser of its own has a schedule of its own; others share that of the whole run."""
        return cls(phase.first_epoch, phase.epochs, steps) if phase.fresh_optimizer else cls(0, total_epochs, steps)


class PhaseOptimizer:
    """The optimiser of a phase with its learning-rate schedule, gradient clipping and average of parameters."""

    def __init__(
        self, update: UpdatePart, reduce: ReducePolicy, rules: StepRules, module: nn.Module, span: ScheduleSpan
    ) -> None:
        """
        Args:
            update: the options, and the user's own code.
            reduce: makes the optimiser.
            rules: of the run.
            module: what the phase trains.
            span: of the schedule.
        """
        train, code = update.train, update.code
        # A callback may let any parameter learn later, or no more.
        named = {name: p for name, p in module.named_parameters() if p.requires_grad or code.callbacks}
        self.named = named
        self.optimizer = reduce.optimizer(list(named.values()), rules)
        self.average = ParameterAverage(named, train.ema)
        self._schedule, self._clip_norm, self._span = train.schedule, train.clip_norm, span
        self.is_constant = train.schedule.name == "constant" and not train.schedule.warmup
        self.last_factor = 1.0
        """Factor of the schedule at the last step."""
        self.last_lr = train.lr
        """The learning rate of the last step, of the first group."""
        self._lrs = [group["lr"] for group in self.optimizer.param_groups]
        self._lrs_changed = False
        self._schedulers = made_scheduler(code, self.optimizer)
        self._lr, self._own_optimizer = train.lr, code.optimizer is not None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters that learn now."""
        return [p for p in self.named.values() if p.requires_grad]

    def step(self, epoch: int, step: int, history: list[dict[str, float]], learned: LearnedTable | None = None) -> None:
        """Take an optimiser step along the gradients that the parameters hold, and those of learnt features.

        Args:
            epoch: of the run.
            step: of the epoch.
            history: of the run's epochs so far.
            learned: features with gradients of their own; all ranks call this at once if there are any.
        """
        if self._clip_norm is not None:
            self._clip(self._clip_norm, learned)
        if not self.is_constant:
            self.last_factor = self.factor(epoch, step, history)
            for group, lr in zip(self.optimizer.param_groups, self._lrs):
                group["lr"] = lr * self.last_factor
        self.last_lr = self._reported_lr()
        self.optimizer.step()
        if learned is not None:
            learned.step(self.last_factor)
        for scheduler in self._schedulers.by_step:
            scheduler.step()
        self.average.update()

    def _clip(self, most: float, learned: LearnedTable | None) -> None:
        """Scale all gradients so that their norm, over learnt rows too, is at most that."""
        if learned is None:
            nn.utils.clip_grad_norm_(self.parameters, most)
            return
        norm = nn.utils.get_total_norm(present(p.grad for p in self.parameters))
        norm = torch.hypot(norm, norm.new_tensor(learned.gradient_norm()))
        nn.utils.clip_grads_with_norm_(self.parameters, most, norm)
        learned.scale_gradients(min(1.0, most / (float(norm) + CLIP_EPSILON)))

    def end_epoch(self, found: Validation | None) -> None:
        """Step a scheduler of the user's own that goes by epochs, after the validation if there was one."""
        for scheduler in self._schedulers.by_epoch:
            if not follows_metric(scheduler):
                scheduler.step()
            elif found is not None:
                scheduler.step(found.merit if scheduler.mode == "max" else -found.merit)

    @property
    def reads_validation(self) -> bool:
        """True if `end_epoch` depends on the validation."""
        return self._schedulers.follow_metric

    @property
    def reports_lr(self) -> bool:
        """True if the learning rate is in the events of epochs: where it is not that of the configuration."""
        return not self.is_constant or self._has_own_rates

    @property
    def lr(self) -> float:
        """The present learning rate of the first group that has one."""
        return float(self.optimizer.param_groups[self._first_with_rate()]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        first = self._first_with_rate()
        groups, before = self.optimizer.param_groups, float(self.optimizer.param_groups[first]["lr"])
        if not before:
            # All rates were set to 0.
            for group in groups:
                group["lr"] = value
            self._lrs = [value / (self.last_factor or 1.0)] * len(groups)
        else:
            for k, group in enumerate(groups):
                group["lr"] = group["lr"] * value / before
                self._lrs[k] = self._lrs[k] * value / before
        for scheduler in self._schedulers.all:
            if hasattr(scheduler, "base_lrs"):
                scheduler.base_lrs = [b * value / before if before else value for b in scheduler.base_lrs]
        self._lrs_changed = True

    def _reported_lr(self) -> float:
        """The rate of parameters without one of their own."""
        return self.lr if self._has_own_rates else self._lr * self.last_factor

    @property
    def _has_own_rates(self) -> bool:
        """True if something besides the configuration's schedule sets rates."""
        return self._own_optimizer or bool(self._schedulers.all) or self._lrs_changed

    def _first_with_rate(self) -> int:
        return next((k for k, group in enumerate(self.optimizer.param_groups) if float(group["lr"])), 0)

    def factor(self, epoch: int, step: int, history: list[dict[str, float]]) -> float:
        """Factor of the schedule on learning rates at a step; see `step`."""
        merits = ((r["epoch"], r.get("merit", r.get("val_accuracy"))) for r in history)
        span = self._span
        seen = (merit for at, merit in merits if at >= span.first and merit is not None)
        return lr_factor(self._schedule, epoch - span.first, step, span.steps, span.epochs, seen)

    def averaged(self) -> AbstractContextManager[None]:
        """The module's parameters are their average inside the block, where one is kept."""
        return self.average.in_place()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint and for the next phase."""
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if self._lrs_changed:
            state["lrs"] = [float(lr) for lr in self._lrs]
        for scheduler in self._schedulers.all:
            state["scheduler"] = plain(scheduler.state_dict())
        return {**state, "average": self.average.state_dict()} if self.average.is_kept else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, or from a checkpoint's record."""
        saved, groups = state["optimizer"], self.optimizer.state_dict()["param_groups"]
        every = [p for group in self.optimizer.param_groups for p in group["params"]]
        if sum(len(group["params"]) for group in saved["param_groups"]) < len(every):
            # Of a run without callbacks, or of an earlier version: it has only those that learn.
            at = [k for k, p in enumerate(every) if p.requires_grad]
            groups = [{**old, "params": new["params"]} for old, new in zip(saved["param_groups"], groups)]
            saved = {"state": {at[k]: of for k, of in saved["state"].items()}, "param_groups": groups}
        self.optimizer.load_state_dict(saved)
        # torch casts all state to the parameters' dtype, and NAdam's products, which are float32, to other bits.
        for k, p in enumerate(every):
            for name, value in saved["state"].get(k, {}).items():
                if isinstance(value, Tensor) and value.dtype != self.optimizer.state[p][name].dtype:
                    self.optimizer.state[p][name] = value.clone()
        if "lrs" in state:
            self._lrs, self._lrs_changed = list(state["lrs"]), True
        for scheduler in self._schedulers.all if "scheduler" in state else ():
            scheduler.load_state_dict(dict(state["scheduler"]))
        if self.average.is_kept and "average" in state:
            self.average.load_state_dict(state["average"])
