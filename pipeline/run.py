"""Run a job in this process or on a cluster: train, evaluate, and write the run's folder."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..stages.comm.solo import Solo
from ..stages.kernels.runtime.threads import set_num_threads
from ..storage.dataset import WITHOUT_ACCURACY, Dataset
from ..storage.errors import Interrupted
from ..storage.ledger import Ledger
from ..storage.optional import when_present
from ..storage.plural import counted
from ..storage.queue.base import MinibatchQueue
from ..storage.queue.seed_data import SampledDataset
from ..storage.store.digested_file import file_sha256
from ..storage.store.full_disk import needing_space
from ..storage.stored.learned_nodes import write_nodes
from .config.load import Job
from .config.named_code import allowing
from .config.systems import System
from .machine.deadline import checkpoints_in
from .ready import RunCall, ready_to_run
from .report.model_card import CARD, data_section, model_card
from .setup import run_folder
from .setup.open_queue import QueueEnd, is_being_written, lock_queue_folder, own_queue
from .setup.prepare import Prepared
from .setup.python_inputs import keep_inputs
from .setup.result import DATA_CARD, FILES, SECONDS, STOPPED, Result, by_class, versions, write_json
from .setup.simulated_clients import client_record, with_clients
from .telemetry.console import console_events
from .telemetry.control import Control
from .telemetry.events import Emit, Note
from .telemetry.heartbeat import Heartbeat
from .telemetry.metrics_file import finite, recorded
from .telemetry.run_log import RunLog, read_events
from .telemetry.timers import Clock
from .trackers.tracking import Tracking
from .training.context import Member
from .training.trainer import RankReport, reports_of_stopped, train_and_evaluate

OF_FIRST = ("test_accuracy", "confusion", "best_epoch", "waits", "phases", "lost", "parameters_sha256")
"""Fields that a result takes over from the first rank's report."""


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
    allow_code: str | Iterable[str] | None = None,
    **options: Any,
) -> Result:
    """Train a model, and evaluate the parameters of its best validation epoch on the test split.

    Args:
        dataset: a `Dataset`, or anything that `open_dataset` takes, such as a path or a PyG `Data`; by default the
            configuration's.
        system: a system such as ``bulk(NeighborSampler((15, 10, 5)))``, or its name.
        model: a model such as ``GraphSAGE(hidden=128, layers=3)``, its name, or your own module that follows the model
            protocol.
        loss: the name of a loss (``"huber"``), its options (``{"name": "focal", "gamma": 3}``, see ``train.loss``), or
            your own, ``loss(out, y)`` with one value for each seed.
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
        emit: called with every event except pulses and queue levels (all are in ``metrics.jsonl``); the run then prints
            nothing.
        stop: called between steps, and each second of a long evaluation; true ends the run with a checkpoint, from
            which `resume` continues.
        save: called between steps; true writes a checkpoint.
        config: a configuration, resolved or not.
        allow_code: names MODULE:NAME of your own code, such as a sampler, that the folder of a resumed run may name.
        options: configuration keys and their shorthands, such as ``epochs=3, lr=0.01, train={"batch_size": 512}``.

    Returns:
        The result, also written to ``out/result.json``; its `status` is ``stopped`` if `stop` ended the run.

    Raises:
        InputError: the data, model, system and configuration do not go together.
        RunError: the run failed; it can be resumed.
    """
    own = {"loss": loss, "optimizer": optimizer, "scheduler": scheduler, "metrics": metrics}
    call = RunCall(dataset, system, model, out=out, resume=resume, samples=samples, config=config, options=options)
    call = call.with_code(own, callbacks)
    with allowing(allow_code), console_events(emit, verbose) as tell:
        return _run(call, Control(tell, stop, save))


def _run(call: RunCall, control: Control) -> Result:
    clock, emit, resume, samples = Clock(), control.emit, call.resume, call.samples
    ready = ready_to_run(call, emit)
    job, folder, prepared, queue, module = ready.job, ready.folder, ready.prepared, ready.queue, ready.module
    with ExitStack() as stack:
        stack.enter_context(run_folder.locked(folder))
        stack.enter_context(lock_queue_folder(prepared, samples))
        stack.enter_context(needing_space(folder, " (with --resume, if training had begun)"))
        stack.enter_context(checkpoints_in(folder / run_folder.CHECKPOINTS))
        run_folder.check_run_folder(folder, resume)
        if resume:
            run_folder.check_resumable(folder, job, prepared.fingerprint, prepared.dataset, renew=True)
        run_folder.write_atomically(folder / run_folder.JOB, job.to_toml())
        if (card := prepared.dataset.card) is not None:
            more = {"notes": list(prepared.dataset.notes), "options": dict(prepared.dataset.read_as)}
            write_json(folder / DATA_CARD, {**card, **more, "weighted": prepared.dataset.graph.is_weighted})
        if job.learned.width and not isinstance(prepared.dataset, SampledDataset):
            write_nodes(folder / run_folder.NODES, prepared.dataset)
        keep_inputs(folder, job, ready.in_memory, module, prepared.fingerprint, call.code)
        if prepared.system.clients != "ranks":
            prepared = with_clients(prepared, folder)
        status = "done"
        tracking = stack.enter_context(Tracking(job.track, folder, job, resume, emit))
        with recorded(folder / run_folder.METRICS, emit, resume) as record, tracking.beside(record) as tell:
            for note in ready.notes:
                tell(Note(note))
            try:
                if job.executor == "dask":
                    from .supervision.rank_work import Training
                    from .supervision.supervisor import run_on_cluster

                    work = Training(prepared, samples, module)
                    reports = run_on_cluster(work, folder, replace(control, emit=tell))
                else:
                    with _threads(job.threads):
                        if queue is None and prepared.has_minibatches:
                            queue = own_queue(prepared, folder, lambda text: tell(Note(text)))
                        reports = [_run_inline(prepared, folder, queue, samples, replace(control, emit=tell), clock)]
            except Interrupted:
                status, reports = STOPPED, reports_of_stopped(prepared, folder)
        result = _result(prepared, reports, clock.snapshot()["total"], folder, status)
        write_json(folder / run_folder.RESULT, result.to_record())
        run_folder.write_atomically(folder / CARD, _card(result, prepared, folder))
        tracking.finish(result)
    if result.epochs > job.epochs * max(1, len(result.phases)):
        emit(Note(f"{counted(result.epochs, 'epoch')} had been trained before, more than the {job.epochs} asked for"))
    return result


