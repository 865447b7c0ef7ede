"""Ranks that were lost during a phase, where the others go on without them until it ends."""

import numpy as np

from ...stages.assignment import Steps
from ...stages.comm.base import Group
from ...stages.messages import Part, Phase
from ..telemetry.events import Note
from .context import TrainContext


def missing(group: Group) -> list[int]:
    """Ranks that are no longer there."""
    return [] if len(group.present) == group.size else sorted(set(range(group.size)) - set(group.present))


def is_leader(group: Group) -> bool:
    """True on the lowest rank that is left, which logs and writes checkpoints for all."""
    return group.rank == group.present[0]


class LostRanks:
    """Notices that ranks are gone and keeps the records of them (`Progress.lost`), for one phase."""

    def __init__(self, context: TrainContext, phase: Phase, steps: Steps) -> None:
        self._context, self._phase, self._steps = context, phase, steps
        self._records: dict[int, dict[str, int]] = {}

    def update(self, epoch: int, step: int) -> None:
        """Record and report ranks that are newly missing; `step` is the first without them."""
        context, group = self._context, self._context.job.group
        for rank in missing(group):
            if rank in self._records:
                continue
            seeds, noun = _seeds_of(rank, context.data)
            record = {"rank": rank, "phase": self._phase.number, "epoch": epoch, "step": step, "seeds": seeds}
            self._records[rank] = record | {"epochs": 0}
            context.control.progress.lost.append(self._records[rank])
            if is_leader(group):
                where = f"epoch {epoch + 1}, step {step + 1} of {len(self._steps)}"
                what = f"its {seeds:,} {noun}, and validation, are left out until {self._phase.name} ends"
                context.control.emit(Note(f"rank {rank} is missing from {where} on: {what}"))
        for record in self._records.values():
            record["epochs"] = epoch + 1 - record["epoch"]


def _seeds_of(rank: int, data: object) -> tuple[int, str]:
    """Train nodes of a rank's part, or train pairs into its nodes; and what they are."""
    assert isinstance(data, Part)
    # Only isolated ranks go on without others, and these know their parts.
    part, pairs = data.others.part(rank), data.pairs
    if pairs is None:
        return len(part.split.train), "seeds"
    return int(np.isin(pairs.table[pairs.sets["train"], 1], part.owned).sum()), "train pairs"
