"""Before a run: what each system would take in memory, bytes and time, whether that fits, and which one to choose.

Every system is rehearsed for a few steps on this machine (`rehearsal`); laws make a whole run on the cluster of that (`plan_laws`,
`plan_bytes`).
"""

import math
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ..stages.partition.base import Partitioner
from ..stages.partition.cut_counts import CutCounts, count_cut
from ..stages.partition.given import Given
from ..stages.partition.stage import partition_dataset
from ..stages.sample.local import Local
from ..stages.sample.produce import Sampled
from ..storage.dataset import Dataset
from ..storage.errors import InputError
from ..storage.partition_book import PartitionBook
from .allocator import allocator
from .config import SHORTHANDS, Job, merged, resolve
from .events import Emit, StageAdvanced, StageEnded, StageStarted, silent
from .links import Link
from .plan_laws import Forecast, Situation, foresee, least_bytes
from .prepare import Outline, make_system, open_data, placed
from .rehearsal import Rehearsed, Understudy
from .shared_data import share
from .systems import System
from .understudy_cast import Cast

STEPS = 8
"""Of a rehearsed epoch of minibatches: a bulk, and as many as rows of other ranks are asked for together."""
SAMPLED_EPOCHS, WHOLE_EPOCHS = 4, 3
"""Rehearsed: of minibatches; of full batches."""
MOST_RANKS = 4
"""Rehearsed on one machine."""
LIMIT_S = 10.0
"""Of training, in a rehearsal."""
MOST_EDGES, MOST_FEATURE_BYTES = 6_000_000, 1 << 30
"""Of a graph that is rehearsed on; a generated one stands for a larger one."""
CANDIDATES: dict[str, dict[str, Any]] = {
    "bulk": {"system": "bulk"},
    "bulk, owned features": {"system": "bulk", "features": "owned"},
    "grappa": {"system": "grappa"},
    "sar": {"system": "sar"},
    "retexo": {"system": "retexo"},
}


@dataclass(frozen=True)
class Numbers:
    """What is known of a dataset that is not at hand."""

    nodes: int
    """V."""
    edges: int
    """E, in both directions."""
    features: int = 100
    """F."""
    classes: int = 16
    """C."""
    train: float = 0.1
    """Share of the nodes."""

    def __post_init__(self) -> None:
        for name, least in (("nodes", 2), ("edges", 0), ("features", 1), ("classes", 1)):
            if (value := getattr(self, name)) < least:
                raise InputError(f"{name} is {value}; expected a whole number of at least {least}")
        if not 0 < self.train <= 1:
            raise InputError(f"the share of train nodes is {self.train}; expected a number above 0, at most 1")

    @classmethod
    def of(cls, dataset: Dataset) -> "Numbers":
        """Of a dataset."""
        share = len(dataset.split.train) / max(1, dataset.num_nodes)
        return cls(dataset.num_nodes, dataset.graph.num_edges, dataset.features.num_features, dataset.num_classes, share)


@dataclass(frozen=True)
class Cluster:
    """Where the run is to be: machines like this one."""

    hosts: int = 1
    """Machines that share the ranks evenly; one of them is this one."""
    memory_bytes: int | None = None
    """What a rank may take; None: its share of this machine's."""
    link: Link | None = None
    """Between ranks; None: they talk over this machine's loopback, which the rehearsal has measured."""

    def check(self, ranks: int) -> "Cluster":
        """Raises InputError: what cannot be."""
        if not 1 <= self.hosts <= ranks:
            raise InputError(f"hosts is {self.hosts} for {ranks} rank(s); expected from 1 to as many as ranks")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise InputError(f"the memory of a rank is {self.memory_bytes} bytes; expected more than 0")
        if self.link is not None and (self.link.bandwidth <= 0 or self.link.latency_s < 0):
            raise InputError(f"the link is {self.link}; expected a bandwidth above 0 and a latency of at least 0")
        if self.hosts > 1 and self.link is None:
            raise InputError(f"hosts is {self.hosts}, but nothing says how they are connected; give a link, or a bandwidth and a latency")
        return self


