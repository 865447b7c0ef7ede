"""The metric that stands for a run: accuracy, root mean squared error, or the mean reciprocal rank of links."""

from collections.abc import Mapping
from typing import Any

IN_PLACE = {"regression": "rmse", "link": "mrr"}
"""Metric in place of the accuracy, by task."""


def main_metric_of(result: Mapping[str, Any], split: str) -> tuple[str, float | None]:
    """Name and value in a ``result.json``.

    Args:
        result: its record.
        split: val or test.
    """
    name = IN_PLACE.get(result.get("task", ""))
    if name is None:
        return "accuracy", result.get(f"{split}_accuracy")
    return name, (result.get(f"{split}_metrics") or {}).get(name)


def main_metric_of_epoch(event: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and value in the record of an `EpochDone`; None if nothing was validated."""
    accuracy, metrics = event.get("val_accuracy"), event.get("metrics") or {}
    if accuracy is not None:
        return "accuracy", accuracy
    return next(((name, metrics[name]) for name in IN_PLACE.values() if metrics.get(name) is not None), None)
