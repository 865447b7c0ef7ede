"""Sampling by Dask tasks: the driver requests bulks in order and tracks which are sampled, waiting, or released.

A few bulks are requested at a time, while the bytes that wait for ranks stay within the queue's bound. As many as one
step can need are requested whatever the bound, so that a bound that is too small makes a run slow but never stuck.
"""

from dataclasses import dataclass
from typing import Any

from distributed import CancelledError, Client, Future

from ...stages.feed.queue_feed import BulkSpan
from ...storage.errors import RunError
from .futures import result_within
from .sample_task import SampleOrder, sample_bulk
from .scheduler_watch import cancel, lost_scheduler

RECEIPT_S = 1.0
"""Longest wait for the receipt of a task that is done, while its worker lives."""
PER_PRODUCER = 2
"""Tasks submitted for each producer: one that samples, and one that waits, so that a producer never waits for the
driver."""


class Flow:
    """The driver's end of a queue that ranks fill together: it drops the bulks that every rank has released.

    Args:
        queue: counts bytes and drops bulks.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.bulks = 0
        """Bulks sampled so far."""
        self.seconds = 0.0
        """Seconds of sampling tasks, over all workers."""

    @property
    def level(self) -> dict[str, Any]:
        """The fields of `events.QueueLevel`."""
        return {**self._queue.level, "sampled": self.bulks, "seconds": self.seconds}

    def advance(self) -> None:
        """Look after producers. Does not wait for sampling.

        Raises:
            RunError: a bulk could not be sampled or stored.
        """

    def adopt(self, epoch: int, number: int, last_index: int, num_bytes: int) -> None:
        """Count a bulk that is stored now."""
        self.bulks += 1
        self._queue.adopt(epoch, number, last_index, num_bytes)

    def release(self, rank: int, epoch: int, index: int) -> None:
        """Note that a rank no longer needs this minibatch or any before it."""
        self._queue.release(epoch, index, rank)

    def close(self) -> None:
        """Look after them no more."""
        self._queue.close()


@dataclass(frozen=True)
class SamplingWorkers:
    """Workers of a cluster that sample for one generation of ranks."""

    client: Client
    run: str
    """A word that makes this run's task keys unique."""
    generation: int
    producers: int
    """Sampling tasks at a time."""
    addresses: list[str]
    """Workers to sample on while they live; none: any."""


class BulkFlow(Flow):
    """Sampling tasks of one generation of ranks.

    Args:
        workers: do the tasks.
        order: arguments of all sampling tasks.
        queue: the driver's end of the queue, which counts bytes and drops bulks that every rank has released.
        span: bulks that ranks will take.
        minibatches_per_step: over all ranks.
    """

    def __init__(
        self, workers: SamplingWorkers, order: SampleOrder, queue: Any, span: BulkSpan, minibatches_per_step: int
    ) -> None:
        super().__init__(queue)
        self._client, self._order, self._workers = workers.client, order, workers
        self._most = workers.producers * PER_PRODUCER
        # A step may begin with the last minibatch of a bulk.
        self._least = 1 if minibatches_per_step == 1 else 2 + (minibatches_per_step - 2) // queue.bulk_size
        self._numbers = span.missing(queue)
        self._next = next(self._numbers, None)
        self._running: dict[tuple[int, int], Future] = {}
        self._mean_bytes = 0.0

    @property
    def done(self) -> bool:
        """True if every bulk is in the queue."""
        return self._next is None and not self._running

    def advance(self) -> None:
        """Account for sampled bulks, and request more if there is room. Does not wait for sampling.

        Raises:
            RunError: a bulk could not be sampled or stored.
        """
        for key in [k for k, f in self._running.items() if f.done()]:
            if not self._take_in(self._running[key]):
                break
            del self._running[key]
        while self._next is not None and len(self._running) < self._most and self._has_room():
            epoch, number = self._next
            self._running[self._next] = self._client.submit(
                sample_bulk,
                self._order,
                epoch,
                number,
                key=(f"sample-{self._workers.run}", self._workers.generation, epoch, number),
                workers=self._workers.addresses or None,
                allow_other_workers=bool(self._workers.addresses),
                pure=False,
                priority=-(epoch << 32) - number,
            )
            self._next = next(self._numbers, None)

    def _has_room(self) -> bool:
        running, held = len(self._running), self._queue.level
        if held["bulks"] + running < self._least:
            return True
        return held["bytes"] + (running + 1) * self._mean_bytes <= self._queue.max_bytes

    def _take_in(self, future: Future) -> bool:
        """Account for a bulk. False if its receipt was lost with its worker; Dask then runs the task again."""
        try:
            receipt, last_index, num_bytes = result_within(future, RECEIPT_S)
        except TimeoutError as e:
            if future.status != "error":
                return False
            raise RunError(f"sampling failed: {e or 'a time-out'}; fix that, then resume with --resume") from e
        except CancelledError as e:
            raise lost_scheduler(type(e).__name__, self._client) from e
        except Exception as e:
            raise RunError(f"sampling failed: {type(e).__name__}: {e}; fix that, then resume with --resume") from e
        self.seconds += receipt.seconds
        self.adopt(receipt.epoch, receipt.number, last_index, num_bytes)
        self._mean_bytes += (num_bytes - self._mean_bytes) / self.bulks
        return True

    def close(self) -> None:
        """Request no more bulks and cancel running tasks. A bulk that is committed all the same does no harm."""
        self._next = None
        cancel(self._client, list(self._running.values()))
        self._running.clear()
        super().close()
