"""Evaluation of a finished run's model on every split."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...stages.evaluate.layerwise import evaluate
from ...storage.errors import InputError
from ..setup.model import TORCH_DTYPES
from ..telemetry.events import Emit, StageAdvanced, StageEnded, StageStarted
from .finished_run import load


def evaluate_run(run: Path, dataset: str | None, *, model: nn.Module | None = None, emit: Emit) -> dict[str, Any]:
    """Accuracy of the run's best parameters on each split, over full neighbourhoods, layer by layer.

    A run on GPUs is evaluated on a GPU, or on the CPU if this machine has none.

    Args:
        run: folder of a finished run.
        dataset: another dataset with the same features and classes; by default the run's own.
        model: see `load`.
        emit: called with every event.

    Raises:
        InputError: the run is not finished, or the dataset cannot be opened.
        StoreError: the model is damaged, or does not fit the dataset.
    """
    trained = load(run, model=model)
    result = trained.result
    data = trained.open_dataset(dataset, emit=emit)
    if (data.num_classes, data.task) != (result.num_classes, result.task):
        seen, wanted = (f"{d.num_classes} classes ({d.task})" for d in (data, result))
        raise InputError(
            f"{data.name} has {seen}, but {result.model} of {run} predicts {wanted}; give a dataset with the same"
        )
    start = time.perf_counter()
    emit(StageStarted("evaluate", f"evaluating {result.model} on {data.name}"))

    def advance(done: int, rows: int) -> None:
        emit(StageAdvanced("evaluate", done, rows))

    degree = torch.from_numpy(data.graph.degree).to(TORCH_DTYPES[trained.config.dtype])
    scores = evaluate(trained.model, data, degree, scratch=run, on_progress=advance)
    seconds = time.perf_counter() - start
    emit(StageEnded("evaluate", seconds))
    return {"run": str(run), "model": result.model, "dataset": data.name, "accuracy": scores, "seconds": seconds}
