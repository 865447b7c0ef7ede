"""Sampling without the whole topology on any rank: a thread of each rank samples bulk after bulk together with the
others, into its own memory, or into a queue on disk that all ranks share."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from ...storage.minibatch import Expected, MiniBatch
from ...storage.queue.base import MemoryQueue
from ..assignment import SeedPlan, Sizes, Steps
from ..comm.base import Group
from ..comm.lockstep import Lockstep
from ..memory.arena import give_back
from ..messages import Phase, RankJob
from ..placement.grid_costs import Degrees, expected, sampler_kind
from ..placement.row_blocks import BlockRows
from ..placement.row_owners import Owners
from ..placement.staged_rows import StagedRows
from ..sample.base import Sampler
from .dealt_bulks import DealtBulks
from .queue_feed import BulkSpan, CheckedFeed, QueueFeed, own_queue
from .shared_feed import DrawnAhead, SharedOwnersFeed

Algorithm = Literal["owners", "1.5d", "auto"]


@dataclass(frozen=True)
class SampledByOwners:
    """Minibatches sampled in bulk over block rows: each rank its own, with the help of the owners of the rows."""

    sampler: Sampler
    max_bytes: int = 512 << 20
    """Sampled minibatches that may wait, in bytes of structure."""
    local_seeds: bool = False
    """See `SeedPlan.local`."""
    algorithm: Algorithm = "owners"
    """Messages of a draw: ids to the rows' owners and drawn edges back, or the rows (`staged_rows`); ``auto``: whatever
    `grid_costs` expects to take less time."""
    uses_queue: bool = False
    """Minibatches come from a queue on disk (`RankJob.queue`), which these ranks fill unless it was filled before."""

    is_isolated: ClassVar[bool] = False
    by_owners: ClassVar[bool] = True

    @property
    def num_layers(self) -> int:
        """L."""
        return self.sampler.num_layers

    def record(self) -> dict[str, Any]:
        """See `SamplePolicy.record`: unless seeds are local, the same minibatches as from the whole topology."""
        return self.sampler.record() | ({"local_seeds": True} if self.local_seeds else {})

    def plan_of_all(self, placement: BlockRows, sizes: Sizes) -> SeedPlan:
        """Seeds of all ranks' minibatches: see `Sampled.plan`."""
        return SeedPlan(placement.seeds, sizes.batch_size, sizes.bulk_size, sizes.seed)

    def plan(self, placement: BlockRows, job: RankJob) -> SeedPlan:
        """Seeds of this rank's minibatches. A bulk holds those among k P consecutive ones."""
        plan, ranks = self.plan_of_all(placement, job), job.group.size
        steps = Steps(plan.num_minibatches, job.minibatches_per_step, ranks, job.group.rank)
        return replace(plan, bulk_size=plan.bulk_size * ranks, local=self.local_seeds, steps=steps)

    def is_seed(self, placement: BlockRows) -> npt.NDArray[np.bool_]:
        """[V], the nodes that may be seeds of minibatches."""
        found = np.zeros(placement.num_nodes, np.bool_)
        found[placement.seeds] = True
        return found

    def num_minibatches(self, placement: BlockRows, job: RankJob) -> int:
        return self.plan(placement, job).num_minibatches

    def preview(self, placement: BlockRows, job: RankJob, epoch: int) -> Iterator[MiniBatch]:
        """This rank's minibatches of an epoch, sampled outside the feed. All ranks must consume all of it."""
        quiet = replace(job, tell=lambda text: None)
        owners, plan = self.meet(placement, quiet, placement.owners, placement.row), self.plan(placement, job)
        for number in range(plan.num_bulks):
            yield from self.sampler.sample_by_owners(owners, plan.request(epoch, number)).minibatches

    def meet(self, placement: BlockRows, job: RankJob, column: Group, row: Group | None) -> Owners:
        """Access to the rows of other ranks, by the algorithm; all ranks call this at the same time.

        Args:
            placement: of this rank.
            job: of this rank.
            column: the ranks of its grid column, for this thread.
            row: those of its grid row, likewise; None if rows stay with their owners.
        """
        # With one block there is nothing to fetch, and nobody to ask.
        if row is None or column.size == 1 or self.chosen(placement, job, column, row.size) == "owners":
            return Owners(placement, column)
        return StagedRows(placement, column, row)

    def meet_aside(self, placement: BlockRows, job: RankJob) -> Owners:
        """`meet`, for a thread of its own."""
        column, row = placement.owners, placement.row
        group = column.sub("sample", range(column.size))
        return self.meet(placement, job, group, None if row is None else row.sub("sample", range(row.size)))

    def dealt(self, placement: BlockRows, job: RankJob) -> DealtBulks:
        """Bulks of all ranks' minibatches, of which this rank draws its share in a thread of its own."""
        owners = self.meet_aside(placement, job)
        return DealtBulks(self.plan_of_all(placement, job), self.sampler, owners, job.group.rank)

    def chosen(self, placement: BlockRows, job: RankJob, column: Group, replication: int) -> str:
        """The algorithm; with ``auto``, by the cost of a bulk. The same on all ranks."""
        if self.algorithm != "auto":
            return self.algorithm
        if sampler_kind(self.sampler) is None:
            return "owners"
        degrees = Degrees.histogram(placement.graph.in_degree)
        counts = torch.from_numpy(np.concatenate([degrees.nodes, degrees.edges]).astype(np.int64))
        column.all_reduce(counts, "control")
        costs = expected(
            self.sampler,
            Degrees(*counts.numpy().astype(np.float64).reshape(2, -1)),
            ranks=job.group.size,
            replication=replication,
            batch=job.batch_size,
            bulk=min(job.bulk_size, -(-self.plan(placement, job).num_minibatches // job.group.size)),
            weighted=placement.graph.is_weighted,
        )
        best = min(costs, key=lambda name: costs[name].seconds())
        if job.group.rank == 0:
            each = " and ".join(f"{cost.words:,.0f} words by {name}" for name, cost in costs.items())
            job.tell(f'bulk.algorithm = "auto" is "{best}": a rank is expected to send {each} for a bulk')
        return best

    def feed(self, placement: BlockRows, phase: Phase, job: RankJob, first: tuple[int, int]) -> QueueFeed:
        """See `SamplePolicy.feed`. All ranks call this at the same time."""
        if self.uses_queue:
            expected = Expected(self.is_seed(placement), self.num_layers)
            if not job.produce:
                return CheckedFeed(expected, job.queue, None, job.ledger, job.producer_alive)
            return SharedOwnersFeed(expected, self.dealt(placement, job), self.max_bytes, phase, job, first)
        if job.resident:
            from .collective_feed_cuda import OwnersFeedOnDevice

            plan = self.plan(placement, job)
            return OwnersFeedOnDevice(plan, self.sampler, self.max_bytes, placement, phase, job, first=first)
        return OwnersFeed(self, placement, phase, job, first)


class OwnersFeed(DrawnAhead):
    """A rank's own minibatches, and the thread that samples them."""

    def __init__(
        self, policy: SampledByOwners, placement: BlockRows, phase: Phase, job: RankJob, first: tuple[int, int]
    ) -> None:
        self._plan, self._sampler, self._max_bytes = policy.plan(placement, job), policy.sampler, policy.max_bytes
        self._owners = policy.meet_aside(placement, job)
        super().__init__(own_queue(self._plan), None, job.ledger, lambda: True)
        bulks = iter(BulkSpan.of_phase(self._plan, phase, first))
        self._thread = Lockstep("sampling", self._owners.group, bulks, self._has_room, self._sample, self._wake)
        self._thread.start()

    def _has_room(self, bulk: tuple[int, int]) -> bool:
        queue = self._queue
        assert isinstance(queue, MemoryQueue)
        epoch, number = bulk
        return (epoch, number * self._plan.bulk_size) <= self._expected_until or queue.held_bytes <= self._max_bytes

    def _sample(self, bulk: tuple[int, int]) -> None:
        start = time.perf_counter()
        request = self._plan.request(*bulk)
        drawn = self._sampler.sample_by_owners(self._owners, request)
        if drawn.minibatches:
            self._queue.put(drawn, timeout_s=1.0)
        del drawn
        # A bulk in the making takes many times its final size on this thread's part of the heap, where other threads
        # cannot use it.
        give_back()
        self._sample_s += time.perf_counter() - start
