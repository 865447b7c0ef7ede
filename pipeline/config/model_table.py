"""Merging another model's name or options into the ``model`` table of a configuration."""

from collections.abc import Mapping
from typing import Any

from ...stages.models import MODELS
from .job import canonical

OF_EVERY_MODEL = ("hidden", "layers", "dropout", "norm")


def with_model(table: Any, model: str | Mapping[str, Any]) -> dict[str, Any]:
    """Merge a model's name or options into a ``model`` table.

    Args:
        table: the table, a model's name, or None.
        model: a name, or a table of options. If it names another model, the former model's options are dropped, except
            those that every model has.
    """
    before = {"name": table} if isinstance(table, str) else dict(table or {})
    now = {"name": model} if isinstance(model, str) else dict(model)
    if "name" in now and "name" in before and _known(before["name"]) != _known(now["name"]):
        before = {k: v for k, v in before.items() if k in OF_EVERY_MODEL}
    return {**before, **now}


def _known(name: Any) -> Any:
    return canonical(MODELS, name) if isinstance(name, str) else name
