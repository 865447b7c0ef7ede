"""The sampling tasks of a generation, from where training goes on."""

import json

from ...stages.assignment import Steps
from ..cluster.sample_task import SampleOrder
from ..cluster.sampling_flow import BulkFlow
from ..setup.open_queue import location, minibatches_per_epoch, repaired_queue
from ..setup.resume import Pace
from .cluster_run import ClusterRun


def open_flow(run: ClusterRun, generation: int, workers: list[str]) -> BulkFlow | None:
    """The flow of bulks that a generation trains on; None where no sampling tasks are needed.

    Args:
        run: what the generations share.
        generation: number of this one.
        workers: addresses to sample on.
    """
    if not run.uses_queue:
        return None
    prepared, job = run.prepared, run.job
    queue = repaired_queue(
        prepared,
        run.out,
        run.note,
        max_bytes=job.queue.max_bytes,
        keep=job.queue.keep,
        consumers=run.ranks,
        # Tasks of the generation before may still write: what they leave is swept when the run is opened again.
        sweep=generation == 0,
    )
    minibatches = minibatches_per_epoch(prepared)
    steps = Steps(minibatches, job.train.per_step(run.ranks))
    pace, found = Pace.of(steps), run.checkpoints().latest()
    taken = Pace.written(found[1], job.train, minibatches).position(found[0].step, pace)[0] if found else 0
    epoch, step = divmod(taken, pace.steps_per_epoch)
    order = SampleOrder(
        json.dumps(job.model_dump(mode="json")),
        str(run.dataset),
        prepared.dataset.name,
        run.features,
        location(prepared, run.out),
        job.threads or 1,
    )
    return BulkFlow(
        run.client,
        order,
        queue,
        run=run.name,
        generation=generation,
        first=(epoch, steps.minibatches_of(step).start // job.queue.bulk_size),
        last_epoch=job.epochs,
        num_bulks=-(-minibatches // job.queue.bulk_size),
        producers=job.cluster.producers,
        workers=workers,
        minibatches_per_step=steps.per_step,
    )
