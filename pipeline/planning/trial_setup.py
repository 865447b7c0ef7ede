"""Set-up of a plan's trials: the data, cut for the ranks, and the process that runs trials."""

import os
from contextlib import ExitStack
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
from .forecast import Forecast, foresee
from .inputs import Cluster, Numbers
from .trial import TrialProcess, TrialResult, TrialSpec

EPOCHS = 5
"""Epochs of a trial. Those of minibatches have `MOST_STEPS` steps, whose rows of other ranks are requested together."""
MOST_RANKS = 4
"""Most ranks of a trial, which runs on one machine."""
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
        least = foresee(candidate, process.base_bytes, self.room)
        if not least.fits:
            return least, None
        self._emit(StageStarted("trial", f"trying {label} with {counted(self._ranks, 'rank')}"))
        seen = process.run_trial(self._spec_of(candidate))
        return foresee(candidate, process.base_bytes, self.room, seen), seen

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
        job, seeds, stands_in = s.job, None, self.at.stands_in
        # Trials are too short for a schedule, and a stand-in has classes, whatever the task is.
        train: dict[str, Any] = {"patience": None, "monitor": None, "schedule": Schedule()}
        if stands_in:
            train |= {"loss": LossOptions(), "metrics": []}
        if s.is_sampled:
            isolated = s.system.sample.is_isolated
            per_step = 1 if isolated else job.train.per_step(self._ranks)
            seeds = MOST_STEPS * per_step * job.train.batch_size // (s.system.parts_before(1) if isolated else 1)
            # Evaluation would take too long beside sampled epochs. Beside full batches it is needed: it leaves caches
            # cold for the next epoch, as in a run.
            train["evaluate_every"] = 0
        changes: dict[str, Any] = {
            "epochs": EPOCHS,
            "ranks": self._ranks,
            "threads": self.at.threads,
            "train": job.train.model_copy(update=train),
            "queue": job.queue.model_copy(update={"kind": "memory", "max_bytes": 1}),
        }
        if job.epochs > s.system.options.get("repartition_every", job.epochs):
            # The start of a new super-epoch is part of the trial.
            changes[job.system] = job.options.model_copy(update={"repartition_every": EPOCHS // 2})
        dataset, features = self._spec, None
        if job.executor != "inline" or dataset is None:
            path, features = self._shared()
            dataset = str(path)
        else:
            changes |= {"dataset": dataset, **(STAND_IN if stands_in else {})}
        parts = self._parts(s)
        if parts is not None:
            changes["partition"] = job.partition.model_copy(update={"owners": None})
        return TrialSpec(
            job=job.model_copy(update=changes).model_dump(mode="json"),
            dataset=dataset,
            features=features,
            outline=Outline.of(self.at.dataset, balanced=job.train.loss.is_balanced and not stands_in),
            parts=parts,
            out=str(self._scratch / f"run-{s.system.name}-{job.features}"),
            seeds=seeds,
        )
