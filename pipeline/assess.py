"""Evaluate a finished run's model on every split."""

import time
from pathlib import Path
from typing import Any

import torch

from ..stages.evaluate import accuracy, infer
from .config import read_toml, resolve
from .datasets import open_dataset
from .events import Emit, StageEnded, StageStarted
from .run import JOB, MODEL, load_model, prepare


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
    data = open_dataset(dataset or job.dataset, options=job.read, split=job.split, seed=job.seed, features=job.features)
    prepared = prepare(job, data)
    model = load_model(run / MODEL, prepared)
    start = time.perf_counter()
    emit(StageStarted("evaluate", f"evaluating {prepared.model_name} on {data.name}"))
    scores: dict[str, float | None] = {}
    for name in ("train", "val", "test"):
        nodes = getattr(data.split, name)
        if not len(nodes):
            scores[name] = None
            continue
        logits = infer(model, data.graph, prepared.data.features, prepared.data.degree, nodes, scratch=run / "scratch")
        scores[name] = accuracy(logits, prepared.data.labels[torch.from_numpy(nodes)])
    seconds = time.perf_counter() - start
    emit(StageEnded("evaluate", seconds))
    return {"run": str(run), "model": prepared.model_name, "dataset": data.name, "accuracy": scores, "seconds": seconds}
