"""Evaluate a finished run's model on every split."""

import time
from pathlib import Path
from typing import Any

from ..stages.evaluate import evaluate
from .config import read_toml, resolve
from .events import Emit, StageAdvanced, StageEnded, StageStarted
from .run import JOB, MODEL, load_model, open_data, prepare


def assess(run: Path, dataset: str | None, *, emit: Emit) -> dict[str, Any]:
    """Accuracy of the run's best parameters on each split, over full neighbourhoods, layer by layer.

    Args:
        run: folder of a finished run.
        dataset: evaluate on another dataset with the same features and classes; by default the run's own.
        emit: called with every event.

    Raises:
        InputError: no run there, or the dataset does not fit the model.
        StoreError: the model is absent or damaged.
    """
    job = resolve(read_toml(run / JOB))
    data = open_data(job, dataset, emit)
    prepared = prepare(job, data)
    model = load_model(run / MODEL, prepared)
    start = time.perf_counter()
    emit(StageStarted("evaluate", f"evaluating {prepared.model_name} on {data.name}"))

    def advance(done: int, rows: int) -> None:
        emit(StageAdvanced("evaluate", done, rows))

    scores = evaluate(model, data, prepared.data.degree, scratch=run, on_progress=advance)
    seconds = time.perf_counter() - start
    emit(StageEnded("evaluate", seconds))
    return {"run": str(run), "model": prepared.model_name, "dataset": data.name, "accuracy": scores, "seconds": seconds}
