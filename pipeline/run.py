"""Run a job in this process or on a cluster: train, evaluate, and write the run's folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..stages.comm.solo import Solo
from ..stages.kernels.runtime.threads import set_num_threads
from ..stages.partition.clustered import Clustered
from ..storage.dataset import Dataset
from ..storage.errors import InputError, Interrupted
from ..storage.ledger import Ledger
from ..storage.plural import counted
from ..storage.queue.base import MinibatchQueue
from .config.load import Job, check_no_secrets, read_toml
from .config.model_table import with_model
from .config.systems import System
from .custom.own_code import OwnCode, own_code, split_options
from .interop.model_argument import as_record_or_module
from .machine.compilers import check_compiler
from .setup.checks import check_available, check_matmul_precision
from .setup.configure import configure
from .setup.open_data import absolute_source, open_data, opened_from_python
from .setup.open_queue import check_samples, is_being_written, lock_queue_folder, open_samples, own_queue
from .setup.prepare import Prepared, prepare
from .setup.python_inputs import (
    check_code_given,
    check_module_importable,
    check_same_data,
    job_for_dataset,
    keep_inputs,
    with_kept_dataset,
)
from .setup.result import SECONDS, STOPPED, Result, by_class, versions, write_json
from .setup.resume import without_executor
from .setup.run_folder import (
    JOB,
    METRICS,
    RESULT,
    check_resumable,
    check_run_folder,
    local_folder,
    locked,
    write_atomically,
)
from .setup.simulated_clients import check_owners, client_record, with_clients
from .telemetry.console import heard
from .telemetry.events import Emit, Note
from .telemetry.heartbeat import Heartbeat
from .telemetry.metrics_file import finite, recorded
from .telemetry.timers import Clock
from .training.stopped_run import reports_of_stopped
from .training.trainer import RankReport, train_and_evaluate


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    # Set explicitly: a sampling thread may ask torch while a matrix product occupies all of torch's threads
    # (`stages.nn.dense`).
    set_num_threads(torch.get_num_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)
        set_num_threads(None)


def run(
    dataset: Dataset | str | Path | object | None = None,
    *,
    system: System | str | None = None,
    model: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    samples: str | Path | None = None,
    verbose: bool = True,
    emit: Emit | None = None,
    stop: Callable[[], bool] = lambda: False,
    save: Callable[[], bool] = lambda: False,
    config: Job | Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Train a model, and evaluate the parameters of its best validation epoch on the test split.

    Args:
        dataset: a `Dataset`, or anything that `open_dataset` takes, such as a path or a PyG `Data`; by default the
            configuration's.
        system: a system such as ``bulk(NeighborSampler((15, 10, 5)))``, or its name.
        model: a model such as ``GraphSAGE(hidden=128, layers=3)``, its name, or your own module that follows the model
            protocol.
        loss: your own, ``loss(out, y)`` with one value for each seed, in place of cross entropy; such as
            ``torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)``.
        optimizer: a function of the parameters that makes an optimiser, or the name of one of torch's.
        scheduler: a function of the optimiser that makes one of ``torch.optim.lr_scheduler``, which steps after each
            epoch; for each step, ``(scheduler, "step")``. The address of a Dask scheduler is taken for
            ``cluster.scheduler``.
        metrics: your own, functions of all outputs and labels of a split, in a list or by name; names of built-in ones
            are ``train.metrics``.
        callbacks: objects such as `Callback`, which the run calls at its events on every rank. Code may also be given
            by its name, ``"my.losses:focal"``.
        out: the run's folder; by default a new one under ``runs/``.
        resume: continue from the last checkpoint in `out`. Without `config`, keys that are not given keep the values
            that the run was started with.
        samples: a store of sampled minibatches to train from.
        verbose: print notes and progress, as the command line does.
        emit: called with every event except pulses, which are in ``metrics.jsonl``; nothing is printed then.
        stop: called between steps; true ends the run with a checkpoint, from which `resume` continues.
        save: called between steps; true writes a checkpoint.
        config: a configuration, resolved or not.
        options: configuration keys and their shorthands, such as ``epochs=3, lr=0.01, train={"batch_size": 512}``.

    Returns:
        The result, also written to ``out/result.json``; its `status` is ``stopped`` if `stop` ended the run.

    Raises:
        InputError: the data, model, system and configuration do not go together.
        RunError: the run failed; it can be resumed.
    """
    optimizer, scheduler, metrics, options = split_options(optimizer, scheduler, metrics, options)
    code = own_code(loss=loss, optimizer=optimizer, scheduler=scheduler, metrics=metrics, callbacks=callbacks)
    with heard(emit, verbose) as message:
        return _run(dataset, system, model, code, out, resume, samples, message, stop, save, config, options)


