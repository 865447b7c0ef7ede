"""The training loop of one rank. It calls the five policies of a system and never asks which system it is."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...stages.comm.base import Group
from ...stages.kernels.runtime.threads import one_torch_thread
from ...stages.memory.arena import Arena, reusing
from ...stages.memory.meter import TensorBytes
from ...stages.messages import Fetched, Part, Phase, PlacedData, Placement, RankJob, StepRules, Validation
from ...stages.models.compiled import Compiled
from ...stages.policies import Feed, Fetcher, FetchesAhead, PeeksAhead, PhaseFetcher, RecordsSteps
from ...stages.reduce.seed_weighted import SeedWeightedMean
from ...stages.train import begin
from ...storage.checkpoint import CheckpointStore, Cursor
from ...storage.errors import InputError, RunError
from ..config.schema import CheckpointEvery, Train
from ..config.systems import System
from ..setup.result import peak_device_bytes
from ..setup.resume import Pace, dealt
from ..telemetry.events import Emit, EpochDone, Note, StepDone
from ..telemetry.timers import Clock
from .async_losses import StepLosses

Validate = Callable[[nn.Module], float]
"""Validation accuracy of a model, exact. All ranks ask at the same time and get the same answer."""
POOLED = ("loss_sum", "loss_seeds", "minibatches", "sampled_edges")
"""What `Progress` counts on each rank by itself; a checkpoint holds the sums."""
COUNTED = ("minibatches", "sampled_edges")
"""Those of the whole run; the others are of the epoch under way, and handed over to the first rank at a checkpoint."""
KEPT_OUT = ("cursor", "memory_bytes", "fetched", "pooled", "ledgers")
"""What a checkpoint does not hold of `Progress`, or holds elsewhere."""

WORTH_TELLING_BYTES = 256 << 20


class Interrupted(RunError):  # noqa: N818 - a request, not an error
    """The user asked to stop; a checkpoint was written."""

    exit_code = 130


class ShortHandedError(RunError):
    """Ranks were lost, and a phase has ended without them; a checkpoint was written, from which all can go on."""


@dataclass
class Progress:
    """The state of a run between two steps; with the model and the optimiser, all that a resumed run needs."""

    cursor: Cursor = field(default_factory=lambda: Cursor(0, 0))
    best_merit: float = -math.inf
    """Of the phase under way, where phases have a best epoch each; likewise what follows."""
    best_accuracy: float = -1.0
    best_epoch: int = -1
    best_state: dict[str, Any] = field(default_factory=dict)
    since_best: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    """One record an epoch."""
    phases: list[dict[str, Any]] = field(default_factory=list)
    """One record for each phase that is finished and had something to tell."""
    lost: list[dict[str, int]] = field(default_factory=list)
    """One record for each rank that was lost and gone on without: see `result.Result.lost`."""
    unvalidated: bool = False
    """Whether the last epoch's parameters are still to be validated, which needs all ranks."""
    loss_sum: float = 0.0
    """Of the epoch under way, over all ranks' seeds so far."""
    loss_seeds: float = 0.0
    epoch_seconds: float = 0.0
    minibatches: int = 0
    sampled_edges: int = 0
    fetched: dict[str, int] = field(default_factory=dict)
    """What `FetchesAhead.hit_counts` says, of this life of the run."""
    pooled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    """What all ranks together had counted by the last checkpoint, the same on every rank, for any of them may be
    lost."""
    ledgers: list[list[int]] = field(default_factory=list)
    """Of each rank, at the last checkpoint."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Of this process: the graph, all features wherever they lie, and the buffers of a step."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """Everything that one rank needs to train."""

    system: System
    job: RankJob
    data: Placement | Part
    task: Any
    model: nn.Module
    train: Train
    checkpoints: CheckpointStore | None
    """Read by every rank, written by the first that is there."""
    checkpoint_every: CheckpointEvery
    validate: Validate | None
    emit: Emit
    stop: Callable[[], bool]
    """Asked between steps; true ends the run with a checkpoint."""
    check: bool = False
    save: Callable[[], bool] = lambda: False
    """Asked between steps; true writes a checkpoint, once."""

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser, as the configuration has it."""
        kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        # On a GPU one launch for all parameters, not several for each.
        fused = {"fused": True} if parameters[0].is_cuda else {}
        return kinds[self.train.optimizer](parameters, lr=self.train.lr, weight_decay=self.train.weight_decay, **fused)

    @property
    def rules(self) -> StepRules:
        """How a piece of work is trained on."""
        return StepRules(self.job.seed, self.task, self.train.matmul_precision, self.job.group, self.optimizer)


