"""The Dask task that samples one bulk into a queue on disk. It returns a receipt, never the bulk."""

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...stages.feed.queue_feed import Receipt
from ...stages.kernels import workspace_of
from ...storage.errors import InputError
from ...storage.queue.bulk_codec import packed_bytes
from ..assembly.data_part import DataPart
from ..assembly.sample_part import SamplePart

if TYPE_CHECKING:
    from ..setup.sampling import Sampling

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
    store: Mapping[str, Any]
    """See `Sampling.store_options`."""
    threads: int
    may_choose: bool
    """A worker without a GPU, or without room for the graph there, draws the same minibatches by its processors."""

    @classmethod
    def from_sampling(cls, sampling: "Sampling", data: DataPart, queue: str) -> "SampleOrder":
        """Order of a job, for a store of its dataset and a queue."""
        job = sampling.job
        may_choose = "kernel" not in job.model_fields_set
        return cls(data, sampling.sample, queue, sampling.store_options, job.threads or 1, may_choose)


_local = threading.local()


def sample_bulk(order: SampleOrder, epoch: int, number: int) -> tuple[Receipt, int, int]:
    """Sample bulk `number` of `epoch` into the queue.

    Returns:
        What was done, the index of the bulk's last minibatch, and its bytes (packed, as the queue's bound counts).

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
    return Receipt.of_bulk(bulk, seconds), bulk.minibatches[-1].index, packed_bytes(bulk)


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
    queue = queue_at(order.queue).create(order.queue, **order.store, max_bytes=1 << 62, keep="all", sweep=False)
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
