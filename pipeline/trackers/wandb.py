"""Weights & Biases: a run of the project WANDB_PROJECT; WANDB_MODE=offline writes into the run's folder."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ...storage.errors import install as installation
from .base import Axis, Tracked, Tracker

EXIT = {"done": 0, "stopped": 130, "failed": 3}


class WeightsAndBiases(Tracker):
    """Logs into the project WANDB_PROJECT, ``millrace`` by default."""

    name = "wandb"
    package = "wandb"
    install = installation("wandb")

    def start(self, run: Tracked) -> Any:
        wandb: Any = import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "millrace"),
            name=run.name,
            dir=str(run.folder),
            config=dict(run.config),
            id=run.before,
            resume="allow" if run.before else None,
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        return self._run.id

    def log(self, values: Mapping[str, float], axis: Axis, at: int) -> None:
        """See `Tracker.log`. The axis is a column beside the numbers."""
        for name in values:
            self._run.define_metric(name, step_metric=axis)
        self._run.log({**values, axis: at})

    def end(self, status: Literal["done", "stopped", "failed"], files: Sequence[Path]) -> None:
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")
        self._run.finish(exit_code=EXIT[status])


TRACKER = WeightsAndBiases