def _run_inline(
    prepared: Prepared,
    out: Path,
    queue: MinibatchQueue | None,
    samples: str | Path | None,
    control: Control,
    clock: Clock,
) -> RankReport:
    ledger, produce = Ledger(), samples is None
    feed = QueueEnd(queue, produce, lambda: samples is None or is_being_written(samples))
    with Heartbeat(0, clock, ledger, queue if produce else None, control.emit) as heart:
        return train_and_evaluate(prepared, out, feed, Member(Solo(), ledger, clock), replace(control, emit=heart))


def _card(result: Result, prepared: Prepared, folder: Path) -> str:
    """The model card of a run whose model is written."""
    state = torch.load(folder / run_folder.MODEL, weights_only=True)
    numbers = sum(value.numel() for value in state.values())
    job = prepared.job.model_dump(mode="json")
    text = model_card(result.to_record(), job, prepared.outline.splits, numbers, prepared.update.code.names)
    return text + data_section(prepared.dataset.card, prepared.dataset.notes)


def peaks_of(reports: Sequence[RankReport], log: RunLog) -> list[int]:
    """Largest resident size of each rank's processes: of the last one, and by its pulses of those before a restart."""
    before = {rank: int(max(found.beats["rss_bytes"], default=0)) for rank, found in log.ranks.items()}
    return [max(r.peak_rss_bytes, before.get(r.rank, 0)) for r in reports]


def _result(prepared: Prepared, reports: Sequence[RankReport], total_s: float, out: Path, status: str) -> Result:
    job, dataset, first = prepared.job, prepared.dataset, reports[0]
    seconds: dict[str, Any] = {name: max(r.seconds.get(name, 0.0) for r in reports) for name in SECONDS}
    seconds["total"] = max(seconds["total"], total_s)
    log = read_events(out / run_folder.METRICS)
    # Tasks, of runs that this one goes on with too.
    seconds["sample"] = max(seconds["sample"], log.sampled["seconds"])
    seconds["per_epoch"] = [h["seconds"] for h in first.history]
    moved = Ledger()
    for r in reports:
        moved.merge(r.bytes)
    return Result(
        **{name: getattr(first, name) for name in OF_FIRST},
        status=status,
        system=prepared.system.name,
        model=prepared.model.name,
        dataset=dataset.name,
        num_nodes=dataset.num_nodes,
        num_edges=dataset.graph.num_edges,
        num_features=dataset.num_features,
        num_classes=prepared.outline.num_classes,
        task=dataset.task,
        class_names=when_present(list, dataset.class_names),
        device=job.device,
        dtype=job.dtype,
        ranks=job.ranks,
        epochs=len(first.history),
        seed=job.seed,
        minibatches_per_step=job.train.per_step(job.ranks),
        train_loss=finite(first.history[-1]["train_loss"]) if first.history else None,
        val_accuracy=first.best_accuracy if first.best_epoch >= 0 and dataset.task not in WITHOUT_ACCURACY else None,
        val_metrics={k: finite(v) for k, v in first.val_metrics.items()},
        test_metrics={k: finite(v) for k, v in first.test_metrics.items()},
        per_class=by_class(first.per_class),
        per_relation={r: {k: finite(v) for k, v in of.items()} for r, of in first.by_relation.items()} or None,
        seconds=seconds,
        bytes={**moved.as_record(), "per_rank": [r.bytes for r in reports]},
        peak_rss_bytes=peaks_of(reports, log),
        memory_bytes=[r.memory_bytes for r in reports],
        hot_rows=[r.fetched for r in reports] if first.fetched else None,
        peak_device_bytes=[r.peak_device_bytes for r in reports],
        minibatches=sum(r.minibatches for r in reports),
        sampled_edges=sum(r.sampled_edges for r in reports),
        clients=None
        if prepared.system.clients == "ranks" or status == STOPPED
        else client_record(prepared, out, first.phases),
        fingerprint=prepared.fingerprint,
        out=str(out),
        types=prepared.outline.types,
        num_edge_features=prepared.outline.edge_width if prepared.model.reads_edges else 0,
        labels_of="edges" if prepared.outline.row_width else "nodes",
        num_pair_features=prepared.outline.pair_width,
        files_sha256={n: file_sha256(out / n) for n in FILES if (out / n).is_file()},
        versions=versions(),
    )
