"""Ranks of a run of system `bulk`, as processes of this machine without a cluster."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from millrace.pipeline.config.load import resolve
from millrace.pipeline.datasets import open_dataset
from millrace.pipeline.setup.open_queue import queue_for_rank
from millrace.pipeline.setup.prepare import prepare
from millrace.pipeline.setup.run_folder import check_resumable
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.events import Note, StepDone
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training import trainer
from millrace.pipeline.training.context import Member
from millrace.stages.comm.solo import Solo
from millrace.storage.errors import Interrupted
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.process_ranks import run_ranks


def train_bulk(
    spec: str, out: Path, table: Mapping[str, Any], steps: int | None = None, samples: str | None = None
) -> list[dict[str, Any]]:
    """Train as ``millrace run`` would on ``table["ranks"]`` ranks, from the last checkpoint in `out` if there is one.

    Args:
        spec: the dataset to train on.
        out: the folder of the run.
        table: the configuration.
        steps: steps after which rank 0 asks all to stop; None: all.
        samples: a store of samples to train from.

    Returns: The report of each rank, or none if all were stopped; and its ``notes`` and ``steps``: (epoch, step, steps
    of an epoch).
    """
    work = spec, out, dict(table), steps, samples
    ranks = resolve(table).ranks
    return [_rank(Solo(), *work)] if ranks == 1 else run_ranks(_rank, ranks, *work)


def last_parameters(out: Path) -> dict[str, Any]:
    """Parameters of the last checkpoint."""
    newest = max((out / "checkpoints").glob("step-*"), key=lambda p: [int(n) for n in p.name.split("-")[1:]])
    return torch.load(newest / "state.pt", weights_only=True)["model"]


def _rank(
    group: Any, spec: str, out: Path, table: Mapping[str, Any], steps: int | None, samples: str | None
) -> dict[str, Any]:
    job = resolve({"threads": 1, **table})
    prepared = prepare(job, open_dataset(spec, seed=job.seed))
    if (out / "checkpoints").exists():
        check_resumable(out, job, prepared.fingerprint, prepared.dataset)
    told: list[Any] = []
    ledger = group._ledger if group.size > 1 else Ledger()
    report = {}
    try:
        report = asdict(
            trainer.train_and_evaluate(
                prepared, out, queue_for_rank(prepared, None, samples), Member(group, ledger, Clock()),
                Control(told.append, lambda: steps is not None and group.rank == 0 and sum(isinstance(e,
                StepDone) for e in told) >= steps),
            )
        )  # fmt: skip
    except Interrupted:
        assert steps is not None
    taken = [(e.epoch, e.step, e.steps_per_epoch) for e in told if isinstance(e, StepDone)]
    return {**report, "notes": [e.text for e in told if isinstance(e, Note)], "steps": taken}
