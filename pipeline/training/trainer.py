"""One rank's part in a run: train, evaluate the test split, and, as the first rank, save the model.

Every executor calls `train_and_evaluate` once in each rank, with what differs between them: the group, the queue, and
who fills it. Of a run that was stopped early, the driver makes the reports from its last checkpoint.
"""

import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...stages.comm.base import Group
from ...stages.evaluate.measures import Measures, Scored
from ...stages.kernels import sampling_backend
from ...stages.memory.arena import give_back
from ...stages.messages import Part, Phase, PlacedData, Placement, RankJob, Validation
from ...stages.models.base import reads_loops
from ...stages.placement.base import PartitionPolicy
from ...storage.checkpoint import CheckpointStore
from ...storage.errors import Interrupted, ShortHandedError
from ...storage.fingerprint import digest_record
from ...storage.ledger import Ledger
from ...storage.optional import present_items
from ...storage.store.full_disk import whole_file
from ...storage.store.scratch import Arrays
from ..assembly.parts import arrays_at
from ..config.systems import System
from ..custom.callback import Callbacks, RunView
from ..machine.compilers import check_compiler
from ..setup.checks import check_matmul_precision
from ..setup.device_policies import on_device, ready_device
from ..setup.model import TORCH_DTYPES
from ..setup.open_queue import QueueEnd
from ..setup.prepare import Prepared
from ..setup.result import peak_device_bytes, peak_rss_bytes
from ..setup.run_folder import CHECKPOINTS, LEARNED, MODEL
from ..telemetry.control import Control
from ..telemetry.events import Emit, Note, StageEnded, StageStarted, during
from .checkpointing import on_host
from .context import Member, RankControl, TrainContext
from .evaluation import EvaluationProgress, Score, scores
from .learned_rows import save_rows, with_all_rows, with_learned
from .loop import train_rank
from .progress import Progress

SAME = ("history", "best_accuracy", "best_epoch", "phases", "lost")
"""Fields that a report takes over from the rank's progress."""


@dataclass(frozen=True)
class RankReport:
    """Report of a rank that is done. Its values are plain, since they may come from another process."""

    rank: int
    history: list[dict[str, float]]
    best_accuracy: float
    best_epoch: int
    minibatches: int
    """Minibatches of this rank since the last checkpoint; those of all ranks up to it are the first rank's."""
    sampled_edges: int
    seconds: dict[str, float]
    bytes: dict[str, dict[str, int]]
    waits: dict[str, dict[str, int]]
    """Messages that were waited for one after the other, by channel and kind."""
    parameters_sha256: str
    """After the last step; the same on every rank."""
    phases: list[dict[str, Any]]
    """See `progress.Progress.phases`."""
    lost: list[dict[str, int]]
    """See `progress.Progress.lost`."""
    val_metrics: dict[str, float]
    """Further metrics of the best validation."""
    peak_rss_bytes: int = 0
    peak_device_bytes: int = 0
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """See `progress.Progress.memory_bytes`."""
    fetched: dict[str, int] = field(default_factory=dict)
    """See `progress.Progress.fetched`."""
    test_accuracy: float | None = None
    """Test accuracy of the best parameters."""
    test_metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics of the test."""
    per_class: list[list[float]] | None = None
    """See `measures.Counts`; on the first rank only."""
    confusion: list[list[int]] | None = None
    """See `measures.Counts`; on the first rank only."""
    by_relation: dict[str, dict[str, float]] = field(default_factory=dict)
    """See `measures.Scored`; on the first rank only."""


def parameters_sha256(module: nn.Module) -> str:
    """Digest of all parameters and buffers, in the order of the module's state."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train_and_evaluate(prepared: Prepared, out: Path, feed: QueueEnd, member: Member, control: Control) -> RankReport:
    """Train this rank's share, from the last checkpoint in `out` if there is one.

    Args:
        prepared: the job with its data; the same on every rank.
        out: the run's folder, which every rank sees.
        feed: where minibatches come from; its queue is closed in the end.
        member: the rank.
        control: takes this rank's events; `stop` is asked in long evaluations too, until it has said so once.

    Raises:
        InputError: this processor, or this machine, lacks what the job wants.
        Interrupted: `stop` said so on some rank; the checkpoint is written.
        ShortHandedError: ranks were lost, and the phase has ended without them; likewise.
        RunError: a stage failed; the last checkpoint is intact.
    """
    emit, stop, group = control.emit, _once(control.stop), member.group
    check_matmul_precision(prepared.job)
    check_compiler(prepared.job)
    device = ready_device(prepared.job)
    model = prepared.model.build()
    if device is not None:
        model = model.to(device)
    rank_job = replace(
        rank_job_of(prepared, out, feed, member, model), device=device, tell=lambda text: emit(Note(text))
    )
    # pyrefly: ignore[bad-argument-type]
    system = replace(prepared.system, partition=PlacedOnce(prepared.system.partition))
    prepared, system, rank_job = with_learned(prepared, system, rank_job)
    if device is not None:
        system, rank_job = on_device(system, rank_job, prepared.job)
    # Several ranks agree on a stop at their steps.
    progress_of = partial(EvaluationProgress, emit, stop if group.size == 1 else lambda: False)
    score = with_all_rows(scores(prepared, system, model, rank_job, out, progress_of), prepared, rank_job, out)
    with callbacks_of(prepared, group, model, out, emit) as callbacks:
        rank_control = RankControl(emit, stop, control.save, callbacks, member.clock)
        context = replace(_context_of(prepared, system, rank_job, model, score), control=rank_control)
        progress = _train(context, prepared.model.name)
        sha256 = parameters_sha256(model)
        if progress.best_state:
            model.load_state_dict(progress.best_state)
            if rank_job.learned is not None:
                rank_job.learned.use_best()
        testing = StageStarted("evaluate", "evaluating the test split over full neighbourhoods")
        with during(testing, emit), member.clock.measure("evaluate"):
            test = score(model, "test")
        if rank_job.learned is not None:
            rank_job.learned.write(out / LEARNED)
        if group.rank == 0:
            save_model(out / MODEL, model)
        if test is not None:
            callbacks.run.metrics |= {
                f"test_{k}": v for k, v in present_items({"accuracy": test.accuracy, **test.values}).items()
            }
    return report_of(progress, member, sha256, test)


