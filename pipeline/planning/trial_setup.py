"""A plan's trials: the data, or a generated graph in the place of a larger one, cut for the ranks; and short runs."""

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.fetch.ahead.units import MOST_STEPS
from ...stages.models import MODELS
from ...stages.models.base import reads_edges
from ...stages.models.relational import TypedInput
from ...stages.partition.base import make_book
from ...stages.partition.cut_counts import CutCounts, count_cut
from ...stages.sample import SAMPLERS
from ...stages.sample.base import reads_times
from ...storage.dataset import SPLITS, Dataset, Split
from ...storage.dataset_store import FeaturesFormat, write_dataset
from ...storage.errors import InputError, MissingExtraError
from ...storage.features import ArrayFeatures, FeatureStore
from ...storage.lazy_dataset import LazyDataset
from ...storage.links.pairs import KIND_OF, POSITIVE, PairArray, keys_of_pairs, of_pairs
from ...storage.optional import taken
from ...storage.plural import counted
from ...storage.store.bytes_left import bytes_at_most
from ...storage.typed.features import TypedFeatures, stores_on_disk
from ...storage.typed.graph_types import GraphTypes, edges_of_types
from ..config.load import Job, build, resolve
from ..config.records import make_system, without_partitioner
from ..config.schema import LossOptions, Schedule
from ..config.systems import SYSTEMS, System
from ..datasets.cleaning.relations import graph_of_relations
from ..datasets.links import link_dataset
from ..machine.gpus import backend, check_cluster, check_gpus, free_bytes, visible
from ..machine.malloc import allocator
from ..run import run
from ..setup.checks import check_edges, check_learned, check_model_of_types
from ..setup.model import Outline, model_of, types_of, with_edges
from ..setup.open_data import open_data
from ..setup.result import read_result
from ..setup.run_folder import METRICS
from ..setup.sampling import sampling_of
from ..setup.shared_dataset import share
from ..supervision.supervisor import sharing_cluster
from ..telemetry.events import Emit, StageStarted, silent
from ..telemetry.run_log import read_events
from .candidate import Candidate, Setting
from .disk import disk_forecast
from .forecast import Forecast, foresee, placed
from .inputs import MOST_EDGES, Cluster, Numbers
from .trial import EPOCHS, TrialResult, measured
from .trial_server import AS_SPLIT, TrialServer, shortened, spread

MOST_RANKS = 4
"""Most ranks of a trial, which runs on one machine."""


