"""One phase of a run on one rank: what is made for it, its epochs' ends, and what it leaves to the next phase."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...stages.messages import Phase, PlacedData, Validation
from ...stages.policies import Fetcher
from ...storage.checkpoint import Cursor
from ...storage.errors import InputError
from ..custom.callback import Numbers
from ..setup.resume import Pace
from ..telemetry.events import EpochDone, Note
from ..telemetry.metrics_file import finite
from .checkpointing import Checkpointer
from .context import TrainContext, Validate
from .evaluation import EvaluationStopped
from .lost_ranks import LostRanks, is_leader, missing
from .step import PhaseWork, StepRunner


class PhaseTraining:
    """One phase on one rank: the module it trains, its optimiser, and its place in the run."""

    def __init__(
        self, context: TrainContext, phase: Phase, placement: PlacedData, before: dict[str, Any] | None
    ) -> None:
        """
        Args:
            context: of this rank.
            phase: to train.
            placement: the phase's data on this rank.
            before: state of the optimiser to go on with (`PhaseOptimizer.state_dict`); None: a fresh one.

        Raises:
            InputError: there is nothing to train on.
        """
        self.context, self.phase = context, phase
        self.progress, self.clock = context.control.progress, context.control.clock
        self.module = context.system.schedule.begin(phase, context.model)
        self.placement = placement
        self.steps = context.job.steps(context.system.sample.num_minibatches(placement, context.job))
        if not self.steps:
            raise InputError("the train split is empty: there is nothing to train on; choose another split")
        self.fetcher: Fetcher = context.system.fetch.fetcher(placement, context.job, self.module)
        work = PhaseWork(phase, self.module, placement, self.steps, self.fetcher)
        self.runner = StepRunner(context, work)
        self.phase_optimizer = self.runner.phase_optimizer
        if before is not None:
            self.phase_optimizer.load_state_dict(before)
        self.pace = Pace.from_steps(self.steps)
        self.checkpoints = Checkpointer(context, self.runner.losses, self.pace, len(self.steps) * phase.epochs)
        self.lost = LostRanks(context, phase, self.steps)
        if len(context.control.callbacks):
            run = context.control.callbacks.run
            run.phase_optimizer, run.steps_per_epoch = self.phase_optimizer, len(self.steps)

    def resume(self, state: dict[str, Any]) -> None:
        """Move the cursor behind the minibatches that a checkpoint's ranks have trained on, whatever their pace."""
        before, cursor = Pace.written(state, self.context.update.train, self.steps.minibatches), self.progress.cursor
        step, self.runner.trained_before = before.position(cursor.step, self.pace)
        self.progress.cursor = Cursor(cursor.phase, step)
        if before != self.pace and cursor.step and self.context.job.group.rank == 0:
            self.context.control.emit(Note(before.describe(self.pace)))

    @property
    def position(self) -> tuple[int, int]:
        """(epoch of the run, step in it) of the next step."""
        epoch, step = divmod(self.progress.cursor.step, len(self.steps))
        return self.phase.first_epoch + epoch, step

    def has_ended(self, epoch: int) -> bool:
        """True if `epoch` is not to be trained: it is behind the phase's last, patience has run out, or a callback has
        ended training."""
        patience = self.context.update.train.patience
        stopped_early = patience is not None and self.progress.since_best >= patience
        return epoch >= self.phase.last_epoch or stopped_early or self.progress.ended

    def stops_now(self, requested: bool) -> bool:
        """True if a callback on some rank has asked to end training, which all ranks learn at the same step.

        Args:
            requested: true on all ranks if some rank has asked for something.
        """
        callbacks, group = self.context.control.callbacks, self.context.job.group
        if not len(callbacks) or (group.size > 1 and not requested):
            return False
        self.progress.ended = group.any(callbacks.stops_steps)
        return self.progress.ended

    @contextmanager
    def feeding(self, epoch: int, step: int) -> Iterator[None]:
        """Feed the runner with work from this step on."""
        sample, fetcher = self.context.system.sample, self.fetcher
        first = epoch, self.steps.minibatches_of(step).start
        feed = sample.feed(self.placement, self.phase, self.context.job, first)
        self.runner.feed = feed = fetcher.ahead(feed, sample, self.phase, first)
        with self.clock.following(sample=lambda: feed.sample_s, exchange=lambda: fetcher.exchange_s):
            try:
                yield
            finally:
                feed.close()
        self.progress.fetched = fetcher.hit_counts

    def checkpoint_after_step(self, requested: bool) -> None:
        """Write a checkpoint between two steps of an epoch, if it is time."""
        self.checkpoints.after_step(self.checkpoints.is_due(), requested, self.phase_optimizer)

    def end_epoch(self, epoch: int) -> None:
        """Sum the losses, validate, record and report the epoch, and write a checkpoint if it is time."""
        context, progress, group = self.context, self.progress, self.context.job.group
        flag = group.size > 1 and self.checkpoints.is_requested()
        sums = torch.tensor([progress.loss_sum, progress.loss_seeds, flag], dtype=torch.float64)
        group.all_reduce(sums, "control")
        loss = float(sums[0] / sums[1].clamp(min=1))
        last = epoch + 1 == self.phase.last_epoch
        found, best = None, False
        every = context.update.train.evaluate_every
        last = last or progress.ended
        if context.validate is not None and (last or (every and (epoch + 1) % every == 0)):
            progress.unvalidated = bool(missing(group))
            if not progress.unvalidated:
                found, best = self._validated(context.validate, epoch)
        diverges_now = not math.isfinite(loss) and all(math.isfinite(h["train_loss"]) for h in progress.history)
        if is_leader(group) and diverges_now:
            context.control.emit(
                Note(f"the training loss of epoch {epoch + 1} is {loss}: the run has diverged; lower train.lr")
            )
        record = {"epoch": epoch, "train_loss": loss, "seconds": progress.epoch_seconds}
        if found is not None:
            record |= self._record_of(found)
        progress.history.append(record)
        lr = self.phase_optimizer.last_lr if self.phase_optimizer.reports_lr else None
        accuracy, values = (None, {}) if found is None else (found.accuracy, dict(found.values))
        context.control.emit(
            EpochDone(
                epoch, self.context.total_epochs, loss, accuracy, progress.epoch_seconds, best, lr=lr, metrics=values
            )
        )
        self.phase_optimizer.end_epoch(found)
        self._call_callbacks(record, found)
        progress.loss_sum = progress.loss_seeds = progress.epoch_seconds = 0.0
        every_epochs = context.update.checkpoint.every_epochs
        due = every_epochs is not None and (epoch + 1) % every_epochs == 0
        due = due or self.has_ended(epoch + 1) or self.checkpoints.is_due()
        self.checkpoints.after_step(due, bool(sums[2]), self.phase_optimizer)

    def _record_of(self, found: Validation) -> dict[str, float]:
        """A validation in the record of its epoch."""
        record = {f"val_{name}": value for name, value in found.values.items()}
        if found.accuracy is None:
            return {**record, "merit": found.merit}
        record = {"val_accuracy": found.accuracy, **record}
        return record if self.context.update.train.monitor is None else {**record, "merit": found.merit}

    def _call_callbacks(self, record: dict[str, float], found: Validation | None) -> None:
        """Call the callbacks of an epoch's end; each of them may end training, on whatever rank."""
        context, callbacks = self.context, self.context.control.callbacks
        if not len(callbacks):
            return
        numbers = {k: v for k, v in record.items() if k == "train_loss" or k.startswith("val_")}
        callbacks.run.metrics = Numbers(numbers)
        if found is not None:
            context.call("validation")
        context.call("epoch")
        self.progress.ended |= context.job.group.any(callbacks.run.stop_asked)

    def validate_late(self) -> None:
        """Validate the epoch before, which was left out because ranks were missing."""
        if not self.progress.unvalidated:
            return
        assert self.context.validate is not None
        record = self.progress.history[-1]
        epoch = int(record["epoch"])
        record |= self._record_of(self._validate(self.context.validate, epoch)[0])
        self.progress.unvalidated = False
        if is_leader(self.context.job.group):
            name, value = next((k[4:], v) for k, v in record.items() if k.startswith("val_"))
            self.context.control.emit(Note(f"validation {name} after epoch {epoch + 1}, left out before: {value:.4f}"))

    def _validated(self, whole: Validate, epoch: int) -> tuple[Validation | None, bool]:
        """`_validate`; if the user stops it, the epoch is left to be validated when the run is resumed.

        Raises:
            Interrupted: what follows the epoch depends on its validation.
        """
        try:
            return self._validate(whole, epoch)
        except EvaluationStopped:
            if self.phase_optimizer.reads_validation or len(self.context.control.callbacks):
                raise
            self.progress.unvalidated = True
            return None, False

    def _validate(self, whole: Validate, epoch: int) -> tuple[Validation, bool]:
        """Validation after `epoch`, and whether it is the best so far."""
        with self.clock.measure("evaluate"), self.phase_optimizer.averaged():
            found = self.fetcher.validated(self.module, lambda: whole(self.context.model))
            best = self.progress.take(found, epoch, self.context.model)
            if best and self.context.job.learned is not None:
                self.context.job.learned.keep_best()
            return found, best

    def finish(self, last: bool) -> None:
        """Finish the phase; where another one follows, a checkpoint says so."""
        progress = self.progress
        if self.phase_optimizer.average.is_kept and progress.best_epoch < 0:
            with self.phase_optimizer.averaged():
                progress.keep(self.context.model)
        self.fetcher.finish(self.module, lambda leave: self._record_part(leave, last))
        if last:
            return
        for p in self.phase_optimizer.named.values():
            p.grad = None  # may be memory of a recording, which goes with the phase
        progress.cursor = Cursor(self.phase.number + 1, 0)
        if self.phase.fresh_optimizer:
            progress.forget_best()
            progress.ended = False
            callbacks = self.context.control.callbacks
            callbacks.run.stop_asked = callbacks.stops_steps = False
        self.checkpoints.save(None if self.phase.fresh_optimizer else self.phase_optimizer)

    def _record_part(self, leave: Callable[[], dict[str, object]], last: bool) -> None:
        """Leave to the next phase what it reads, computed with the best parameters, and record this one."""
        progress, fetcher = self.progress, self.fetcher
        if progress.best_state and not last:
            self.context.model.load_state_dict(progress.best_state)
        waited, start = fetcher.exchange_s, time.perf_counter()
        results = leave()
        waited = fetcher.exchange_s - waited
        self.clock.add("exchange", waited)
        self.clock.add("forward_backward", time.perf_counter() - start - waited)
        record = {**results, "name": self.phase.name, "epochs": progress.cursor.step // len(self.steps)}
        if progress.best_epoch >= 0:
            record["best_epoch"] = progress.best_epoch
            record |= (
                {"val_accuracy": progress.best_accuracy}
                if progress.best_accuracy >= 0
                else {f"val_{name}": finite(value) for name, value in progress.best_values.items()}
            )
        progress.phases.append(record)
