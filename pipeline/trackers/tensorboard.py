"""TensorBoard: event files in the run's folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ...storage.errors import install as installation
from .base import Axis, Tracked, Tracker

FOLDER = "tensorboard"
"""Folder of the event files, in the run's."""


class TensorBoard(Tracker):
    """Writes ``RUN/tensorboard``, which ``tensorboard --logdir runs`` shows."""

    name = "tensorboard"
    package = "tensorboard"
    install = installation("tensorboard")

    def start(self, run: Tracked) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / FOLDER))
        if run.before is None:
            rows = "\n".join(f"| {key} | {value} |" for key, value in run.config.items())
            self._writer.add_text("config", f"| key | value |\n|---|---|\n{rows}")
        return FOLDER

    def log(self, values: Mapping[str, float], axis: Axis, at: int) -> None:
        """See `Tracker.log`. The axis is the first part of a number's name."""
        for name, value in values.items():
            self._writer.add_scalar(f"{axis}/{name}", value, at)

    def note(self, text: str) -> None:
        self._writer.add_text("notes", text)

    def end(self, status: Literal["done", "stopped", "failed"], files: Sequence[Path]) -> None:
        """See `Tracker.end`. The files are in the run's folder already."""
        self._writer.add_text("status", status)
        self._writer.close()


TRACKER = TensorBoard
