"""Accuracies from the outputs of a model, as tests ask for them."""

from collections.abc import Sequence

from torch import Tensor, nn

from millrace.stages.evaluate.layerwise import quotient, tally
from millrace.stages.evaluate.limits import DEFAULTS, Limits
from millrace.stages.evaluate.scored import split_rows
from millrace.storage.dataset import SPLITS, Dataset


def evaluate(
    model: nn.Module, dataset: Dataset, degree: Tensor, splits: Sequence[str] = SPLITS, limits: Limits = DEFAULTS
) -> dict[str, float | None]:
    """`accuracy` of every split of `splits`, in one pass over the layers; None for a split without nodes. Arguments as
    in `infer`."""
    rows = split_rows(model, dataset, degree, splits, limits)
    assert isinstance(rows, dict)
    return {name: accuracy(*rows[name]) if name in rows else None for name in splits}


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of rows whose largest logit is at the label; for multi-label targets micro-F1.

    Args:
        logits: [n, C].
        labels: integer [n], or [n, C] of 0 and 1, or NaN where not known.
    """
    return quotient(*tally(logits, labels).tolist())
