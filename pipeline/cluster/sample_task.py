"""The Dask task that samples one bulk into a queue on disk. It returns a receipt, never the bulk."""

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ...stages.kernels import workspace_of
from ...storage.errors import InputError
from ...storage.queue.bulk_codec import packed_bytes
from ..assembly.data_part import DataPart
from ..assembly.sample_part import SamplePart

GPU_SHARE = 0.6
"""Share of a GPU's free memory that a graph may take there, where a rank works too."""
PUT_S = 60.0
"""Longest wait of a put: the queue has no bound here, so only the disk can delay it."""


@dataclass(frozen=True)
class SampleOrder:
    """Arguments of a run's sampling tasks. Tasks with equal orders share the data that a worker has opened."""

    data: DataPart
    sample: SamplePart
    queue: str
    """Folder or URL of the queue."""
    fingerprint: dict[str, str]
    """That of the queue."""
    minibatches_per_epoch: int
    threads: int
    may_choose: bool
    """A worker without a GPU, or without room for the graph there, draws the same minibatches by its processors."""


_local = threading.local()


def sample_bulk(order: SampleOrder, epoch: int, number: int) -> dict[str, Any]:
    """Sample bulk `number` of `epoch` into the queue.

    Returns:
        epoch, number, last_index, num_bytes (packed, as the queue's bound counts), minibatches, edges, seconds (of
        sampling).

    Raises:
        RunError: the queue cannot be written.
    """
    graph, plan, kernel, queue = _opened.opened(order)
    if getattr(_local, "order", None) != order:
        _local.order, _local.workspace = order, workspace_of(kernel)
    start = time.perf_counter()
    bulk = order.sample.policy.sampler.sample(graph, plan.request(epoch, number), kernel, _local.workspace)
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


@dataclass
class _Opened:
    """What the tasks of the last order have opened. Runs usually follow each other: a second order replaces the first,
    and frees its memory."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: tuple[Any, ...] = ()

    def opened(self, order: SampleOrder) -> tuple[Any, ...]:
        with self.lock:
            if not self.held or self.held[0] != order:
                self.held = ()
                self.held = (order, *_open(order))
            return self.held[1:]


_opened = _Opened()


def _open(order: SampleOrder) -> tuple[object, ...]:
    from ...stages.kernels import sampling_backend
    from ...stages.kernels.runtime.threads import set_num_threads
    from ...storage.queue.object_store import queue_at
    from ..assembly.data_part import graph_and_seeds

    set_num_threads(order.threads)
    data = graph_and_seeds(order.data.open())
    # The driver counts for all producers. This end keeps no record of its puts, since a bulk that was dropped may be
    # requested again.
    queue = queue_at(order.queue).create(
        order.queue,
        fingerprint=order.fingerprint,
        bulk_size=order.sample.bulk_size,
        max_bytes=1 << 62,
        keep="all",
        meta={"minibatches_per_epoch": order.minibatches_per_epoch},
        sweep=False,
    )
    queue.release(sys.maxsize, 0)
    kernel = order.sample.kernel
    if kernel == "cuda" and order.may_choose and not _fits_gpu(data.graph.nbytes):
        kernel = "cpu"
    return data.graph, order.sample.plan(data), sampling_backend(kernel), queue


def _fits_gpu(num_bytes: int) -> bool:
    from ..machine.gpus import free_bytes

    try:
        return num_bytes <= GPU_SHARE * free_bytes()
    except InputError:
        return False
