"""Learning-rate schedules: a factor of the learning rate, as a pure function of the place in the run and its history.

Without state of its own a schedule is the same after a resume, on every rank and for any width of a step.
"""

import math
from collections.abc import Iterable

from ...config.schema import Schedule

THRESHOLD = 1e-4
"""Relative improvement that counts as better, as in `torch.optim.lr_scheduler.ReduceLROnPlateau`."""


def lr_factor(
    schedule: Schedule, epoch: int, step: int, steps: int, epochs: int, validations: Iterable[float]
) -> float:
    """The factor of the learning rate at an optimiser step.

    Equal to torch's `CosineAnnealingLR`, `LinearLR`, `StepLR` and `ReduceLROnPlateau`, the first two after a warm-up by
    `LinearLR`.

    Args:
        schedule: its kind and options.
        epoch: epoch of the step, from 0.
        step: number of the step in its epoch, from 0.
        steps: steps in an epoch.
        epochs: epochs of the whole run.
        validations: accuracies so far, or what else is to be large, the oldest first.
    """
    at, warmup = epoch + step / steps, schedule.warmup
    rising = min(1.0, (at + 1 / steps) / warmup) if at < warmup else 1.0
    if schedule.name == "step":
        return rising * schedule.factor ** (epoch // schedule.every)
    if schedule.name == "plateau":
        return rising * schedule.factor ** _plateaus(schedule, validations)
    if schedule.name == "constant" or at < warmup:
        return rising
    done = min(1.0, (at - warmup) / max(epochs - warmup, 1 / steps))
    falling = (1 + math.cos(math.pi * done)) / 2 if schedule.name == "cosine" else 1 - done
    return schedule.final + (1 - schedule.final) * falling


def _plateaus(schedule: Schedule, validations: Iterable[float]) -> int:
    """Number of times that validation has stopped improving."""
    best, since, found = -math.inf, 0, 0
    for accuracy in validations:
        if best == -math.inf or accuracy > best + THRESHOLD * abs(best):
            best, since = accuracy, 0
            continue
        since += 1
        if since > schedule.patience:
            found, since = found + 1, 0
    return found
