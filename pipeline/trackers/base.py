"""Contract and registry of trackers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...storage.errors import MissingExtraError
from ...storage.registry import Registry, imported

Axis = Literal["epoch", "step", "second"]
"""Horizontal axis of a number: epochs or optimiser steps trained, or seconds since the tracker began."""


@dataclass(frozen=True)
class Tracked:
    """A run, as a tracker learns of it."""

    name: str
    """Name of its folder."""
    folder: Path
    config: Mapping[str, Any]
    """The configuration by dotted key, as plain values."""
    before: Any = None
    """Result of `Tracker.start` when the run began, if it is resumed."""


class Tracker(ABC):
    """Tells a service of one run. Made for each run; all methods are called by one thread beside the training.

    An error ends the tracker with a note and never the run. Another package derives from this and names the class in
    its entry points ``millrace.trackers``.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    """Module that it imports."""
    install: ClassVar[str]
    """Command that installs it."""

    @classmethod
    def check(cls) -> None:
        """Refuse a tracker whose package is not installed.

        Raises:
            MissingExtraError: names the command that installs it.
        """
        if find_spec(cls.package) is None:
            raise MissingExtraError(
                f"track is '{cls.name}', but {cls.package} is not installed: {cls.install}, or leave it out"
            )

    @abstractmethod
    def start(self, run: Tracked) -> Any:
        """Begin, or go on with what `run.before` names.

        Returns:
            What names the run in the service, as a plain value for JSON; None if nothing does.
        """

    @abstractmethod
    def log(self, values: Mapping[str, float], axis: Axis, at: int) -> None:
        """Numbers by name at a place of an axis."""

    def note(self, text: str) -> None:
        """A sentence for the user of the run. By default it is left out."""
        del text

    @abstractmethod
    def end(self, status: Literal["done", "stopped", "failed"], files: Sequence[Path]) -> None:
        """End the run: `files` are its artefacts, where there are any."""


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    deferred={
        name: imported(f".{name}", "TRACKER", __name__.rpartition(".")[0])
        for name in ("tensorboard", "mlflow", "wandb")
    },
)
"""All trackers."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not known or not installed.

    Raises:
        InputError: names the key to change, or the command that installs a package.
    """
    for name in names:
        TRACKERS.find(name, "track").check()