def _once(stop: Callable[[], bool]) -> Callable[[], bool]:
    """True from the first time on that `stop` is."""
    asked = False

    def has_stopped() -> bool:
        nonlocal asked
        asked = asked or stop()
        return asked

    return has_stopped


@contextmanager
def callbacks_of(prepared: Prepared, group: Group, model: nn.Module, out: Path, emit: Emit) -> Iterator[Callbacks]:
    """The callbacks of a run, which learn of its end however that comes."""
    given, job = prepared.update.code.callbacks, prepared.job
    epochs = prepared.system.schedule.phases(job.epochs, model)[-1].last_epoch
    run = RunView(rank=group.rank, ranks=group.size, model=model, config=job, folder=out, epochs=epochs, emit=emit)
    callbacks, ended = Callbacks(given, run), "failed"
    try:
        yield callbacks
        ended = "done"
    except (Interrupted, ShortHandedError):
        ended = "stopped"
        raise
    finally:
        run.status = ended
        callbacks.call("end")


def rank_job_of(prepared: Prepared, out: Path, feed: QueueEnd, member: Member, model: nn.Module) -> RankJob:
    """Everything that policies may know of the run, on the host."""
    job, queue, group = prepared.job, feed.queue, member.group
    return RankJob(
        seed=job.seed_of("minibatches"),
        batch_size=job.train.batch_size,
        bulk_size=job.queue.bulk_size if queue is None else queue.bulk_size,
        epochs=job.epochs,
        dtype=TORCH_DTYPES[job.dtype],
        kernel=sampling_backend(job.kernel),
        group=group,
        ledger=member.ledger,
        queue=queue,
        packed=None if queue is None else queue.packed,
        produce=feed.produce,
        minibatches_per_step=job.train.per_step(group.size),
        producer_alive=feed.producer_alive,
        # pyrefly: ignore[bad-argument-type]
        num_layers=int(model.num_layers),
        folder=out,
        generation=member.generation,
        fingerprint=digest_record(prepared.fingerprint),
        needs_all_rows=any(isinstance(m, _BatchNorm) for m in model.modules()),
        reads_loops=reads_loops(model),
        measures=prepared.update.measures,
        arrays=arrays_at(job.graph, job.features, out) if isinstance(prepared.data, Part) else Arrays(),
    )


def _context_of(prepared: Prepared, system: System, rank_job: RankJob, model: nn.Module, score: Score) -> TrainContext:
    """Everything that this rank needs to train."""
    measures: Measures = rank_job.measures

    def validate(module: nn.Module) -> Validation:
        return measures.validation(score(module, "val") or Scored(0.0, dict.fromkeys(measures.all_names, 0.0)))

    assert rank_job.folder is not None
    folder, keep = rank_job.folder / CHECKPOINTS, prepared.job.checkpoint.keep
    return TrainContext(
        system,
        rank_job,
        prepared.data,
        model,
        prepared.update,
        CheckpointStore(folder, prepared.fingerprint, keep=keep, read_only=rank_job.group.rank > 0),
        validate=validate if prepared.outline.splits["val"] else None,
    )


