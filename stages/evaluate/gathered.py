"""Metrics that need all rows of a split at once, by scikit-learn's definitions: AUC, average precision, MAE, RMSE, R2.

They are computed here: importing scikit-learn takes three quarters of a second of each process that evaluates.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

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
    score = _FUNCTIONS[name]
    rows, labels = out.detach().double(), y.cpu().numpy()
    if task == "multiclass":
        rows = rows.softmax(1)
    if not rows.isfinite().all():
        return float("nan")
    found = [score(true, given) for true, given in _columns(task, rows.cpu().numpy(), labels) if _has(name, true)]
    return float(np.mean(found)) if found else float("nan")


def roc_auc(true: npt.NDArray[Any], scores: FloatArray) -> float:
    """Area under the ROC curve: the share of pairs of a positive and a negative whose order is right, equal scores
    counting half.

    Args:
        true: bool [n], or 0 and 1, of which there are both.
        scores: [n].
    """
    hits, misses = _counts_from_the_top(true, scores)
    return float(np.trapezoid(np.r_[0.0, hits / hits[-1]], np.r_[0.0, misses / misses[-1]]))


def average_precision(true: npt.NDArray[Any], scores: FloatArray) -> float:
    """Mean of the precision over the gains in recall, from the largest score down. See `roc_auc`."""
    hits, misses = _counts_from_the_top(true, scores)
    return float(np.sum(np.diff(hits / hits[-1], prepend=0.0) * hits / (hits + misses)))


def _counts_from_the_top(true: npt.NDArray[Any], scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Numbers of positives and of negatives with at least each distinct score, from the largest score down."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(true[order], dtype=np.float64)[ends]
    return hits, ends + 1.0 - hits


def _root_mean_squared_error(true: FloatArray, given: FloatArray) -> float:
    return float(np.sqrt(np.mean((true - given) ** 2)))


def _mean_absolute_error(true: FloatArray, given: FloatArray) -> float:
    return float(np.mean(np.abs(true - given)))


def _r2(true: FloatArray, given: FloatArray) -> float:
    """1 less the share of the variance that is left; of targets that are all the same, 1 or 0: all right, or not."""
    left, all_of_it = float(np.sum((true - given) ** 2)), float(np.sum((true - np.mean(true)) ** 2))
    return 1 - left / all_of_it if all_of_it else float(left == 0)


_FUNCTIONS: dict[str, Callable[[Any, FloatArray], float]] = {
    "auc": roc_auc,
    "average_precision": average_precision,
    "rmse": _root_mean_squared_error,
    "mae": _mean_absolute_error,
    "r2": _r2,
}


def _columns(task: Task, rows: FloatArray, labels: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[Any], FloatArray]]:
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


def _has(name: str, true: npt.NDArray[Any]) -> bool:
    """True if the metric is defined for these labels of a column."""
    if name in RANKED:
        return bool(true.any() and not true.all())
    return len(true) > (1 if name == "r2" else 0)
