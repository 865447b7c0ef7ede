"""The training loop of one rank: phases, their epochs, and the steps of an epoch.

It calls the five policies of a system and never asks which system it is. What a step does is in `step`, what comes at
the end of an epoch or a phase in `phases`, checkpoints in `checkpointing`, and which minibatches a step has on this
rank in `stages.assignment`.
"""

from ...stages.messages import PlacedData
from ...storage.errors import ShortHandedError
from ..telemetry.events import Note
from .checkpointing import restore
from .context import TrainContext
from .lost_ranks import missing
from .phases import PhaseTraining
from .progress import Progress


def train_rank(context: TrainContext) -> Progress:
    """Train through all phases, from the last checkpoint if there is one.

    Returns:
        The final state; the model holds the parameters of the last step.

    Raises:
        Interrupted: `context.control.stop` asked to end; the checkpoint is written.
        ShortHandedError: ranks were lost, and the phase has ended without them; the checkpoint is written.
        RunError: a stage failed; the last checkpoint is intact.
    """
    progress, group = context.control.progress, context.job.group
    resumed = restore(context)
    phases = context.system.schedule.phases(context.job.epochs, context.model)
    started = False
    system, before = context.system, resumed if resumed and resumed["optimizer"] else None
    placement: PlacedData | None = None
    for phase in phases[progress.cursor.phase :]:
        if len(phases) > 1 and group.rank == 0:
            context.control.emit(Note(f"phase {phase.number + 1} of {len(phases)}: {phase.name}"))
        with context.control.clock.measure("partition"):
            if placement is None or system.partition.changes:
                placement = system.partition.place(context.data, phase, context.job, placement)
        training = PhaseTraining(context, phase, placement, before)
        if resumed is not None:
            training.resume(resumed)
            resumed = None
        if not started:
            context.call("start")
            started = True
        train_phase(training)
        training.finish(last=phase.number + 1 == len(phases))
        if gone := missing(group):
            raise ShortHandedError(f"{phase.name} ended without rank {', '.join(map(str, gone))}")
        before = None if phase.fresh_optimizer else training.phase_optimizer.state_dict()
        del training  # its memory is free before the next phase is laid out
    return progress


def train_phase(training: PhaseTraining) -> None:
    """Train a phase to its end, from wherever the run stands in it."""
    training.validate_late()
    epoch, first_step = training.position
    if training.has_ended(epoch):
        return
    with training.feeding(epoch, first_step):
        while not training.has_ended(epoch):
            for step in range(first_step, len(training.steps)):
                requested = training.runner.run(epoch, step, training.checkpoints)
                training.lost.update(epoch, step)
                if step + 1 < len(training.steps):
                    training.checkpoint_after_step(requested)
                    if training.stops_now(requested):
                        break
            training.end_epoch(epoch)
            epoch, first_step = epoch + 1, 0