def train_rank(trainer: Trainer, clock: Clock) -> Progress:
    """Train through all phases, from the last checkpoint if there is one.

    Returns:
        The final state; the model holds the parameters of the last step.

    Raises:
        Interrupted: `trainer.stop` said so; the checkpoint is written.
        ShortHandedError: ranks were lost, and the phase has ended without them; likewise.
        RunError: a stage failed; the last checkpoint is intact.
    """
    progress = Progress()
    resumed = trainer.checkpoints.latest() if trainer.checkpoints else None
    state = optimizer_state = None
    if resumed is not None:
        progress.cursor, state = resumed
        trainer.model.load_state_dict(state["model"])
        optimizer_state = state["optimizer"]
        # Checkpoints of earlier versions know no merit but the accuracy.
        for name, value in {"best_merit": state["progress"]["best_accuracy"], **state["progress"]}.items():
            if name in COUNTED:
                progress.pooled[name] = value
            else:
                setattr(progress, name, 0.0 if name in POOLED and trainer.job.group.rank else value)
        progress.ledgers = dealt(state["ledgers"], trainer.job.group.size)
        trainer.job.ledger.restore(progress.ledgers[trainer.job.group.rank])
        for name, seconds in state["seconds"].items():
            clock.add(name, seconds)
        if trainer.job.group.rank == 0:  # all are alike
            trainer.emit(Note(f"resumed at phase {progress.cursor.phase}, step {progress.cursor.step}"))
    phases = trainer.system.schedule.phases(trainer.job.epochs, trainer.model)
    placement: PlacedData | None = None
    epochs = max(p.last_epoch for p in phases)
    for phase in phases[progress.cursor.phase :]:
        if len(phases) > 1 and trainer.job.group.rank == 0:
            trainer.emit(Note(f"phase {phase.number + 1} of {len(phases)}: {phase.name}"))
        with clock.measure("partition"):
            placement = trainer.system.partition.place(trainer.data, phase, trainer.job, placement)
        loop = _PhaseLoop(trainer, phase, epochs, progress, clock, optimizer_state, placement)
        if state is not None:
            loop.keep_place(state)
            state = None
        loop.run()
        loop.finish(last=phase.number + 1 == len(phases))
        if missing := _missing(trainer.job.group):
            raise ShortHandedError(f"{phase.name} ended without rank {', '.join(map(str, missing))}")
        optimizer_state = None if phase.fresh_optimizer else loop.optimizer.state_dict()
        del loop
    return progress