def detailed(base: Dataset, numbers: Numbers, like: Dataset | None) -> Dataset:
    """The graph `base` with node types, relations and features of edges in the proportions of `like`, or only with
    features of edges by `numbers`, if there are any, if that has no types, or is None.

    The edges of a relation are drawn from all edges of `base`, with their ends renumbered to nodes of the relation's
    types, so that degrees are as skewed as there.
    """
    rng, graph = np.random.default_rng(0), base.graph
    if like is None or (record := types_of(like)) is None:
        if not numbers.edge_features:
            return base
        rows = rng.standard_normal((graph.num_edges, numbers.edge_features), np.float32)
        return replace(base, graph=replace(graph, edge_features=ArrayFeatures(rows)))
    (types, widths), v = TypedInput.of_record(record), base.num_nodes
    scale = v / like.num_nodes
    counts = [max(1, round(types.num_nodes(t) * scale)) for t in range(len(types.node_types))]
    offsets = (0, *np.cumsum(counts).tolist())
    ends, edges, of_edges = np.stack([graph.indices, np.repeat(np.arange(v), graph.in_degree)]), {}, []
    for r, (relation, number) in enumerate(zip(types.relations, edges_of_types(like.graph))):
        drawn = ends[:, rng.integers(0, graph.num_edges, round(number * graph.num_edges / like.graph.num_edges))]
        src, dst = (offsets[t] + row * counts[t] // v for t, row in zip(types.ends[r], drawn.astype(np.int64)))
        edges[relation] = src, dst
        d = types.edge_widths[r] if types.edge_widths else 0
        of_edges.append(rng.standard_normal((len(src), d), np.float32) if d else None)
    smaller = GraphTypes(types.node_types, offsets, types.relations)
    features = TypedFeatures(
        tuple(ArrayFeatures(rng.standard_normal((n, w), np.float32)) for n, w in zip(counts, widths)), offsets
    )
    train = max(1, round(min(0.9 * counts[0], scale * like.split_sizes["train"])))
    sets = np.split(rng.permutation(counts[0]), [train, (train + counts[0]) // 2])
    labels = np.where(np.arange(offsets[-1]) < counts[0], np.resize(base.labels, offsets[-1]), -1)
    made = graph_of_relations(edges, smaller, features=of_edges)
    made = replace(made, types=replace(made.types, pair_relations=types.pair_relations))
    split = Split(*(np.sort(ids) for ids in sets))
    return replace(base, graph=made, features=features, labels=labels, split=split).check()


def with_pairs(made: Dataset, like: Dataset) -> Dataset:
    """The graph `made` with as many pairs for each node as `like` has, whose labels are of pairs. Train pairs are
    edges, and some of them several times if there are fewer; the others join the source of one edge to the destination
    of another. Labels and features of edges are some of `like`."""
    rng, graph, scale = np.random.default_rng(0), made.graph, made.num_nodes / like.num_nodes
    every, relation = np.stack(np.divmod(keys_of_pairs(graph), graph.num_nodes), axis=1), None
    first, size = np.zeros(1, np.int64), np.array([len(every)])
    if graph.types.predicts_several:
        kinds = graph.edge_relations[of_pairs(graph)].astype(np.int64)
        order = np.argsort(kinds, kind="stable")
        every, relation = every[order], kinds[order]
        size = np.bincount(kinds, minlength=graph.types.num_relations)
        first = np.cumsum(size) - size
    pairs, numbers, given = [], [], like.pair_table[:, 2:3]

    def drawn(count: int, kind: int, joined: bool) -> PairArray:
        """Rows of edges, or with `joined` of the source of one and the destination of another of its relation."""
        ends = rng.integers(0, len(every), (count, 2))
        group = 0 if relation is None else relation[ends[:, 0]]
        other = first[group] + ends[:, 1] % size[group]
        rows = np.stack([every[ends[:, 0], 0], every[other, 1]], axis=1) if joined else every[ends[:, 0]]
        rows = np.insert(rows, 2, kind, axis=1)
        return rows if relation is None else np.column_stack([rows, group])

    for name in SPLITS:
        rows = drawn(max(1, round(scale * like.split_sizes[name])), POSITIVE, joined=name != "train")
        numbers.append(sum(map(len, pairs)) + np.arange(len(rows)))
        pairs.append(rows)
    counts = {kind: round(scale * np.count_nonzero(given == kind)) for kind in KIND_OF.values()}
    pairs += [drawn(count, kind, joined=True) for kind, count in counts.items()]
    table, split = np.concatenate(pairs), Split(*numbers)
    if like.task == "link":
        return replace(made, labels=table, split=split, num_classes=1, task="link", class_names=None).check()
    some = rng.choice(like.split.train, len(table))
    alike: dict[str, Any] = {n: getattr(like, n) for n in ("num_classes", "task", "class_names", "hides_pairs")}
    features = taken(like.pair_features, some)
    labels = like.labels[some]
    return replace(made, labels=labels, split=split, pairs=table[:, :2], pair_features=features, **alike).check()


def _free_on_gpu() -> int:
    try:
        return free_bytes()
    except MissingExtraError:
        raise
    except InputError as e:
        raise InputError(f"a plan tries steps on this machine, which has no GPU to try them on: {e}") from None


def _standing_in(job: Job, numbers: Numbers, like: Dataset | None, made: Dataset) -> tuple[Numbers, Dataset]:
    """The numbers, and the graph `made` in place of the dataset `like`, with pairs if the task is link; if there is no
    such dataset, by the split of the job."""
    if numbers.of_pairs and like is not None:
        return numbers, with_pairs(made, like)
    if like is not None or job.read.task != "link":
        return numbers, made
    # The edges that are held out are among the given ones.
    links, growth = link_dataset(made, split=job.split), numbers.edges / max(1, made.graph.num_edges)
    edges, train, pairs = (
        growth * count for count in (links.graph.num_edges, links.split_sizes["train"], len(links.labels))
    )
    known = {"edges": round(edges), "train": train / numbers.nodes, "pairs": round(pairs)}
    return replace(numbers, classes=1, task="link", **known), links


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
        if cluster.device_bytes and job.device == "cpu":
            raise InputError('the memory of a GPU is given, but device is "cpu"; leave it out, or use device = "cuda"')
        free = _free_on_gpu() if job.device == "cuda" else 0
        spec, data = None, source if isinstance(source, Dataset) else None
        self._features: FeatureStore | None = None
        if numbers is not None and source is not None:
            raise InputError("both a dataset and its numbers are given; give one of them")
        if numbers is None:
            if source is None or isinstance(source, str | Path):
                spec = str(job.dataset if source is None else source)
            data = data or open_data(job, source, emit, lazy=True)
            self.name, numbers = data.name, Numbers.from_dataset(data)
            in_memory = isinstance(data, LazyDataset) and data.features_access == "memory"
            self._features = data.features if not in_memory and stores_on_disk(data.features) else None
        else:
            self.name = f"{numbers.nodes:,} nodes and {numbers.edges:,} edges"
        stands_in = data is None or numbers.is_large
        self._by_time = reads_times(build("sampler", SAMPLERS, job.sampler))
        if data is None and job.read.labels_of == "edges":
            raise InputError(
                "labels_of is 'edges', and a plan by numbers of nodes and edges knows nothing of labelled ones; give a "
                "dataset that has some"
            )
        if data is None or stands_in:
            if self._by_time or (data is not None and data.task == "link" and data.has_pair_times):
                raise InputError(
                    f"samples by time are planned on the graph itself, of at most {MOST_EDGES:,} edges: no generated "
                    "graph has its times; plan on a part of it, or with the sampler neighbor and pairs without times"
                )
            generated = {**AS_SPLIT, "dataset": numbers.stand_in(), "features": "memory", "graph": "memory"}
            base = open_data(job.model_copy(update=generated), None, silent)
            spec, numbers, data = None, *_standing_in(job, numbers, data, detailed(base, numbers, data))
        if not data.split_sizes["train"]:
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        per_host, cores = -(-job.ranks // cluster.hosts), os.cpu_count() or 1
        threads = job.threads or max(1, cores // per_host)
        self.room = cluster.memory_bytes or bytes_at_most(per_host)
        gpus = len(visible()) if free else 0
        room = gpus and (cluster.device_bytes or free // -(-per_host // gpus))
        most = MOST_RANKS if backend(job) == "gloo" else min(MOST_RANKS, max(2, gpus))
        self._ranks = min(job.ranks, most, max(2, per_host))
        outline = Outline.from_dataset(data, job)
        if stands_in and not numbers.of_pairs:
            outline = replace(outline, task=numbers.task, num_classes=numbers.classes)
        machine = {"cores": cores, "gpus": gpus, "device_room": room}
        self.at = Setting(data, numbers, outline, stands_in, per_host, threads, link=cluster.link, **machine)
        self._spec, self._scratch, self._emit = spec, scratch, emit
        self._seed = job.seed_of("minibatches")
        self._cuts = dict[tuple[str, int], CutCounts]()
        shared_job = job.model_copy(update={"dataset": spec or data.name})
        self._whole = cache(lambda: share(shared_job, data, scratch))
        self._short, self._server = cache(self._write_short), cache(lambda: TrialServer(exits))
        kept = job.cluster.keep_freed_bytes
        here = {"dashboard_port": 0, "on_rank_loss": "stop", "keep_freed_bytes": kept, "backend": backend(job)}
        table = {"ranks": self._ranks, "threads": threads, "dataset": "sbm:nodes=60,classes=2", "epochs": 1}
        small = {"model": {"name": "sage", "hidden": 8}} if gpus else {}  # a step counts as such, and not as its base
        self._tiny_table = {**table, **small, "cluster": here, "device": job.device}
        self._tiny = resolve(self._tiny_table)
        check_cluster(self._tiny.model_copy(update={"ranks": max(self._ranks, per_host)}))
        if gpus:
            check_gpus(self._tiny)
        self._base = cache(self._run_base)
        variables = [allocator(kept_bytes) for kept_bytes in sorted({0, kept})]
        self._share_cluster = cache(lambda: exits.enter_context(sharing_cluster(self._tiny, 1, *variables)))

    def fitted(self, job: Job) -> tuple[Job, System]:
        """The job as it reads the dataset, and its system. Raises InputError if that does not run on it."""
        data, system = self.at.dataset, make_system(without_partitioner(job) if job.ranks == 1 else job)
        if self._by_time and system.sample.sampler is None:
            raise InputError(
                f"samples go by time, but system '{system.name}' passes messages over all edges, whatever their times"
            )
        job, system, _ = with_edges(job, system, None, data)
        record = build("model", MODELS, job.model)
        check_model_of_types(job, data.graph.types, record)
        if reads_edges(record):
            check_edges(job, system)
        sampling = sampling_of(job, data, system)
        job, system = sampling.job, sampling.system
        check_learned(job, system)
        if self.at.gpus and system.partition.has_blocks:
            raise InputError("plan does not predict a partitioned topology on GPUs in this version")
        model = model_of(job, self.at.outline, system, None).build()
        SYSTEMS.find(system.name).check(job, system, model)
        return job, system

    def forecast(self, label: str, job: Job, system: System) -> tuple[Forecast, TrialResult | None]:
        """Forecast of a candidate that was `fitted`, and the measurements of its trial; None if it cannot fit."""
        cuts = (self._cut(job, system, ranks) for ranks in (job.ranks, self._ranks))
        candidate = placed(Candidate(label, job, system, self.at, *cuts))
        least = foresee(candidate, self.room)
        if not least.fits:
            return least, None
        self._emit(StageStarted("trial", f"trying {label} with {counted(self._ranks, 'rank')}"))
        seen = self._try(candidate)
        found = foresee(candidate, self.room, seen)
        if self._features is None:
            return found, seen
        disk = disk_forecast(candidate, seen, self._features, max(0, self.room - found.memory_bytes))
        seconds = 0.0 if disk is None else disk.seconds_per_epoch
        return replace(found, disk=disk, seconds_per_epoch=max(seconds, found.seconds_per_epoch or 0.0)), seen

    def _try(self, s: Candidate) -> TrialResult:
        """Run the trial of a candidate."""
        train, seeds = self.at.dataset.split.train, None
        if s.is_sampled:
            per_step, bulk = s.job.train.per_step(self._ranks), s.job.queue.bulk_size * s.is_resident
            # A GPU holds whole bulks.
            steps = max(MOST_STEPS, -(-bulk * self._ranks // per_step))
            seeds = steps * s.job.train.batch_size * per_step
            train = spread(train, seeds)
        job = self._trial_of(s, len(train))
        # The system can take back the pages of files that a job maps.
        memory = "own_bytes" if job.graph == "mapped" else "peak_rss_bytes"
        # Where data grow, a system's own code must not, nor what its kernels are compiled in.
        tiny = self._base(self._tiny.system if s.at.growth == 1 else job.system)
        base = max(tiny[memory]), max(tiny["peak_device_bytes"])
        result = self._run(job, f"run-{s.label}", seeds if job.dataset == self._spec else None)
        return measured(s, job, result, result[memory], base, train)

    def _run_base(self, system: str) -> dict[str, Any]:
        """Run a system on next to no data; see `_run`."""
        return self._run(resolve({**self._tiny_table, "system": system}), f"base-{system}")

    def _run(self, job: Job, name: str, seeds: int | None = None) -> dict[str, Any]:
        """Run a job in a folder of that name; on one rank, on at most so many train nodes.

        Returns:
            The result, with its ``log``, and of each rank ``own_bytes``: peak memory without the pages of files.

        Raises:
            RunError: the run failed.
        """
        out = self._scratch / name
        if job.executor == "inline":
            self._server().run(job, out, seeds)
        else:
            self._share_cluster()
            run(config=job, out=out, emit=silent)
        log = read_events(out / METRICS)
        own = [int(max(log.ranks[rank].beats["own_bytes"])) for rank in range(job.ranks)]
        return {**(read_result(out) or {}), "log": log, "own_bytes": own}

    def _cut(self, job: Job, system: System, ranks: int) -> CutCounts | None:
        """Counts of the parts of so many ranks, computed once for all systems with the same cut; None: no parts."""
        partitioner, data, parts = system.partition.partitioner, self.at.dataset, system.parts_before(ranks)
        if partitioner is None:
            return None
        if (key := (repr(partitioner), parts)) not in self._cuts:
            self._emit(StageStarted("partition", f"cutting {data.name} into {parts} parts by {partitioner.name}"))
            train = data.split.train
            book = make_book(partitioner, data.graph, parts, self._seed, None if data.of_pairs else train)
            nodes = data.pair_table[train, :2].reshape(-1) if data.of_pairs else train
            self._cuts[key] = count_cut(data.graph, book, nodes, int(job.model["layers"]))
        return self._cuts[key]

    def _write_short(self, seeds: int, features: FeaturesFormat, graph: FeaturesFormat) -> Path:
        """A store of the dataset with so many train nodes."""
        path, data = self._scratch / f"seeds-{seeds}-{graph}", self.at.dataset
        data = data.as_read() if isinstance(data, LazyDataset) else data
        write_dataset(path, shortened(data, seeds), features_format=features, graph_format=graph)
        return path

    def _trial_of(self, s: Candidate, seeds: int) -> Job:
        """The job of a candidate's trial on the dataset, or on one with no more than so many of its train nodes."""
        job, stands_in = s.job, self.at.stands_in
        # Trials are too short for a schedule, and a stand-in has classes, whatever the task is.
        train: dict[str, Any] = {"patience": None, "monitor": None, "schedule": Schedule()}
        if stands_in and not s.at.numbers.of_pairs:
            train |= {"loss": LossOptions(), "metrics": []}
        if s.is_sampled:
            # Evaluation would take too long beside sampled epochs. Beside full batches it is needed: it leaves caches
            # cold for the next epoch, as in a run. One validation counts where it is no other split's work.
            once = s.evaluates_seeds or job.learned.width  # which keeps the rows of the best epoch
            train["evaluate_every"] = EPOCHS if s.validates and once else 0
        most = 1 if job.queue.kind == "memory" else job.queue.max_bytes
        changes: dict[str, Any] = {
            "epochs": EPOCHS,
            "ranks": self._ranks,
            "threads": self.at.threads,
            "cluster": self._tiny.cluster,
            "track": [],
            # Of a smaller graph the same share is kept on the GPU.
            "gpu": job.gpu.model_copy(update={"cache_bytes": round(job.gpu.cache_bytes / s.at.growth)}),
            "train": job.train.model_copy(update=train),
            # In memory one bulk is sampled ahead, as within a long epoch.
            "queue": job.queue.model_copy(update={"location": None, "max_bytes": most}),
        }
        if job.epochs > s.system.options.get("repartition_every", job.epochs):
            # The start of a new super-epoch is part of the trial.
            changes[job.system] = job.options.model_copy(update={"repartition_every": EPOCHS // 2})
        inline, maps = job.executor == "inline", job.graph == "mapped"
        if inline and self._spec is not None:
            changes["dataset"] = self._spec
        else:
            data = self._whole()
            path, place = Path(data.store), data.features
            # Ranks that map their parts have features where the job says.
            kept = job.features == "owned" or (maps and (inline or s.is_cut))
            if seeds < len(self.at.dataset.split.train):
                path = self._short(seeds, "zarr" if place == "zarr" else "npy", "npy" if maps else "zarr")
            changes |= {"dataset": str(path), **AS_SPLIT, "features": job.features if kept else place}
        if s.trial_cut is not None and self._ranks > 1:
            owners = self._scratch / "owners.npy"
            np.save(owners, s.trial_cut.book.part(np.arange(self.at.dataset.num_nodes)))
            changes["partition"] = job.partition.model_copy(update={"owners": str(owners)})
        return job.model_copy(update=changes)
