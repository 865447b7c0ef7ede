"""A plan's trials: the data, cut for the ranks, and the jobs of the short runs."""

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ...stages.fetch.exchange import MOST_STEPS
from ...stages.models import MODELS
from ...stages.models.base import reads_edges
from ...stages.partition.base import make_book
from ...stages.partition.cut_counts import CutCounts, count_cut
from ...storage.dataset import Dataset
from ...storage.dataset_store import FeaturesFormat, write_dataset
from ...storage.errors import InputError
from ...storage.lazy_dataset import LazyDataset
from ...storage.plural import counted
from ..config.load import Job, build, resolve
from ..config.records import make_system, without_partitioner
from ..config.schema import LossOptions, Schedule
from ..config.systems import System
from ..datasets import ReadOptions
from ..machine.malloc import allocator
from ..setup.checks import check_edges, check_types
from ..setup.model import Outline, with_edges
from ..setup.open_data import open_data
from ..setup.shared_dataset import share
from ..supervision.supervisor import sharing_cluster
from ..telemetry.events import Emit, StageStarted, silent
from .candidate import Candidate, Setting
from .forecast import Forecast, foresee
from .inputs import Cluster, Numbers
from .one_rank import OneRank, shortened
from .stand_in import detailed
from .trial import EPOCHS, TrialResult, measured, run_short

MOST_RANKS = 4
"""Most ranks of a trial, which runs on one machine."""
CLEAN: dict[str, Any] = {"split": None, "read": ReadOptions()}
"""Keys of a job whose dataset is a store or a generated one in place of its own."""


