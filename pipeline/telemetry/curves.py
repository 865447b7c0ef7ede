"""Curves of a run over its epochs, on axes of matplotlib."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .main_metric import main_metric_of
from .palette import INK, LINES, STAGES
from .run_log import RunLog

MOST_POINTS = 600


def thinned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[n, ...] -> [at most MOST_POINTS, ...]: means of neighbouring points, if there are too many to see."""
    if len(values) <= MOST_POINTS:
        return values
    return np.stack([piece.mean(axis=0) for piece in np.array_split(values, MOST_POINTS)])


def _dots(points: int) -> dict[str, Any]:
    return {"marker": "o", "markersize": 3} if points < 40 else {}


def by_epoch(ax: Any) -> None:
    """Label the x axis of a picture by epoch, at whole numbers."""
    ax.set_xlabel("epoch")
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def draw_curves(log: RunLog, result: Mapping[str, Any], grid: Callable[[int], list[Any]]) -> None:
    """Draw the loss of steps and epochs, and the metric of validations.

    Args:
        log: the run's.
        result: contents of its ``result.json``; empty if it has not finished.
        grid: gives so many axes.
    """
    rows = [(n + 1, row["train_loss"], row["validation"]) for n, row in sorted(log.epochs.items())]
    epochs, validated = ([(row[0], row[k]) for row in rows if row[k] is not None] for k in (1, 2))
    axes = grid(1 + bool(validated))
    if log.steps:
        steps = thinned(np.array([log.steps[key][1:] for key in sorted(log.steps)]))
        axes[0].plot(*steps.T, color=STAGES["other"], linewidth=1, label="of steps (first rank)")
    if epochs:
        axes[0].plot(*np.array(epochs).T, color=LINES[0], label="of epochs (all ranks)", **_dots(len(epochs)))
    axes[0].set_title("training loss")
    axes[0].legend(frameon=False)
    if validated:
        points = np.array(validated)
        axes[1].plot(*points.T, color=STAGES["evaluate"], label="validation", **_dots(len(points)))
        tested = main_metric_of(result, "test")[1]
        if tested is not None and result.get("best_epoch", -1) >= 0:
            at, label = result["best_epoch"] + 1, "test, with the best epoch's parameters"
            axes[1].plot([at], [tested], color=LINES[1], marker="D", linestyle="", label=label)
            axes[1].axvline(at, color=INK, linewidth=0.6, linestyle=":")
        axes[1].set_title(log.metric)
        axes[1].legend(frameon=False, loc="lower right" if log.metric == "accuracy" else "upper right")
    for ax in axes:
        ax.grid(True)
        ax.set_axisbelow(True)
        by_epoch(ax)
        # A phase ends here, if layers are trained one after the other.
        ends = np.cumsum([p["epochs"] for p in result.get("phases", []) if "epochs" in p])[:-1]
        for end in ends:
            ax.axvline(end, color=INK, linewidth=0.8)