def _run(
    dataset: Dataset | str | Path | object | None,
    system: System | str | None,
    model: Any,
    code: OwnCode,
    out: str | Path | None,
    resume: bool,
    samples: str | Path | None,
    emit: Emit,
    stop: Callable[[], bool],
    save: Callable[[], bool],
    config: Job | Mapping[str, Any] | None,
    options: dict[str, Any],
) -> Result:
    clock = Clock()
    job, model = _configured(dataset, system, model, out, resume, config, options)
    folder = local_folder(out) if out is not None else Path("runs") / f"{job.system}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    _check_machine(job)
    check_run_folder(folder, resume)
    source, dataset = dataset, opened_from_python(job, dataset, emit)
    untold = dataset.notes if isinstance(dataset, Dataset) and dataset is source else ()
    module = model if isinstance(model, nn.Module) else None
    if resume and module is None:
        check_module_importable(folder, f'mr.run(..., out="{folder}", resume=True, model=...)')
    if resume:
        check_code_given(folder, code)
    in_memory = dataset if isinstance(dataset, Dataset) else None
    job, dataset = _opened(job, dataset, folder, resume, emit)
    # A name is in the job.
    prepared = prepare(job, dataset, system=None if isinstance(system, str) else system, model=model, code=code)
    queue = _checked(prepared, samples, folder, resume)
    with locked(folder), lock_queue_folder(prepared, samples):
        check_run_folder(folder, resume)
        if resume:
            check_resumable(folder, job, prepared.fingerprint)
        write_atomically(folder / JOB, job.to_toml())
        keep_inputs(folder, job, in_memory, module, prepared.fingerprint, code)
        if prepared.system.clients != "ranks":
            prepared = with_clients(prepared, folder)
        status = "done"
        with recorded(folder / METRICS, emit, resume) as message:
            for note in untold:
                message(Note(note))
            try:
                if job.executor == "dask":
                    from .supervision.supervisor import run_on_cluster

                    reports = run_on_cluster(prepared, folder, samples, module, message, stop, save)
                else:
                    with _threads(job.threads):
                        if queue is None and prepared.has_minibatches:
                            queue = own_queue(prepared, folder, lambda text: message(Note(text)))
                        reports = [_run_inline(prepared, folder, queue, samples, message, stop, save, clock)]
            except Interrupted:
                status, reports = STOPPED, reports_of_stopped(prepared, folder)
        result = _result(prepared, reports, clock.snapshot()["total"], folder, status)
        write_json(folder / RESULT, result.to_record())
    if result.epochs > job.epochs * max(1, len(result.phases)):
        emit(Note(f"{counted(result.epochs, 'epoch')} had been trained before, more than the {job.epochs} asked for"))
    return result


def _configured(
    dataset: object,
    system: System | str | None,
    model: Any,
    out: str | Path | None,
    resume: bool,
    config: Job | Mapping[str, Any] | None,
    options: dict[str, Any],
) -> tuple[Job, Any]:
    """The resolved configuration, and a model that it cannot name."""
    if resume and config is None:
        config = _started_config(out, dataset)
    if isinstance(model, Mapping | str) and not isinstance(config, Job):
        config = {**(config or {}), "model": with_model((config or {}).get("model"), model)}
        model = None
    model = as_record_or_module(model)
    if resume and isinstance(config, Mapping) and "executor" not in options:
        config = without_executor({**config, **{k: v for k, v in options.items() if k == "ranks"}})
    job = config if isinstance(config, Job) else configure(config or {}, system=system, model=model, **options)
    given = [*sorted(options), *(["system"] if isinstance(system, str) else [])]
    if isinstance(config, Job) and given:
        raise InputError(f"options {given} were given beside a resolved configuration; pass one or the other")
    return job, model


def _check_machine(job: Job) -> None:
    """Check that this machine, or the cluster, has what the job asks for."""
    check_available(job)
    if job.executor == "dask":
        from .cluster.dask_cluster import check_reachable
        from .machine.gpus import check_cluster

        # Checked in the driver only: ranks and workers prepare the same job, but may lack the driver's certificate and
        # see other GPUs.
        check_cluster(job)
        check_reachable(job.cluster)
    else:
        # On a cluster, ranks check their own processors and machines.
        check_matmul_precision(job)
        check_compiler(job)


def _opened(
    job: Job, dataset: Dataset | str | Path | None, folder: Path, resume: bool, emit: Emit
) -> tuple[Job, Dataset]:
    """The dataset, and the job with paths that are found from any working folder."""
    if isinstance(dataset, Dataset):
        job = job_for_dataset(job, dataset, folder)
    else:
        job = job.model_copy(
            update={"dataset": absolute_source(dataset or (with_kept_dataset(job, folder) if resume else job).dataset)}
        )
    check_no_secrets({"dataset": dataset.name if isinstance(dataset, Dataset) else job.dataset})
    if job.start_from is not None:
        job = job.model_copy(update={"start_from": str(Path(job.start_from).expanduser().resolve())})
    if (owners := job.partition.owners) is not None:
        partition = job.partition.model_copy(update={"owners": str(Path(owners).expanduser().resolve())})
        job = job.model_copy(update={"partition": partition})
    if not isinstance(dataset, Dataset):
        try:
            dataset = open_data(job, dataset, emit)
        except InputError:
            if resume:
                check_same_data(folder, job.dataset, None)
            raise
    dataset.check()
    return job, dataset