@dataclass(frozen=True)
class Plan:
    """What was predicted."""

    dataset: str
    numbers: Numbers
    ranks: int
    cluster: Cluster
    memory_bytes: int
    """What a rank may take."""
    systems: tuple[Forecast, ...]
    recommended: str | None
    """A label; None where nothing fits."""
    why: str
    notes: tuple[str, ...]
    """What does not compare."""
    seconds: float
    """That planning took."""
    rehearsed: Mapping[str, Any] = field(default_factory=dict)
    """By label, what was seen in the rehearsal."""

    def to_record(self) -> dict[str, Any]:
        """As plain values."""
        return {"schema_version": 1, **asdict(self)}


def plan(
    dataset: Dataset | str | Path | None = None,
    *,
    numbers: Numbers | None = None,
    cluster: Cluster | None = None,
    emit: Emit = silent,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Predict memory, bytes and time of a job under every system.

    Args:
        dataset: what `run` takes.
        numbers: in place of a dataset: a generated graph of that density stands for it.
        cluster: where the job is to run; by default on this machine.
        emit: called with events.
        config: tables of the configuration.
        options: configuration keys and their shorthands, as for `run`; ``system`` and ``executor`` say nothing here.

    Raises:
        InputError: something does not fit, or there is no such cluster.
        RunError: a rehearsal failed.
    """
    started = time.perf_counter()
    table = dict(config or {})
    for key, value in sorted(options.items(), key=lambda option: option[0] in SHORTHANDS):
        table = merged(table, SHORTHANDS.get(key, (key,)), value)
    jobs = candidates(table)
    first = next(iter(jobs.values()))
    where = (cluster or Cluster()).check(first.ranks)
    with tempfile.TemporaryDirectory(prefix="millrace-plan-") as scratch:
        stage = _Stage(first, dataset, numbers, where, Path(scratch), emit)
        forecasts, seen = [], {}
        emit(StageStarted("plan", f"rehearsing {stage.dataset.name}", len(jobs)))
        with stage:
            for done, (label, job) in enumerate(jobs.items()):
                forecast, rehearsed = stage.forecast(label, job)
                forecasts.append(forecast)
                if rehearsed is not None:
                    seen[label] = asdict(rehearsed)
                emit(StageAdvanced("plan", done + 1, len(jobs)))
        seconds = time.perf_counter() - started
        emit(StageEnded("plan", seconds))
    recommended, why = _choice(forecasts)
    return Plan(
        dataset=stage.name,
        numbers=stage.numbers,
        ranks=first.ranks,
        cluster=where,
        memory_bytes=stage.room,
        systems=tuple(forecasts),
        recommended=recommended,
        why=why,
        notes=_notes(stage, forecasts),
        seconds=seconds,
        rehearsed=seen,
    )


def candidates(table: Mapping[str, Any]) -> dict[str, Job]:
    """The job under every system, resolved: what a system has no use for is left out.

    Raises:
        InputError: the configuration does not hold together.
    """
    table = {k: v for k, v in table.items() if k not in ("system", "executor")}
    bulk = {k: v for k, v in dict(table.get("bulk", {})).items() if k == "ahead_bytes"}
    features = table.get("features", "memory")
    common = {**table, "features": "memory" if features == "owned" else features, "bulk": bulk}
    sampled = resolve({**common, "system": "bulk"})
    found = {}
    for label, changes in CANDIDATES.items():
        if sampled.ranks == 1 and changes.get("features") == "owned":
            continue
        wanted = {**common, **changes}
        if wanted.get("features") == "owned":
            wanted["bulk"] = dict(table.get("bulk", {})) | {"topology": "replicated"}
        if changes["system"] != "bulk":
            wanted.pop("queue", None)
        if changes["system"] == "grappa" and "train" in wanted:
            wanted["train"] = {k: v for k, v in wanted["train"].items() if k != "minibatches_per_step"}
        if changes["system"] in ("sar", "retexo"):
            wanted["model"] = sampled.model
            wanted = {k: v for k, v in wanted.items() if k != "sampler"}
            wanted["train"] = {k: v for k, v in wanted.get("train", {}).items() if k not in ("batch_size", "minibatches_per_step")}
        found[label] = resolve(wanted)
    return found


class _Stage:
    """Where rehearsals take place: the data, cut as the ranks need them, and the process that rehearses."""

    def __init__(
        self, job: Job, source: Dataset | str | Path | None, numbers: Numbers | None, cluster: Cluster, scratch: Path, emit: Emit
    ) -> None:
        if numbers is not None and source is not None:
            raise InputError("both a dataset and its numbers are given; give one of them")
        self.job, self.cluster, self.scratch, self.emit = job, cluster, scratch, emit
        self.spec: str | None = None
        if numbers is None and not isinstance(source, Dataset):
            job = job.model_copy(update={"dataset": str(source if source is not None else job.dataset)})
            self.job, self.spec = job, job.dataset
            source = open_data(job, None, emit)
        if isinstance(source, Dataset):
            self.name, self.numbers = source.name, Numbers.of(source)
        else:
            assert numbers is not None
            self.name, self.numbers = f"{numbers.nodes:,} nodes and {numbers.edges:,} edges", numbers
        too_large = self.numbers.edges > MOST_EDGES or self.numbers.nodes * self.numbers.features * 4 > MOST_FEATURE_BYTES
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
        self.shared = cache(lambda: share(job.model_copy(update={"dataset": self.spec or self.name}), self.dataset, self.scratch))

    def __enter__(self) -> "_Stage":
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def _started(self, keeps_bytes: int) -> Understudy:
        return self._exits.enter_context(Understudy(allocator(keeps_bytes)))

    def book(self, partitioner: Partitioner, parts: int) -> PartitionBook:
        """Who owns what: cut once for all systems that cut the same way."""
        key = repr(partitioner), parts
        if key not in self._books:
            self.emit(StageStarted("partition", f"cutting {self.dataset.name} into {parts} parts by {partitioner.name}"))
            self._books[key] = partitioner.assign(self.dataset.graph, parts, self.job.seed)
        return self._books[key]

    def cut(self, partitioner: Partitioner, parts: int, layers: int) -> CutCounts:
        """What these parts hold."""
        key = repr(partitioner), parts
        if key not in self._cuts:
            self._cuts[key] = count_cut(self.dataset.graph, self.book(partitioner, parts), self.dataset.split.train, layers)
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

    def forecast(self, label: str, job: Job) -> tuple[Forecast, Rehearsed | None]:
        """What one candidate would take."""
        system = make_system(placed(job) if job.ranks == 1 else job)
        sampled = isinstance(system.sample, Sampled | Local)
        situation = self._situation(label, job, system)
        base = self._understudy(self._keeps(job, system)).base_bytes
        least = least_bytes(situation, base)
        if sum(least.values()) > self.room:
            return Forecast.refused(situation, least, self.room), None
        ranks = self._rehearsing(job)
        self.emit(StageStarted("rehearse", f"rehearsing {label} with {ranks} rank(s)"))
        cast = self._cast(job, system, ranks, sampled)
        rehearsed = self._understudy(self._keeps(job, system)).rehearse(cast)
        return foresee(situation, rehearsed, cast, base, self.room), rehearsed

    def _rehearsing(self, job: Job) -> int:
        """Ranks that rehearse: at least two where there are any others to talk to."""
        return min(job.ranks, MOST_RANKS, max(2, self.per_host))

    def _keeps(self, job: Job, system: System) -> int:
        frees = isinstance(system.sample, Sampled)
        return job.cluster.keep_freed_bytes if frees and job.executor == "dask" else 0

    def _situation(self, label: str, job: Job, system: System) -> Situation:
        layers = int(job.model["layers"])
        cut = smaller = book = None
        if (partitioner := system.partition.partitioner) is not None:
            parts = system.parts_before(job.ranks)
            cut, book = self.cut(partitioner, parts, layers), self.book(partitioner, parts)
            smaller = self.cut(partitioner, system.parts_before(self._rehearsing(job)), layers)
        return Situation(
            label=label,
            job=job,
            system=system,
            dataset=self.dataset,
            outline=Outline.of(self.dataset),
            nodes=self.numbers.nodes,
            edges=self.numbers.edges,
            train=len(self.dataset.split.train) if not self.stands_in else max(1, round(self.numbers.train * self.numbers.nodes)),
            stands_in=self.stands_in,
            cut=cut,
            rehearsed_cut=smaller,
            book=book,
            per_host=self.per_host,
            threads=self.threads,
            cores=self.cores,
            link=self.cluster.link,
        )

    def _cast(self, job: Job, system: System, ranks: int, sampled: bool) -> Cast:
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
            "train": job.train.model_copy(update={"evaluate_every": 0, "patience": None}),
            "queue": job.queue.model_copy(update={"kind": "memory", "max_bytes": 1}),
        }
        if job.epochs > job.grappa.every:
            # What comes with a new super-epoch is seen too.
            changes["grappa"] = job.grappa.model_copy(update={"every": SAMPLED_EPOCHS // 2})
        if inline and self.spec is not None:
            dataset, features = self.spec, None
            changes |= {"dataset": self.spec, **({"split": None} if self.stands_in else {})}
        else:
            path, features = self.shared()
            dataset = str(path)
        parts = self.parts(system, ranks)
        if parts is not None:
            changes["partition"] = job.partition.model_copy(update={"owners": None})
        return Cast(
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


def stand_in(numbers: Numbers) -> str:
    """A generated graph as dense as these numbers say, and small enough to rehearse on."""
    nodes = min(numbers.nodes, MOST_FEATURE_BYTES // (4 * numbers.features))
    density = max(1.0, numbers.edges / numbers.nodes)
    scale = max(1, min(30, int(math.log2(max(2, min(nodes, MOST_EDGES / density))))))
    options = {
        "scale": scale,
        "edge_factor": max(1, round(density / 2)),
        "features": numbers.features,
        "classes": numbers.classes,
        "train": min(0.9, numbers.train),
    }
    return "rmat:" + ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())


def _choice(forecasts: list[Forecast]) -> tuple[str | None, str]:
    """The fastest that fits, and why."""
    fitting = sorted((f for f in forecasts if f.fits), key=lambda f: f.seconds_per_epoch or math.inf)
    if not fitting:
        frugal = min(forecasts, key=lambda f: f.memory_bytes)
        return None, f"nothing fits: {frugal.label} takes least, {frugal.arithmetic}"
    best = fitting[0]
    why = f"{best.label} has the fastest epoch of those that fit, {best.seconds_per_epoch:.3g} s"
    rest = [f for f in fitting[1:] if f.system != best.system or f.label != best.label]
    return best.label, why + (f"; next comes {rest[0].label} with {rest[0].seconds_per_epoch:.3g} s" if rest else "")


def _notes(stage: _Stage, forecasts: list[Forecast]) -> tuple[str, ...]:
    notes = []
    fast = [f for f in forecasts if f.fits]
    if len({f.steps_per_epoch > 1 for f in fast}) > 1:
        whole = [f.label for f in forecasts if f.system in ("sar", "retexo")]
        notes.append(
            f"An epoch of {' and '.join(whole)} is one step over all train nodes, of which runs take hundreds; others take many in one."
        )
    if any(f.system == "retexo" for f in forecasts):
        notes.append("retexo trains each layer for `epochs`: its epoch is the median over layers, and trains one layer only.")
    notes.append("Accuracy is not predicted.")
    if stage.stands_in:
        notes.append(f"An estimate: rehearsed on {stage.dataset.name}, which stands for the graph.")
    return tuple(notes)
