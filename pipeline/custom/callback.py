"""Callbacks: a user's code that a run calls at its events, and what it may see and do there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ...storage.errors import InputError, nearest
from ..config.load import Job
from ..telemetry.events import Emit, Logged

EVENTS = ("start", "step", "epoch", "validation", "checkpoint", "end")
"""Events in the order in which a run comes to them."""
METHODS = tuple(f"on_{event}" for event in EVENTS)


class Numbers(dict[str, float]):
    """Numbers by name, which says how to get one that is not there."""

    def __missing__(self, name: str) -> float:
        known, metric = ", ".join(self) or "none", str(name).partition("_")[2]
        raise KeyError(
            f"'{name}' is not measured (there are: {known}); add '{metric}' to metrics, which is train.metrics in a "
            "job file"
        )


class RunView:
    """A run, as a callback sees it. Only `rank`, `loss` and what follows from them differ between ranks."""

    def __init__(
        self, *, rank: int, ranks: int, model: nn.Module, config: Job, folder: Path, epochs: int, emit: Emit
    ) -> None:
        self.rank = rank
        """Number of this rank."""
        self.ranks = ranks
        """P."""
        self.model = model
        """The model that is trained. In `on_step`, with this step's gradients in ``.grad``."""
        self.config = config
        """The configuration."""
        self.folder = folder
        """The run's folder."""
        self.epochs = epochs
        """Epochs asked for, over all phases."""
        self.resumed = False
        """True if the run goes on from a checkpoint."""
        self.epoch = 0
        """Number of the epoch under way, from 0."""
        self.step = 0
        """Number of the last step in it, from 0."""
        self.steps_per_epoch = 0
        self.loss: float | None = None
        """Mean loss of this rank's seeds in the last step; on a GPU a step or more late."""
        self.metrics: dict[str, float] = Numbers()
        """Numbers of the last epoch: ``train_loss``, ``val_accuracy`` and ``val_NAME`` for each further metric; at the
        end ``test_accuracy`` and ``test_NAME``."""
        self.status = "running"
        """``running``; in `on_end` ``done``, ``stopped`` (it can be resumed) or ``failed``."""
        self.phase_optimizer: Any = None
        self.stop_asked = False
        self._emit = emit

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser that takes the run's steps."""
        return self.phase_optimizer.optimizer

    @property
    def lr(self) -> float:
        """The learning rate of the first group of parameters. Setting it scales those of all groups, now and for
        the rest of the schedule."""
        return self.phase_optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise InputError(f"a callback set lr to {value!r}; expected a number, at least 0")
        self.phase_optimizer.lr = float(value)

    def stop(self) -> None:
        """End training after the next step, or with the epoch; one rank's call is enough. The run validates the last
        parameters and tests the best ones."""
        self.stop_asked = True

    def log(self, **values: float | str) -> None:
        """Write numbers or texts into ``metrics.jsonl``, as an event `Logged`. Only the first rank writes."""
        for name, value in values.items():
            if not isinstance(value, int | float | str):
                try:
                    values[name] = float(value)
                except (TypeError, ValueError):
                    raise InputError(
                        f"a callback logs '{name}', a {type(value).__name__}; expected a number or a text"
                    ) from None
        if self.rank == 0:
            self._emit(Logged(self.epoch, self.step, values))


class Callback:
    """Base of your own code that a run calls at its events, on every rank. Override the methods that you need. A class
    without this base works too, if it has some of these methods."""

    def on_start(self, run: RunView) -> None:
        """Before the first step, of a new run or a resumed one."""

    def on_step(self, run: RunView) -> None:
        """After each step of the optimiser."""

    def on_validation(self, run: RunView) -> None:
        """After each validation, with its numbers in `run.metrics`."""

    def on_epoch(self, run: RunView) -> None:
        """After each epoch, and after its validation, if the epoch has one."""

    def on_checkpoint(self, run: RunView) -> None:
        """After each checkpoint."""

    def on_end(self, run: RunView) -> None:
        """At the end of the run in this process, whatever the run's `status`."""

    def state_dict(self) -> dict[str, Any]:
        """State to keep in checkpoints: tensors, plain values, and lists and dicts of them. Checkpoints keep the first
        rank's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict` from a checkpoint."""


class Callbacks:
    """The callbacks of a run on one rank."""

    def __init__(self, callbacks: Sequence[Any], run: RunView) -> None:
        self._callbacks, self.run = list(callbacks), run
        self._calls: dict[str, list[Callable[[RunView], None]]] = {
            event: [m for c in callbacks if (m := _overridden(c, f"on_{event}")) is not None] for event in EVENTS
        }
        self.stops_steps = False
        """True from the step on whose gradients carry a request to stop."""

    def __len__(self) -> int:
        """Number of callbacks."""
        return len(self._callbacks)

    def call(self, event: str) -> None:
        """Call what waits for an event."""
        for method in self._calls[event]:
            method(self.run)

    def step(self, epoch: int, step: int, loss: float | None) -> None:
        """An optimiser step was taken."""
        self.run.epoch, self.run.step, self.run.loss = epoch, step, loss
        self.call("step")

    def state(self) -> list[Any]:
        """States for a checkpoint."""
        return [c.state_dict() if callable(getattr(c, "state_dict", None)) else {} for c in self._callbacks]

    def load(self, states: Sequence[Any]) -> None:
        """Go on from the states of a checkpoint, where there are as many callbacks as were saved."""
        if len(states) != len(self._callbacks):
            return
        for c, state in zip(self._callbacks, states):
            if state and callable(getattr(c, "load_state_dict", None)):
                c.load_state_dict(state)


def no_callbacks() -> Callbacks:
    """Callbacks of a run that has none: calling them does nothing, and they never ask to end training."""
    # pyrefly: ignore[bad-argument-type]
    return Callbacks((), SimpleNamespace(stop_asked=False))


def _overridden(callback: object, name: str) -> Callable[[RunView], None] | None:
    method = getattr(callback, name, None)
    return None if method is None or getattr(method, "__func__", None) is getattr(Callback, name) else method


def check_callback(callback: Any) -> None:
    """Refuse what no event would call.

    Raises:
        InputError: no method of a known name, or one that nothing calls.
    """
    own = [n for n in dir(callback) if n.startswith("on_") and callable(getattr(callback, n))]
    name = type(callback).__name__
    if isinstance(callback, type):
        raise InputError(f"callbacks has the class {callback.__name__}; give an object of it: {callback.__name__}()")
    if wrong := [n for n in own if n not in METHODS]:
        raise InputError(
            f"the callback {name} has {wrong[0]}, which nothing calls; expected {', '.join(METHODS)}"
            f"{nearest(wrong[0], METHODS)}"
        )
    if not any(_overridden(callback, n) for n in METHODS):
        raise InputError(f"the callback {name} has none of {', '.join(METHODS)}; give it one, with the argument run")
