"""The optimiser and the scheduler that a user's own code makes."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ...storage.errors import InputError, first_line
from .own_code import OwnCode


def made_optimizer(code: OwnCode, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The user's optimiser of these parameters; None where none was given.

    Raises:
        InputError: the call fails, or makes something else, or an optimiser that needs a closure.
    """
    if code.optimizer is None:
        return None
    made: Any = _called("optimizer", code.optimizer, parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"optimizer made a {type(made).__name__}; expected a torch.optim.Optimizer of the parameters it is given"
        )
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise InputError(
            f"optimizer makes a {type(made).__name__}, whose step needs a closure; a step here has its gradient already"
        )
    known = {id(p) for p in parameters}
    if any(id(p) not in known for group in made.param_groups for p in group["params"]):
        raise InputError("optimizer holds parameters that it was not given; make it of its argument")
    return made


class Schedulers(NamedTuple):
    """The user's schedulers of learning rates, by when they step: one, or none."""

    by_epoch: tuple[Any, ...] = ()
    by_step: tuple[Any, ...] = ()

    @property
    def all(self) -> tuple[Any, ...]:
        """Whenever they step."""
        return self.by_epoch + self.by_step

    @property
    def follow_metric(self) -> bool:
        """True if a step takes the value of a metric."""
        return any(map(follows_metric, self.all))


def made_scheduler(code: OwnCode, optimizer: torch.optim.Optimizer) -> Schedulers:
    """The user's scheduler.

    Raises:
        InputError: the call fails or makes something else.
    """
    if code.scheduler is None:
        return Schedulers()
    made: Any = _called("scheduler", code.scheduler, optimizer)
    every = "epoch"
    if isinstance(made, tuple) and len(made) == 2:
        made, every = made
    if not callable(getattr(made, "step", None)) or not callable(getattr(made, "state_dict", None)):
        raise InputError(
            f"scheduler made a {type(made).__name__}; expected one of torch.optim.lr_scheduler, or (scheduler, 'step')"
        )
    if every not in ("epoch", "step"):
        raise InputError(f'scheduler made a pair with {every!r}; expected (scheduler, "epoch") or (scheduler, "step")')
    if every == "step" and follows_metric(made):
        raise InputError('scheduler is a ReduceLROnPlateau with "step"; it follows validations: leave "step" out')
    return Schedulers(by_step=(made,)) if every == "step" else Schedulers((made,))


def follows_metric(scheduler: Any) -> bool:
    """True if a scheduler's step takes the value of a metric."""
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def plain(state: object) -> object:
    """A scheduler's state without classes that a checkpoint cannot hold: those of dicts."""
    if isinstance(state, Mapping):
        return {k: plain(v) for k, v in state.items()}
    return [plain(v) for v in state] if isinstance(state, list) else state


def _called(kind: str, make: Any, argument: Any) -> Any:
    try:
        return make(argument)
    except InputError:
        raise
    except Exception as e:
        raise InputError(f"{kind} fails when it is called ({type(e).__name__}: {first_line(e)}); correct it") from e
