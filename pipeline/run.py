"""Run a job in this process: open the data, train, evaluate, and leave a folder that tells all about it."""

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from ..stages.base import Placement, RankJob
from ..stages.comm.solo import Solo
from ..stages.evaluate import evaluate
from ..stages.kernels import cpu, reference
from ..stages.models import MODELS
from ..stages.models.base import as_model
from ..stages.random import Purpose, stream, torch_seed
from ..stages.sample import SAMPLERS
from ..stages.sample.produce import Sampled
from ..storage.checkpoint import CheckpointStore
from ..storage.dataset import Dataset
from ..storage.errors import InputError, StoreError
from ..storage.features import ConvertedFeatures, CountedFeatures, FeatureStore
from ..storage.fingerprint import digest_arrays, digest_record, graph_fingerprint
from ..storage.ledger import Ledger
from ..storage.queue import MemoryQueue, MinibatchQueue
from ..storage.queue_zarr import ZarrQueue
from . import systems
from .clock import Clock
from .config import Job, build, merged, resolve
from .datasets import GENERATED, ReadOptions, open_dataset
from .events import Emit, Note, StageEnded, StageStarted, silent
from .rank import Progress, Trainer, train_rank
from .result import SECONDS, Result, peak_rss_bytes, versions, write_json
from .run_folder import CHECKPOINTS, JOB, METRICS, MODEL, RESULT, check_resumable, check_run_folder, held, write_whole
from .systems import System

KERNELS: dict[str, ModuleType] = {"cpu": cpu, "reference": reference}

SHORTHANDS: dict[str, tuple[str, ...]] = {
    "hidden": ("model", "hidden"),
    "layers": ("model", "layers"),
    "dropout": ("model", "dropout"),
    "heads": ("model", "heads"),
    "fanout": ("sampler", "fanout"),
    "batch_size": ("train", "batch_size"),
    "lr": ("train", "lr"),
    "weight_decay": ("train", "weight_decay"),
    "minibatches_per_step": ("train", "minibatches_per_step"),
}
"""Words that are short for configuration keys, on the command line and in Python."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A job with its data, ready for any executor."""

    job: Job
    dataset: Dataset
    system: System
    build_model: Callable[[], nn.Module]
    """Makes the model with its initial parameters: a pure function of the seed."""
    data: Placement
    fingerprint: dict[str, str]
    """Of everything that decides the parameters but the number of epochs."""
    model_name: str


def features_digest(features: FeatureStore) -> str:
    """A digest of shape, dtype and up to 4096 evenly spaced rows: a changed matrix is noticed without reading all of it."""
    rows = np.unique(np.linspace(0, max(features.num_rows - 1, 0), num=min(4096, features.num_rows), dtype=np.int64))
    return digest_arrays(shape=np.array([features.num_rows, features.num_features]), rows=features.gather(rows))


def make_system(job: Job) -> System:
    """The system that a configuration names."""
    return systems.bulk(build("sampler", SAMPLERS, job.sampler))


def refuse_what_is_missing(job: Job) -> None:
    """Refuse a job that this version cannot run, before anything slow is done for it.

    Raises:
        InputError: it asks for a device or an executor that is not there.
    """
    if job.device == "cuda":
        raise InputError("device is 'cuda', but this version trains on CPUs only; use device = \"cpu\"")
    if job.executor == "dask" or job.ranks > 1:
        raise InputError(
            f"executor is '{job.executor}' with {job.ranks} rank(s), but this version runs one rank in this process;"
            ' use executor = "inline" and ranks = 1'
        )


