"""What the core says while it runs. It prints nothing itself: callbacks do (progress, metrics file, dashboard)."""

from collections.abc import Callable
from dataclasses import dataclass, field


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
    edges: int = 0
    """Sampled edges that this rank has trained on in this step."""
    hot: dict[str, int] = field(default_factory=dict)
    """See `Result.hot_rows`; so far."""


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
    """The learning rate of the last step, of the first parameter group, where a schedule changes it."""


@dataclass(frozen=True)
class Pulse:
    """Where a rank stands and what it has used so far, told at intervals; the last one is told at its end.

    `seconds` and `bytes` go on through a resume or a restart; all other counts are of this life of the rank.
    """

    rank: int
    stage: str
    """What the rank is in the middle of: a name of `seconds`, or nothing."""
    epoch: int
    """Of the last step; -1 before the first, likewise `step`."""
    step: int
    loss: float | None
    """Of this rank's seeds in the last step."""
    steps: int
    edges: int
    """Sampled edges that were trained on."""
    seconds: dict[str, float]
    """By stage, work under way included; those of `Result.seconds`, of this rank alone. ``train`` holds others."""
    bytes: dict[str, dict[str, int]]
    """By channel and kind, as in `Result.bytes`; kinds of which there were none are left out."""
    sent_to: dict[str, dict[str, list[int]]]
    """Bytes of messages to one rank, by channel and kind, for each rank; kinds that went to none are left out. What all
    ranks sum up goes round a ring and is not among them."""
    rss_bytes: int
    queue: dict[str, int]
    """What waits in the queue that this rank fills: ``bulks`` and ``bytes``, and the ``bound`` in bytes; nothing where
    others fill it."""
    hot: dict[str, int]
    """See `Result.hot_rows`."""


@dataclass(frozen=True)
class QueueLevel:
    """What waits in the queue that sampling tasks fill."""

    bulks: int
    bytes: int
    bound: int
    """Of `bytes`."""
    sampled: int
    """Bulks so far, in this life of the run."""
    seconds: float
    """Of sampling them, over all workers."""


Event = Note | StageStarted | StageAdvanced | StageEnded | StepDone | EpochDone | Pulse | QueueLevel
Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """Listen to nothing."""


def both(*listeners: Emit) -> Emit:
    """One listener that hands every event to each of these."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit
