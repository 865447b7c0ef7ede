"""One optimiser step of a rank: fetch, forward and backward of each of its minibatches, all-reduce, update."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...stages.assignment import Steps
from ...stages.forward_backward import begin
from ...stages.kernels.runtime.threads import one_torch_thread
from ...stages.memory.arena import Arena, reusing
from ...stages.memory.meter import TensorBytes
from ...stages.messages import Fetched, Phase, PlacedData, Placement, WorkDone
from ...stages.models.compiled import Compiled
from ...stages.models.parts import LayerCounts
from ...stages.neighbourhood.block import BlockNeighbourhood
from ...stages.policies import Feed, Fetcher, RecordedStep
from ...stages.sample.base import reads_times
from ...storage.checkpoint import Cursor
from ...storage.minibatch import MiniBatch
from ..setup.result import peak_device_bytes
from ..telemetry.events import Note, StepDone
from .async_losses import StepLosses
from .checkpointing import Checkpointer
from .context import TrainContext
from .evaluation_cost import validation_note
from .optimize.phase_optimizer import PhaseOptimizer, ScheduleSpan

MEMORY_NOTE_BYTES = 256 << 20
"""Memory use is reported to the user from this size on."""
FEWEST_STEPS = 32
"""Minimum number of steps of a phase that are recorded, if there are several phases, each of which records anew: a
recording takes several steps' time. A guess, not measured."""


@dataclass(frozen=True, eq=False)
class PhaseWork:
    """What the steps of a phase work on, on one rank."""

    phase: Phase
    module: nn.Module
    """Trained by the phase."""
    placement: PlacedData
    """The phase's data."""
    steps: Steps
    """Of an epoch."""
    fetcher: Fetcher


class StepRunner:
    """Runs the steps of one phase. `feed` must be set before the first."""

    feed: Feed

    def __init__(self, context: TrainContext, work: PhaseWork) -> None:
        """
        Args:
            context: of this rank.
            work: of the phase.
        """
        self.context, self.progress, self.clock = context, context.control.progress, context.control.clock
        self.phase, self.module, self.placement = work.phase, work.module, work.placement
        self.steps, self.fetcher, module = work.steps, work.fetcher, work.module
        self.rules, total_epochs = context.step_rules, context.total_epochs
        span = ScheduleSpan.of_phase(self.phase, len(self.steps), total_epochs)
        self.phase_optimizer = PhaseOptimizer(context.update, context.system.reduce, self.rules, module, span)
        self.learning = self.phase_optimizer.parameters
        """Parameters that learnt in the last step."""
        self.statistics = context.system.reduce.statistics(module, context.job.group)
        self.compiled = Compiled(module) if context.update.train.compile else module
        self.recorded = self._recorded(total_epochs)
        # Code that torch.compile has made uses torch's threads.
        spared = getattr(self.compiled, "spares_torch", False)
        self.torch_threads: Any = one_torch_thread if spared else nullcontext
        self.arena = Arena()
        self.other_bytes = 0
        """Bytes of a step's tensors outside the arena."""
        self.losses = StepLosses()
        self.loss: float | None = None
        """Mean loss of this rank's seeds in the last step whose loss is known."""
        self.trained_before = 0
        """Minibatches of the next step that a run with fewer minibatches per step has already trained on."""
        self.first_counts: list[LayerCounts] | None = None
        """Layers of the first minibatch; none, if it is no sampled one."""
        self.ahead: tuple[tuple[int, int], Any, Fetched] | None = None
        """The next minibatch if it was begun ahead: ((epoch, index), work, fetched)."""

    def _recorded(self, total_epochs: int) -> RecordedStep | None:
        """Steps as CUDA graphs, where the fetcher can record them. The compiler reduces launches in its own way."""
        context, reduce = self.context, self.context.system.reduce
        if context.update.train.compile or not reduce.allows_recording or context.update.loss is not None:
            return None
        if self.phase.epochs < total_epochs and len(self.steps) * self.phase.epochs < FEWEST_STEPS:
            return None
        alone = self.steps.per_step == context.job.group.size
        return self.fetcher.recorded(self.module, reduce, self.rules, self.learning, alone)

    def run(self, epoch: int, step: int, checkpointer: Checkpointer) -> bool:
        """Run one step.

        Returns:
            True if some rank has requested a checkpoint, which all ranks learn from the all-reduce. Always False for
            the last step of an epoch, and for one rank: these are asked elsewhere.
        """
        start, last = time.perf_counter(), step + 1 == len(self.steps)
        on_host = self.context.job.on_host
        # Tensors outside the arena are counted once: the first step tells what the others take.
        meter = TensorBytes(self.arena) if on_host and not self.progress.memory_bytes else None
        # Counting tensors and compiled code do not go together.
        module = self.compiled if meter is None else self.module
        with reusing(self.arena), meter or nullcontext(), self.torch_threads():
            requested = self._step(epoch, step, module, checkpointer)
        self.arena.step()
        # Asking the allocator of a GPU takes as long as several launches.
        if on_host or last:
            self._account_memory(meter)
        with self.clock.measure("forward_backward"):
            self.losses.wait() if last else self.losses.poll()
        self.context.control.callbacks.step(epoch, step, self.loss)
        self.progress.epoch_seconds += time.perf_counter() - start
        return requested

    def _step(self, epoch: int, step: int, module: nn.Module, checkpointer: Checkpointer) -> bool:
        context, clock, progress, group = self.context, self.clock, self.progress, self.context.job.group
        if not self.module.training:
            self.module.train()
        for p in self.phase_optimizer.named.values():
            p.grad = None  # goes back to the arena
        now = self.phase_optimizer.parameters
        if [*map(id, now)] != [*map(id, self.learning)]:
            self.learning = now
            self.recorded = self._recorded(context.total_epochs)
        loss_sum: float | Tensor = 0.0
        seeds, weight, edges = 0, 0.0, 0
        span = self.steps.minibatches_of(step)
        first, self.trained_before = span.start + self.trained_before, 0
        count = span.stop - first
        for index in self.steps.rounds(step):
            if index is None or index < first:
                with clock.measure("fetch"):
                    self.fetcher.idle()
                continue
            work, done = self._minibatch(epoch, index, module, self.statistics.minibatch(index - first, count))
            loss_sum += done.loss_sum
            seeds += done.seeds
            weight += done.seeds if done.weight is None else done.weight
            progress.minibatches += 1
            edges += work.num_edges
        with clock.measure("reduce"):
            # After an epoch's last step, requests travel with the sums of the epoch.
            called = context.control.callbacks
            if step + 1 < len(self.steps):
                # Asked for before, so that it takes effect at the same step on any number of ranks.
                called.stops_steps = called.run.stop_asked
            flag = group.size > 1 and step + 1 < len(self.steps) and checkpointer.is_requested()
            flag |= called.stops_steps
            # If none learns, one without a gradient.
            learning = self.learning or [*self.phase_optimizer.named.values()][:1]
            total, requested = context.system.reduce.reduce(
                learning, weight, group, flag, lambda: self._begin_next(epoch, step)
            )
            self.statistics.finish(count)
        learned = context.job.learned
        if learned is not None:
            with clock.measure("reduce"):
                learned.sum_gradients(total)
        if total:
            with clock.measure("forward_backward"):
                self.phase_optimizer.step(epoch, step, progress.history, learned)
        self.feed.release(epoch, span.stop - 1)
        progress.cursor, progress.unvalidated = Cursor(self.phase.number, progress.cursor.step + 1), False
        progress.loss_seeds += seeds
        progress.sampled_edges += edges
        hits, num_steps = self.fetcher.hit_counts, len(self.steps)

        def report(loss: float) -> None:
            progress.loss_sum += loss
            self.loss = loss / max(seeds, 1)
            context.control.emit(StepDone(epoch, step, num_steps, loss / max(seeds, 1), seeds, edges, hot=hits))

        self.losses.add(loss_sum, report)
        return requested

    def _check(self, work: Any) -> None:
        """Check the invariants of a minibatch, or of other work, if the job asks for it."""
        if self.context.update.check and isinstance(work, MiniBatch):
            work.check(repeats=reads_times(getattr(self.context.system.sample, "sampler", None)))
        elif self.context.update.check:
            work.check()

    def _minibatch(
        self, epoch: int, index: int, module: nn.Module, statistics: AbstractContextManager[None]
    ) -> tuple[Any, WorkDone]:
        """Add the gradient of one minibatch."""
        clock = self.clock
        work, fetched = self._take_begun(epoch, index)
        if work is None:
            with clock.measure("queue_wait"):
                work = self.feed.get(epoch, index)
            self._check(work)
        if self.recorded is not None:
            with clock.measure("forward_backward"):
                done = self.recorded.contribute(work)
            if done is not None:
                return work, done
        with clock.measure("fetch"):
            fetched = fetched or self.fetcher.fetch(work)
        if self.first_counts is None:
            blocks = [n for n in fetched.neighbourhoods if isinstance(n, BlockNeighbourhood)]
            self.first_counts = [LayerCounts(n.num_src, n.num_dst, n.num_edges) for n in blocks]
        with clock.measure("forward_backward"), statistics:
            return work, self.context.system.reduce.contribute(module, fetched, self.rules)

    def _begin_next(self, epoch: int, step: int) -> None:
        """Begin this rank's next minibatch while gradients travel, with all that needs no new parameters: a rank that
        is early here may be the late one of the next step."""
        index = next(self.steps.rounds(step + 1), None)
        if index is None or not self.context.job.on_host or self.compiled is not self.module:
            return
        if self.context.job.learned is not None:
            return  # rows of the next minibatch change in this step
        start = time.perf_counter()
        work = self.feed.peek(epoch, index)
        if work is None:
            return
        with self.clock.measure("fetch"):
            self._check(work)
            fetched = self.fetcher.fetch(work)
        with self.clock.measure("forward_backward"):
            fetched = begin(self.module, fetched, self.rules.seed, self.rules.matmul_precision)
            self.ahead = (epoch, index), work, fetched
        # None of this was spent waiting for gradients.
        self.clock.add("reduce", start - time.perf_counter())

    def _take_begun(self, epoch: int, index: int) -> tuple[object, Fetched | None]:
        """The work of a minibatch and what was fetched for it, if it was begun ahead."""
        ahead, self.ahead = self.ahead, None
        return ahead[1:] if ahead is not None and ahead[0] == (epoch, index) else (None, None)

    def _account_memory(self, meter: TensorBytes | None) -> None:
        """Update `Progress.memory_bytes`; the leader reports it after the first step, where it is much."""
        graph, features = self.placement.graph, self.placement.features
        if meter is not None:
            self.other_bytes = meter.peak_bytes
        on_host = self.context.job.on_host
        sizes = {
            "graph": graph.nbytes,
            "features": features.num_rows * features.num_features * features.dtype.itemsize,
            "step": self.arena.peak_bytes + self.other_bytes if on_host else peak_device_bytes(),
        }
        self.progress.memory_bytes = sizes
        if meter is not None and self.context.job.group.rank == 0 and sum(sizes.values()) >= MEMORY_NOTE_BYTES:
            mib = {name: f"{size / 2**20:,.0f} MiB" for name, size in sizes.items()}
            text = f"graph {mib['graph']}, features {mib['features']}"
            step = f"a step's tensors {mib['step']} in buffers that later steps reuse"
            self.context.control.emit(Note(f"memory: {text}, {step}"))
        if meter is not None and self.context.job.group.rank == 0:
            self._emit_validation()

    def _emit_validation(self) -> None:
        """Note what a validation costs, where that is much beside an epoch of sampled minibatches."""
        context, data = self.context, self.context.data
        if context.validate is None or not isinstance(data, Placement) or not self.first_counts:
            return
        note = validation_note(
            self.module,
            self.first_counts,
            self.steps.minibatches,
            data.graph,
            data.split.val,
            context.update.train.evaluate_every,
        )
        if note is not None:
            context.control.emit(Note(note))