def prepare(job: Job, dataset: Dataset, *, system: System | None = None, model: Any = None) -> Prepared:
    """Check that the parts of a job fit together, and describe the run by its fingerprint.

    Args:
        job: a resolved configuration.
        dataset: what to train on.
        system: overrides the configuration's.
        model: a model record (``GraphSAGE(...)``) or a module of the user's; overrides the configuration's.

    Raises:
        InputError: they do not fit, or this version cannot run them.
    """
    refuse_what_is_missing(job)
    system = system or make_system(job)
    dtype = {"float32": torch.float32, "float64": torch.float64}[job.dtype]
    record = model if model is not None else build("model", MODELS, job.model)
    if isinstance(record, nn.Module):
        module = as_model(record)
        initial = {k: v.detach().clone() for k, v in module.state_dict().items()}
        description = {"module": type(record).__name__, **{k: list(v.shape) for k, v in initial.items()}}
        name = type(record).__name__

        def make() -> nn.Module:
            module.load_state_dict(initial)
            return module.to(dtype)
    else:
        description = {"name": record.name, **vars(record)}
        name = record.name

        def make() -> nn.Module:
            torch.manual_seed(torch_seed(stream(job.seed, Purpose.INIT)))
            return record.build(dataset.features.num_features, dataset.num_classes).to(dtype)

    layers = make().num_layers
    if system.sample.num_layers not in (None, layers):
        raise InputError(
            f"the model has {layers} layers but the sampler makes {system.sample.num_layers} blocks; give one fanout per layer"
        )
    graph = dataset.graph
    if graph.edge_weight is None:
        degree = graph.in_degree.astype(np.float64)
    else:
        sums = np.concatenate([[0.0], np.cumsum(graph.edge_weight, dtype=np.float64)])
        degree = sums[graph.indptr[1:]] - sums[graph.indptr[:-1]]
    features: FeatureStore = dataset.features
    if features.dtype != np.dtype(job.dtype):
        features = ConvertedFeatures(features, job.dtype)
    labels = torch.from_numpy(dataset.labels) if dataset.task == "multiclass" else torch.from_numpy(dataset.labels).to(dtype)
    data = Placement(graph, features, labels, torch.from_numpy(degree).to(dtype), dataset.split.train)
    fingerprint = {
        **sample_fingerprint(job, dataset, system),
        "features": features_digest(dataset.features),
        "labels": digest_arrays(labels=dataset.labels, val=dataset.split.val),
        "model": digest_record(description),
        "train": digest_record({**job.train.model_dump(exclude={"patience"}), "dtype": job.dtype, "system": system.name}),
    }
    return Prepared(job, dataset, system, make, data, fingerprint, name)


def sample_fingerprint(job: Job, dataset: Dataset, system: System) -> dict[str, str]:
    """What decides sampled minibatches, and nothing else: such a store can serve any model."""
    return {
        "graph": graph_fingerprint(dataset.graph),
        "sampler": json.dumps(system.sample.record(), sort_keys=True),
        "seeds": digest_arrays(train=dataset.split.train),
        "seed": str(job.seed),
        "batch_size": str(job.train.batch_size),
    }


def parameters_sha256(module: nn.Module) -> str:
    """Over every parameter and buffer, in the order of the module's state."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _threads(count: int | None):
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_samples(prepared: Prepared, samples: Path) -> MinibatchQueue:
    """The stored minibatches that a job trains from.

    Raises:
        StoreError: absent, damaged, or made from something else.
        InputError: minibatches of the epochs to train are not there yet.
    """
    job = prepared.job
    queue = ZarrQueue.open(samples, fingerprint=_of_samples(prepared))
    bulks = -(-_minibatches_per_epoch(prepared) // queue.bulk_size)
    lacking = next((e for e in range(job.epochs) if len(queue.committed(e)) < bulks), None)
    if lacking is None:
        return queue
    if queue.complete and lacking not in queue.epochs():
        raise InputError(f"{samples} holds {lacking} epoch(s) but {job.epochs} are to be trained; lower epochs, or sample more")
    raise InputError(
        f"{samples} is not finished: epoch {lacking} has {len(queue.committed(lacking))} of {bulks} bulks; give its `millrace sample`"
        " command again, which samples what is missing"
    )


def open_queue(prepared: Prepared, out: Path) -> MinibatchQueue:
    """The queue that the job asks for: in memory, or in the run's folder."""
    q, per_epoch = prepared.job.queue, _minibatches_per_epoch(prepared)
    if q.kind == "memory":
        return MemoryQueue(bulk_size=q.bulk_size, max_bytes=q.max_bytes, keep=q.keep, minibatches_per_epoch=per_epoch)
    return ZarrQueue.create(
        out / "queue",
        fingerprint=_of_samples(prepared),
        bulk_size=q.bulk_size,
        max_bytes=q.max_bytes,
        keep=q.keep,
        meta={"minibatches_per_epoch": per_epoch},
    )


def _of_samples(prepared: Prepared) -> dict[str, str]:
    return {k: prepared.fingerprint[k] for k in ("graph", "sampler", "seeds", "seed", "batch_size")}


