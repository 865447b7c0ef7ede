"""Set-up of a plan's trials: the data, cut for the ranks, and the process that runs trials."""

import os
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ...stages.fetch.exchange import MOST_STEPS
from ...stages.partition.base import Partitioner, make_book
from ...stages.partition.cut_counts import CutCounts, count_cut
from ...stages.partition.given import Given
from ...stages.partition.stage import partition_dataset
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.partition.book import PartitionBook
from ...storage.plural import counted
from ..config.load import Job
from ..config.records import make_system, without_partitioner
from ..config.schema import LossOptions, Schedule
from ..datasets import ReadOptions
from ..machine.malloc import allocator
from ..setup.model import Outline
from ..setup.open_data import open_data
from ..setup.shared_dataset import share
from ..telemetry.events import Emit, StageStarted, silent
from .candidate import Candidate, Setting
from .forecast import Forecast, foresee, least_bytes, refused
from .inputs import Cluster, Numbers
from .trial import TrialProcess, TrialResult, TrialSpec

STEPS = MOST_STEPS
"""Steps of a trial's epoch of minibatches: a bulk, whose rows of other ranks are requested together."""
SAMPLED_EPOCHS, WHOLE_EPOCHS = 8, 5
"""Epochs of a trial: of minibatches, and of full batches."""
MOST_RANKS = 4
"""Most ranks of a trial, which runs on one machine."""
LIMIT_S = 10.0
"""Longest training of a trial, in seconds of each thread of a rank."""
STAND_IN: dict[str, Any] = {"split": None, "read": ReadOptions(), "features": "memory", "graph": "memory"}
"""Keys of a job whose dataset is a generated one in place of its own."""


