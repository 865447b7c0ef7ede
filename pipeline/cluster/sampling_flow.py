"""The driver's account of sampling: which bulks are asked of the workers, which wait, which are done with.

Bulks are asked for in order, a few at a time, while the bytes that wait for the ranks stay within the queue's bound. As
many as one step can need together are asked for whatever the bound, so that one that is too small is slow and never
stuck.
"""

from collections.abc import Iterator
from typing import Any

from distributed import CancelledError, Client, Future

from ...storage.errors import RunError
from .sample_task import SampleOrder, sample_bulk
from .scheduler_watch import cancel, lost_scheduler

RECEIPT_S = 1.0
"""The receipt of a task that is done comes within this time while its worker lives."""
PER_PRODUCER = 2
"""Tasks under way for each producer: one that samples, and one that waits for it, so that it never waits for the
driver."""


class BulkFlow:
    """Sampling tasks of one generation of ranks.

    Args:
        client: of the cluster.
        order: what to sample.
        queue: the driver's own end of the queue, which counts bytes and drops what every rank has released.
        run: a word that tells this run's keys from another's.
        generation: of the ranks.
        first: (epoch, bulk) to begin with.
        last_epoch: exclusive.
        num_bulks: in an epoch.
        producers: sampling tasks at a time.
        workers: addresses to sample on while they live.
        minibatches_per_step: over all ranks.
    """

    def __init__(
        self,
        client: Client,
        order: SampleOrder,
        queue: Any,
        *,
        run: str,
        generation: int,
        first: tuple[int, int],
        last_epoch: int,
        num_bulks: int,
        producers: int,
        workers: list[str],
        minibatches_per_step: int,
    ) -> None:
        self._client, self._order, self._queue = client, order, queue
        self._name, self._generation, self._workers = f"sample-{run}", generation, workers
        self._most = producers * PER_PRODUCER
        # A step may begin with the last minibatch of a bulk.
        self._least = 1 if minibatches_per_step == 1 else 2 + (minibatches_per_step - 2) // queue.bulk_size
        self._numbers = self._missing(first, last_epoch, num_bulks)
        self._next = next(self._numbers, None)
        self._running: dict[tuple[int, int], Future] = {}
        self._mean_bytes = 0.0
        self.bulks = 0
        """Sampled so far."""
        self.seconds = 0.0
        """Of sampling, over all workers."""

    def _missing(self, first: tuple[int, int], last_epoch: int, num_bulks: int) -> Iterator[tuple[int, int]]:
        for epoch in range(first[0], last_epoch):
            present = self._queue.committed(epoch)
            for number in range(first[1] if epoch == first[0] else 0, num_bulks):
                if number not in present:
                    yield epoch, number

    @property
    def done(self) -> bool:
        """Whether every bulk is in the queue."""
        return self._next is None and not self._running

    @property
    def level(self) -> dict[str, Any]:
        """The fields of `events.QueueLevel`."""
        return {**self._queue.level, "sampled": self.bulks, "seconds": self.seconds}

    def advance(self) -> None:
        """Take in what has been sampled, and ask for more where there is room. Does not wait.

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
                key=(self._name, self._generation, epoch, number),
                workers=self._workers or None,
                allow_other_workers=bool(self._workers),
                pure=False,
                priority=-(epoch << 32) - number,
            )
            self._next = next(self._numbers, None)

    def _has_room(self) -> bool:
        running = len(self._running)
        if self._queue.held_bulks + running < self._least:
            return True
        return self._queue.held_bytes + (running + 1) * self._mean_bytes <= self._queue.max_bytes

    def _take_in(self, future: Future) -> bool:
        """Account for a bulk. False: its receipt went with the worker that had it, and the task is done again."""
        try:
            receipt = future.result(timeout=RECEIPT_S)
        except TimeoutError as e:
            if future.status != "error":
                return False
            raise RunError(f"sampling failed: {e or 'a time-out'}; fix that, then resume with --resume") from e
        except CancelledError as e:
            raise lost_scheduler(type(e).__name__) from e
        except Exception as e:
            raise RunError(f"sampling failed: {type(e).__name__}: {e}; fix that, then resume with --resume") from e
        self.bulks += 1
        self._mean_bytes += (receipt["num_bytes"] - self._mean_bytes) / self.bulks
        self.seconds += receipt["seconds"]
        self._queue.adopt(receipt["epoch"], receipt["number"], receipt["last_index"], receipt["num_bytes"])
        return True

    def release(self, rank: int, epoch: int, index: int) -> None:
        """A rank needs nothing up to and including this minibatch any more."""
        self._queue.release(epoch, index, rank)

    def close(self) -> None:
        """Ask for no more, and let go of what is under way: a bulk that is committed all the same does no harm."""
        self._next = None
        cancel(self._client, list(self._running.values()))
        self._running.clear()
        self._queue.close()
