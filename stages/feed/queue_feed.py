"""Sampling stage: fills a minibatch queue, from a thread of this process or from a task of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...storage.errors import QueueTimeoutError, RunError
from ...storage.graph import Graph
from ...storage.ledger import Ledger
from ...storage.minibatch import Expected, MiniBatch
from ...storage.queue.base import MemoryQueue, MinibatchQueue
from ..assignment import SeedPlan, Sizes
from ..kernels.runtime.threads import stand_back
from ..messages import Phase, Placement, RankJob, Seeded
from ..sample.base import Sampler

WAIT_S = 1.0
"""Interval at which a producer polls while the queue is full."""
GIVE_UP_S = 600.0
"""Time that a consumer waits for a live producer before the run fails."""
UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Receipt:
    """A producer's report about a bulk, without the bulk itself."""

    epoch: int
    number: int
    minibatches: int
    edges: int
    seconds: float


def sample_bulks(
    graph: Graph,
    sampler: Sampler,
    plan: SeedPlan,
    kernel: Any,
    queue: MinibatchQueue,
    *,
    first_epoch: int,
    last_epoch: int,
    first_bulk: int = 0,
    stop: Callable[[], bool] = lambda: False,
    on_receipt: Callable[[Receipt], None] | None = None,
) -> None:
    """Sample every bulk of epochs first_epoch..last_epoch-1 into the queue, in order, from `first_bulk` of the first
    one.

    Bulks that the queue already holds are left alone. Blocks while the queue is full; ends within a second once `stop`
    returns true.

    Raises:
        RunError: the queue cannot be written.
    """
    workspace = kernel.Workspace() if hasattr(kernel, "Workspace") else None
    for epoch in range(first_epoch, last_epoch):
        present = queue.committed(epoch)
        for number in range(first_bulk if epoch == first_epoch else 0, plan.num_bulks):
            if stop():
                return
            if number in present:
                continue
            start = time.perf_counter()
            request = plan.request(epoch, number)
            if not request.seeds:
                continue
            bulk = sampler.sample(graph, request, kernel, workspace)
            seconds = time.perf_counter() - start
            while True:
                try:
                    queue.put(bulk, timeout_s=WAIT_S)
                    break
                except QueueTimeoutError:
                    if stop():
                        return
            if on_receipt is not None:
                edges = sum(m.num_edges for m in bulk.minibatches)
                on_receipt(Receipt(epoch, number, len(bulk.minibatches), edges, seconds))


