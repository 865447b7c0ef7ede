"""Events that the core emits while it runs. It prints nothing: listeners do (progress, metrics file, dashboard)."""

import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...storage.errors import DataWarning, Interrupted


@dataclass(frozen=True)
class Note:
    """A sentence that the user should know."""

    text: str


@dataclass(frozen=True)
class Caution(Note):
    """A note that results depend on, which calls that print nothing give as a Python warning."""


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
    edges: int = 0
    """Sampled edges that this rank has trained on in this step."""
    hot: dict[str, int] = field(default_factory=dict)
    """See `Result.hot_rows`; counts so far."""


@dataclass(frozen=True)
class EpochDone:
    """An epoch, with its validation if there was one."""

    epoch: int
    epochs: int
    train_loss: float
    val_accuracy: float | None
    seconds: float
    best: bool
    lr: float | None = None
    """The learning rate of the last step, for parameters without a rate of their own, where a schedule changes it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the validation besides accuracy, by name."""


@dataclass(frozen=True)
class Logged:
    """Numbers and texts that a callback logs (`RunView.log`)."""

    epoch: int
    step: int
    values: dict[str, float | str]


@dataclass(frozen=True)
class Pulse:
    """Position and resource use of a rank so far. Emitted at intervals, and once more at its end.

    `seconds` and `bytes` go on through a resume or a restart; all other counts begin with the process.
    """

    rank: int
    stage: str
    """The stage that the rank is in: a name of `seconds`, or empty."""
    epoch: int
    """Epoch of the last step; -1 before the first, like `step`."""
    step: int
    loss: float | None
    """Loss of this rank's seeds in the last step."""
    steps: int
    edges: int
    """Sampled edges that were trained on."""
    seconds: dict[str, float]
    """Seconds of this rank by stage, as in `Result.seconds`, including work in progress. ``train`` contains others."""
    bytes: dict[str, dict[str, int]]
    """Bytes by channel and kind, as in `Result.bytes`; zeros are left out."""
    sent_to: dict[str, dict[str, list[int]]]
    """Bytes sent to each rank, by channel and kind, without zeros and without all-reduces, which go round a ring."""
    rss_bytes: int
    queue: dict[str, int]
    """Contents of the queue that this rank fills: ``bulks``, ``bytes`` and their ``bound``; empty if others do."""
    hot: dict[str, int]
    """See `Result.hot_rows`."""
    own_bytes: int = 0
    """Part of `rss_bytes` that is anonymous or shared: without pages of files, which the system can take back."""


@dataclass(frozen=True)
class QueueLevel:
    """Contents of the queue that sampling tasks fill."""

    bulks: int
    bytes: int
    bound: int
    """Upper bound of `bytes`."""
    sampled: int
    """Bulks sampled since the run began or was resumed."""
    seconds: float
    """Seconds of sampling them, over all workers."""


Event = Note | StageStarted | StageAdvanced | StageEnded | StepDone | EpochDone | Logged | Pulse | QueueLevel
Emit = Callable[[Event], None]


class OnCluster(ABC):
    """A listener that shows what it hears on the dashboard of a cluster, once there is one."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take an event."""

    @abstractmethod
    def on_cluster(self, client: Any) -> AbstractContextManager[None]:
        """Context in which the cluster of a Dask client lives."""


def silent(event: Event) -> None:
    """Ignore an event."""


def cautioning(event: Event) -> None:
    """Give a `Caution` as a Python warning, and ignore all other events."""
    if isinstance(event, Caution):
        warnings.warn(event.text, DataWarning, stacklevel=_level_outside())


def _level_outside() -> int:
    """`stacklevel` of the first frame outside Millrace, for a warning of this function's caller."""
    ours = tuple(f"{__name__.partition('.')[0]}.{layer}." for layer in ("pipeline", "stages", "storage"))
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        level, frame = level + 1, frame.f_back
    return level


def both(*listeners: Emit) -> Emit:
    """A listener that passes every event to each of several."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def advancing(stage: str, emit: Emit) -> Callable[[int, int], None]:
    """Function that tells how many units of a stage's work are complete, of how many."""
    return lambda done, total: emit(StageAdvanced(stage, done, total))


@contextmanager
def during(stage: StageStarted, emit: Emit) -> Iterator[None]:
    """Context of a stage, which ends with the block unless that fails."""
    start = time.perf_counter()
    emit(stage)
    yield
    emit(StageEnded(stage.stage, time.perf_counter() - start))


@contextmanager
def ending(say: Callable[[str], None]) -> Iterator[None]:
    """Say how the block ended: ``done``, ``interrupted``, or ``failed`` with the error."""
    ended = "done"
    try:
        yield
    except BaseException as e:
        ended = "interrupted" if isinstance(e, Interrupted | KeyboardInterrupt) else f"failed: {e}"
        raise
    finally:
        say(ended)
