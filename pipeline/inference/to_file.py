"""Predictions that go to a file: the common part of all that `millrace predict` writes, and the record of it."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.store.committed_folder import folder_aside, sweep_leftovers
from ...storage.store.paths import check_no_url
from ..datasets import ReadOptions
from ..telemetry.events import Emit, silent
from .by_tasks import Workers
from .files import SUFFIXES, check_suffix, put_new
from .finished_run import TrainedRun, load
from .opened import Call


@dataclass(frozen=True, eq=False)
class FileRequest:
    """A finished run, the file that its predictions go to, and who computes them."""

    run: Path
    """Folder of a finished run."""
    out: Path
    """The file: .parquet, .csv (no embeddings), .npy or .zarr; it does not exist."""
    dataset: str | None = None
    """Dataset to predict; None: the run's own."""
    options: ReadOptions | None = None
    """How it is read: see `predict`."""
    model: nn.Module | None = None
    """See `load`."""
    emit: Emit = silent
    """Called with every event."""
    workers: int = 1
    """See `predict`, also for what follows."""
    scheduler: str | None = None
    cluster: Mapping[str, Any] | None = None
    device: str | None = None
    """See `load`."""

    @property
    def computing(self) -> dict[str, Any]:
        """Keyword arguments of `predict` and its like that say who computes, and who is told."""
        return {"workers": self.workers, "scheduler": self.scheduler, "cluster": self.cluster, "emit": self.emit}

    @property
    def call(self) -> Call:
        """Call of the model, on the dataset and by the workers of the request."""
        by = Workers.from_arguments(self.workers, self.scheduler, self.cluster)
        return Call(self.dataset, self.options, by, self.emit)

    @property
    def arguments(self) -> dict[str, Any]:
        """`computing`, with the dataset and how it is read."""
        return {"dataset": self.dataset, "options": self.options, **self.computing}

    def open_dataset(self, trained: TrainedRun, labelled: bool) -> Dataset:
        """The request's dataset: see `TrainedRun.open_dataset`."""
        return trained.open_dataset(self.dataset, emit=self.emit, labelled=labelled, options=self.options)

    def write(
        self, predict: Callable[[TrainedRun, Path], Mapping[str, Any]], embeddings: bool = False
    ) -> dict[str, Any]:
        """Load the run, write the file by `predict`, and record it.

        Args:
            predict: writes the file that it is given, and returns what the record says of it: numbers of rows; the
                dataset's name, if it is not what the request calls it.
            embeddings: the file will hold embeddings.

        Returns:
            A record of plain values: run, model, dataset, what `predict` returns, file, seconds.

        Raises:
            InputError: the file exists or cannot be written; or the run is not finished.
        """
        check_suffix(self.out, tuple(s for s in SUFFIXES if not (embeddings and s == ".csv")))
        check_new_path(self.out)
        start = time.perf_counter()
        trained = load(self.run, model=self.model, device=self.device, emit=self.emit)
        sweep_leftovers(self.out.parent, self.out.name)
        with folder_aside(self.out) as folder:
            record = predict(trained, folder / self.out.name)
            put_new(folder / self.out.name, self.out)
        return {
            "run": str(self.run),
            "model": trained.result.model,
            "dataset": trained.result.dataset if self.dataset is None else self.dataset,
            **record,
            "out": str(self.out),
            "seconds": time.perf_counter() - start,
        }

    def check_probabilities(self, trained: TrainedRun, wanted: bool) -> None:
        """Raise InputError if probabilities of all classes are `wanted` of a run that predicts values."""
        if wanted and trained.result.task == "regression":
            raise InputError(
                f"--all-probabilities is given, but {self.run} predicts values, of a regression; leave it out"
            )


def check_new_path(out: Path) -> None:
    """Raise InputError unless a new file can be made at `out`."""
    check_no_url(out, "a file on a file system")
    if os.path.lexists(out):
        raise InputError(f"{out} already exists; choose another --out")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder; choose another --out")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out.parent} cannot be written: permission denied; choose another --out")
