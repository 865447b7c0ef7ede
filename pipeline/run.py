"""Run a job in this process: train, evaluate, and leave a folder that tells all about it."""

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..stages.base import RankJob
from ..stages.comm.solo import Solo
from ..stages.evaluate import evaluate
from ..stages.kernels import cpu, reference
from ..storage.checkpoint import CheckpointStore
from ..storage.dataset import Dataset
from ..storage.errors import InputError
from ..storage.features import CountedFeatures
from ..storage.ledger import Ledger
from ..storage.queue import MemoryQueue, MinibatchQueue
from ..storage.queue_zarr import ZarrQueue
from .clock import Clock
from .config import Job
from .events import Emit, Note, StageAdvanced, StageEnded, StageStarted, silent
from .prepare import Prepared, configure, located, open_data, prepare, refuse_what_is_missing
from .rank import Progress, Trainer, train_rank
from .result import SECONDS, Result, peak_rss_bytes, versions, write_json
from .run_folder import CHECKPOINTS, JOB, METRICS, MODEL, RESULT, check_resumable, check_run_folder, held, is_held, write_whole
from .systems import System

KERNELS: dict[str, ModuleType] = {"cpu": cpu, "reference": reference}
EVALUATION_EVENT_S = 2.0
"""A long evaluation tells how far it is this often."""


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
    """The stored minibatches that a job trains from: all there, or still being written by a live process.

    Raises:
        StoreError: absent, damaged, or made from something else.
        InputError: minibatches of the epochs to train are not there yet.
    """
    job = prepared.job
    queue = ZarrQueue.open(samples, fingerprint=_of_samples(prepared))
    bulks = -(-_minibatches_per_epoch(prepared) // queue.bulk_size)
    lacking = next((e for e in range(job.epochs) if len(queue.committed(e)) < bulks), None)
    # A live producer that stops short of these epochs says so when it ends, and the queue then refuses what is missing.
    if lacking is None or is_held(samples):
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
    clock = Clock()
    if isinstance(model, Mapping | str) and not isinstance(config, Job):
        config = {**(config or {}), "model": {"name": model} if isinstance(model, str) else dict(model)}
        model = None
    job = config if isinstance(config, Job) else configure(config or {}, system=system, model=model, **options)
    if isinstance(config, Job) and options:
        raise InputError(f"options {sorted(options)} were given beside a resolved configuration; pass one or the other")
    folder = Path(out) if out is not None else Path("runs") / f"{job.system}-{datetime.now():%Y%m%d-%H%M%S-%f}"
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
            result = _run_inline(prepared, folder, queue, Path(samples) if samples is not None else None, told, stop, clock)
    if result.epochs > job.epochs:
        emit(Note(f"{result.epochs} epochs had been trained before; the {job.epochs} asked for are among them"))
    return result


def _run_inline(
    prepared: Prepared,
    out: Path,
    queue: MinibatchQueue,
    samples: Path | None,
    emit: Emit,
    stop: Callable[[], bool],
    clock: Clock,
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
        produce=samples is None,
        producer_alive=lambda: samples is None or is_held(samples),
    )

    counted = replace(dataset, features=CountedFeatures(dataset.features, ledger, "evaluation"))

    def score(module: nn.Module, split: str) -> float | None:
        said = time.monotonic()

        def advance(done: int, rows: int) -> None:
            nonlocal said
            if time.monotonic() - said >= EVALUATION_EVENT_S:
                said = time.monotonic()
                emit(StageAdvanced("evaluate", done, rows))

        return evaluate(module, counted, data.degree, (split,), scratch=out, on_progress=advance)[split]

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
