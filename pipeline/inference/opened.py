"""A model with the data that it is to be applied to, whichever way a caller names them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...stages.models.base import as_model
from ...storage.dataset import Dataset, Task
from ...storage.errors import InputError
from ..datasets import open_dataset
from ..setup.result import Result
from ..telemetry.events import Emit
from .finished_run import TrainedRun, load


@dataclass(frozen=True, eq=False)
class Opened:
    """A model and data."""

    model: nn.Module
    data: Dataset
    scratch: Path | None
    """Folder for temporary files."""
    name: str
    """Name of the model."""
    task: Task
    class_names: Any


def opened(
    run: TrainedRun | Result | str | Path | nn.Module, dataset: Any, model: Any, emit: Emit, function: str
) -> Opened:
    """Open what the arguments of `predict` and `embed` name.

    Args:
        run: a finished run, or a model.
        dataset: anything that `open_dataset` takes; None: the run's own.
        model: see `load`.
        emit: called with every event.
        function: name of the caller, for messages.

    Raises:
        InputError: the arguments do not go together, or the run is not finished.
        StoreError: something in the run's folder is damaged.
    """
    if model is not None and isinstance(run, nn.Module | TrainedRun):
        raise InputError(
            f"model was given beside a {type(run).__name__}, which has one; give it with the folder of a run only"
        )
    if isinstance(run, nn.Module):
        if dataset is None:
            raise InputError(
                f"dataset is missing; expected {function}(model, dataset), or the folder of a run, which has its own"
            )
        data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        return Opened(as_model(run), data, None, type(run).__name__, data.task, data.class_names)
    trained = run if isinstance(run, TrainedRun) else load(run, model=model)
    result, data = trained.result, trained.open_dataset(dataset, emit=emit)
    return Opened(trained.model, data, trained.folder, result.model, result.task, result.class_names)
