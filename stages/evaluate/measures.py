"""Metrics of a validation or test: of the outputs for a split's nodes, on one rank or summed over several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ...storage.errors import InputError
from ..comm.base import Group
from ..messages import Loss, Validation
from ..train import summed_loss
from .layerwise import quotient, tally

BUILT_IN = ("accuracy", "loss", "macro_f1")
"""Metrics by name: accuracy (multi-label: micro-F1), the mean training loss, and the mean of the classes' F1."""
MOST_CLASSES = 256
"""Classes up to which the test split's confusion matrix is counted."""

Metric = Callable[[Tensor, Tensor], Any]
"""A user's metric: logits [n, C] and labels of a split's nodes to a number."""


@dataclass(frozen=True)
class Counts:
    """Counts by class over a split's nodes."""

    per_class: Tensor
    """float64 [3, W]: nodes rightly given the class, nodes given it, nodes that have it."""
    confusion: Tensor | None = None
    """float64 [W, W]: nodes by their class (rows) and the class given (columns); None where not counted."""

    def f1(self) -> Tensor:
        """[W], F1 of each class; 0 for one that no node has or is given."""
        right, said, true = self.per_class
        return torch.where(said + true > 0, 2 * right / (said + true).clamp(min=1), 0.0)

    def macro_f1(self) -> float:
        """Mean F1 of the classes that some node has or is given."""
        there = self.per_class[1:].sum(0) > 0
        return float(self.f1()[there].mean()) if there.any() else 0.0


@dataclass(frozen=True)
class Scored:
    """Result of one evaluation of a split."""

    accuracy: float
    values: Mapping[str, float] = field(default_factory=dict)
    """Further metrics by name."""
    counts: Counts | None = None
    """Counts by class, where they were asked for; on the first rank only, if it evaluates for all."""


@dataclass(frozen=True)
class Measures:
    """Metrics of the outputs for a split's nodes."""

    task: Literal["multiclass", "multilabel"] = "multiclass"
    names: Sequence[str] = ()
    """Built-in metrics besides accuracy: ``loss``, ``macro_f1``."""
    own: Mapping[str, Metric] = field(default_factory=dict)
    """The user's metrics by name."""
    loss: Loss | None = None
    """The user's loss; None: that of the task."""
    monitor: str | None = None
    """Metric that chooses the best epoch, with a minus in front if it is to be small; None: the system's own choice,
    accuracy as a rule."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of all metrics besides accuracy."""
        return (*self.names, *self.own)

    def sums(self, logits: Tensor, labels: Tensor, by_class: bool = False) -> Tensor:
        """Numbers behind accuracy and the built-in metrics, float64 on the host. Those of several sets of rows may be
        added up.

        Args:
            logits: [n, W].
            labels: int64 [n], or [n, W] of 0 and 1.
            by_class: count the confusion matrix too.
        """
        found = [tally(logits, labels).cpu()]
        if self.names or by_class:
            loss = summed_loss(logits, labels, self.task, loss=self.loss) if len(labels) else torch.zeros(())
            found.append(torch.tensor([float(loss), len(labels)], dtype=torch.float64))
            found.append(_per_class(logits, labels).flatten())
        if by_class and _has_confusion(logits, labels):
            found.append(_confusion(logits, labels).flatten())
        return torch.cat(found)

    def scored(self, sums: Tensor, width: int, own: Mapping[str, float], by_class: bool = False) -> Scored:
        """The metrics from `sums` over all rows.

        Args:
            sums: as `sums` makes them.
            width: W.
            own: values of the user's metrics.
            by_class: as in `sums`.
        """
        values: dict[str, float] = {}
        counts = None
        if self.names or by_class:
            per_class, rest = sums[4 : 4 + 3 * width].view(3, width), sums[4 + 3 * width :]
            counts = Counts(per_class, rest.view(width, width) if len(rest) else None)
            known = {"loss": float(sums[2] / sums[3].clamp(min=1)), "macro_f1": counts.macro_f1()}
            values = {name: known[name] for name in self.names}
        return Scored(quotient(sums[:2]), {**values, **own}, counts if by_class else None)

    def of(self, logits: Tensor, labels: Tensor, by_class: bool = False) -> Scored:
        """All metrics of rows that one process holds.

        Raises:
            InputError: a user's metric gives no number.
        """
        own = {name: _number(name, metric(logits, labels)) for name, metric in self.own.items()}
        return self.scored(self.sums(logits, labels, by_class), logits.shape[1], own, by_class)

    def over_ranks(self, logits: Tensor, labels: Tensor, group: Group, by_class: bool = False) -> Scored:
        """All metrics of rows that ranks hold, the same on every rank. All call this at once. For the user's metrics
        the first rank gets all rows."""
        sums = self.sums(logits, labels, by_class)
        group.all_reduce(sums, "control")
        own = torch.zeros(len(self.own), dtype=torch.float64)
        if self.own:
            rows = [_gathered(x, group) for x in (logits, labels)]
            if group.rank == 0:
                own = torch.tensor([_number(k, m(*rows)) for k, m in self.own.items()], dtype=torch.float64)
            group.broadcast(own, 0, "control")
        return self.scored(sums, logits.shape[1], dict(zip(self.own, own.tolist())), by_class)

    def validation(self, scored: Scored, merit: float | None = None) -> Validation:
        """The result of a validation.

        Args:
            scored: the metrics.
            merit: the system's own choice of what is to be large; None: accuracy.
        """
        if self.monitor is not None:
            name = self.monitor.removeprefix("-")
            value = {"accuracy": scored.accuracy, **scored.values}[name]
            merit = -value if is_small(self.monitor) else value
        return Validation(scored.accuracy, scored.accuracy if merit is None else merit, scored.values)


def is_small(monitor: str) -> bool:
    """True if the metric that a monitor names is to be small: with a minus in front, and the loss."""
    return monitor.startswith("-") or monitor == "loss"


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        seen = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(f"the metric '{name}' gave {seen}; expected one number for all nodes of a split") from None


def _per_class(logits: Tensor, labels: Tensor) -> Tensor:
    """See `Counts.per_class`."""
    width = logits.shape[1]
    if labels.ndim == 1:
        said = logits.argmax(1) if len(logits) else labels
        counted = (said[said == labels], said, labels)
        return torch.stack([torch.bincount(x, minlength=width)[:width] for x in counted]).double().cpu()
    positive, true = logits > 0, labels > 0.5
    return torch.stack([(positive & true).sum(0), positive.sum(0), true.sum(0)]).double().cpu()


def _has_confusion(logits: Tensor, labels: Tensor) -> bool:
    return labels.ndim == 1 and logits.shape[1] <= MOST_CLASSES


def _confusion(logits: Tensor, labels: Tensor) -> Tensor:
    width = logits.shape[1]
    said = logits.argmax(1) if len(logits) else labels
    cells = labels * width + said
    return torch.bincount(cells, minlength=width * width)[: width * width].view(width, width).double().cpu()


def _gathered(rows: Tensor, group: Group) -> Tensor:
    """The rows of all ranks, on the first; others get none."""
    flat = rows.unsqueeze(1) if rows.ndim == 1 else rows
    parts = [flat.contiguous() if to == 0 else flat[:0] for to in range(group.size)]
    there = torch.cat(group.all_to_all(parts, "activations"))
    return there[:, 0] if rows.ndim == 1 else there
