"""Ranks of a run that trains layer by layer, as processes of this machine without a cluster: they start quickly, and
can be killed at any instruction."""

import os
import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.setup.simulated_clients import with_clients
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training import trainer
from millrace.pipeline.training.context import Member
from millrace.stages.fetch import phase_fetch, phase_store
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset
from millrace.storage.dataset import Dataset
from millrace.storage.errors import PeerLostError
from millrace.storage.store.store import write_store
from millrace.tests.contracts.process_ranks import run_ranks

Instant = tuple[str, int]
"""``("epoch", n)``: in the n-th piece of work; ``("rows", n)`` and ``("after rows", n)``: while it writes the n-th
rows, or once it has; n counts from 0 in each generation of a rank."""


def train_phases(
    dataset: Dataset, out: Path, table: Mapping[str, Any], kill: Instant | None = None
) -> list[dict[str, Any]] | None:
    """Train as ``millrace run`` would, from the last checkpoint in `out` if there is one.

    Args:
        dataset: the training data.
        out: the folder of the run.
        table: the configuration.
        kill: the instant at which rank 1 is killed.

    Returns:
        The report of each rank; None if rank 1 was killed.
    """
    job = resolve({"system": "retexo", "threads": 1, **table})
    out.mkdir(parents=True, exist_ok=True)
    prepared = prepare(job, dataset)
    if prepared.system.clients != "ranks":
        prepared = with_clients(prepared, out)
    cut = prepared.system.partition.partitioner
    assert cut is not None
    pairs = dataset if dataset.task == "link" else None
    cut_dataset(dataset, Cut(cut, job.ranks, job.seed), out / "parts")
    work = dict(table), Outline.from_dataset(dataset, job), out, prepared.fingerprint, kill, pairs
    reports = run_ranks(_rank, job.ranks, *work, mortal=(1,) if kill else ())
    assert all((r is None) == (kill is not None) for r in reports), "killed, or not"
    return None if kill else reports


def _rank(
    group: Any,
    table: dict[str, Any],
    outline: Outline,
    out: Path,
    fingerprint: dict[str, str],
    kill: Instant | None,
    pairs: Dataset | None,
) -> Any:
    job = resolve({"system": "retexo", "threads": 1, **table})
    prepared = prepare_part(job, CutData(outline, out / "parts", group.rank, fingerprint), dataset=pairs)
    if kill is not None and group.rank == 1:
        _arm(*kill)
    try:
        report = trainer.train_and_evaluate(
            prepared, out, QueueEnd(produce=False), Member(group, group._ledger, Clock()), Control()
        )
    except PeerLostError:
        if kill is None:
            raise
        return None
    return asdict(report)


def _arm(what: str, number: int) -> None:
    """Make this process kill itself at an instant."""
    calls = iter(range(1 << 30))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if what == "epoch":
        fetch = phase_fetch.PhaseRows.fetch

        def fetched(self: Any, work: Any) -> Any:
            if next(calls) == number:
                die()
            return fetch(self, work)

        phase_fetch.PhaseRows.fetch = fetched
        return
    write = phase_store.write_phase_rows

    def written(path: Path, *rest: Any) -> None:
        due = next(calls) == number
        if due and what == "rows":
            # A writer killed before it commits leaves its folder under another name.
            write_store(
                path.with_name(f".writing-{path.name}"),
                "half",
                fingerprint={},
                meta={},
                arrays={"x": torch.zeros(3).numpy()},
            )
            die()
        write(path, *rest)
        if due:
            die()

    phase_store.write_phase_rows = written
