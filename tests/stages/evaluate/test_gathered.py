"""Metrics of all rows: the numbers of scikit-learn on gathered outputs, to the bit, however ranks hold the rows."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics

from millrace.stages.evaluate.gathered import ERRORS, GATHERED, RANKED, gathered_metric
from millrace.stages.evaluate.measures import METRICS, Measures, Scored, is_small, main_metric
from millrace.tests.contracts.thread_ranks import run_threads

N, C = 150, 4


def rows(task, seed=0):
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(N, 1 if task == "binary" else C, generator=generator)
    if task in ("multiclass", "binary"):
        return out, torch.randint(0, 2 if task == "binary" else C, (N,), generator=generator)
    y = torch.randn(N, C, generator=generator) + out / 2
    return out, (y > 0.5).float() if task == "multilabel" else y


def of_sklearn(name, task, out, y):
    out, y = out.double(), y.double() if task == "regression" else y
    if task == "regression":
        functions = {
            "rmse": metrics.root_mean_squared_error,
            "mae": metrics.mean_absolute_error,
            "r2": metrics.r2_score,
        }
        return functions[name](y, out)
    scores = out.softmax(1) if task == "multiclass" else out[:, 0] if task == "binary" else out
    if name == "auc":
        return metrics.roc_auc_score(y, scores, multi_class="ovr")
    y = torch.nn.functional.one_hot(y) if task == "multiclass" else y
    return metrics.average_precision_score(y, scores)


TASKS = [task for task in METRICS if task != "link"]
"""Metrics of links rank pairs: see test_links.py."""
CASES = [(name, task) for task in TASKS for name in METRICS[task] if name in GATHERED]


@pytest.mark.parametrize(("name", "task"), CASES)
def test_numbers_are_those_of_sklearn(name, task):
    out, y = rows(task)
    assert gathered_metric(name, task, out, y) == pytest.approx(of_sklearn(name, task, out, y), rel=1e-14)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("cuts", [(0, N), (40, 41)])
def test_ranks_get_the_metric_of_all_rows_and_no_mean_of_theirs(task, cuts):
    out, y = rows(task)
    measures = Measures(task, [name for name in METRICS[task] if name != "accuracy"])
    parts = list(zip(out.tensor_split(cuts), y.tensor_split(cuts)))
    whole = measures.measured(out, y, by_class=True)
    for scored in run_threads(lambda g: measures.over_ranks(*parts[g.rank], g, by_class=True), 3):
        assert (scored.accuracy, list(scored.values)) == (whole.accuracy, list(whole.values))
        assert scored.values == {**whole.values, "loss": pytest.approx(whole.values["loss"], rel=1e-6)}
        assert (scored.counts is None) == (task == "regression")


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_labels_that_are_not_known_are_left_out(task):
    out, y = rows(task)
    known = torch.rand(N, C, generator=torch.Generator().manual_seed(2)) > 0.3
    gaps = torch.where(known, y, torch.nan)
    for name in ERRORS if task == "regression" else RANKED:
        of_column = [of_sklearn(name, task, out[k, c : c + 1], y[k, c : c + 1]) for c, k in enumerate(known.T)]
        assert gathered_metric(name, task, out, gaps) == pytest.approx(np.mean(of_column), rel=1e-14)
    if task == "multilabel":
        said, there = ((out > 0) & known).flatten(), ((y > 0.5) & known).flatten()
        scored = Measures(task, ("micro_f1", "macro_f1")).measured(out, gaps)
        assert scored.accuracy == scored.values["micro_f1"] == pytest.approx(metrics.f1_score(there, said))
        each = [metrics.f1_score(y[k, c] > 0.5, out[k, c] > 0) for c, k in enumerate(known.T)]
        assert scored.values["macro_f1"] == pytest.approx(np.mean(each))


def test_what_no_metric_is_defined_for_is_left_out_and_nan_if_nothing_is_left():
    out, y = rows("multilabel")
    y[:, 0], y[:, 1] = 1.0, 0.0
    assert gathered_metric("auc", "multilabel", out, y) == pytest.approx(
        metrics.roc_auc_score(y[:, 2:], out[:, 2:].double())
    )
    assert math.isnan(gathered_metric("auc", "binary", out[:, :1], torch.zeros(N, dtype=torch.int64)))
    assert math.isnan(gathered_metric("r2", "regression", out[:1], out[:1]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_have_diverged_have_no_metric(value):
    out, y = rows("regression")
    out[3, 0] = value
    assert all(math.isnan(gathered_metric(name, "regression", out, y)) for name in ("mae", "r2"))
    assert math.isnan(gathered_metric("mae", "regression", out[:0], out[:0]))


@pytest.mark.parametrize(("task", "columns"), [("binary", 2), ("multiclass", 4)])
def test_one_output_stands_for_two_classes(task, columns):
    out, y = rows(task)
    scored = Measures(task, ("macro_f1", "micro_f1")).measured(out, y, by_class=True)
    said = (out[:, 0] > 0).long() if task == "binary" else out.argmax(1)
    assert scored.accuracy == metrics.accuracy_score(y, said) == pytest.approx(scored.values["micro_f1"])
    assert scored.values["macro_f1"] == pytest.approx(metrics.f1_score(y, said, average="macro"))
    np.testing.assert_array_equal(scored.counts.confusion, metrics.confusion_matrix(y, said))
    assert scored.counts.per_class.shape == (3, columns)


@pytest.mark.parametrize(
    ("task", "monitor", "merit"),
    [
        ("regression", None, -2.0),
        ("regression", "mae", -1.0),
        ("regression", "r2", 0.5),
        ("regression", "-r2", -0.5),
        ("binary", None, 0.75),
        ("binary", "auc", 0.9),
    ],
)
def test_the_best_epoch_is_chosen_in_the_right_direction(task, monitor, merit):
    scored = Scored(None if task == "regression" else 0.75, {"rmse": 2.0, "mae": 1.0, "r2": 0.5, "auc": 0.9})
    assert Measures(task, monitor=monitor).validation(scored).merit == merit
    assert is_small(monitor or main_metric(task)) == (merit < 0)


def test_a_users_own_metric_takes_the_place_of_a_built_in_one():
    out, y = rows("binary")
    own = {"auc": lambda out, y: 7.0, "micro_f1": lambda out, y: 8.0}
    assert Measures("binary", ("loss",), own).measured(out, y).values["auc"] == 7.0
    assert Measures("binary", ("loss",), own).measured(out, y).values["micro_f1"] == 8.0
