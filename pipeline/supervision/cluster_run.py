"""The parts of a run on a cluster that all its generations share."""

import queue
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client
from torch import nn

from ...stages.partition.mend import remove_damaged
from ...stages.partition.stage import partition_dataset
from ...storage.checkpoint import CheckpointStore
from ..cluster.partition_task import Cutting
from ..cluster.rendezvous import Meeting
from ..cluster.scheduler_watch import SchedulerWatch
from ..cluster.unresponsive import Silence
from ..interop.user_code import pickled
from ..setup.prepare import Prepared
from ..setup.run_folder import CHECKPOINTS, PARTS
from ..setup.shared_dataset import share
from ..telemetry.events import Emit, Note, StageAdvanced, StageEnded, StageStarted


class ClusterRun:
    """Data that workers can open, the store in which ranks meet, and the run's messages.

    Args:
        client: of the cluster.
        name: tells this run's tasks and messages from another's.
        prepared: the job with its data.
        out: the run's folder, which every worker sees.
        samples: a store of samples to train from.
        module: a model of the user's own.
        emit: called with events.
        stop: true once the run is to end.
        save: true once a checkpoint is to be written.
        fill: a store of samples that ranks fill instead of training: arguments of `ZarrQueue.create`.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        prepared: Prepared,
        out: Path,
        samples: str | Path | None,
        module: nn.Module | None,
        emit: Emit,
        stop: Callable[[], bool],
        save: Callable[[], bool],
        fill: dict[str, Any] | None = None,
    ) -> None:
        self.fill = fill
        self.client, self.name, self.topic = client, name, topic_of(name)
        self.prepared, self.job, self.out, self.samples = prepared, prepared.job, out.resolve(), samples
        self.emit, self.stop, self.save = emit, stop, save
        self.ranks = self.job.ranks
        self.sample_s = self.partition_s = 0.0
        """Seconds of sampling tasks, over all workers; of partitioning."""
        self.silence = Silence(self.job.cluster.slow_peer_warning_s, self.note)
        self.watch = SchedulerWatch(client, self.job.cluster, self.note)
        self.frozen: set[str] = set()
        """Workers that were given up because they had stopped answering."""
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Messages of the ranks of all generations."""
        self.dataset, self.features = share(self.job, prepared.dataset, self.out, self.note)
        code = prepared.code
        self.given = None if module is None and code.is_empty else pickled((module, code))
        self.parts = self._cut()
        """Folder of the parts that ranks open; None where they open the dataset."""
        self.meeting = Meeting(self.job.cluster)
        client.subscribe_topic(self.topic, lambda event: self.messages.put(event[1]))

    @property
    def uses_queue(self) -> bool:
        """True if sampling tasks fill a queue that ranks share."""
        return self.prepared.has_minibatches and self.samples is None and self.job.queue.kind == "zarr"

    def note(self, text: str) -> None:
        """Emit a note."""
        self.emit(Note(text))

    def checkpoints(self) -> CheckpointStore:
        """The run's checkpoints, to be read."""
        return CheckpointStore(self.out / CHECKPOINTS, self.prepared.fingerprint, read_only=True)

    def resume_point(self) -> str:
        """Words for the place from which the run can go on."""
        found = self.checkpoints().latest()
        if found is None:
            return "no checkpoint was written yet: the same command with --resume begins anew"
        cursor = found[0]
        where = f"phase {cursor.phase}, step {cursor.step}"
        return f"the last checkpoint is of {where}: run the same command with --resume to go on"

    def _cut(self) -> Path | None:
        """Write the parts that are not there yet."""
        prepared, partitioner = self.prepared, self.prepared.system.partition.partitioner
        if partitioner is None:
            return None
        dataset, folder, parts = prepared.dataset, self.out / PARTS, prepared.system.parts_before(self.ranks)
        cut, seed = Cutting(self.client, self.dataset, folder, self.watch, self.emit), self.job.seed_of("minibatches")
        remove_damaged(folder, self.note, cut.damage)
        self.emit(StageStarted("partition", f"cutting {dataset.name} into {parts} parts by {partitioner.name}", parts))
        report = partition_dataset(
            dataset,
            partitioner,
            parts,
            folder,
            seed,
            on_progress=lambda done, total: self.emit(StageAdvanced("partition", done, total)),
            assign=partial(cut.assign, partitioner, parts, seed),
            write_parts=cut.write_parts,
            without_pairs=True,
        )
        self.emit(StageEnded("partition", report.seconds))
        self.partition_s = report.seconds
        return folder

    def close(self) -> None:
        """Stop listening, and remove the store."""
        self.watch.close()
        self.client.unsubscribe_topic(self.topic)
        self.meeting.close()


def topic_of(name: str) -> str:
    """The topic of the Dask events that ranks of a run send."""
    return f"millrace-{name}"