class _PhaseLoop:
    def __init__(
        self,
        trainer: Trainer,
        phase: Phase,
        epochs: int,
        progress: Progress,
        clock: Clock,
        optimizer_state: dict[str, Any] | None,
        placement: PlacedData,
    ) -> None:
        """`epochs` of the whole run; `placement` is that of this phase."""
        self.t, self.phase, self.epochs, self.progress, self.clock = trainer, phase, epochs, progress, clock
        self.module = trainer.system.schedule.begin(phase, trainer.model)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.rules = trainer.rules
        self.optimizer = trainer.system.reduce.optimizer(self.parameters, self.rules)
        if optimizer_state is not None:
            self.optimizer.load_state_dict(optimizer_state)
        self.placement = placement
        self.steps = trainer.job.steps(trainer.system.sample.num_minibatches(self.placement, trainer.job))
        """Of an epoch."""
        if not self.steps:
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        self.fetcher: Fetcher = trainer.system.fetch.fetcher(self.placement, trainer.job, self.module)
        self.statistics = trainer.system.reduce.statistics(self.module, trainer.job.group)
        self.replays = None
        # The compiler launches less of a step by itself; what it has made is not recorded.
        self.compiled = Compiled(self.module) if trainer.train.compile else self.module
        if (
            not trainer.train.compile
            and isinstance(self.fetcher, RecordsSteps)
            and type(trainer.system.reduce) is SeedWeightedMean
        ):
            alone = self.steps.per_step == trainer.job.group.size
            self.replays = self.fetcher.recorded(self.module, self.rules, self.parameters, alone)
        # What the compiler makes takes torch's threads.
        spared = getattr(self.compiled, "spares_torch", False)
        self.threads = one_torch_thread if spared else nullcontext
        """Torch's in a step."""
        self.arena = Arena()
        self.other_bytes = 0
        """Of a step's tensors that lie elsewhere."""
        self.begun: tuple[tuple[int, int], Any, Fetched] | None = None
        """Epoch and index of the piece that is begun already, and that piece."""
        self.losses = StepLosses()
        self.saved_at = time.monotonic()
        self.flag = self.stopping = False
        """Whether some rank had to save or to stop when gradients were last summed; whether this one has been asked to
        stop."""
        self.lost: dict[int, dict[str, int]] = {}
        """Ranks that this phase goes on without, and their records in `Progress.lost`."""
        self.pace = Pace.of(self.steps)
        self.trained_before = 0
        """Minibatches of the next step that steps of another pace have trained on."""

    def keep_place(self, state: dict[str, Any]) -> None:
        """Go on after the minibatches that the ranks have trained on that wrote this checkpoint, at whatever pace."""
        before, cursor = Pace.written(state, self.t.train, self.steps.minibatches), self.progress.cursor
        step, self.trained_before = before.position(cursor.step, self.pace)
        self.progress.cursor = Cursor(cursor.phase, step)
        if before != self.pace and cursor.step and self.t.job.group.rank == 0:
            self.t.emit(Note(before.describe(self.pace)))

    def run(self) -> None:
        if self.progress.unvalidated:
            self._validate_late()
        epoch, step = divmod(self.progress.cursor.step, len(self.steps))
        epoch += self.phase.first_epoch
        if epoch >= self.phase.last_epoch or self._enough():
            return
        first = epoch, self.steps.minibatches_of(step).start
        self.feed: Feed = self.t.system.sample.feed(self.placement, self.phase, self.t.job, first)
        if isinstance(self.fetcher, FetchesAhead):
            self.feed = self.fetcher.ahead(self.feed, self.t.system.sample, self.phase, first)
        with self.clock.following(sample=lambda: self.feed.sample_s, exchange=lambda: self.fetcher.exchange_s):
            try:
                self._epochs(epoch, step)
            finally:
                self.feed.close()
        self.progress.fetched = self._hot()

    def _hot(self) -> dict[str, int]:
        return self.fetcher.hit_counts if isinstance(self.fetcher, FetchesAhead) else {}

    def _epochs(self, epoch: int, step: int) -> None:
        """From this step on."""
        while epoch < self.phase.last_epoch and not self._enough():
            for s in range(step, len(self.steps)):
                start = time.perf_counter()
                # A step's tensors are followed once: the first tells what the others take.
                others = (
                    TensorBytes(self.arena) if self.t.job.device is None and not self.progress.memory_bytes else None
                )
                # Whoever follows tensors stands in the compiler's way.
                module = self.compiled if others is None else self.module
                with reusing(self.arena), others or nullcontext(), self.threads():
                    self._step(epoch, s, module)
                self.arena.step()
                # What a GPU's allocator counts takes as long to ask for as several launches.
                if self.t.job.device is None or s + 1 == len(self.steps):
                    self._account_memory(others)
                with self.clock.measure("forward_backward"):
                    self.losses.wait() if s + 1 == len(self.steps) else self.losses.look()
                self.progress.epoch_seconds += time.perf_counter() - start
                self._account_losses(epoch, s)
                if s + 1 < len(self.steps):
                    self._checkpoint(self._due_by_steps(), self.flag)
            self._end_epoch(epoch)
            epoch, step = epoch + 1, 0

    def finish(self, last: bool) -> None:
        """What comes after the epochs of this phase; a checkpoint says that it is done, where another phase follows."""
        progress, t = self.progress, self.t
        if isinstance(self.fetcher, PhaseFetcher):
            if progress.best_state and not last:
                t.model.load_state_dict(progress.best_state)
            waited, start = self.fetcher.exchange_s, time.perf_counter()
            hit_counts = self.fetcher.finish(self.module)
            waited = self.fetcher.exchange_s - waited
            self.clock.add("exchange", waited)
            self.clock.add("forward_backward", time.perf_counter() - start - waited)
            best = (
                {"best_epoch": progress.best_epoch, "val_accuracy": progress.best_accuracy}
                if progress.best_epoch >= 0
                else {}
            )
            progress.phases.append(
                {**hit_counts, "name": self.phase.name, "epochs": progress.cursor.step // len(self.steps), **best}
            )
        if last:
            return
        progress.cursor = Cursor(self.phase.number + 1, 0)
        if self.phase.fresh_optimizer:
            progress.best_merit, progress.best_accuracy, progress.best_epoch, progress.since_best = (
                -math.inf,
                -1.0,
                -1,
                0,
            )
            progress.best_state = {}
        self._save(None if self.phase.fresh_optimizer else self.optimizer.state_dict())

    def _enough(self) -> bool:
        patience = self.t.train.patience
        return patience is not None and self.progress.since_best >= patience

    def _step(self, epoch: int, step: int, module: nn.Module) -> None:
        t, clock, progress = self.t, self.clock, self.progress
        group = t.job.group
        if not self.module.training:
            self.module.train()
        # Gradients of the last step go back to the arena.
        for p in self.parameters:
            p.grad = None
        loss_sum: float | Tensor = 0.0
        seeds, weight, edges = 0, 0.0, 0
        span = self.steps.minibatches_of(step)
        begun, self.trained_before = span.start + self.trained_before, 0
        for index in self.steps.rounds(step):
            if index is None or index < begun:
                with clock.measure("fetch"):
                    self.fetcher.idle()
                continue
            work, fetched = self._taken_up(epoch, index)
            if work is None:
                with clock.measure("queue_wait"):
                    work = self.feed.get(epoch, index)
                if t.check:
                    work.check()
            done = None
            if self.replays is not None:
                with clock.measure("forward_backward"):
                    done = self.replays.contribute(work)
            if done is None:
                with clock.measure("fetch"):
                    fetched = fetched or self.fetcher.fetch(work)
                with clock.measure("forward_backward"), self.statistics.minibatch(index - begun, span.stop - begun):
                    done = t.system.reduce.contribute(module, fetched, self.rules)
            loss_sum += done.loss_sum
            seeds += done.seeds
            weight += done.seeds if done.weight is None else done.weight
            progress.minibatches += 1
            edges += work.num_edges
        with clock.measure("reduce"):
            # The last step's is among the sums of the epoch.
            flag = group.size > 1 and step + 1 < len(self.steps) and self._wants()
            total, self.flag = t.system.reduce.reduce(
                self.parameters, weight, group, flag, lambda: self._begin(epoch, step + 1)
            )
            self.statistics.finish(span.stop - begun)
        if total:
            with clock.measure("forward_backward"):
                self.optimizer.step()
        self.feed.release(epoch, span.stop - 1)
        progress.cursor, progress.unvalidated = Cursor(self.phase.number, progress.cursor.step + 1), False
        progress.loss_seeds += seeds
        progress.sampled_edges += edges
        hot = self._hot()

        def hit_counts(loss: float) -> None:
            progress.loss_sum += loss
            t.emit(StepDone(epoch, step, len(self.steps), loss / max(seeds, 1), seeds, edges, hot))

        self.losses.add(loss_sum, hit_counts)

    def _begin(self, epoch: int, step: int) -> None:
        """Begin this rank's next piece of work: a rank that is done sooner than another does what needs no parameters,
        and is then ahead by that when it is the later one."""
        index = next(self.steps.rounds(step), None)
        if index is None or self.t.job.device is not None or self.compiled is not self.module:
            return
        start = time.perf_counter()
        work = self.feed.peek(epoch, index) if isinstance(self.feed, PeeksAhead) else None
        if work is None:
            return
        with self.clock.measure("fetch"):
            if self.t.check:
                work.check()
            fetched = self.fetcher.fetch(work)
        with self.clock.measure("forward_backward"):
            self.begun = (epoch, index), work, begin(self.module, fetched, self.rules.seed, self.rules.matmul_precision)
        # It is no part of what is waited for.
        self.clock.add("reduce", start - time.perf_counter())

    def _taken_up(self, epoch: int, index: int) -> tuple[Any, Fetched | None]:
        """That piece, as far as it was begun."""
        begun, self.begun = self.begun, None
        return begun[1:] if begun is not None and begun[0] == (epoch, index) else (None, None)

    def _account_memory(self, others: TensorBytes | None) -> None:
        """What the run's memory consists of; told once the first step has shown what a step takes, where it matters."""
        graph, features = self.placement.graph, self.placement.features
        if others is not None:
            self.other_bytes = others.peak_bytes
        self.progress.memory_bytes = {
            "graph": graph.nbytes,
            "features": features.num_rows * features.num_features * features.dtype.itemsize,
            "step": self.arena.peak_bytes + self.other_bytes if self.t.job.device is None else peak_device_bytes(),
        }
        if (
            others is not None
            and self.t.job.group.rank == 0
            and sum(self.progress.memory_bytes.values()) >= WORTH_TELLING_BYTES
        ):
            mib = {name: f"{size / 2**20:,.0f} MiB" for name, size in self.progress.memory_bytes.items()}
            hit_counts = f"graph {mib['graph']}, features {mib['features']}, a step's tensors {mib['step']} in buffers that later steps reuse"
            self.t.emit(Note(f"memory: {hit_counts}"))

    def _account_losses(self, epoch: int, step: int) -> None:
        """Write down which ranks are gone since the last look, and say so; `step` is the first without them."""
        t, progress, group = self.t, self.progress, self.t.job.group
        for rank in _missing(group):
            if rank in self.lost:
                continue
            peers = t.data.peers if isinstance(t.data, Part) else None
            assert peers is not None, "only isolated ranks go on without others, and these know their parts"
            seeds = len(peers.part(rank).split.train)
            self.lost[rank] = {
                "rank": rank,
                "phase": self.phase.number,
                "epoch": epoch,
                "step": step,
                "seeds": seeds,
                "epochs": 0,
            }
            progress.lost.append(self.lost[rank])
            if _is_leader(group):
                where = f"epoch {epoch + 1}, step {step + 1} of {len(self.steps)}"
                what = f"its {seeds:,} seeds, and validation, are left out until {self.phase.name} ends"
                t.emit(Note(f"rank {rank} is missing from {where} on: {what}"))
        for record in self.lost.values():
            record["epochs"] = epoch + 1 - record["epoch"]

    def _end_epoch(self, epoch: int) -> None:
        t, progress = self.t, self.progress
        flag = t.job.group.size > 1 and self._wants()
        sums = torch.tensor([progress.loss_sum, progress.loss_seeds, flag], dtype=torch.float64)
        t.job.group.all_reduce(sums, "control")
        loss = float(sums[0] / sums[1].clamp(min=1))
        last = epoch + 1 == self.phase.last_epoch
        accuracy, best = None, False
        every = t.train.evaluate_every
        if t.validate is not None and (last or (every and (epoch + 1) % every == 0)):
            progress.unvalidated = bool(_missing(t.job.group))
            if not progress.unvalidated:
                accuracy, best = self._validated(t.validate, epoch)
        if (
            _is_leader(t.job.group)
            and not math.isfinite(loss)
            and all(math.isfinite(h["train_loss"]) for h in progress.history)
        ):
            t.emit(Note(f"the training loss of epoch {epoch + 1} is {loss}: the run has diverged; lower train.lr"))
        record = {"epoch": epoch, "train_loss": loss, "seconds": progress.epoch_seconds}
        if accuracy is not None:
            record["val_accuracy"] = accuracy
        progress.history.append(record)
        t.emit(EpochDone(epoch, self.epochs, loss, accuracy, progress.epoch_seconds, best))
        progress.loss_sum = progress.loss_seeds = progress.epoch_seconds = 0.0
        every_epochs = t.checkpoint_every.every_epochs
        due = (
            last
            or self._enough()
            or (every_epochs is not None and (epoch + 1) % every_epochs == 0)
            or self._due_by_steps()
        )
        self._checkpoint(due, bool(sums[2]))

    def _validate_late(self) -> None:
        """What the epoch before had to leave out, now that all ranks are there again."""
        assert self.t.validate is not None
        record = self.progress.history[-1]
        record["val_accuracy"], _ = self._validated(self.t.validate, int(record["epoch"]))
        self.progress.unvalidated = False
        if _is_leader(self.t.job.group):
            self.t.emit(
                Note(
                    f"validation accuracy after epoch {record['epoch'] + 1}, left out before: {record['val_accuracy']:.4f}"
                )
            )

    def _validated(self, whole: Validate, epoch: int) -> tuple[float, bool]:
        """Validation accuracy after `epoch`, and whether it is the best so far, which is then kept."""
        progress = self.progress
        with self.clock.measure("evaluate"):
            seen = self._validate(whole)
        best = seen.merit > progress.best_merit
        if best:
            progress.best_merit, progress.best_accuracy, progress.best_epoch, progress.since_best = (
                seen.merit,
                seen.accuracy,
                epoch,
                0,
            )
            progress.best_state = {k: v.detach().clone() for k, v in self.t.model.state_dict().items()}
        else:
            progress.since_best += 1
        return seen.accuracy, best

    def _validate(self, whole: Validate) -> Validation:
        if isinstance(self.fetcher, PhaseFetcher):
            with self.t.job.group.counting("evaluation"):
                return self.fetcher.validate(self.module)
        accuracy = whole(self.t.model)
        return Validation(accuracy, accuracy)

    def _due_by_steps(self) -> bool:
        every = self.t.checkpoint_every.every_steps
        return every is not None and self.progress.cursor.step % every == 0

    def _wants(self) -> bool:
        """Whether this rank has to save, or to stop; asked once a step."""
        self.stopping = self.stopping or self.t.stop()
        return self.stopping or self.t.save() or time.monotonic() - self.saved_at >= self.t.checkpoint_every.every_s

    def _checkpoint(self, due: bool, heard: bool) -> None:
        """Save if that is `due` on all ranks, or one has asked for it; and stop if one is to.

        Ranks differ in their clocks and in when a request to stop reaches them, and must not differ in what they do
        next: all have `heard` the same. A rank that is alone asks only now.
        """
        group = self.t.job.group
        heard = heard if group.size > 1 else self._wants()
        if not due and not heard:
            return
        stopping = group.any(self.stopping)
        self._save(self.optimizer.state_dict())
        if stopping and self.progress.cursor.step < len(self.steps) * self.phase.epochs:
            raise Interrupted("interrupted; a checkpoint was written: run the same command with --resume to go on")

    def _save(self, optimizer_state: dict[str, Any] | None) -> None:
        """Write a checkpoint; all ranks call this at the same time."""
        t, progress = self.t, self.progress
        if t.checkpoints is None:
            return
        self.losses.wait()
        self._pool()
        if _is_leader(t.job.group):
            state = {name: value for name, value in vars(progress).items() if name not in KEPT_OUT}
            t.checkpoints.taken_over().save(
                progress.cursor,
                {
                    "model": on_host(t.model.state_dict()),
                    "optimizer": on_host(optimizer_state),
                    "progress": on_host(
                        {**state, **{name: state[name] + so_far for name, so_far in progress.pooled.items()}}
                    ),
                    "ledgers": progress.ledgers,
                    "pace": vars(self.pace),
                    "seconds": self.clock.snapshot(),
                },
            )
        self.saved_at = time.monotonic()

    def _pool(self) -> None:
        """Add up what all ranks have counted since the last time, and learn every rank's ledger."""
        group, ledger, progress = self.t.job.group, self.t.job.ledger, self.progress
        mine = ledger.counts()
        if group.size == 1:
            progress.ledgers = [mine]
            return
        ledgers = torch.zeros((group.size, len(mine)), dtype=torch.int64)
        ledgers[group.rank] = torch.tensor(mine)
        counts = torch.tensor([getattr(progress, name) for name in POOLED], dtype=torch.float64)
        group.all_reduce(ledgers.view(-1), "control")
        group.all_reduce(counts, "control")
        for rank in _missing(group):
            # What it has counted since the last time is gone with it.
            ledgers[rank] = torch.tensor(progress.ledgers[rank]) if progress.ledgers else 0
        progress.ledgers = ledgers.tolist()
        for name, value in zip(POOLED, counts.tolist()):
            if name in COUNTED:
                progress.pooled[name] += int(value)
                setattr(progress, name, 0)
            else:
                setattr(progress, name, value if _is_leader(group) else 0.0)


def on_host(state: Any) -> Any:
    """The same with every tensor in the memory of the host, so that who has no GPU can read it."""
    return pytree.tree_map_only(Tensor, lambda x: x.cpu(), state)


def _missing(group: Group) -> list[int]:
    return [] if len(group.present) == group.size else sorted(set(range(group.size)) - set(group.present))


def _is_leader(group: Group) -> bool:
    """Whether this rank says what all know, and writes what all need: the first one that is there."""
    return group.rank == group.present[0]