def _minibatches_per_epoch(prepared: Prepared) -> int:
    return -(-len(prepared.dataset.split.train) // prepared.job.train.batch_size)


def run(
    dataset: Dataset | str | Path | None = None,
    *,
    system: System | None = None,
    model: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    samples: str | Path | None = None,
    emit: Emit = silent,
    stop: Callable[[], bool] = lambda: False,
    config: Job | Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Train, and evaluate the parameters of the best validation epoch on the test split.

    Args:
        dataset: a `Dataset`, or whatever `open_dataset` takes; by default the configuration's.
        system: such as ``bulk(NeighborSampler((15, 10, 5)))``.
        model: such as ``GraphSAGE(hidden=128, layers=3)``, a name, or a module of your own that follows the model protocol.
        out: the run's folder; by default a new one under ``runs/``.
        resume: go on from the last checkpoint in `out`.
        samples: a store of sampled minibatches to train from.
        emit: called with every event.
        stop: asked between steps; true ends the run with a checkpoint.
        config: a configuration, resolved or not.
        options: configuration keys and their shorthands, such as ``epochs=3, lr=0.01, train={"batch_size": 512}``.

    Returns:
        The result, which is also in ``out/result.json``.

    Raises:
        InputError: something does not fit.
        RunError: the run failed; it can be resumed.
    """
    start = time.perf_counter()
    if isinstance(model, Mapping | str) and not isinstance(config, Job):
        config = {**(config or {}), "model": {"name": model} if isinstance(model, str) else dict(model)}
        model = None
    job = config if isinstance(config, Job) else configure(config or {}, system=system, model=model, **options)
    if isinstance(config, Job) and options:
        raise InputError(f"options {sorted(options)} were given beside a resolved configuration; pass one or the other")
    folder = Path(out) if out is not None else Path("runs") / f"{job.system}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    clock = Clock()
    refuse_what_is_missing(job)
    check_run_folder(folder, resume)
    # The folder's job.toml must find the data again, from wherever it is read.
    job = job.model_copy(update={"dataset": dataset.name if isinstance(dataset, Dataset) else located(dataset or job.dataset)})
    if not isinstance(dataset, Dataset):
        dataset = open_data(job, dataset, emit)
    dataset.check()
    prepared = prepare(job, dataset, system=system, model=model)
    queue = open_samples(prepared, Path(samples)) if samples is not None else None
    if queue is None and job.queue.kind == "memory":
        queue = open_queue(prepared, folder)
    with held(folder):
        check_run_folder(folder, resume)
        if resume:
            check_resumable(folder, job, prepared.fingerprint)
            # What an earlier, shorter run left is not the result of this one.
            for stale in (RESULT, MODEL):
                (folder / stale).unlink(missing_ok=True)
        queue = queue or open_queue(prepared, folder)
        write_whole(folder / JOB, job.to_toml())
        with _threads(job.threads), _metrics(folder / METRICS, emit, resume) as told:
            result = _run_inline(prepared, folder, queue, samples is None, told, stop, clock, start)
    if result.epochs > job.epochs:
        emit(Note(f"{result.epochs} epochs had been trained before; the {job.epochs} asked for are among them"))
    return result


def located(source: str | Path) -> str:
    """A dataset's name, or its path as it can be opened from any folder."""
    name, path = str(source), Path(source).expanduser()
    embedded = name == "digits" or name.partition(":")[0] in GENERATED
    return name if embedded or not path.exists() else str(path.resolve())


def open_data(job: Job, source: str | Path | None, emit: Emit) -> Dataset:
    """Open the job's dataset, or `source` in its place, and tell what was found."""
    spec = source if source is not None else job.dataset
    emit(StageStarted("open", f"opening {spec}"))
    start = time.perf_counter()
    try:
        dataset = open_dataset(spec, options=job.read, split=job.split, seed=job.seed, features=job.features)
    except InputError as e:
        raise type(e)(_with_keys(str(e))) from e
    sizes = f"{dataset.num_nodes:,} nodes, {dataset.graph.num_edges:,} edges, {dataset.features.num_features} features"
    emit(StageEnded("open", time.perf_counter() - start, f"{dataset.name}: {sizes}, {dataset.num_classes} classes"))
    for note in dataset.notes:
        emit(Note(_with_keys(note)))
    return dataset


def _with_keys(text: str) -> str:
    """Readers name their options; to the user of a job those are configuration keys."""
    options = "|".join(f.name for f in fields(ReadOptions))
    return re.sub(rf"(?<![\w.])({options})=", r"read.\1=", text)


def configure(config: Mapping[str, Any], *, system: System | None = None, model: Any = None, **options: Any) -> Job:
    """A resolved configuration from tables, shorthands, and the records that a Python caller passes."""
    table = dict(config)
    for key, value in options.items():
        table = merged(table, SHORTHANDS.get(key, (key,)), value)
    layers = None
    if model is not None:
        layers = as_model(model).num_layers if isinstance(model, nn.Module) else model.layers
        table["model"] = {"name": model.name, **vars(model)} if not isinstance(model, nn.Module) else {"layers": layers}
    if system is not None:
        table["system"] = system.name
        if isinstance(system.sample, Sampled):
            table["sampler"] = {"name": system.sample.sampler.name, **{k: v for k, v in vars(system.sample.sampler).items()}}
    return resolve(table)


def _run_inline(
    prepared: Prepared,
    out: Path,
    queue: MinibatchQueue,
    produce: bool,
    emit: Emit,
    stop: Callable[[], bool],
    clock: Clock,
    start: float,
) -> Result:
    job, dataset, data = prepared.job, prepared.dataset, prepared.data
    group, ledger = Solo(), Ledger()
    model = prepared.build_model()
    rank_job = RankJob(
        seed=job.seed,
        batch_size=job.train.batch_size,
        bulk_size=queue.bulk_size,
        epochs=job.epochs,
        dtype=torch.float64 if job.dtype == "float64" else torch.float32,
        kernel=KERNELS[job.kernel],
        group=group,
        ledger=ledger,
        queue=queue,
        produce=produce,
    )

    counted = replace(dataset, features=CountedFeatures(dataset.features, ledger, "evaluation"))

    def score(module: nn.Module, split: str) -> float | None:
        return evaluate(module, counted, data.degree, (split,), scratch=out)[split]

    validate = (lambda m: score(m, "val") or 0.0) if len(dataset.split.val) else None
    checkpoints = CheckpointStore(out / CHECKPOINTS, prepared.fingerprint, keep=job.checkpoint.keep)
    trainer = Trainer(
        prepared.system, rank_job, data, dataset.task, model, job.train, checkpoints, job.checkpoint, validate, emit, stop, job.check
    )
    emit(StageStarted("train", f"training {prepared.model_name} with {prepared.system.name}", job.epochs))
    try:
        with clock.measure("train"):
            progress = train_rank(trainer, clock)
    finally:
        queue.close()
    emit(StageEnded("train", clock.seconds["train"]))
    last_sha256 = parameters_sha256(model)
    if progress.best_state:
        model.load_state_dict(progress.best_state)
    emit(StageStarted("evaluate", "evaluating the test split over full neighbourhoods"))
    before = time.perf_counter()
    with clock.measure("evaluate"):
        test = score(model, "test")
    emit(StageEnded("evaluate", time.perf_counter() - before))
    _save_model(out / MODEL, model)
    result = _result(prepared, progress, clock, ledger, test, last_sha256, out)
    write_json(out / RESULT, result.to_record())
    return result


def _save_model(path: Path, model: nn.Module) -> None:
    aside = path.with_name(f".writing-{path.name}")
    torch.save(model.state_dict(), aside)
    aside.replace(path)


def load_model(path: Path, prepared: Prepared) -> nn.Module:
    """The model of a finished run.

    Raises:
        StoreError: absent, damaged, or of other shapes.
    """
    model = prepared.build_model()
    try:
        model.load_state_dict(torch.load(path, weights_only=True))
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist: the run has not finished; go on with it by --resume") from None
    except Exception as e:
        shapes = f"{prepared.dataset.features.num_features} features and {prepared.dataset.num_classes} classes"
        reason = " ".join(str(e).split())[:300]
        raise StoreError(f"{path} does not fit {prepared.model_name} on {prepared.dataset.name} with {shapes} ({reason})") from None
    return model


def _result(prepared: Prepared, progress: Progress, clock: Clock, ledger: Ledger, test: float | None, sha256: str, out: Path) -> Result:
    job, dataset = prepared.job, prepared.dataset
    spent = clock.snapshot()
    seconds: dict[str, Any] = {name: spent.get(name, 0.0) for name in SECONDS}
    seconds["per_epoch"] = [h["seconds"] for h in progress.history]
    record = ledger.as_record()
    return Result(
        status="done",
        system=prepared.system.name,
        model=prepared.model_name,
        dataset=dataset.name,
        num_nodes=dataset.num_nodes,
        num_edges=dataset.graph.num_edges,
        device=job.device,
        dtype=job.dtype,
        ranks=job.ranks,
        epochs=len(progress.history),
        seed=job.seed,
        minibatches_per_step=job.train.minibatches_per_step or job.ranks,
        train_loss=_finite(progress.history[-1]["train_loss"]),
        val_accuracy=progress.best_accuracy if progress.best_epoch >= 0 else None,
        test_accuracy=test,
        best_epoch=progress.best_epoch,
        seconds=seconds,
        bytes={**record, "per_rank": [record]},
        peak_rss_bytes=[peak_rss_bytes()],
        peak_device_bytes=[0],
        minibatches=progress.minibatches,
        sampled_edges=progress.sampled_edges,
        fingerprint=prepared.fingerprint,
        parameters_sha256=sha256,
        out=str(out),
        versions=versions(),
    )


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _metrics(path: Path, emit: Emit, resume: bool):
    """Write every event as a line of JSON beside passing it on."""
    lock = threading.Lock()
    with path.open("a" if resume else "w", buffering=1) as f:

        def told(event: Any) -> None:
            with lock:
                values = {key: _finite(value) for key, value in vars(event).items()}
                f.write(json.dumps({"event": type(event).__name__, "time": time.time(), **values}) + "\n")
            emit(event)

        yield told
