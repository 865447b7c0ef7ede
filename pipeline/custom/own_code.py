"""A user's own loss, optimiser, scheduler, metrics and callbacks: as they were given, checked, and described."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...stages.evaluate.measures import BUILT_IN, Metric
from ...stages.messages import Loss
from ...storage.errors import InputError, first_line
from ...storage.optional import present_items
from ...storage.registry import found_by_name
from ..config.held_cluster import cluster_table, is_held
from .callback import check_callback
from .describe import describe

KINDS = ("loss", "optimizer", "scheduler", "metric", "callback")
DECIDING = ("loss", "optimizer", "scheduler")
"""Kinds that decide the parameters of a run, so that it goes on with the same ones only."""
INSTEAD_OF = {
    "optimizer": ("optimizer", "lr", "weight_decay", "optimizer_options", "groups"),
    "scheduler": ("schedule",),
}
"""Keys of `train` that code of one's own stands in place of."""
NAME = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*(\.\w+)*|\.[A-Za-z_]\w*)")
"""A dotted name, MODULE:NAME or MODULE.NAME, but no address of a scheduler."""


@dataclass(frozen=True)
class OwnCode:
    """A user's own code in a run."""

    loss: Loss | None = None
    """Logits [B, W] and labels to one value for each seed, [B]."""
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    """Makes an optimiser of parameters."""
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    """Makes a scheduler of torch of an optimiser, or a pair of it and ``"step"``."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    callbacks: Sequence[Any] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """Description of each of `DECIDING` that was given. Made in the driver, since ranks hold copies."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names for messages of the code of each kind."""

    @property
    def is_empty(self) -> bool:
        """True if nothing was given."""
        return not self.names


def own_code(
    *, loss: Any = None, optimizer: Any = None, scheduler: Any = None, metrics: Any = None, callbacks: Any = None
) -> OwnCode:
    """Check what was given, and find what is named.

    Raises:
        InputError: something is not found, or is not what is expected.
    """
    loss = _callable("loss", loss, "loss(out, y) -> [B], such as torch.nn.CrossEntropyLoss(reduction='none')")
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise InputError(
            f"loss is a {type(loss).__name__} with parameters, which nothing would train; put them into the model"
        )
    optimizer = _callable("optimizer", optimizer, "lambda parameters: torch.optim.SGD(parameters, lr=0.1)")
    scheduler = _callable(
        "scheduler", scheduler, "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)"
    )
    given = {"loss": loss, "optimizer": optimizer, "scheduler": scheduler}
    measured, called = _metrics(metrics), _callbacks(callbacks)
    names = {kind: _name_of(value) for kind, value in present_items(given).items()}
    names |= {"metric": ", ".join(measured)} if measured else {}
    names |= {"callback": ", ".join(_name_of(c) for c in called)} if called else {}
    digests = {kind: describe(value) for kind, value in present_items(given).items()}
    return OwnCode(loss, optimizer, scheduler, measured, called, digests, names=names)


