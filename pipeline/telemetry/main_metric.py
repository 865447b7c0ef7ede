"""The metric that stands for a run in one line: the accuracy, or the root of the mean squared error of a regression."""

from collections.abc import Mapping
from typing import Any


def main_metric_of(result: Mapping[str, Any], split: str) -> tuple[str, float | None]:
    """Name and value in a ``result.json``.

    Args:
        result: its record.
        split: val or test.
    """
    if result.get("task") != "regression":
        return "accuracy", result.get(f"{split}_accuracy")
    return "rmse", (result.get(f"{split}_metrics") or {}).get("rmse")


def main_metric_of_epoch(event: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and value in the record of an `EpochDone`; None if nothing was validated."""
    accuracy, metrics = event.get("val_accuracy"), event.get("metrics") or {}
    if accuracy is not None:
        return "accuracy", accuracy
    return ("rmse", metrics["rmse"]) if metrics.get("rmse") is not None else None