class Trials:
    """Runs the trial of each candidate, and forecasts the candidate's run. Use as a context manager."""

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
        spec: str | None = None
        data: Dataset | None = None
        if numbers is not None:
            self.name, stands_in = f"{numbers.nodes:,} nodes and {numbers.edges:,} edges", True
        else:
            if source is None or isinstance(source, str | Path):
                spec = str(source if source is not None else job.dataset)
                job, source = job.model_copy(update={"dataset": spec}), None
            data = source if isinstance(source, Dataset) else open_data(job, source, emit, lazy=True)
            self.name, numbers = data.name, Numbers.of(data)
            stands_in = numbers.is_large
        if data is None or stands_in:
            spec = numbers.stand_in()
            data = open_data(job.model_copy(update={"dataset": spec, **STAND_IN}), None, silent)
        if not data.split_sizes["train"]:
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        self._job, self._spec, self._scratch, self._emit = job, spec, scratch, emit
        per_host, cores = -(-job.ranks // cluster.hosts), os.cpu_count() or 1
        threads = job.threads or max(1, cores // per_host)
        self.room = cluster.memory_bytes or psutil.virtual_memory().total // per_host
        self.at = Setting(data, numbers, stands_in, per_host, threads, cores, cluster.link)
        self._ranks = min(job.ranks, MOST_RANKS, max(2, per_host))
        self._exits = ExitStack()
        self._process = cache(lambda keeps: self._exits.enter_context(TrialProcess(allocator(keeps))))
        self._cuts: dict[tuple[str, int], tuple[PartitionBook, CutCounts]] = {}
        shared_job = job.model_copy(update={"dataset": spec or self.name})
        self._shared = cache(lambda: share(shared_job, self.at.dataset, scratch))

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def forecast(self, label: str, job: Job) -> tuple[Forecast, TrialResult | None]:
        """Forecast of a candidate, and the measurements of its trial; None if it cannot fit."""
        system = make_system(without_partitioner(job) if job.ranks == 1 else job)
        partitioner, layers = system.partition.partitioner, int(job.model["layers"])
        cut = trial_cut = book = None
        if partitioner is not None:
            book, cut = self._cut(partitioner, system.parts_before(job.ranks), layers)
            _, trial_cut = self._cut(partitioner, system.parts_before(self._ranks), layers)
        candidate = Candidate(label, job, system, self.at, cut, trial_cut, book)
        frees = system.sample.uses_queue and job.executor == "dask"
        process = self._process(job.cluster.keep_freed_bytes if frees else 0)
        least = least_bytes(candidate, process.base_bytes)
        if sum(least.values()) > self.room:
            return refused(candidate, least, self.room), None
        self._emit(StageStarted("trial", f"trying {label} with {counted(self._ranks, 'rank')}"))
        seen = process.run_trial(self._spec_of(candidate))
        return foresee(candidate, seen, process.base_bytes, self.room), seen

    def _cut(self, partitioner: Partitioner, parts: int, layers: int) -> tuple[PartitionBook, CutCounts]:
        """Owners and counts of the parts, computed once for all systems with the same cut."""
        key = repr(partitioner), parts
        if key not in self._cuts:
            data = self.at.dataset
            self._emit(StageStarted("partition", f"cutting {data.name} into {parts} parts by {partitioner.name}"))
            book = make_book(partitioner, data.graph, parts, self._job.seed_of("minibatches"), data.split.train)
            self._cuts[key] = book, count_cut(data.graph, book, data.split.train, layers)
        return self._cuts[key]

    def _parts(self, s: Candidate) -> str | None:
        """Folder of the parts of a trial's ranks, written on first use; None if each opens the whole dataset."""
        partitioner, data = s.system.partition.partitioner, self.at.dataset
        if partitioner is None or self._ranks == 1:
            return None
        parts = s.system.parts_before(self._ranks)
        owners = Given(self._cuts[repr(partitioner), parts][0].part(np.arange(data.num_nodes)))
        folder = self._scratch / f"parts-{owners.digest[:16]}"
        partition_dataset(data, owners, parts, folder, self._job.seed_of("minibatches"))
        return str(folder)

    def _spec_of(self, s: Candidate) -> TrialSpec:
        job, seeds = s.job, None
        if s.is_local:
            seeds = STEPS * job.train.batch_size // s.system.parts_before(1)
        elif s.is_sampled:
            seeds = STEPS * job.train.per_step(self._ranks) * job.train.batch_size
        # Evaluation would take too long beside sampled epochs. Beside full batches it is needed: it leaves caches cold
        # for the next epoch, as in a run.
        evaluate = {"evaluate_every": 0} if s.is_sampled else {}
        # A stand-in has classes, whatever the task is.
        task = {"loss": LossOptions(), "metrics": []} if self.at.stands_in else {}
        changes: dict[str, Any] = {
            "epochs": SAMPLED_EPOCHS if s.is_sampled else WHOLE_EPOCHS,
            "ranks": self._ranks,
            "threads": self.at.threads,
            "train": job.train.model_copy(
                update={"patience": None, "monitor": None, "schedule": Schedule(), **evaluate, **task}
            ),
            "queue": job.queue.model_copy(update={"kind": "memory", "max_bytes": 1}),
        }
        if job.epochs > s.system.options.get("repartition_every", job.epochs):
            # The start of a new super-epoch is part of the trial.
            changes[job.system] = job.options.model_copy(update={"repartition_every": SAMPLED_EPOCHS // 2})
        dataset, features = self._spec, None
        if job.executor != "inline" or dataset is None:
            path, features = self._shared()
            dataset = str(path)
        else:
            changes |= {"dataset": dataset, **(STAND_IN if self.at.stands_in else {})}
        parts = self._parts(s)
        if parts is not None:
            changes["partition"] = job.partition.model_copy(update={"owners": None})
        return TrialSpec(
            job=job.model_copy(update=changes).model_dump(mode="json"),
            dataset=dataset,
            features=features,
            outline=asdict(Outline.of(self.at.dataset, balanced=job.train.loss.is_balanced and not self.at.stands_in)),
            parts=parts,
            out=str(self._scratch / f"run-{s.system.name}-{job.features}"),
            seeds=seeds,
            limit_s=LIMIT_S,
        )
