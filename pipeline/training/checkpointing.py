"""Checkpoints of a run: when they are written, what they hold, and how ranks go on from one."""

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...storage.errors import Interrupted
from ..setup.resume import Pace, position, redistributed
from ..telemetry.events import Note
from .async_losses import StepLosses
from .context import TrainContext
from .lost_ranks import is_leader, missing
from .optimize.phase_optimizer import PhaseOptimizer
from .progress import COUNTED, POOLED

LEFT_OUT = ("cursor", "memory_bytes", "fetched", "pooled", "ledgers")
"""Fields of `Progress` that a checkpoint does not hold, or holds elsewhere."""


def restore(context: TrainContext) -> dict[str, Any] | None:
    """Load the last checkpoint into the model, and into the rank's progress, ledger and clock.

    Returns:
        The checkpoint's record; None if there is none.
    """
    group, progress = context.job.group, context.control.progress
    found = context.checkpoints.latest() if context.checkpoints else None
    if found is None:
        return None
    progress.cursor, state = found
    context.model.load_state_dict(state["model"])
    for name, p in context.model.named_parameters() if "frozen" in state else ():
        p.requires_grad_(name not in state["frozen"])
    if context.job.learned is not None:
        context.job.learned.load(state["learned"])
    # Checkpoints of earlier versions have no merit but the accuracy.
    for name, value in {"best_merit": state["progress"]["best_accuracy"], **state["progress"]}.items():
        if name in COUNTED:
            progress.pooled[name] = value
        else:
            # The leader carries on the sums of the epoch under way.
            setattr(progress, name, 0.0 if name in POOLED and group.rank else value)
    progress.ledgers = redistributed(state["ledgers"], group.size)
    context.job.ledger.restore(progress.ledgers[group.rank])
    for name, seconds in state["seconds"].items():
        context.control.clock.add(name, seconds)
    context.control.callbacks.run.resumed = True
    context.control.callbacks.load(state.get("callbacks", []))
    if group.rank == 0:
        phases = context.system.schedule.phases(context.job.epochs, context.model)
        context.control.emit(Note(f"resumed at {position(progress.cursor, phases, state.get('pace'))}"))
    return state


class Checkpointer:
    """Writes the checkpoints of one phase."""

    def __init__(self, context: TrainContext, losses: StepLosses, pace: Pace, total_steps: int) -> None:
        """
        Args:
            context: of this rank.
            losses: on their way from the device; waited for before anything is written.
            pace: of this phase.
            total_steps: of this phase, over all its epochs.
        """
        self._context, self._progress, self._losses = context, context.control.progress, losses
        self._pace, self._total_steps = pace, total_steps
        self._saved_at = time.monotonic()
        self._stopping = False

    def is_due(self) -> bool:
        """True after every so many steps, as the configuration says; the same on all ranks."""
        every = self._context.update.checkpoint.every_steps
        return every is not None and self._progress.cursor.step % every == 0

    def is_requested(self) -> bool:
        """True if this rank has to save or to stop. Called once a step: `TrainContext.save` answers once."""
        control, every_s = self._context.control, self._context.update.checkpoint.every_s
        self._stopping = self._stopping or control.stop()
        return self._stopping or control.save() or time.monotonic() - self._saved_at >= every_s

    def after_step(self, due: bool, requested: bool, optimizer: PhaseOptimizer) -> None:
        """Save if a checkpoint is due or requested, then stop if some rank was asked to.

        Ranks differ in their clocks, and in when a request to stop reaches them, but must not differ in what they do
        next. So `requested` has travelled with an all-reduce and is the same on all. A rank that is alone looks now.

        Raises:
            Interrupted: some rank was asked to stop.
        """
        group = self._context.job.group
        requested = requested if group.size > 1 else self.is_requested()
        if not due and not requested:
            return
        stopping = group.any(self._stopping)
        self.save(optimizer)
        if stopping and (self._progress.cursor.step < self._total_steps or self._progress.unvalidated):
            raise Interrupted("interrupted; a checkpoint was written: run the same command with --resume to go on")

    def save(self, optimizer: PhaseOptimizer | None) -> None:
        """Write a checkpoint, with the optimiser unless the next phase has its own. All ranks call this at once."""
        context, progress = self._context, self._progress
        callbacks = context.control.callbacks
        if context.checkpoints is None:
            return
        self._losses.wait()
        self._pool()
        learned = {} if context.job.learned is None else {"learned": context.job.learned.state()}
        frozen = [name for name, p in context.model.named_parameters() if not p.requires_grad]
        if is_leader(context.job.group):
            state = {name: value for name, value in vars(progress).items() if name not in LEFT_OUT}
            totals = {name: state[name] + so_far for name, so_far in progress.pooled.items()}
            context.checkpoints.taken_over().save(
                progress.cursor,
                {
                    "model": on_host(context.model.state_dict()),
                    **(on_host(optimizer.state_dict()) if optimizer is not None else {"optimizer": None}),
                    "progress": on_host({**state, **totals}),
                    "ledgers": progress.ledgers,
                    "pace": vars(self._pace),
                    "seconds": context.control.clock.running_snapshot()[0],
                    **learned,
                    **({"callbacks": on_host(callbacks.state()), "frozen": frozen} if len(callbacks) else {}),
                },
            )
        context.call("checkpoint")
        self._saved_at = time.monotonic()

    def _pool(self) -> None:
        """Sum over ranks what each has counted since the last checkpoint, and gather their ledgers."""
        group, progress = self._context.job.group, self._progress
        mine = self._context.job.ledger.counts()
        if group.size == 1:
            progress.ledgers = [mine]
            return
        ledgers = torch.zeros((group.size, len(mine)), dtype=torch.int64)
        ledgers[group.rank] = torch.tensor(mine)
        counts = torch.tensor([getattr(progress, name) for name in POOLED], dtype=torch.float64)
        group.all_reduce(ledgers.view(-1), "control")
        group.all_reduce(counts, "control")
        for rank in missing(group):
            # What a lost rank has counted since the last checkpoint is gone with it.
            ledgers[rank] = torch.tensor(progress.ledgers[rank]) if progress.ledgers else 0
        progress.ledgers = ledgers.tolist()
        for name, value in zip(POOLED, counts.tolist()):
            if name in COUNTED:
                progress.pooled[name] += int(value)
                setattr(progress, name, 0)
            else:
                setattr(progress, name, value if is_leader(group) else 0.0)


def on_host(state: Any) -> Any:
    """Copy every tensor to the host's memory, so that a machine without a GPU can read it."""
    return pytree.tree_map_only(Tensor, lambda x: x.cpu(), state)