def most_bulks(bulks: float, bulk_bytes: float, max_bytes: int) -> float:
    """Most bulks that a `Producer` and its queue in memory hold at once: those within the queue's bound, at least one,
    and one that is drawn or waits for room.

    Args:
        bulks: all that the producer makes.
        bulk_bytes: of each.
        max_bytes: the queue's bound.
    """
    return min(bulks, 1 + max(1, max_bytes // max(1, bulk_bytes)))


class Producer:
    """Thread that runs `sample_bulks` for its rank. Errors reach the consumer at once."""

    def __init__(self, queue: MinibatchQueue, **arguments: Any) -> None:
        self._queue, self._arguments = queue, arguments
        self._stop = threading.Event()
        self.receipts: list[Receipt] = []
        self._thread = threading.Thread(target=self._run, name="millrace-sample", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Training goes before sampling ahead: a rank that waits for a minibatch leaves its cores to the producer.
        stand_back()
        try:
            sample_bulks(queue=self._queue, stop=self._stop.is_set, on_receipt=self.receipts.append, **self._arguments)
        except BaseException as e:
            self._queue.fail(e)

    def close(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._thread.join(timeout=60)
        if self._thread.is_alive():
            raise RunError("the sampling thread did not stop within 60 s; it may hang in a file system")


@dataclass(frozen=True)
class Sampled:
    """Minibatches that a sampler draws in bulk and a queue hands over."""

    sampler: Sampler

    uses_queue: ClassVar[bool] = True
    is_isolated: ClassVar[bool] = False

    @property
    def num_layers(self) -> int:
        """L."""
        return self.sampler.num_layers

    def record(self) -> dict[str, Any]:
        return self.sampler.record()

    def plan(self, placement: Seeded, sizes: Sizes) -> SeedPlan:
        """Seeds of all ranks' minibatches."""
        return SeedPlan(placement.seeds, sizes.batch_size, sizes.bulk_size, sizes.seed)

    def _own_plan(self, placement: Placement, job: RankJob) -> SeedPlan:
        """Seeds of this rank's minibatches."""
        return self.plan(placement, job).of_rank(job.minibatches_per_step, job.group.size, job.group.rank)

    def num_minibatches(self, placement: Placement, job: RankJob) -> int:
        return self.plan(placement, job).num_minibatches

    def preview(self, placement: Placement, job: RankJob, epoch: int) -> Iterator[MiniBatch]:
        """This rank's minibatches of an epoch, sampled outside the feed."""
        plan = self._own_plan(placement, job)
        for number in range(plan.num_bulks):
            request = plan.request(epoch, number)
            if request.seeds:
                yield from self.sampler.sample(placement.graph, request, job.kernel).minibatches

    def feed(self, placement: Placement, phase: Phase, job: RankJob, first: tuple[int, int]) -> "QueueFeed":
        plan = self._own_plan(placement, job)
        producer = None
        if job.produce and plan.num_minibatches:
            producer = Producer(
                job.queue,
                graph=placement.graph,
                sampler=on_job_device(self.sampler, job),
                plan=plan,
                kernel=job.kernel,
                first_epoch=first[0],
                last_epoch=phase.last_epoch,
                first_bulk=first[1] // job.bulk_size,
            )
        return QueueFeed(job.queue, producer, job.ledger, job.producer_alive)


def on_job_device(sampler: Sampler, job: RankJob) -> Any:
    """The sampler, or one whose bulks stay on the job's device."""
    if not job.resident:
        return sampler
    # Needs Triton.
    from ..sample.resident import LeftOnDevice

    assert job.device is not None
    return LeftOnDevice(sampler, job.device)


def own_queue(plan: SeedPlan) -> MemoryQueue:
    """A queue for the minibatches of a rank, without a bound: room is checked before sampling, which ranks begin
    together."""
    per_epoch = max(1, plan.num_minibatches)
    return MemoryQueue(bulk_size=plan.bulk_size, max_bytes=UNBOUNDED, minibatches_per_epoch=per_epoch)


def bulks_of(plan: SeedPlan, phase: Phase, first: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Epoch and number of each bulk of a phase, from that of minibatch `first` on: its epoch and index."""
    for epoch in range(first[0], phase.last_epoch):
        for number in range(first[1] // plan.bulk_size if epoch == first[0] else 0, plan.num_bulks):
            yield epoch, number


class QueueFeed:
    """Consumer's end of the queue, with the producer if it runs in this process."""

    def __init__(
        self, queue: MinibatchQueue, producer: Producer | None, ledger: Ledger, alive: Callable[[], bool]
    ) -> None:
        self._queue, self._producer, self._ledger, self._alive = queue, producer, ledger, alive
        self._given_up = False

    @property
    def sample_s(self) -> float:
        return sum(r.seconds for r in self._producer.receipts) if self._producer else 0.0

    def get(self, epoch: int, index: int) -> MiniBatch:
        return self._counted(self._wait(epoch, index))

    def peek(self, epoch: int, index: int) -> MiniBatch | None:
        try:
            return self._counted(self._queue.get(epoch, index, timeout_s=0.0))
        except QueueTimeoutError:
            return None

    def _counted(self, minibatch: MiniBatch) -> MiniBatch:
        if self._queue.stored:
            self._ledger.add("store", "minibatches", minibatch.nbytes)
        return minibatch

    def _wait(self, epoch: int, index: int) -> MiniBatch:
        give_up = time.monotonic() + GIVE_UP_S
        while True:
            # Read before polling, so that a bulk that a producer committed last is found.
            alive = self._alive()
            try:
                return self._queue.get(epoch, index, timeout_s=WAIT_S)
            except QueueTimeoutError:
                if not alive:
                    raise RunError(
                        f"minibatch {index} of epoch {epoch} is not there, and whoever was sampling has ended; sample "
                        "on, then --resume"
                    ) from None
                if self._given_up or time.monotonic() >= give_up:
                    raise

    def give_up(self) -> None:
        """Make a waiting `get` raise QueueTimeoutError soon."""
        self._given_up = True

    def expect(self, epoch: int, index: int) -> None:
        """Announce that everything up to and including that minibatch will be read, here or on other ranks, before more
        is released."""

    @property
    def stored(self) -> bool:
        """True if the producer's bound takes no account of `expect`."""
        return self._queue.stored

    def release(self, epoch: int, index: int) -> None:
        self._queue.release(epoch, index)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


class CheckedFeed(QueueFeed):
    """Minibatches of a queue on disk, which may hold anything: each is checked when it is read."""

    def __init__(self, expected: Expected, *queue: Any) -> None:
        """`queue`: see `QueueFeed`."""
        super().__init__(*queue)
        self._expected = expected

    def _counted(self, minibatch: MiniBatch) -> MiniBatch:
        self._expected.refuse(minibatch, f"minibatch {minibatch.index} of epoch {minibatch.epoch}")
        return super()._counted(minibatch)
