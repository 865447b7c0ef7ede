"""The optimiser of a run, from its configuration."""

import difflib
import inspect
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ...storage.errors import InputError
from ...storage.plural import counted
from .schema import Train

UNFIT = ("Optimizer", "LBFGS", "SparseAdam", "Muon", "Rprop")
"""Optimisers of torch that need the loss again, sparse gradients or matrices, or take no learning rate at each step."""
OWN_KEYS = ("params", "lr", "weight_decay")
"""Arguments of an optimiser that have a key of their own."""
REFUSED = ("capturable", "differentiable")
"""Arguments for steps inside CUDA graphs, or with gradients of their own, which the loop does not take."""
FUSED = ("adam", "adamw", "sgd")
"""Optimisers that take one launch for all parameters on a GPU."""


def optimizer_kinds() -> dict[str, type[torch.optim.Optimizer]]:
    """torch's optimisers that can train here, by their names in lower case."""
    found = {n: kind for n, kind in vars(torch.optim).items() if inspect.isclass(kind) and n not in UNFIT}
    return {n.lower(): kind for n, kind in found.items() if issubclass(kind, torch.optim.Optimizer)}


def make_optimizer(train: Train, parameters: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """A fresh optimiser.

    Args:
        train: names it and its options.
        parameters: with their names, by which `train.groups` chooses.

    Raises:
        InputError: torch has no such optimiser, or it refuses an option.
    """
    kinds = optimizer_kinds()
    kind = kinds.get(train.optimizer)
    if kind is None:
        near = difflib.get_close_matches(train.optimizer, kinds, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(sorted(kinds))}"
        raise InputError(f"train.optimizer is '{train.optimizer}'; {hint}")
    known = inspect.signature(kind).parameters
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in train.optimizer_options.items()}
    for name in options:
        if name in (*OWN_KEYS, *REFUSED) or name not in known:
            free = [k for k in known if k not in (*OWN_KEYS, *REFUSED)]
            hint = f"set train.{name}" if name in OWN_KEYS else f"{kind.__name__} takes {', '.join(free)}"
            raise InputError(f"train.optimizer_options has '{name}'; {hint}")
    options["weight_decay"] = train.weight_decay
    if train.optimizer in FUSED and not {"fused", "foreach"} & options.keys() and parameters[0][1].is_cuda:
        options["fused"] = True
    try:
        # pyrefly: ignore[bad-argument-type, unexpected-keyword]
        return kind(_grouped(train, parameters), lr=train.lr, **options)
    except (TypeError, ValueError, RuntimeError, IndexError) as e:
        raise InputError(f"train.optimizer is '{train.optimizer}', which torch refuses: {e}") from None


def _grouped(train: Train, parameters: Sequence[tuple[str, nn.Parameter]]) -> list[Any]:
    """The parameters as an optimiser takes them: a list, or groups with settings of their own."""
    if not train.groups:
        return [p for _, p in parameters]
    members: dict[int, list[nn.Parameter]] = {}
    for name, p in parameters:
        # Parameters of no group are in one behind the last.
        of = next((k for k, group in enumerate(train.groups) if fnmatchcase(name, group.match)), len(train.groups))
        members.setdefault(of, []).append(p)
    found = []
    for k, mine in sorted(members.items()):
        own = train.groups[k].model_dump(exclude={"match"}, exclude_none=True) if k < len(train.groups) else {}
        found.append({"params": mine, **own})
    return found


def check_optimizer(train: Train, model: nn.Module) -> None:
    """Refuse an optimiser that cannot be made, or a group without parameters.

    Raises:
        InputError: names the key to change.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not named:
        return
    for group in train.groups:
        if not any(fnmatchcase(name, group.match) for name, _ in named):
            names = ", ".join(name for name, _ in named[:4])
            more = f" and {counted(len(named) - 4, 'other')}" if len(named) > 4 else ""
            raise InputError(f"train.groups: no parameter matches '{group.match}'; there are {names}{more}")
    make_optimizer(train, named)
