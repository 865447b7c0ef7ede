"""Flags of `millrace run` on commands that do one of its stages: they take the same job, and leave what concerns
another stage to that."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from . import flags

OF_STAGES: dict[str, Any] = {
    "system": flags.SystemFlag,
    "model": flags.RunModelFlag,
    "hidden": flags.HiddenFlag,
    "layers": flags.LayersFlag,
    "fanout": flags.FanoutFlag,
    "batch_size": flags.BatchSizeFlag,
    "epochs": flags.EpochsFlag,
    "lr": flags.LrFlag,
    "dropout": flags.DropoutFlag,
    "ranks": flags.RanksFlag,
    "executor": flags.ExecutorFlag,
    "device": flags.DeviceFlag,
    "dtype": flags.DtypeFlag,
    "scheduler": flags.OfClusterFlag,
    "host": flags.HostFlag,
    "reuse": flags.ReuseFlag,
    "track": flags.TrackFlag,
}
"""Flags for keys of a job, by name; a command has those besides its own."""


def with_stage_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the flags of `OF_STAGES` that it does not have itself, given to its parameter `others` by name."""
    own = inspect.signature(command)
    more = {name: kind for name, kind in OF_STAGES.items() if name not in own.parameters}

    @functools.wraps(command)
    def called(**values: Any) -> None:
        others = {name: values.pop(name) or None for name in more}
        command(others=others, **values)

    kept = [p for p in own.parameters.values() if p.name != "others"]
    added = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=k) for n, k in more.items()]
    signature: Any = own.replace(parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept] + added)
    # pyrefly: ignore[missing-attribute]
    called.__signature__ = signature
    called.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return called
