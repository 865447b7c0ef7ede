"""Metrics of a validation or test: of the outputs for a split's nodes, on one rank or summed over several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...storage.dataset import Task
from ...storage.errors import InputError
from ..comm.base import Group
from ..forward_backward import summed_loss
from ..messages import Loss, Validation
from .gathered import ERRORS, GATHERED, RANKED, gathered_metric
from .layerwise import quotient, tally
from .links import ALWAYS as ALWAYS_OF_LINKS
from .links import LINK_METRICS

_OF_CLASSES = ("accuracy", "loss", "macro_f1", "micro_f1", *RANKED)
METRICS: dict[Task, tuple[str, ...]] = {
    "multiclass": _OF_CLASSES,
    "multilabel": _OF_CLASSES,
    "binary": _OF_CLASSES,
    "regression": (*ERRORS, "loss"),
    "link": LINK_METRICS,
}
"""Metrics of each task by name, the main one first: the accuracy (multi-label: micro-F1), or the root of the mean
squared error."""
ALWAYS: dict[str, tuple[str, ...]] = {"regression": ERRORS, "link": ALWAYS_OF_LINKS}
"""Metrics that a task has in every evaluation, besides accuracy."""
BUILT_IN = ("accuracy", "loss", "macro_f1")
"""Metrics whose names a user's own cannot have."""
SMALL = ("loss", "rmse", "mae")
"""Metrics that are better when they are smaller."""
MOST_CLASSES = 256
"""Classes up to which the test split's confusion matrix is counted."""

Metric = Callable[[Tensor, Tensor], Any]
"""A user's metric: logits [n, C] and labels of a split's nodes to a number."""


def main_metric(task: Task) -> str:
    """Metric that chooses the best epoch if nothing else is asked for."""
    return METRICS[task][0]


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

    def micro_f1(self) -> float:
        """F1 over all (node, class) pairs together; 0 if nothing is there or given."""
        right, said, true = self.per_class.sum(1).tolist()
        return 2 * right / (said + true) if said + true else 0.0


@dataclass(frozen=True)
class Scored:
    """Result of one evaluation of a split."""

    accuracy: float | None
    """None where outputs are no classes."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Further metrics by name."""
    counts: Counts | None = None
    """Counts by class, where they were asked for; on the first rank only, if it evaluates for all."""
    by_relation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """`values` of the pairs of each relation, and their number, where several are predicted; on the first rank
    likewise."""


