"""Storage of the rows that phases read on one rank, between the phase that makes them and the one that reads them."""

from pathlib import Path

from ...storage.array_kinds import AnyArray, IdArray
from ...storage.errors import InputError, StoreError
from ...storage.fingerprint import digest_arrays
from ...storage.partition.phase_rows import open_phase_rows, write_phase_rows
from ...storage.store.store import Store
from ..messages import RankJob
from ..models.phased import PhaseModule

PHASES = "phases"
"""Folder of all phases in the run's folder."""


class PhaseStore:
    """One rank's rows by phase. Reads only rows that this run made, for this phase, with the model's current
    parameters."""

    def __init__(self, job: RankJob, rows: IdArray) -> None:
        """`rows`: int64 [N + B], the nodes, this rank's first."""
        if job.folder is None:
            raise InputError("training layer after layer writes rows down; expected the folder of a run")
        self._job, self._folder, self._rows = job, job.folder / PHASES, digest_arrays(rows=rows)

    def read(self, phase: PhaseModule) -> Store:
        """Read the rows of a phase.

        Raises:
            StoreError: they are missing, damaged, or were made by something else, which the message names.
        """
        return open_phase_rows(self._path(phase), self._fingerprint(phase))

    def write(self, phase: PhaseModule, arrays: dict[str, AnyArray]) -> None:
        """Store the rows, replacing any that are there. All ranks call this at the same time."""
        sent = self._job.ledger.get("network", kind(phase))
        write_phase_rows(self._path(phase), self._fingerprint(phase), self._job.generation, arrays, sent)
        # No rank continues before all rows are stored: a run that ends now is resumed from them, or from before all of
        # them.
        self._job.group.any(False)

    def stand(self, phase: PhaseModule, *, replaceable: bool = False) -> bool:
        """True if an earlier start of the run left the rows that a phase reads on every rank; their bytes are then
        counted. All ranks call this at the same time. `replaceable`: rows of something else are about to be replaced,
        and raise no StoreError (see `read`)."""
        found = None
        if self._path(phase).exists():
            try:
                found = self.read(phase)
            except StoreError:
                if not replaceable:
                    raise
        if self._job.group.any(found is None):
            return False
        assert found is not None
        # That run may have ended before a checkpoint held its ledger.
        ledger = self._job.ledger
        missed = found.meta["sent_bytes"] - ledger.get("network", kind(phase))
        if missed > 0:
            ledger.add("network", kind(phase), missed, 1)
        return True

    def _path(self, phase: PhaseModule) -> Path:
        return self._folder / f"phase-{phase.number}" / f"rank-{self._job.group.rank:04d}"

    def _fingerprint(self, phase: PhaseModule) -> dict[str, str]:
        return {
            "run": self._job.fingerprint,
            "phase": str(phase.number),
            "parameters": phase.digest_before(),
            "rows": self._rows,
            "rounding": phase.model.phases.rounding,
        }


def kind(phase: PhaseModule) -> str:
    """Ledger kind of the rows that a phase reads."""
    return "activations" if phase.number else "features"
