"""Where the rehearsals of a plan take place: the data, cut as ranks need them, and the processes that rehearse."""

import os
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ...stages.feed.local_feed import Local
from ...stages.feed.queue_feed import Sampled
from ...stages.fetch.exchange import MOST_STEPS
from ...stages.partition.base import Partitioner
from ...stages.partition.cut_counts import CutCounts, count_cut
from ...stages.partition.given import Given
from ...stages.partition.stage import partition_dataset
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.partition.book import PartitionBook
from ...storage.plural import counted
from ..config.load import Job
from ..config.systems import System
from ..machine.malloc import allocator
from ..setup.prepare import Outline, make_system, open_data, placed
from ..setup.shared_dataset import share
from ..telemetry.events import Emit, StageStarted, silent
from .candidate import Candidate
from .forecast import Forecast, foresee, least_bytes
from .inputs import MOST_EDGES, MOST_FEATURE_BYTES, Cluster, Numbers, stand_in
from .trial import TrialProcess, TrialResult
from .trial_spec import TrialSpec

STEPS = MOST_STEPS
"""Of a rehearsed epoch of minibatches: a bulk, and as many as rows of other ranks are asked for together."""
SAMPLED_EPOCHS, WHOLE_EPOCHS = 8, 5
"""Rehearsed: of minibatches; of full batches."""
MOST_RANKS = 4
"""Rehearsed on one machine."""
LIMIT_S = 10.0
"""Of each thread of a rank, in a rehearsal."""


