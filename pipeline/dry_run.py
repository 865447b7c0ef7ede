"""Dry runs: all checks of a run, and nothing written."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..storage.dataset import Dataset
from .config.load import Job
from .config.systems import System
from .custom.own_code import own_code, split_code
from .ready import RunCall, ready_to_run
from .telemetry.events import Emit, Note, silent


def dry_run(
    dataset: Dataset | str | Path | object | None = None,
    *,
    system: System | str | None = None,
    model: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    samples: str | Path | None = None,
    emit: Emit = silent,
    config: Job | Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check everything that `run` with the same arguments checks before its first step, and write nothing.

    It opens the data, builds the model, and calls your own code once. On a cluster it starts nothing, but a scheduler's
    address must answer.

    Returns:
        What would be run, as plain values: dataset, task, system, model, its parameters, the nodes of each split, steps
        of an epoch, ranks, executor, device, and the folder.

    Raises:
        InputError: as `run` does.
        StoreError: the run cannot be resumed.
    """
    own = {"loss": loss, "optimizer": optimizer, "scheduler": scheduler, "metrics": metrics}
    own, options = split_code(own, options, config)
    code = own_code(**own, callbacks=callbacks)
    call = RunCall(
        dataset, system, model, code, out=out, resume=resume, samples=samples, config=config, options=options
    )
    ready = ready_to_run(call, emit)
    for text in ready.notes:
        emit(Note(text))
    job, prepared = ready.job, ready.prepared
    minibatches = math.ceil(prepared.outline.splits["train"] / job.train.batch_size)
    sampled = prepared.system.sample.sampler is not None
    parameters = sum(p.numel() for p in prepared.model.build().parameters())
    return {
        "dataset": prepared.dataset.name,
        "nodes": prepared.dataset.num_nodes,
        "edges": prepared.dataset.graph.num_edges,
        "task": prepared.outline.task,
        "splits": dict(prepared.outline.splits),
        "unit": prepared.outline.unit,
        "system": prepared.system.name,
        "model": prepared.model.name,
        "parameters": parameters,
        "epochs": job.epochs,
        "steps_per_epoch": math.ceil(minibatches / job.train.per_step(job.ranks)) if sampled else 1,
        "ranks": job.ranks,
        "executor": job.executor,
        "device": job.device,
        "out": str(ready.folder),
    }
