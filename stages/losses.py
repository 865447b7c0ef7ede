"""Losses by name, with options: one value for each seed, from outputs and labels."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..storage.dataset import Task
from ..storage.errors import InputError
from ..storage.optional import moved

LOSSES: dict[Task, tuple[str, ...]] = {
    "multiclass": ("cross_entropy", "focal"),
    "multilabel": ("bce", "focal"),
    "binary": ("bce", "focal"),
    "regression": ("mse", "mae", "huber"),
    "link": ("bce", "margin", "infonce"),
}
"""Names of the losses of each task, the default first."""


@dataclass(frozen=True, eq=False)
class NamedLoss:
    """A loss by name, as a function of outputs [B, W] and labels that gives one value for each seed, [B].

    The loss of a seed with several columns is the sum over those that are known, divided by their number W: a label
    that is NaN adds nothing, and has no gradient. The outputs of a link task are scores: of a positive pair in column
    0, and of its negatives in the others; labels do not matter.
    """

    task: Task
    name: str
    """One of `LOSSES`."""
    class_weights: Tensor | None = None
    """[C], factor of the loss of a seed by its class (multi-class and binary)."""
    pos_weight: Tensor | None = None
    """[W], factor of the loss where a label is 1 (binary and multi-label); of links [1], of positive pairs."""
    balanced: bool = False
    """True: a positive pair counts as much as its negatives together (links, binary cross entropy)."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes (cross entropy)."""
    gamma: float = 2.0
    """Exponent of the focal loss (Lin, Goyal, Girshick, He, Dollar, ICCV 2017)."""
    delta: float = 1.0
    """Error from which Huber's loss is linear."""
    margin: float = 1.0
    """Distance from which a negative below its positive pair costs nothing (margin loss)."""
    temperature: float = 1.0
    """Divisor of the scores (InfoNCE; van den Oord, Li, Vinyals, 2018)."""

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        """[B].

        Raises:
            InputError: the outputs have another number of columns than the labels.
        """
        if self.task == "multiclass":
            return self._of_classes(out, y)
        if self.task == "link":
            return self._of_pairs(out)
        labels = y.to(out.dtype)
        labels = labels.unsqueeze(1) if self.task == "binary" else labels
        if out.shape != labels.shape:
            raise InputError(
                f"the model gives {list(out.shape)} for labels {list(labels.shape)} ({self.task}); expected a column "
                f"for each: {labels.shape[1]}"
            )
        known = ~labels.isnan()
        losses = self._of_values(out, labels, known) if self.task == "regression" else self._of_bits(out, labels, known)
        losses = losses.mean(1)
        return losses if self.class_weights is None else losses * self.class_weights.to(out)[y]

    def _of_classes(self, out: Tensor, y: Tensor) -> Tensor:
        weights = moved(self.class_weights, out)
        if self.name == "cross_entropy":
            return F.cross_entropy(out, y, weights, reduction="none", label_smoothing=self.label_smoothing)
        losses = self._focal(F.cross_entropy(out, y, reduction="none"))
        return losses if weights is None else losses * weights[y]

    def _of_pairs(self, scores: Tensor) -> Tensor:
        positive, negative = scores[:, :1], scores[:, 1:]
        if self.name == "margin":
            return F.relu(self.margin - positive + negative).mean(1)
        if self.name == "infonce":
            return -F.log_softmax(scores / self.temperature, 1)[:, 0]
        losses = F.softplus(-positive)
        if self.balanced:
            losses = losses * negative.shape[1]
        elif self.pos_weight is not None:
            losses = losses * self.pos_weight.to(scores)
        return torch.cat([losses, F.softplus(negative)], 1).mean(1)

    def _of_bits(self, out: Tensor, labels: Tensor, known: Tensor) -> Tensor:
        labels = torch.where(known, labels, 0)
        positive = moved(self.pos_weight, out)
        if self.name == "bce":
            losses = F.binary_cross_entropy_with_logits(out, labels, pos_weight=positive, reduction="none")
        else:
            losses = self._focal(F.binary_cross_entropy_with_logits(out, labels, reduction="none"))
            losses = losses if positive is None else losses * torch.where(labels > 0.5, positive, 1)
        return torch.where(known, losses, 0)

    def _of_values(self, out: Tensor, targets: Tensor, known: Tensor) -> Tensor:
        # An error of 0 has no gradient in any of these.
        targets = torch.where(known, targets, out.detach())
        if self.name == "mse":
            return F.mse_loss(out, targets, reduction="none")
        if self.name == "mae":
            return F.l1_loss(out, targets, reduction="none")
        return F.huber_loss(out, targets, reduction="none", delta=self.delta)

    def _focal(self, losses: Tensor) -> Tensor:
        # 1 - p of the true class, without cancellation where p is near 1.
        return (-torch.expm1(-losses)) ** self.gamma * losses