class Stage:
    """Where rehearsals take place: the data, cut as the ranks need them, and the process that rehearses."""

    def __init__(
        self,
        job: Job,
        source: Dataset | str | Path | object | None,
        numbers: Numbers | None,
        cluster: Cluster,
        scratch: Path,
        emit: Emit,
    ) -> None:
        if numbers is not None and source is not None:
            raise InputError("both a dataset and its numbers are given; give one of them")
        self.job, self.cluster, self.scratch, self.emit = job, cluster, scratch, emit
        self.spec: str | None = None
        if source is not None and not isinstance(source, Dataset | str | Path):
            source = open_data(job, source, emit)
        elif numbers is None and not isinstance(source, Dataset):
            job = job.model_copy(update={"dataset": str(source if source is not None else job.dataset)})
            self.job, self.spec = job, job.dataset
            source = open_data(job, None, emit)
        if isinstance(source, Dataset):
            self.name, self.numbers = source.name, Numbers.of(source)
        else:
            assert numbers is not None
            self.name, self.numbers = f"{numbers.nodes:,} nodes and {numbers.edges:,} edges", numbers
        too_large = (
            self.numbers.edges > MOST_EDGES or self.numbers.nodes * self.numbers.features * 4 > MOST_FEATURE_BYTES
        )
        self.stands_in = not isinstance(source, Dataset) or too_large
        if self.stands_in:
            self.spec = stand_in(self.numbers)
            source = open_data(job.model_copy(update={"dataset": self.spec, "split": None}), None, silent)
        assert isinstance(source, Dataset)
        self.dataset = source
        if not len(source.split.train):
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        self.per_host = -(-job.ranks // cluster.hosts)
        self.room = cluster.memory_bytes or psutil.virtual_memory().total // self.per_host
        self.cores = os.cpu_count() or 1
        self.threads = job.threads or max(1, self.cores // self.per_host)
        self._books: dict[tuple[str, int], PartitionBook] = {}
        self._cuts: dict[tuple[str, int], CutCounts] = {}
        self._exits = ExitStack()
        self._understudy = cache(self._started)
        self.shared = cache(
            lambda: share(job.model_copy(update={"dataset": self.spec or self.name}), self.dataset, self.scratch)
        )

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def _started(self, keeps_bytes: int) -> TrialProcess:
        return self._exits.enter_context(TrialProcess(allocator(keeps_bytes)))

    def book(self, partitioner: Partitioner, parts: int) -> PartitionBook:
        """Who owns what: cut once for all systems that cut the same way."""
        key = repr(partitioner), parts
        if key not in self._books:
            self.emit(
                StageStarted("partition", f"cutting {self.dataset.name} into {parts} parts by {partitioner.name}")
            )
            self._books[key] = partitioner.assign(self.dataset.graph, parts, self.job.seed)
        return self._books[key]

    def cut(self, partitioner: Partitioner, parts: int, layers: int) -> CutCounts:
        """What these parts hold."""
        key = repr(partitioner), parts
        if key not in self._cuts:
            self._cuts[key] = count_cut(
                self.dataset.graph, self.book(partitioner, parts), self.dataset.split.train, layers
            )
        return self._cuts[key]

    def parts(self, system: System, ranks: int) -> str | None:
        """The folder of the parts that so many ranks open, written on first use; None where they open the whole."""
        partitioner = system.partition.partitioner
        if partitioner is None or ranks == 1:
            return None
        parts = system.parts_before(ranks)
        book = self.book(partitioner, parts)
        owners = book.part(np.arange(self.dataset.num_nodes))
        folder = self.scratch / f"parts-{Given(owners).digest[:16]}"
        partition_dataset(self.dataset, Given(owners), parts, folder, self.job.seed)
        return str(folder)

    def forecast(self, label: str, job: Job) -> tuple[Forecast, TrialResult | None]:
        """What one candidate would take."""
        system = make_system(placed(job) if job.ranks == 1 else job)
        sampled = isinstance(system.sample, Sampled | Local)
        situation = self._situation(label, job, system)
        base = self._understudy(self._keeps(job, system)).base_bytes
        least = least_bytes(situation, base)
        if sum(least.values()) > self.room:
            return Forecast.refused(situation, least, self.room), None
        ranks = self._rehearsing(job)
        self.emit(StageStarted("rehearse", f"rehearsing {label} with {counted(ranks, 'rank')}"))
        cast = self._cast(job, system, ranks, sampled)
        rehearsed = self._understudy(self._keeps(job, system)).run_trial(cast)
        return foresee(situation, rehearsed, cast, base, self.room), rehearsed

    def _rehearsing(self, job: Job) -> int:
        """Ranks that rehearse: at least two where there are any others to talk to."""
        return min(job.ranks, MOST_RANKS, max(2, self.per_host))

    def _keeps(self, job: Job, system: System) -> int:
        frees = isinstance(system.sample, Sampled)
        return job.cluster.keep_freed_bytes if frees and job.executor == "dask" else 0

    def _situation(self, label: str, job: Job, system: System) -> Candidate:
        layers = int(job.model["layers"])
        cut = smaller = book = None
        if (partitioner := system.partition.partitioner) is not None:
            parts = system.parts_before(job.ranks)
            cut, book = self.cut(partitioner, parts, layers), self.book(partitioner, parts)
            smaller = self.cut(partitioner, system.parts_before(self._rehearsing(job)), layers)
        return Candidate(
            label=label,
            job=job,
            system=system,
            dataset=self.dataset,
            outline=Outline.of(self.dataset),
            nodes=self.numbers.nodes,
            edges=self.numbers.edges,
            train=len(self.dataset.split.train)
            if not self.stands_in
            else max(1, round(self.numbers.train * self.numbers.nodes)),
            stands_in=self.stands_in,
            cut=cut,
            rehearsed_cut=smaller,
            book=book,
            per_host=self.per_host,
            threads=self.threads,
            cores=self.cores,
            link=self.cluster.link,
        )

    def _cast(self, job: Job, system: System, ranks: int, sampled: bool) -> TrialSpec:
        inline = job.executor == "inline"
        per_step = (job.train.minibatches_per_step or ranks) if not isinstance(system.sample, Local) else ranks
        seeds = None
        if sampled:
            seeds = STEPS * per_step * job.train.batch_size
            if isinstance(system.sample, Local):
                seeds = STEPS * job.train.batch_size // system.parts_before(1)
        epochs = SAMPLED_EPOCHS if sampled else WHOLE_EPOCHS
        changes: dict[str, Any] = {
            "epochs": epochs,
            "ranks": ranks,
            # Evaluation between epochs of full batches leaves caches cold for the next, as in a run; beside sampled
            # ones it takes too long.
            "train": job.train.model_copy(update={"patience": None, **({"evaluate_every": 0} if sampled else {})}),
            "queue": job.queue.model_copy(update={"kind": "memory", "max_bytes": 1}),
        }
        if job.epochs > job.grappa.repartition_every:
            # What comes with a new super-epoch is seen too.
            changes["grappa"] = job.grappa.model_copy(update={"repartition_every": SAMPLED_EPOCHS // 2})
        if inline and self.spec is not None:
            dataset, features = self.spec, None
            changes |= {"dataset": self.spec, **({"split": None} if self.stands_in else {})}
        else:
            path, features = self.shared()
            dataset = str(path)
        parts = self.parts(system, ranks)
        if parts is not None:
            changes["partition"] = job.partition.model_copy(update={"owners": None})
        return TrialSpec(
            job=job.model_copy(update=changes).model_dump(mode="json"),
            dataset=dataset,
            features=features,
            outline=asdict(Outline.of(self.dataset)),
            parts=parts,
            out=str(self.scratch / f"run-{system.name}-{job.features}"),
            ranks=ranks,
            threads=self.threads,
            seeds=seeds,
            limit_s=LIMIT_S,
        )
