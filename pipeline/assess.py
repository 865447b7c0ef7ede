"""Evaluate a finished run's model on every split."""

import time
from pathlib import Path
from typing import Any

import torch

from ..stages.evaluate import evaluate
from ..storage.errors import InputError
from .config import read_toml, resolve
from .events import Emit, StageAdvanced, StageEnded, StageStarted
from .prepare import load_model, open_data, placed, prepare
from .run_folder import JOB, MODEL


def assess(run: Path, dataset: str | None, *, emit: Emit) -> dict[str, Any]:
    """Accuracy of the run's best parameters on each split, over full neighbourhoods, layer by layer.

    A run on GPUs is evaluated on one, or, on a machine without, on the CPU.

    Args:
        run: folder of a finished run.
        dataset: evaluate on another dataset with the same features and classes; by default the run's own.
        emit: called with every event.

    Raises:
        InputError: no finished run there, or the dataset cannot be opened.
        StoreError: the model is damaged, or does not fit the dataset.
    """
    if not (run / JOB).is_file():
        raise InputError(f"{run} holds no run (no {JOB}); expected the folder of a finished run")
    if not (run / MODEL).is_file():
        raise InputError(f"{run} holds a run that has not finished (no {MODEL}); go on with it by `millrace run --resume --out {run}`")
    job = resolve(read_toml(run / JOB))
    data = open_data(job, dataset, emit)
    # The parameters are in the run's own folder; the one that training began from may be gone. Nothing is sampled.
    device = job.device if torch.cuda.is_available() else "cpu"
    prepared = prepare(placed(job).model_copy(update={"start_from": None, "device": device, "kernel": "cpu"}), data)
    model = load_model(run / MODEL, prepared).to(device)
    start = time.perf_counter()
    emit(StageStarted("evaluate", f"evaluating {prepared.model_name} on {data.name}"))

    def advance(done: int, rows: int) -> None:
        emit(StageAdvanced("evaluate", done, rows))

    scores = evaluate(model, data, prepared.placement.degree, scratch=run, on_progress=advance)
    seconds = time.perf_counter() - start
    emit(StageEnded("evaluate", seconds))
    return {"run": str(run), "model": prepared.model_name, "dataset": data.name, "accuracy": scores, "seconds": seconds}