class Trials:
    """Runs the trial of each candidate, and forecasts the candidate's run. Their processes end with `exits`."""

    def __init__(
        self,
        job: Job,
        source: Dataset | str | Path | object | None,
        numbers: Numbers | None,
        cluster: Cluster,
        scratch: Path,
        emit: Emit,
        exits: ExitStack,
    ) -> None:
        spec, data = None, source if isinstance(source, Dataset) else None
        if numbers is not None and source is not None:
            raise InputError("both a dataset and its numbers are given; give one of them")
        if numbers is None:
            if source is None or isinstance(source, str | Path):
                spec = str(job.dataset if source is None else source)
            data = data or open_data(job, source, emit, lazy=True)
            self.name, numbers = data.name, Numbers.of(data)
        else:
            self.name = f"{numbers.nodes:,} nodes and {numbers.edges:,} edges"
        stands_in = data is None or numbers.is_large
        if data is None or stands_in:
            generated = {**CLEAN, "dataset": numbers.stand_in(), "features": "memory", "graph": "memory"}
            base = open_data(job.model_copy(update=generated), None, silent)
            spec, data = None, detailed(base, numbers, data)
        if not data.split_sizes["train"]:
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        per_host, cores = -(-job.ranks // cluster.hosts), os.cpu_count() or 1
        threads = job.threads or max(1, cores // per_host)
        self.room = cluster.memory_bytes or psutil.virtual_memory().total // per_host
        outline = replace(Outline.of(data), task=numbers.task, num_classes=numbers.classes)
        self.at = Setting(data, numbers, outline, stands_in, per_host, threads, cores, cluster.link)
        self._spec, self._scratch, self._emit = spec, scratch, emit
        self._ranks, self._seed = min(job.ranks, MOST_RANKS, max(2, per_host)), job.seed_of("minibatches")
        self._cuts = dict[tuple[str, int], CutCounts]()
        shared_job = job.model_copy(update={"dataset": spec or data.name})
        self._whole = cache(lambda: share(shared_job, data, scratch))
        self._short, self._base = cache(self._write_short), cache(self._measure_base)
        self._alone = cache(lambda: OneRank(exits))

        def share_cluster(keeps: int) -> None:
            """Start the cluster of all trials on several ranks; see `sharing_cluster`."""
            exits.enter_context(sharing_cluster(self._tiny(), 1, *map(allocator, sorted({0, keeps}))))

        self._share_cluster = cache(share_cluster)

    def fitted(self, job: Job) -> tuple[Job, System]:
        """The job as it reads the dataset, and its system. Raises InputError if that does not run on it."""
        data, system = self.at.dataset, make_system(without_partitioner(job) if job.ranks == 1 else job)
        job, system, _ = with_edges(job, system, None, data)
        record = build("model", MODELS, job.model)
        check_types(job, system, data.graph.types, record, data.task)
        if reads_edges(record):
            check_edges(job, system)
        return job, system

    def forecast(self, label: str, job: Job, system: System) -> tuple[Forecast, TrialResult | None]:
        """Forecast of a candidate that was `fitted`, and the measurements of its trial; None if it cannot fit."""
        cuts = (self._cut(job, system, ranks) for ranks in (job.ranks, self._ranks))
        candidate = Candidate(label, job, system, self.at, *cuts)
        least = foresee(candidate, self.room)
        if not least.fits:
            return least, None
        self._emit(StageStarted("trial", f"trying {label} with {counted(self._ranks, 'rank')}"))
        seen = self._try(candidate)
        return foresee(candidate, self.room, seen), seen

    def _try(self, s: Candidate) -> TrialResult:
        """Run the trial of a candidate."""
        split, seeds = self.at.dataset.split, None
        if s.is_sampled:
            seeds = MOST_STEPS * s.job.train.batch_size * s.job.train.per_step(self._ranks)
            split = shortened(self.at.dataset, seeds).split
        job = self._trial_of(s, seeds)
        maps, alone = job.graph == "mapped", self._alone() if job.executor == "inline" else None
        seeds = seeds if job.dataset == self._spec else None
        result = run_short(job, self._scratch / f"run-{s.label}", alone, seeds, own=maps)
        if alone is not None:
            base = alone.own_base_bytes if maps else alone.base_bytes
        else:
            base = self._base(maps)
        return measured(s, job, result, base, split.train)

    def _cut(self, job: Job, system: System, ranks: int) -> CutCounts | None:
        """Counts of the parts of so many ranks, computed once for all systems with the same cut; None: no parts."""
        partitioner, data, parts = system.partition.partitioner, self.at.dataset, system.parts_before(ranks)
        if partitioner is None:
            return None
        if (key := (repr(partitioner), parts)) not in self._cuts:
            self._emit(StageStarted("partition", f"cutting {data.name} into {parts} parts by {partitioner.name}"))
            book = make_book(partitioner, data.graph, parts, self._seed, data.split.train)
            self._cuts[key] = count_cut(data.graph, book, data.split.train, int(job.model["layers"]))
        return self._cuts[key]

    def _tiny(self) -> Job:
        """A job of the trials' ranks with next to no data."""
        here = {"dashboard_port": 0, "on_rank_loss": "stop"}
        table = {"ranks": self._ranks, "threads": self.at.threads, "dataset": "sbm:nodes=60,classes=2", "cluster": here}
        return resolve({**table, "epochs": 1})

    def _measure_base(self, own: bool) -> int:
        """Memory of a rank of several with next to no data; see `run_short`."""
        return max(run_short(self._tiny(), self._scratch / f"base-{own}", None, own=own)["peak_rss_bytes"])

    def _write_short(self, seeds: int, features: FeaturesFormat, graph: FeaturesFormat) -> Path:
        """A store of the dataset with so many train nodes."""
        path, data = self._scratch / f"seeds-{seeds}-{graph}", self.at.dataset
        data = data.as_read() if isinstance(data, LazyDataset) else data
        write_dataset(path, shortened(data, seeds), features_format=features, graph_format=graph)
        return path

    def _trial_of(self, s: Candidate, seeds: int | None) -> Job:
        """The job of a candidate's trial, on `seeds` train nodes; None: all."""
        job, stands_in = s.job, self.at.stands_in
        # Trials are too short for a schedule, and a stand-in has classes, whatever the task is.
        train: dict[str, Any] = {"patience": None, "monitor": None, "schedule": Schedule()}
        if stands_in:
            train |= {"loss": LossOptions(), "metrics": []}
        if s.is_sampled:
            # Evaluation would take too long beside sampled epochs. Beside full batches it is needed: it leaves caches
            # cold for the next epoch, as in a run.
            train["evaluate_every"] = 0
        changes: dict[str, Any] = {
            "epochs": EPOCHS,
            "ranks": self._ranks,
            "threads": self.at.threads,
            "cluster": self._tiny().cluster,
            "track": [],
            "train": job.train.model_copy(update=train),
            # One bulk is sampled ahead, as within a long epoch.
            "queue": job.queue.model_copy(update={"kind": "memory", "max_bytes": 1}),
        }
        if job.epochs > s.system.options.get("repartition_every", job.epochs):
            # The start of a new super-epoch is part of the trial.
            changes[job.system] = job.options.model_copy(update={"repartition_every": EPOCHS // 2})
        inline, maps = job.executor == "inline", job.graph == "mapped"
        if inline and self._spec is not None:
            changes["dataset"] = self._spec
        else:
            path, place = self._whole()
            # Ranks that map their parts have features where the job says.
            kept = job.features == "owned" or (maps and (inline or s.cut is not None))
            if seeds is not None:
                path = self._short(seeds, "zarr" if place == "zarr" else "npy", "npy" if maps else "zarr")
            changes |= {"dataset": str(path), **CLEAN, "features": job.features if kept else place}
        if not inline:
            self._share_cluster(job.cluster.keep_freed_bytes)
        if s.trial_cut is not None and self._ranks > 1:
            owners = self._scratch / "owners.npy"
            np.save(owners, s.trial_cut.book.part(np.arange(self.at.dataset.num_nodes)))
            changes["partition"] = job.partition.model_copy(update={"owners": str(owners)})
        return job.model_copy(update=changes)