@dataclass(frozen=True)
class Measures:
    """Metrics of the outputs for a split's nodes."""

    task: Task = "multiclass"
    names: Sequence[str] = ()
    """Built-in metrics besides accuracy, of `METRICS`."""
    own: Mapping[str, Metric] = field(default_factory=dict)
    """The user's metrics by name."""
    loss: Loss | None = None
    """The run's loss; None: the default of the task."""
    monitor: str | None = None
    """Metric that chooses the best epoch, with a minus in front if it is to be small; None: the system's own choice,
    the task's main metric as a rule."""
    ranks_sources: bool = False
    """True if the sources of pairs are ranked as well as their destinations."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of all metrics besides accuracy."""
        return (*self.names, *self.own)

    @property
    def _of_all_rows(self) -> dict[str, Metric]:
        """Metrics that need all rows of a split at once."""
        return {**{n: partial(gathered_metric, n, self.task) for n in self.names if n in GATHERED}, **self.own}

    def _counts(self, by_class: bool) -> bool:
        """True if more than accuracy is added up."""
        return by_class or any(name not in GATHERED for name in self.names)

    def sums(self, logits: Tensor, labels: Tensor, by_class: bool = False) -> Tensor:
        """Numbers behind accuracy and the metrics that can be added up, float64 on the host. Those of several sets of
        rows may be added up.

        Args:
            logits: [n, W].
            labels: int64 [n], or floating [n, W].
            by_class: count the confusion matrix too.
        """
        is_regression, classes = self.task == "regression", self._by_class(logits)
        found = [torch.zeros(2, dtype=torch.float64) if is_regression else tally(classes, labels).cpu()]
        if self._counts(by_class):
            loss = summed_loss(logits, labels, self.task, loss=self.loss) if len(labels) else torch.zeros(())
            found.append(torch.tensor([float(loss), len(labels)], dtype=torch.float64))
            if not is_regression:
                found.append(_per_class(classes, labels).flatten())
        width = classes.shape[1]
        if by_class and not is_regression and labels.ndim == 1 and width <= MOST_CLASSES:
            cells = labels * width + (classes.argmax(1) if len(labels) else labels)
            found.append(torch.bincount(cells, minlength=width * width)[: width * width].double().cpu())
        return torch.cat(found)

    def scored(self, sums: Tensor, width: int, gathered: Mapping[str, float], by_class: bool = False) -> Scored:
        """The metrics from `sums` over all rows of outputs of this width, and `gathered`, values of those that need all
        rows."""
        is_regression, width = self.task == "regression", 2 if self.task == "binary" else width
        known: dict[str, float] = dict(gathered)
        counts = None
        if self._counts(by_class):
            known["loss"] = float(sums[2] / sums[3].clamp(min=1))
        if self._counts(by_class) and not is_regression:
            per_class, rest = sums[4 : 4 + 3 * width].view(3, width), sums[4 + 3 * width :]
            counts = Counts(per_class, rest.view(width, width) if len(rest) else None)
            known |= {"macro_f1": counts.macro_f1(), "micro_f1": counts.micro_f1()}
            known |= gathered  # a user's own may be called micro_f1
        values = {name: known[name] for name in self.all_names}
        accuracy = None if is_regression else quotient(*sums[:2].tolist())
        return Scored(accuracy, values, counts if by_class else None)

    def measured(self, logits: Tensor, labels: Tensor, by_class: bool = False) -> Scored:
        """All metrics of rows that one process holds.

        Raises:
            InputError: a user's metric gives no number.
        """
        gathered = {name: _number(name, metric(logits, labels)) for name, metric in self._of_all_rows.items()}
        return self.scored(self.sums(logits, labels, by_class), logits.shape[1], gathered, by_class)

    def over_ranks(self, logits: Tensor, labels: Tensor, group: Group, by_class: bool = False) -> Scored:
        """All metrics of rows that ranks hold, the same on every rank. All call this at once. For metrics that need all
        rows, the first rank gets them."""
        sums, metrics = self.sums(logits, labels, by_class), self._of_all_rows
        group.all_reduce(sums, "control")
        values = torch.zeros(len(metrics), dtype=torch.float64)
        if metrics:
            rows = [_gather_rows(x, group) for x in (logits, labels)]
            if group.rank == 0:
                values = torch.tensor([_number(k, m(*rows)) for k, m in metrics.items()], dtype=torch.float64)
            group.broadcast(values, 0, "control")
        return self.scored(sums, logits.shape[1], dict(zip(metrics, values.tolist())), by_class)

    def _by_class(self, logits: Tensor) -> Tensor:
        """[n, C], the logits of each class: one column stands for two, of which the first is 0."""
        return torch.cat([torch.zeros_like(logits), logits], 1) if self.task == "binary" else logits

    def validation(self, scored: Scored, merit: float | None = None) -> Validation:
        """The result of a validation. `merit`: the system's own choice of what is to be large; None: the task's main
        metric."""
        if self.monitor is not None or merit is None:
            monitor = self.monitor or main_metric(self.task)
            value = {"accuracy": scored.accuracy, **scored.values}[monitor.removeprefix("-")]
            assert isinstance(value, float)
            merit = -value if is_small(monitor) else value
        return Validation(scored.accuracy, merit, scored.values)


def is_small(monitor: str) -> bool:
    """True if the metric that a monitor names is to be small: with a minus in front, the loss, and errors."""
    return monitor.startswith("-") or monitor in SMALL


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        seen = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(f"the metric '{name}' gave {seen}; expected one number for all nodes of a split") from None


def _per_class(logits: Tensor, labels: Tensor) -> Tensor:
    width = logits.shape[1]
    if labels.ndim == 1:
        said = logits.argmax(1) if len(logits) else labels
        counted = (said[said == labels], said, labels)
        return torch.stack([torch.bincount(x, minlength=width)[:width] for x in counted]).double().cpu()
    positive, true = (logits > 0) & ~labels.isnan(), labels > 0.5
    return torch.stack([(positive & true).sum(0), positive.sum(0), true.sum(0)]).double().cpu()


def _gather_rows(rows: Tensor, group: Group) -> Tensor:
    """The rows of all ranks, on the first; others get none."""
    flat = rows.unsqueeze(1) if rows.ndim == 1 else rows
    parts = [flat.contiguous() if to == 0 else flat[:0] for to in range(group.size)]
    there = torch.cat(group.all_to_all(parts, "activations"))
    return there[:, 0] if rows.ndim == 1 else there
