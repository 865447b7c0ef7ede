"""A user's own module and code, named as MODULE:NAME on the command line and in calls."""

from typing import Any

from torch import nn

from ...storage.errors import InputError
from ...storage.registry import importing, object_in
from .model_argument import as_record_or_module

FORM = "MODULE:NAME, such as my.models:Own, with a class or function that makes the model without arguments"


def module_named(spec: str) -> nn.Module:
    """The module made by a class or function, found as ``python -m`` would: in this folder or among installed packages.

    Raises:
        InputError: the name is not found, the call fails, or its result is not a model.
    """
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise InputError(f"--model is '{spec}'; expected {FORM}")
    with importing(lambda reason: f"--model {spec} cannot be made ({reason}); expected {FORM}"):
        found = object_in(module, name)
        made = found if isinstance(found, nn.Module) else found()
    module = as_record_or_module(made)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"--model {spec} makes a {type(made).__name__}, one of Millrace's models; give its name, such as --model "
            "sage"
        )
    return module


def from_flags(flags: dict[str, Any], resume: bool) -> tuple[nn.Module | None, dict[str, Any]]:
    """The module made by ``--model MODULE:NAME`` (None for a model's name), and the flags of a run that trains it.

    Raises:
        InputError: see `module_named`.
    """
    if ":" not in (flags.get("model") or ""):
        return None, flags
    module = module_named(flags["model"])
    # The number of layers of a resumed run is in its folder.
    layers = {} if resume or flags.get("layers") is not None else {"layers": module.num_layers}
    return module, {**flags, "model": None, **layers}
