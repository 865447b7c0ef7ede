"""What a rehearsing process is told, as plain values: it costs nothing to import."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrialSpec:
    """Who is to rehearse what."""

    job: dict[str, Any]
    """A resolved configuration, of as many epochs as are rehearsed."""
    dataset: str
    """What `open_dataset` takes, where `features` is None; else the folder of a store that all ranks open."""
    features: str | None
    outline: dict[str, Any]
    """Of the dataset."""
    parts: str | None
    """Folder of the parts, of which each rank opens its own instead of the dataset."""
    out: str
    """Folder of the rehearsed run."""
    ranks: int
    """P of the rehearsal."""
    threads: int
    """Of each rank."""
    seeds: int | None
    """Train nodes that are rehearsed with: of each part under isolated training, else of all ranks. None: all."""
    limit_s: float
    """A rank cuts its training short after so many seconds of each of its threads."""
