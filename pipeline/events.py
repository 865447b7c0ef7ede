"""What the core says while it runs. It prints nothing itself: callbacks do (progress, metrics file, dashboard)."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """Something the user should know, in a sentence."""

    text: str


@dataclass(frozen=True)
class StageStarted:
    """A stage that may take a while begins; `total` units of work, or None if unknown."""

    stage: str
    text: str
    total: int | None = None


@dataclass(frozen=True)
class StageAdvanced:
    """`done` units of a stage's work are complete."""

    stage: str
    done: int
    total: int | None = None


@dataclass(frozen=True)
class StageEnded:
    """A stage is over."""

    stage: str
    seconds: float
    text: str = ""


@dataclass(frozen=True)
class StepDone:
    """An optimiser step."""

    epoch: int
    step: int
    steps_per_epoch: int
    loss: float
    seeds: int


@dataclass(frozen=True)
class EpochDone:
    """An epoch, with its validation if there was one."""

    epoch: int
    epochs: int
    train_loss: float
    val_accuracy: float | None
    seconds: float
    best: bool


Event = Note | StageStarted | StageAdvanced | StageEnded | StepDone | EpochDone
Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """Listen to nothing."""
