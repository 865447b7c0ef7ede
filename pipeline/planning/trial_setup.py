"""What the trials of a plan need: the data, cut as ranks need them, and the process that runs trials."""

import os
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

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
from ..config.records import make_system, placed
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
"""Of an epoch of minibatches: a bulk, and as many as rows of other ranks are asked for together."""
SAMPLED_EPOCHS, WHOLE_EPOCHS = 8, 5
"""Tried: of minibatches; of full batches."""
MOST_RANKS = 4
"""Of a trial, on one machine."""
LIMIT_S = 10.0
"""Of each thread of a rank, in a trial."""


class Trials:
    """Runs the trial of each candidate, and foresees the candidate's run. Use as a context manager."""

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
        if numbers is None and not isinstance(source, Dataset):
            if source is None or isinstance(source, str | Path):
                spec = str(source if source is not None else job.dataset)
                job, source = job.model_copy(update={"dataset": spec}), None
            source = open_data(job, source, emit)
        if isinstance(source, Dataset):
            self.name, numbers = source.name, Numbers.of(source)
        else:
            assert numbers is not None
            self.name = f"{numbers.nodes:,} nodes and {numbers.edges:,} edges"
        stands_in = not isinstance(source, Dataset) or numbers.is_large
        if stands_in:
            spec = numbers.stand_in()
            source = open_data(job.model_copy(update={"dataset": spec, "split": None}), None, silent)
        assert isinstance(source, Dataset)
        if not len(source.split.train):
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        self.dataset, self._job, self._spec, self._scratch, self._emit = source, job, spec, scratch, emit
        per_host, cores = -(-job.ranks // cluster.hosts), os.cpu_count() or 1
        threads = job.threads or max(1, cores // per_host)
        self.room = cluster.memory_bytes or psutil.virtual_memory().total // per_host
        self.at = Setting(source, Outline.of(source), numbers, stands_in, per_host, threads, cores, cluster.link)
        self._most_ranks = min(job.ranks, MOST_RANKS, max(2, per_host))
        self._exits = ExitStack()
        self._process = cache(lambda keeps: self._exits.enter_context(TrialProcess(allocator(keeps))))
        self._books: dict[tuple[str, int], tuple[PartitionBook, CutCounts]] = {}
        self._shared = cache(lambda: share(job.model_copy(update={"dataset": spec or self.name}), source, scratch))

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def forecast(self, label: str, job: Job) -> tuple[Forecast, TrialResult | None]:
        """What one candidate would take, and what its trial has seen; None: it cannot fit."""
        system = make_system(placed(job) if job.ranks == 1 else job)
        partitioner, layers = system.partition.partitioner, int(job.model["layers"])
        cut = trial_cut = book = None
        if partitioner is not None:
            book, cut = self._cut(partitioner, system.parts_before(job.ranks), layers)
            _, trial_cut = self._cut(partitioner, system.parts_before(self._most_ranks), layers)
        candidate = Candidate(label, job, system, self.at, cut, trial_cut, book)
        frees = system.sample.uses_queue and job.executor == "dask"
        process = self._process(job.cluster.keep_freed_bytes if frees else 0)
        least = least_bytes(candidate, process.base_bytes)
        if sum(least.values()) > self.room:
            return refused(candidate, least, self.room), None
        self._emit(StageStarted("rehearse", f"rehearsing {label} with {counted(self._most_ranks, 'rank')}"))
        spec = self._spec_of(candidate)
        seen = process.run_trial(spec)
        return foresee(candidate, seen, process.base_bytes, self.room), seen

    def _cut(self, partitioner: Partitioner, parts: int, layers: int) -> tuple[PartitionBook, CutCounts]:
        """Who owns what and what the parts hold: cut once for all systems that cut the same way."""
        key = repr(partitioner), parts
        if key not in self._books:
            data = self.dataset
            self._emit(StageStarted("partition", f"cutting {data.name} into {parts} parts by {partitioner.name}"))
            book = partitioner.assign(data.graph, parts, self._job.seed)
            self._books[key] = book, count_cut(data.graph, book, data.split.train, layers)
        return self._books[key]

    def _parts(self, s: Candidate, ranks: int) -> str | None:
        """The folder of the parts that so many ranks open, written on first use; None where they open the whole."""
        partitioner = s.system.partition.partitioner
        if partitioner is None or ranks == 1:
            return None
        parts = s.system.parts_before(ranks)
        owners = Given(self._books[repr(partitioner), parts][0].part(np.arange(self.dataset.num_nodes)))
        folder = self._scratch / f"parts-{owners.digest[:16]}"
        partition_dataset(self.dataset, owners, parts, folder, self._job.seed)
        return str(folder)

    def _spec_of(self, s: Candidate) -> TrialSpec:
        job, ranks, seeds = s.job, self._most_ranks, None
        if s.is_local:
            seeds = STEPS * job.train.batch_size // s.system.parts_before(1)
        elif s.is_sampled:
            seeds = STEPS * s.per_step(ranks) * job.train.batch_size
        train: dict[str, Any] = {"patience": None}
        if s.is_sampled:
            # Beside sampled epochs evaluation takes too long. Between those of full batches it leaves caches cold for
            # the next, as in a run.
            train["evaluate_every"] = 0
        changes: dict[str, Any] = {
            "epochs": SAMPLED_EPOCHS if s.is_sampled else WHOLE_EPOCHS,
            "ranks": ranks,
            "train": job.train.model_copy(update=train),
            "queue": job.queue.model_copy(update={"kind": "memory", "max_bytes": 1}),
        }
        if job.epochs > s.system.options.get("repartition_every", job.epochs):
            # What comes with a new super-epoch is seen too.
            changes[job.system] = job.options.model_copy(update={"repartition_every": SAMPLED_EPOCHS // 2})
        dataset, features = self._spec, None
        if job.executor != "inline" or dataset is None:
            path, features = self._shared()
            dataset = str(path)
        else:
            changes |= {"dataset": dataset, **({"split": None} if self.at.stands_in else {})}
        parts = self._parts(s, ranks)
        if parts is not None:
            changes["partition"] = job.partition.model_copy(update={"owners": None})
        return TrialSpec(
            job=job.model_copy(update=changes).model_dump(mode="json"),
            dataset=dataset,
            features=features,
            outline=asdict(self.at.outline),
            parts=parts,
            out=str(self._scratch / f"run-{s.system.name}-{job.features}"),
            ranks=ranks,
            threads=self.at.threads,
            seeds=seeds,
            limit_s=LIMIT_S,
        )
