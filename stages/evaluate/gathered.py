"""Metrics that need all rows of a split at once, by scikit-learn: AUC, average precision, MAE, RMSE and R2."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...storage.array_kinds import AnyArray
from ...storage.dataset import Task

RANKED = ("auc", "average_precision")
"""Metrics of the order of nodes by their outputs."""
ERRORS = ("rmse", "mae", "r2")
"""Metrics of the errors of a regression."""
GATHERED = (*RANKED, *ERRORS)

FloatArray = npt.NDArray[np.float64]


def gathered_metric(name: str, task: Task, out: Tensor, y: Tensor) -> float:
    """A metric of outputs and labels of a split's nodes, in float64.

    It is the mean over classes (AUC and average precision; multi-class: each class against the others, by its
    probability) or over targets (MAE, RMSE, R2), each over the nodes whose label is known. Classes without a node, or
    without another, and targets that no node or, for R2, only one has, are left out; NaN if none is left, or if an
    output is not finite.

    Args:
        name: one of `GATHERED`.
        task: decides how columns belong to labels.
        out: [n, W].
        y: int64 [n], or floating [n, W].
    """
    score = _function(name)
    rows, labels = out.detach().double(), y.cpu().numpy()
    if task == "multiclass":
        rows = rows.softmax(1)
    if not rows.isfinite().all():
        return float("nan")
    found = [score(true, given) for true, given in _columns(task, rows.cpu().numpy(), labels) if _has(name, true)]
    return float(np.mean(found)) if found else float("nan")


def _function(name: str) -> Callable[[Any, Any], float]:
    from sklearn import metrics

    return {
        "auc": metrics.roc_auc_score,
        "average_precision": metrics.average_precision_score,
        "rmse": metrics.root_mean_squared_error,
        "mae": metrics.mean_absolute_error,
        "r2": metrics.r2_score,
    }[name]


def _columns(task: Task, rows: FloatArray, labels: AnyArray) -> Iterator[tuple[AnyArray, FloatArray]]:
    """Labels and outputs of each class or target, where they are known."""
    if task == "binary":
        yield labels, rows[:, 0]
        return
    for c in range(rows.shape[1]):
        if task == "multiclass":
            yield labels == c, rows[:, c]
            continue
        known = ~np.isnan(labels[:, c])
        true = labels[known, c].astype(np.float64)
        yield true > 0.5 if task == "multilabel" else true, rows[known, c]


def _has(name: str, true: AnyArray) -> bool:
    """True if the metric is defined for these labels of a column."""
    if name in RANKED:
        return bool(true.any() and not true.all())
    return len(true) > (1 if name == "r2" else 0)
