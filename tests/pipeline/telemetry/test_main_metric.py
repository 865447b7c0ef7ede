"""One metric stands for a run: accuracy, or the error of a regression."""

import pytest

from millrace.pipeline.telemetry.main_metric import main_metric_of, main_metric_of_epoch


@pytest.mark.parametrize(
    ("result", "want"),
    [
        ({"task": "multiclass", "val_accuracy": 0.5}, ("accuracy", 0.5)),
        ({}, ("accuracy", None)),
        ({"task": "regression", "val_accuracy": None, "val_metrics": {"mae": 1.0, "rmse": 2.0}}, ("rmse", 2.0)),
        ({"task": "regression", "val_metrics": None}, ("rmse", None)),
    ],
)
def test_of_a_result(result, want):
    assert main_metric_of(result, "val") == want


@pytest.mark.parametrize(
    ("event", "want"),
    [
        ({"val_accuracy": 0.5, "metrics": {"loss": 1.0}}, ("accuracy", 0.5)),
        ({"val_accuracy": None, "metrics": {"mae": 1.0, "rmse": 2.0}}, ("rmse", 2.0)),
        ({"val_accuracy": None, "metrics": {}}, None),
        ({"val_accuracy": None, "metrics": {"rmse": None}}, None),
        ({}, None),
    ],
)
def test_of_an_epoch(event, want):
    assert main_metric_of_epoch(event) == want
