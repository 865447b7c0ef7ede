"""Sampling of all minibatches of a job into a store, ahead of training."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ..stages.assignment import SeedPlan
from ..stages.feed.queue_feed import Receipt, Sampled, sample_bulks
from ..stages.kernels import OTHER_BITS, sampling_backend
from ..stages.sample.base import check_kernel
from ..storage.errors import InputError, Interrupted
from ..storage.plural import counted
from ..storage.queue.object_store import queue_at
from ..storage.queue.zarr import ZarrQueue
from ..storage.urls import is_url
from .cluster.sample_multi_gpu import sample_across
from .config.load import Job
from .config.records import make_system, without_partitioner
from .setup.fingerprint import sample_fingerprint
from .setup.open_data import open_data
from .setup.open_queue import seed_plan
from .setup.run_folder import locked
from .telemetry.events import Emit, Note, StageAdvanced, StageEnded, StageStarted


def precompute(job: Job, out: str | Path, *, emit: Emit, stop: Callable[[], bool]) -> dict[str, Any]:
    """Fill a store with the minibatches of ``job.epochs`` epochs. Bulks already in it are kept.

    Args:
        job: the job to sample for.
        out: the store's folder, or its URL on an object store.
        emit: called with every event.
        stop: called between bulks; true interrupts.

    Returns:
        A record: epochs, minibatches, edges (of bulks sampled now), bytes on disk (None on an object store), seconds.

    Raises:
        InputError: the job's system does not sample, or `out` was made from something else.
        RunError: `out` cannot be written, or does not answer.
        Interrupted: `stop` returned true; committed bulks stay, and the same command continues from there.
    """
    start = time.perf_counter()
    dataset = open_data(job, None, emit)
    # The minibatches do not depend on how the graph is distributed.
    system = make_system(job.model_copy(update={job.system: type(job.options)()}))
    if not isinstance(system.sample, Sampled):  # its seed plan is the store's
        raise InputError(f"system '{system.name}' does not sample minibatches; there is nothing to precompute")
    if make_system(without_partitioner(job)).sample.record() != system.sample.record():
        raise InputError(
            f"{job.system}.local_seeds is true, so that minibatches depend on the ranks that train; leave it out to "
            "draw samples for any of them"
        )
    check_kernel(system.sample.sampler, job.kernel)
    system.sample.sampler.check(dataset.graph)
    if not len(dataset.split.train):
        raise InputError("the train split is empty: there is nothing to sample; choose another split")
    plan = seed_plan(job, dataset)
    store: dict[str, Any] = {
        "fingerprint": sample_fingerprint(job, dataset, system),
        "bulk_size": job.queue.bulk_size,
        "max_bytes": 1 << 62,
        "keep": "all",
        "meta": {"minibatches_per_epoch": plan.num_minibatches, "dataset": dataset.name},
    }
    create = partial(queue_at(out).create, out, **store)
    kernel = sampling_backend(job.kernel)
    # Anything else at `out` is refused before the folder is locked; leftovers are removed only under the lock.
    create(sweep=False).close()
    # An object store has no lock. A bulk left there by a killed writer has no manifest, and is overwritten when it is
    # sampled again.
    with nullcontext() if is_url(out) else locked(Path(out)):
        queue = create(sweep=not is_url(out), mend=None if is_url(out) else lambda text: emit(Note(text)))
        if job.kernel in OTHER_BITS and (gpus := kernel.check_available()) > 1:
            fill = partial(sample_across, job, dataset, system.sample.sampler, queue, str(out), store, gpus)
        else:
            fill = partial(
                sample_bulks,
                dataset.graph,
                system.sample.sampler,
                plan,
                kernel,
                queue,
                first_epoch=0,
                last_epoch=job.epochs,
            )
        edges = _fill(job, plan, queue, fill, emit, stop)
    seconds = time.perf_counter() - start
    emit(StageEnded("sample", seconds))
    return {
        "out": str(out),
        "epochs": job.epochs,
        "minibatches": job.epochs * plan.num_minibatches,
        "edges": edges,
        "bytes": None if is_url(out) else sum(f.stat().st_size for f in Path(out).rglob("*") if f.is_file()),
        "seconds": seconds,
    }


def _fill(
    job: Job, plan: SeedPlan, queue: ZarrQueue, fill: Callable[..., None], emit: Emit, stop: Callable[[], bool]
) -> int:
    """Sample the bulks missing from the queue, and return their number of edges."""
    total = job.epochs * plan.num_bulks
    done = sum(len(queue.committed(e)) for e in range(job.epochs))
    edges = 0
    emit(
        StageStarted(
            "sample",
            f"sampling {counted(job.epochs, 'epoch')} of {counted(plan.num_minibatches, 'minibatch', 'minibatches')}",
            total,
        )
    )

    def advance(receipt: Receipt) -> None:
        nonlocal done, edges
        done, edges = done + 1, edges + receipt.edges
        emit(StageAdvanced("sample", done, total))

    try:
        fill(stop=stop, on_receipt=advance)
        if stop():
            raise Interrupted(
                f"interrupted with {done} of {total} bulks committed; the same command goes on from there"
            )
        queue.finish()
    finally:
        queue.close()
    return edges
