"""What the ranks of a cluster do: train, or fill a store of minibatches that they draw together."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from distributed import Client
from torch import nn

from ...storage.checkpoint import CheckpointStore
from ...storage.optional import when_present
from ..cluster.sample_by_owners import Filled, FillOrder
from ..custom.user_code import pickled
from ..dashboard.publisher import show_run
from ..setup.open_queue import location, open_samples
from ..setup.prepare import Prepared
from ..setup.run_folder import CHECKPOINTS
from ..setup.sampling import Sampling
from ..telemetry.events import Emit
from ..training.trainer import RankReport


def threads_of_ranks(sampling: Sampling) -> int:
    """Threads of each rank: the job's, or its share of this machine's cores."""
    job = sampling.job
    return job.threads or max(1, (os.cpu_count() or 1) // job.ranks)


@dataclass(frozen=True, eq=False)
class Training:
    """Ranks that train."""

    sampling: Prepared
    samples: str | Path | None = None
    """A store of samples to train from; None: sample now."""
    module: nn.Module | None = None
    """A model of the user's own."""

    report: ClassVar[Any] = RankReport
    again: ClassVar[str] = "start again from the last checkpoint"
    remedy: ClassVar[str] = "resume from the last checkpoint with --resume"

    @property
    def uses_queue(self) -> bool:
        """True if ranks share a queue on disk that is filled now."""
        prepared = self.sampling
        return prepared.has_minibatches and self.samples is None and prepared.job.queue.kind == "zarr"

    @property
    def sampling_workers(self) -> int:
        """Workers for sampling tasks, which fill the queue."""
        return self.sampling.job.cluster.producers if self.uses_queue and not self.sampling.draws_by_owners else 0

    @cached_property
    def _given(self) -> str | None:
        code = self.sampling.update.code
        return None if self.module is None and code.is_empty else pickled((self.module, code))

    def begin(self, sampling: Sampling, parts: Path | None) -> None:
        """Take note of the order of the nodes, once they are cut. Raises StoreError if samples are of another one."""
        if self.samples is not None and sampling.draws_by_owners:
            open_samples(sampling, self.samples, to_read=False).close()

    def checkpoints(self, out: Path) -> CheckpointStore:
        """The run's checkpoints, to be read."""
        return CheckpointStore(out / CHECKPOINTS, self.sampling.fingerprint, read_only=True)

    def resume_point(self, out: Path) -> str:
        """Words for the place from which the run can go on."""
        found = self.checkpoints(out).latest()
        if found is None:
            return "no checkpoint was written yet: the same command with --resume begins anew"
        cursor = found[0]
        where = f"phase {cursor.phase}, step {cursor.step}"
        return f"the last checkpoint is of {where}: run the same command with --resume to go on"

    def shown(self, client: Client, out: Path, topic: str, emit: Emit) -> AbstractContextManager[Emit]:
        """Show the run on the cluster's dashboard."""
        return show_run(client, self.sampling, out, topic, emit)

    def of_rank(self, sampling: Sampling, out: Path) -> dict[str, Any]:
        """Fields of a `RankSpec`."""
        return {
            "outline": asdict(self.sampling.outline),
            "fingerprint": self.sampling.fingerprint,
            "given": self._given,
            "queue": location(self.sampling, out) if self.uses_queue else None,
            "samples": when_present(str, self.samples),
            "order": sampling.order,
        }


class Filling:
    """Ranks that fill a store of minibatches."""

    report: ClassVar[Any] = Filled
    again: ClassVar[str] = "start again with the bulks that are lacking"
    remedy: ClassVar[str] = "give the same command again, which goes on from there"
    uses_queue: ClassVar[bool] = False
    sampling_workers: ClassVar[int] = 0

    def __init__(self, sampling: Sampling, queue: str, create: Callable[[Sampling, Path], dict[str, Any]]) -> None:
        """
        Args:
            sampling: a job whose ranks hold blocks.
            queue: folder or URL of the store.
            create: makes the store, once the order of the nodes is known and the parts lie in a folder; returns the
                arguments of its `create`.
        """
        self.sampling, self._queue, self._create = sampling, queue, create
        self._order = ""

    def begin(self, sampling: Sampling, parts: Path | None) -> None:
        """Make the store, once the nodes are cut; the parts lie in a folder."""
        assert parts is not None
        store = self._create(sampling, parts)
        self._order = pickled(FillOrder.from_sampling(sampling, self._queue, store, threads_of_ranks(sampling)))

    def resume_point(self, out: Path) -> str:
        """Words for the place from which the command can go on."""
        return "what is committed stays: the same command goes on from there"

    def shown(self, client: Client, out: Path, topic: str, emit: Emit) -> AbstractContextManager[Emit]:
        """The command is on the dashboard already."""
        return nullcontext(emit)

    def of_rank(self, sampling: Sampling, out: Path) -> dict[str, Any]:
        """Fields of a `RankSpec`."""
        return {"fill": self._order}


RankWork = Training | Filling
