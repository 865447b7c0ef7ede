"""Reports of a run that was stopped early, from its last checkpoint."""

from pathlib import Path
from typing import Any

import torch

from ...storage.checkpoint import CheckpointStore
from ...storage.errors import Interrupted
from ...storage.ledger import Ledger
from ..setup.prepare import Prepared
from ..setup.run_folder import CHECKPOINTS, LEARNED, MODEL
from .learned_rows import save_rows
from .trainer import SAME, RankReport, parameters_sha256, save_model


def reports_of_stopped(prepared: Prepared, out: Path) -> list[RankReport]:
    """Report of each rank at the checkpoint that was written when the run was stopped. Nothing is evaluated, and the
    memory of the processes is unknown. The best parameters so far, or their average
    where none were validated, become the run's model.

    Raises:
        Interrupted: there is no checkpoint.
    """
    found = CheckpointStore(out / CHECKPOINTS, prepared.fingerprint, read_only=True).latest()
    if found is None:
        raise Interrupted(
            f"{out} was stopped before its first checkpoint; run the same command with --resume to begin again"
        )
    state: dict[str, Any] = found[1]
    progress = state["progress"]
    model = prepared.model.build()
    model.load_state_dict(state["model"])
    sha256 = parameters_sha256(model)
    if progress["best_epoch"] >= 0:
        model.load_state_dict(progress["best_state"])
    elif "average" in state:
        schedule = prepared.system.schedule
        phases = schedule.phases(prepared.job.epochs, model)
        module = schedule.begin(phases[min(found[0].phase, len(phases) - 1)], model)
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(state["average"].get(name, p))
    if "learned" in state:
        found_best = progress["best_epoch"] >= 0
        save_rows(out / LEARNED, state["learned"]["best" if found_best else "rows"])
    save_model(out / MODEL, model)
    reports = []
    for rank, counts in enumerate(state["ledgers"]):
        ledger = Ledger()
        ledger.restore(counts)
        reports.append(
            RankReport(
                rank=rank,
                **{name: progress[name] for name in SAME},
                # The checkpoint has those of all ranks.
                minibatches=0 if rank else progress["minibatches"],
                sampled_edges=0 if rank else progress["sampled_edges"],
                seconds=state["seconds"],
                bytes=ledger.as_record(),
                waits=ledger.waits(),
                parameters_sha256=sha256,
                val_metrics=progress.get("best_values", {}),
            )
        )
    return reports
