"""The Dask task that samples one bulk into the run's queue. It returns a receipt, never the bulk."""

import sys
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...storage.queue.bulk_codec import packed_bytes

PUT_S = 60.0
"""Longest wait of a put: the queue has no bound here, so only the disk can delay it."""


@dataclass(frozen=True)
class SampleOrder:
    """Arguments of a run's sampling tasks. Tasks with equal orders share the data that a worker has opened."""

    job: str
    """The resolved configuration, as JSON."""
    dataset: str
    dataset_name: str
    features: str
    queue: str
    threads: int


_local = threading.local()


def sample_bulk(order: SampleOrder, epoch: int, number: int) -> dict[str, Any]:
    """Sample bulk `number` of `epoch` into the queue.

    Returns:
        epoch, number, last_index, num_bytes (packed, as the queue's bound counts), minibatches, edges, seconds (of
        sampling).

    Raises:
        RunError: the queue cannot be written.
    """
    graph, sampler, plan, kernel, queue = _opened(order)
    if getattr(_local, "order", None) != order:
        _local.order, _local.workspace = order, kernel.Workspace() if hasattr(kernel, "Workspace") else None
    start = time.perf_counter()
    bulk = sampler.sample(graph, plan.request(epoch, number), kernel, _local.workspace)
    seconds = time.perf_counter() - start
    queue.put(bulk, PUT_S)
    return {
        "epoch": epoch,
        "number": number,
        "last_index": bulk.minibatches[-1].index,
        "num_bytes": packed_bytes(bulk),
        "minibatches": len(bulk.minibatches),
        "edges": sum(m.num_edges for m in bulk.minibatches),
        "seconds": seconds,
    }


# Runs usually follow each other: a second order replaces the first, and frees its memory.
_opening = threading.Lock()


def _opened(order: SampleOrder) -> tuple[Any, ...]:
    with _opening:
        return _open(order)


@lru_cache(maxsize=1)
def _open(order: SampleOrder) -> tuple[Any, ...]:
    from ...stages.feed.queue_feed import Sampled
    from ...stages.kernels import sampling_backend
    from ...stages.kernels.runtime.threads import set_num_threads
    from ..config.load import Job
    from ..setup.open_queue import seed_plan, shared_queue
    from ..setup.prepare import prepare_samples
    from ..setup.shared_dataset import open_shared
    from ..training.dynamo import leave_compiler_out

    # Loading it also changes the environment, by which the worker's next ranks would no longer be forked.
    leave_compiler_out()
    set_num_threads(order.threads)
    job = Job.model_validate_json(order.job)
    prepared = prepare_samples(job, open_shared(Path(order.dataset), order.dataset_name, order.features, job.graph))
    assert isinstance(prepared.system.sample, Sampled)
    # The driver counts for all producers. This end keeps no record of its puts, since a bulk that was dropped may be
    # requested again.
    queue = shared_queue(prepared, order.queue, max_bytes=1 << 62, keep="all", sweep=False)
    queue.release(sys.maxsize, 0)
    plan = seed_plan(job, prepared.dataset)
    return prepared.dataset.graph, prepared.system.sample.sampler, plan, sampling_backend(job.kernel), queue