def _train(context: TrainContext, name: str) -> Progress:
    """Train all phases of the model of that name, and close the queue."""
    emit, queue, clock = context.control.emit, context.job.queue, context.control.clock
    emit(StageStarted("train", f"training {name} with {context.system.name}", context.total_epochs))
    try:
        with clock.measure("train"):
            progress = train_rank(context)
    finally:
        if queue is not None:
            queue.close()
    emit(StageEnded("train", clock.seconds["train"]))
    # The loop's arena is part of a cycle.
    gc.collect()
    give_back()
    return progress


def report_of(progress: Progress, member: Member, sha256: str, test: Scored | None) -> RankReport:
    """Report of a rank that is done."""
    rank = member.group.rank
    found = Scored(None, {}) if test is None else test
    counts = found.counts if rank == 0 else None
    pooled = progress.pooled if rank == 0 else dict.fromkeys(progress.pooled, 0)
    return RankReport(
        rank=rank,
        **{name: getattr(progress, name) for name in (*SAME, "memory_bytes", "fetched")},
        minibatches=progress.minibatches + pooled["minibatches"],
        sampled_edges=progress.sampled_edges + pooled["sampled_edges"],
        seconds=member.clock.snapshot(),
        bytes=member.ledger.as_record(),
        waits=member.ledger.waits(),
        peak_rss_bytes=peak_rss_bytes(),
        peak_device_bytes=peak_device_bytes(),
        parameters_sha256=sha256,
        test_accuracy=found.accuracy,
        val_metrics=progress.best_values,
        test_metrics=dict(found.values),
        per_class=None if counts is None else counts.per_class.tolist(),
        confusion=None if counts is None or counts.confusion is None else counts.confusion.long().tolist(),
        by_relation={name: dict(of) for name, of in found.by_relation.items()},
    )


class PlacedOnce:
    """A partition policy that places the data of each phase once, for training and evaluation."""

    def __init__(self, policy: PartitionPolicy) -> None:
        self._policy = policy
        self._placed: tuple[int, PlacedData] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: object = None) -> PlacedData:
        if self._placed is None or (self._policy.changes and self._placed[0] != phase.number):
            self._placed = phase.number, self._policy.place(data, phase, job, self._placed and self._placed[1])
        return self._placed[1]


def save_model(path: Path, model: nn.Module) -> None:
    """Write the parameters of a model, whole or not at all."""
    # torch hides the system's error of a file that it opens itself.
    with whole_file(path) as aside, aside.open("wb") as file:
        torch.save(on_host(model.state_dict()), file)


def reports_of_stopped(prepared: Prepared, out: Path) -> list[RankReport]:
    """Report of each rank at the checkpoint that was written when the run was stopped. Nothing is evaluated, and the
    memory of the processes is unknown. The best parameters so far, or their average
    where none were validated, become the run's model.

    Raises:
        Interrupted: there is no checkpoint.
    """
    found = CheckpointStore(out / CHECKPOINTS, prepared.fingerprint, read_only=True).latest()
    if found is None:
        raise Interrupted(
            f"{out} was stopped before its first checkpoint; run the same command with --resume to begin again"
        )
    state: dict[str, Any] = found[1]
    progress = state["progress"]
    model = prepared.model.build()
    model.load_state_dict(state["model"])
    sha256 = parameters_sha256(model)
    if progress["best_epoch"] >= 0:
        model.load_state_dict(progress["best_state"])
    elif "average" in state:
        schedule = prepared.system.schedule
        phases = schedule.phases(prepared.job.epochs, model)
        module = schedule.begin(phases[min(found[0].phase, len(phases) - 1)], model)
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(state["average"].get(name, p))
    if "learned" in state:
        found_best = progress["best_epoch"] >= 0
        save_rows(out / LEARNED, state["learned"]["best" if found_best else "rows"])
    save_model(out / MODEL, model)
    reports = []
    for rank, counts in enumerate(state["ledgers"]):
        ledger = Ledger()
        ledger.restore(counts)
        reports.append(
            RankReport(
                rank=rank,
                **{name: progress[name] for name in SAME},
                # The checkpoint has those of all ranks.
                minibatches=0 if rank else progress["minibatches"],
                sampled_edges=0 if rank else progress["sampled_edges"],
                seconds=state["seconds"],
                bytes=ledger.as_record(),
                waits=ledger.waits(),
                parameters_sha256=sha256,
                val_metrics=progress.get("best_values", {}),
            )
        )
    return reports
