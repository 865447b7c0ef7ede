"""Sampling stage: fills a minibatch queue, from a thread of this process or from a task of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...storage.errors import QueueTimeoutError, RunError
from ...storage.graph import Graph
from ...storage.ledger import Ledger
from ...storage.minibatch import Bulk, Expected, MiniBatch
from ...storage.queue.base import MemoryQueue, MinibatchQueue
from ..assignment import SeedPlan, Sizes
from ..kernels import workspace_of
from ..kernels.runtime.threads import stand_back
from ..messages import Phase, Placement, RankJob, Seeded
from ..policies import Feed
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

    @classmethod
    def of_bulk(cls, bulk: Bulk, seconds: float) -> "Receipt":
        """Receipt of a bulk that took so many seconds to sample."""
        edges = sum(m.num_edges for m in bulk.minibatches)
        return cls(bulk.epoch, bulk.number, len(bulk.minibatches), edges, seconds)


@dataclass(frozen=True)
class BulkSpan:
    """Bulks of some epochs, in order."""

    epochs: range
    per_epoch: int
    first: int = 0
    """Bulk of the first epoch to begin with."""

    @classmethod
    def of_phase(cls, plan: SeedPlan, phase: Phase, first: tuple[int, int]) -> "BulkSpan":
        """Bulks of a phase, from that of minibatch `first` on: its epoch and index."""
        return cls(range(first[0], phase.last_epoch), plan.num_bulks, first[1] // plan.bulk_size)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(epoch, number) of each."""
        return ((e, n) for e in self.epochs for n in self._numbers(e))

    def missing(self, queue: MinibatchQueue) -> Iterator[tuple[int, int]]:
        """(epoch, number) of those that a queue does not hold when their epoch is come to."""
        for epoch in self.epochs:
            present = queue.committed(epoch)
            yield from ((epoch, number) for number in self._numbers(epoch) if number not in present)

    def _numbers(self, epoch: int) -> range:
        return range(self.first if epoch == self.epochs.start else 0, self.per_epoch)


@dataclass(frozen=True)
class BulkDraws:
    """How bulks of a graph are drawn."""

    graph: Graph
    sampler: Sampler
    plan: SeedPlan
    kernel: Any


def sample_bulks(
    draws: BulkDraws,
    queue: MinibatchQueue,
    span: BulkSpan,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_receipt: Callable[[Receipt], None] = lambda receipt: None,
) -> None:
    """Sample bulks into the queue, in order.

    Bulks that the queue already holds are left alone. Blocks while the queue is full; ends within a second once `stop`
    returns true.

    Raises:
        RunError: the queue cannot be written.
    """
    workspace = workspace_of(draws.kernel)
    for epoch, number in span.missing(queue):
        if stop():
            return
        start = time.perf_counter()
        request = draws.plan.request(epoch, number)
        if not request.seeds:
            continue
        bulk = draws.sampler.sample(draws.graph, request, draws.kernel, workspace)
        seconds = time.perf_counter() - start
        while True:
            try:
                queue.put(bulk, timeout_s=WAIT_S)
                break
            except QueueTimeoutError:
                if stop():
                    return
        on_receipt(Receipt.of_bulk(bulk, seconds))


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

    def __init__(self, queue: MinibatchQueue, draws: BulkDraws, span: BulkSpan) -> None:
        self._queue, self._draws, self._span = queue, draws, span
        self._stop = threading.Event()
        self.receipts: list[Receipt] = []
        self._thread = threading.Thread(target=self._run, name="millrace-sample", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Training goes before sampling ahead: a rank that waits for a minibatch leaves its cores to the producer.
        stand_back()
        try:
            sample_bulks(self._draws, self._queue, self._span, stop=self._stop.is_set, on_receipt=self.receipts.append)
        except BaseException as e:
            self._queue.fail(e)

    def close(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._thread.join(timeout=60)
        if self._thread.is_alive():
            raise RunError("the sampling thread did not stop within 60 s; it may hang in a file system")


@dataclass(frozen=True)
class BySampler:
    """Minibatches that a sampler draws."""

    sampler: Sampler

    @property
    def num_layers(self) -> int:
        """L."""
        return self.sampler.num_layers

    def record(self) -> dict[str, Any]:
        return self.sampler.record()


@dataclass(frozen=True)
class Sampled(BySampler):
    """Minibatches that a sampler draws in bulk and a queue hands over."""

    uses_queue: ClassVar[bool] = True
    is_isolated: ClassVar[bool] = False
    by_owners: ClassVar[bool] = False

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
            draws = BulkDraws(placement.graph, on_job_device(self.sampler, job), plan, job.kernel)
            producer = Producer(job.queue, draws, BulkSpan.of_phase(plan, phase, first))
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


class QueueFeed(Feed):
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
        self._given_up = True

    @property
    def stored(self) -> bool:
        return self._queue.stored

    def release(self, epoch: int, index: int) -> None:
        self._queue.release(epoch, index)

    def close(self) -> None:
        if self._producer:
            self._producer.close()


class CheckedFeed(QueueFeed):
    """Minibatches of a queue on disk, which may hold anything: each is checked when it is read."""

    def __init__(self, expected: Expected, *queue: Any) -> None:
        """`queue`: see `QueueFeed`, or the class that fills it."""
        self._expected = expected
        super().__init__(*queue)

    def _counted(self, minibatch: MiniBatch) -> MiniBatch:
        self._expected.refuse(minibatch, f"minibatch {minibatch.index} of epoch {minibatch.epoch}")
        return super()._counted(minibatch)