def _checked(prepared: Prepared, samples: str | Path | None, folder: Path, resume: bool) -> MinibatchQueue | None:
    """Refuse impossible jobs before anything is written. Returns the queue that exists by now, if there is one."""
    check_samples(prepared, samples)
    check_owners(prepared)
    if not resume and isinstance(cut := prepared.system.partition.partitioner, Clustered):
        cut.check_available()
    if not prepared.outline.splits["train"]:
        raise InputError("the train split is empty: there is nothing to train on; choose another split")
    if samples is not None:
        return open_samples(prepared, samples)
    in_memory = prepared.job.queue.kind == "memory" and prepared.has_minibatches
    return own_queue(prepared, folder) if in_memory else None


def _started_config(out: str | Path | None, dataset: object) -> dict[str, Any]:
    """The configuration that a run was started with, for resuming it."""
    if out is None:
        raise InputError("resume needs the folder of the run to go on with: mr.run(..., out=FOLDER, resume=True)")
    folder = local_folder(out).expanduser()
    check_run_folder(folder, resume=True)
    table = read_toml(folder / JOB)
    # Data given from Python is in memory now; the folder's store of it is not read.
    in_memory = not isinstance(dataset, str | Path | None) and table.get("features") != "owned"
    return {k: v for k, v in table.items() if not (k == "features" and in_memory)}


def _run_inline(
    prepared: Prepared,
    out: Path,
    queue: MinibatchQueue | None,
    samples: str | Path | None,
    emit: Emit,
    stop: Callable[[], bool],
    save: Callable[[], bool],
    clock: Clock,
) -> RankReport:
    ledger, produce = Ledger(), samples is None
    with Heartbeat(0, clock, ledger, queue if produce else None, emit) as heart:
        return train_and_evaluate(
            prepared,
            out,
            queue,
            group=Solo(),
            ledger=ledger,
            produce=produce,
            producer_alive=lambda: samples is None or is_being_written(samples),
            emit=heart,
            stop=stop,
            save=save,
            clock=clock,
        )


def _result(prepared: Prepared, reports: Sequence[RankReport], total_s: float, out: Path, status: str) -> Result:
    job, dataset, first = prepared.job, prepared.dataset, reports[0]
    seconds: dict[str, Any] = {name: max(r.seconds.get(name, 0.0) for r in reports) for name in SECONDS}
    seconds["total"] = max(seconds["total"], total_s)
    seconds["per_epoch"] = [h["seconds"] for h in first.history]
    moved = Ledger()
    for r in reports:
        moved.merge(r.bytes)
    return Result(
        status=status,
        system=prepared.system.name,
        model=prepared.model_name,
        dataset=dataset.name,
        num_nodes=dataset.num_nodes,
        num_edges=dataset.graph.num_edges,
        num_features=dataset.features.num_features,
        num_classes=dataset.num_classes,
        task=dataset.task,
        class_names=None if dataset.class_names is None else list(dataset.class_names),
        device=job.device,
        dtype=job.dtype,
        ranks=job.ranks,
        epochs=len(first.history),
        seed=job.seed,
        minibatches_per_step=job.train.per_step(job.ranks),
        train_loss=finite(first.history[-1]["train_loss"]) if first.history else None,
        val_accuracy=first.best_accuracy if first.best_epoch >= 0 else None,
        test_accuracy=first.test_accuracy,
        val_metrics={k: finite(v) for k, v in first.val_metrics.items()},
        test_metrics={k: finite(v) for k, v in first.test_metrics.items()},
        per_class=by_class(first.per_class),
        confusion=first.confusion,
        best_epoch=first.best_epoch,
        seconds=seconds,
        bytes={**moved.as_record(), "per_rank": [r.bytes for r in reports]},
        waits=first.waits,
        peak_rss_bytes=[r.peak_rss_bytes for r in reports],
        memory_bytes=[r.memory_bytes for r in reports],
        hot_rows=[r.fetched for r in reports] if first.fetched else None,
        peak_device_bytes=[r.peak_device_bytes for r in reports],
        minibatches=sum(r.minibatches for r in reports),
        sampled_edges=sum(r.sampled_edges for r in reports),
        phases=first.phases,
        lost=first.lost,
        clients=None
        if prepared.system.clients == "ranks" or status == STOPPED
        else client_record(prepared, out, first.phases),
        fingerprint=prepared.fingerprint,
        parameters_sha256=first.parameters_sha256,
        out=str(out),
        versions=versions(),
    )
