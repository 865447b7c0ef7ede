"""The minibatches of a generation that come through a queue on disk, from where training goes on."""

from dataclasses import replace

from ...stages.assignment import Steps
from ..cluster.sample_task import SampleOrder
from ..cluster.sampling_flow import BulkFlow, Flow, SamplingWorkers
from ..setup.open_queue import location, repaired_queue
from ..setup.resume import Pace
from .cluster_run import ClusterRun
from .rank_work import Training


def open_flow(run: ClusterRun, generation: int, workers: list[str]) -> Flow | None:
    """The flow of bulks that a generation trains on; None where there is no such queue.

    Args:
        run: what the generations share.
        generation: number of this one.
        workers: addresses to sample on.
    """
    work, sampling, job = run.work, run.sampling, run.job
    if not isinstance(work, Training) or not work.uses_queue:
        return None
    queue = repaired_queue(
        sampling,
        run.out,
        run.note,
        max_bytes=job.queue.max_bytes,
        keep=job.queue.keep,
        consumers=run.ranks,
        # Tasks of the generation before may still write: what they leave is swept when the run is opened again.
        sweep=generation == 0,
    )
    if sampling.draws_by_owners:
        return Flow(queue)
    minibatches = sampling.minibatches_per_epoch
    steps = Steps(minibatches, job.train.per_step(run.ranks))
    pace, found = Pace.from_steps(steps), work.checkpoints(run.out).latest()
    taken = Pace.written(found[1], job.train, minibatches).position(found[0].step, pace)[0] if found else 0
    epoch, step = divmod(taken, pace.steps_per_epoch)
    order = SampleOrder.from_sampling(sampling, run.data, location(sampling, run.out))
    begin = steps.minibatches_of(step).start // job.queue.bulk_size
    span = replace(sampling.bulks, epochs=range(epoch, job.epochs), first=begin)
    by = SamplingWorkers(run.client, run.name, generation, job.cluster.producers, workers)
    return BulkFlow(by, order, queue, span, steps.per_step)