def split_code(
    given: Mapping[str, Any], options: Mapping[str, Any], config: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell code from configuration among arguments that may be either: a loss by its name or its options, an optimiser
    of torch by name, the address of a Dask scheduler, and built-in metrics are keys.

    Args:
        given: arguments of `own_code`, as they were given.
        options: keys, shorthands and tables.
        config: the table that these change; of one that is resolved, nobody knows what was given.

    Returns:
        The arguments that are code, and the options with those that are not.

    Raises:
        InputError: keys are given beside the code that takes their place.
    """
    code, options = present_items(given), dict(options)
    loss, scheduler, metrics = (code.get(key) for key in ("loss", "scheduler", "metrics"))
    if isinstance(loss, Mapping) or _is_key(loss):
        options["loss"] = code.pop("loss")
    if is_held(scheduler) or isinstance(scheduler, Path) or str(scheduler).endswith(".json") or _is_key(scheduler):
        options["scheduler"] = code.pop("scheduler")
    if _is_key(code.get("optimizer")):
        options["optimizer"] = code.pop("optimizer")
    if named := {key: options.pop(key) for key in ("scheduler", "cluster", "client") if key in options}:
        options["cluster"] = cluster_table(**named)
    if metrics is not None and not isinstance(metrics, Mapping):
        every = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
        if known := [m for m in every if _is_key(m)]:
            options["metrics"] = known
        code["metrics"] = [m for m in every if not _is_key(m)]
    tables = [t for t in (options, config) if isinstance(t, Mapping)]
    within = [t["train"] for t in tables if isinstance(t.get("train"), Mapping)]
    check_beside({key for table in (*tables, *within) for key in table}, code)
    return code, options


def _is_key(value: object) -> bool:
    """True for a text that names no code."""
    return isinstance(value, str) and not NAME.fullmatch(value)


def check_beside(keys: Collection[str], code: Mapping[str, Any]) -> None:
    """Refuse keys of `train` that are given beside the code that takes their place.

    Raises:
        InputError: names the keys.
    """
    for kind, keys_of_kind in INSTEAD_OF.items():
        beside = [key for key in keys_of_kind if key in keys]
        if kind in code and beside:
            raise InputError(
                f"{' and '.join(beside)} would not reach the {kind}, which is your own ({_name_of(code[kind])}); set "
                "it there"
            )


def from_code_flags(flags: Sequence[str] | None) -> dict[str, Any]:
    """Arguments of `own_code` from flags ``--code KIND=MODULE:NAME``.

    Raises:
        InputError: a flag has another form.
    """
    found: dict[str, Any] = {}
    for text in flags or ():
        kind, equals, name = text.partition("=")
        if kind not in KINDS or not equals or not NAME.fullmatch(name):
            raise InputError(
                f"--code is '{text}'; expected KIND=MODULE:NAME, such as loss=my.losses:focal, with a kind of "
                f"{', '.join(KINDS)}"
            )
        if kind in ("metric", "callback"):
            found.setdefault(f"{kind}s", []).append(name)
        elif kind in found:
            raise InputError(f"--code {kind}= is given twice; a run has one {kind}")
        else:
            found[kind] = name
    return found


def _callable(kind: str, value: Any, example: str) -> Any:
    value = found_by_name(value, kind) if isinstance(value, str) else value
    if value is not None and not callable(value):
        raise InputError(f"{kind} is a {type(value).__name__}; expected a function, such as {example}")
    if kind == "loss" and isinstance(value, type) and issubclass(value, nn.Module):
        raise InputError(f"loss is the class {value.__name__}; expected an object of it, with reduction='none'")
    return value


def _metrics(metrics: Any) -> dict[str, Metric]:
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        pairs = [(str(name), m) for name, m in metrics.items()]
    else:
        every = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
        pairs = [("", m) for m in every]
    found: dict[str, Metric] = {}
    for name, given in pairs:
        metric = _callable("metrics", given, "a function metric(out, y) -> number")
        name = name or getattr(metric, "__name__", type(metric).__name__)
        if name in found or name in BUILT_IN or not name.isidentifier():
            why = "is taken" if name in found or name in BUILT_IN else "is no name"
            raise InputError(f"metrics: '{name}' {why}; name each, as in metrics={{'my_metric': function}}")
        found[name] = metric
    return found


def _callbacks(callbacks: Any) -> tuple[Any, ...]:
    if callbacks is None:
        return ()
    every = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    found = []
    for given in every:
        value = given
        if isinstance(given, str):
            value = found_by_name(given, "callback")
            # By name, what makes a callback will do, as for models.
            if isinstance(value, type) or inspect.isfunction(value):
                try:
                    value = value()
                except Exception as e:
                    raise InputError(
                        f"callback is '{given}', which fails when it is called without arguments "
                        f"({type(e).__name__}: {first_line(e)}); expected a callback, or what makes one"
                    ) from e
        check_callback(value)
        found.append(value)
    return tuple(found)


def _name_of(value: Any) -> str:
    """A name of code for messages and records: that of a function, else of the object's class."""
    if isinstance(value, str):
        return value
    of = value if hasattr(value, "__qualname__") else type(value)
    return "".join(c if c.isprintable() else "?" for c in f"{of.__module__}:{of.__qualname__}")[:200]
