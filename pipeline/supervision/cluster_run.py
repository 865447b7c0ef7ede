"""The parts of a run on a cluster that all its generations share."""

import queue
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client

from ...stages.partition.base import Cut
from ...stages.partition.mend import remove_damaged
from ...stages.partition.stage import cut_dataset, holds_parts
from ...storage.dataset import Dataset
from ...storage.store.paths import expanded
from ..cluster.partition_task import Cutting
from ..cluster.rendezvous import Meeting
from ..cluster.scheduler_watch import SchedulerWatch
from ..cluster.unresponsive import Silence
from ..setup.run_folder import PARTS
from ..setup.shared_dataset import share
from ..telemetry.control import Control
from ..telemetry.events import Note, StageEnded, StageStarted, advancing
from .rank_work import RankWork


class ClusterRun:
    """Data that workers can open, the store in which ranks meet, and the run's messages.

    Args:
        client: of the cluster.
        name: tells this run's tasks and messages from another's.
        work: what the ranks do.
        out: the run's folder, which every worker sees.
        control: called with events, and asked for requests.
    """

    def __init__(self, client: Client, name: str, work: RankWork, out: Path, control: Control) -> None:
        self.client, self.name, self.topic = client, name, topic_of(name)
        self.work, self.sampling, self.job, self.out = work, work.sampling, work.sampling.job, out.resolve()
        self.emit, self.stop, self.save = control.emit, control.stop, control.save
        self.ranks = self.job.ranks
        self.sample_s = self.partition_s = 0.0
        """Seconds of sampling tasks, over all workers; of partitioning."""
        self.silence = Silence(self.job.cluster.slow_peer_warning_s, self.note)
        self.watch = SchedulerWatch(client, self.job.cluster, self.note)
        self.frozen: set[str] = set()
        """Workers that were given up because they had stopped answering."""
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Messages of the ranks of all generations."""
        self.data = share(self.job, self.sampling.dataset, self.out, self.note)
        self.parts = self._cut()
        """Folder of the parts that ranks open; None where they open the dataset."""
        work.begin(self.sampling, self.parts)
        self.meeting = Meeting(self.job.cluster)
        client.subscribe_topic(self.topic, lambda event: self.messages.put(event[1]))

    def note(self, text: str) -> None:
        """Emit a note."""
        self.emit(Note(text))

    def resume_point(self) -> str:
        """Words for the place from which the run can go on."""
        return self.work.resume_point(self.out)

    def _cut(self) -> Path | None:
        """Write the parts that are not there yet, and take note of the order that they give the nodes."""
        sampling, partitioner = self.sampling, self.sampling.system.partition.partitioner
        if partitioner is None:
            return None
        dataset, parts = sampling.dataset, sampling.system.parts_before(self.ranks)
        own = self.out / PARTS
        given = expanded(self.job.partition.owners or own).resolve()
        # A folder of parts that are those of this run is only read.
        folder = given if given.is_dir() and holds_parts(given, dataset, parts) else own
        cut = Cutting(self.client, Path(self.data.store), folder, self.watch, self.emit)
        if folder == own:
            self._write_parts(cut, dataset, Cut(partitioner, parts, self.job.seed_of("minibatches")))
        if sampling.draws_by_owners:
            self.sampling = replace(sampling, order=cut.order())
        return folder

    def _write_parts(self, cutting: Cutting, dataset: Dataset, cut: Cut) -> None:
        remove_damaged(cutting.out, self.note, cutting.damage)
        text = f"cutting {dataset.name} into {cut.parts} parts by {cut.partitioner.name}"
        self.emit(StageStarted("partition", text, cut.parts))
        report = cut_dataset(dataset, cut, cutting.out, advancing("partition", self.emit), cutting.cutter(cut))
        self.emit(StageEnded("partition", report.seconds))
        self.partition_s = report.seconds

    def close(self) -> None:
        """Stop listening, and remove the store."""
        self.watch.close()
        self.client.unsubscribe_topic(self.topic)
        self.meeting.close()


def topic_of(name: str) -> str:
    """The topic of the Dask events that ranks of a run send."""
    return f"millrace-{name}"
