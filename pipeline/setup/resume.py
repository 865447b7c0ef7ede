"""Conversion of a checkpoint for a resumed run, which may have another number of ranks."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...stages.assignment import Steps
from ...stages.messages import Phase
from ...storage.checkpoint import Cursor
from ...storage.errors import InputError
from ...storage.optional import present
from ...storage.plural import counted
from ...storage.urls import is_url
from ..config.load import Job, read_any_run_table
from ..config.plain_values import quoted
from ..config.schema import ClusterOptions, Train
from .run_folder import JOB

CONNECTING = ("scheduler", "host", "insecure", "cuda", "tls_ca", "tls_cert", "tls_key")
"""Keys of the section `cluster` that decide who is connected to, and who can connect."""


@dataclass(frozen=True)
class Pace:
    """Minibatches per step and steps per epoch."""

    minibatches_per_step: int
    """Number over all ranks."""
    steps_per_epoch: int

    @classmethod
    def from_steps(cls, steps: Steps) -> "Pace":
        """The pace of an epoch of these steps."""
        return cls(steps.per_step, len(steps))

    @classmethod
    def written(cls, state: Mapping[str, Any], train: Train, minibatches: int) -> "Pace":
        """The pace of the run that wrote a checkpoint's `state`.

        Checkpoints of earlier versions hold only a ledger for each rank; a step is then one minibatch of each, unless
        the configuration says otherwise.
        """
        if "pace" in state:
            return cls(**state["pace"])
        return cls.from_steps(Steps(minibatches, train.per_step(len(state["ledgers"]))))

    def position(self, steps: int, now: "Pace") -> tuple[int, int]:
        """Convert a number of steps taken at this pace to the pace `now`.

        Returns: Steps at `now`, and the minibatches of the next step that are already trained on, because steps had
        another width.
        """
        if self == now:
            return steps, 0
        epoch, step = divmod(steps, self.steps_per_epoch)
        whole, begun = divmod(step * self.minibatches_per_step, now.minibatches_per_step)
        return epoch * now.steps_per_epoch + whole, begun

    def describe(self, now: "Pace") -> str:
        """A sentence on the effect of a change to `now`."""
        return (
            f"the checkpoint was written with {counted(self.minibatches_per_step, 'minibatch', 'minibatches')} a step, "
            f"and this run takes {now.minibatches_per_step}: the same minibatches, but other steps; set "
            "train.minibatches_per_step to keep a run's steps for any number of ranks"
        )


def position(cursor: Cursor, phases: Sequence[Phase], pace: Mapping[str, int] | None) -> str:
    """Text for the next step of a resumed run; `pace` is that of its checkpoint, None for earlier versions."""
    if cursor.phase >= len(phases):
        return "the end of training"
    phase = phases[cursor.phase]
    where = f"phase {phase.number + 1} of {len(phases)}, " if len(phases) > 1 else ""
    if pace is None:
        return f"{where}step {cursor.step + 1}"
    epoch, step = divmod(cursor.step, pace["steps_per_epoch"])
    epoch += phase.first_epoch
    if epoch >= phase.last_epoch:
        return f"{where}the end of epoch {epoch}"
    return f"{where}epoch {epoch + 1}, step {step + 1}"


def redistributed(ledgers: Sequence[Sequence[int]], ranks: int) -> list[list[int]]:
    """Redistribute ledgers to `ranks` ranks; the sum over all ranks stays the same."""
    return [[sum(counts) for counts in zip(*ledgers[rank::ranks])] or [0] * len(ledgers[0]) for rank in range(ranks)]


def resumable(table: Mapping[str, object]) -> dict[str, object]:
    """The configuration of a run's folder without what opens it to others: a folder from somebody else would choose
    who runs code here."""
    kept = dict(table)
    if isinstance(cluster := table.get("cluster"), Mapping):
        kept["cluster"] = {k: v for k, v in cluster.items() if k not in CONNECTING}
    return kept


def check_connections(job: Job, folder: Path) -> None:
    """Refuse to go on with a run on a cluster that its folder names and the caller does not.

    Args:
        job: resolved from `resumable` and what the caller gives.
        folder: the run's.

    Raises:
        InputError: names the keys to give again.
    """
    if job.executor != "dask":
        return
    before, usual = read_any_run_table(folder / JOB).get("cluster", {}), ClusterOptions().model_dump()
    left = [k for k in CONNECTING if k not in job.cluster.model_fields_set and before.get(k, usual[k]) != usual[k]]
    if left:
        again = " ".join(shlex.join(["--set", f"cluster.{key}={before[key]}"]) for key in left)
        raise InputError(
            f"{folder} was trained with {', '.join(f'cluster.{key} = {quoted(before[key])}' for key in left)}; who is "
            f"connected can run code here, so name it if you trust it: {again} (in Python cluster={{...}}), or set "
            "executor=inline"
        )


def elsewhere(job: Job, folder: Path, *, is_given: bool = False) -> list[str]:
    """Note on what a run that goes on connects to or writes to outside of its folder, which may come from anyone.

    Args:
        job: resolved.
        folder: the run's.
        is_given: data are given in the place of the job's.
    """
    far = job.dataset if is_url(job.dataset) and not is_given else None
    sources = present([far, job.start_from, job.partition.owners, job.read.pairs])
    places = [job.queue.location] if job.queue.kind == "zarr" and job.queue.location else []
    found = {"reads": sources, "writes minibatches to": places, "reports to": job.track}
    does = ", ".join(f"{verb} {' and '.join(map(str, names))}" for verb, names in found.items() if names)
    return [f"the run of {folder} {does}"] if does else []


def without_executor(table: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without ``executor = "inline"`` if it now has several ranks."""
    ranks = table.get("ranks")
    is_alone = not isinstance(ranks, int) or ranks <= 1
    return {k: v for k, v in table.items() if is_alone or (k, v) != ("executor", "inline")}
