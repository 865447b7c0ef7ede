"""Sampling without the whole topology on any rank: a thread of each rank samples bulk after bulk together with the
others, into its own memory, or into a queue on disk that all ranks share."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from ...storage.array_kinds import Mask
from ...storage.minibatch import Bulk, Expected, MiniBatch
from ...storage.queue.bulk_codec import packed_bytes
from ..assignment import SeedPlan, Sizes, Steps
from ..comm.base import Group
from ..comm.lockstep import Lockstep
from ..memory.arena import give_back
from ..messages import Phase, RankJob
from ..placement.grid_costs import Degrees, expected, sampler_kind
from ..placement.row_blocks import BlockRows, Grid
from ..placement.row_owners import Owners
from ..placement.staged_rows import StagedRows
from .draws import Draw, FilledFeed, dealt_draws, lacking_rounds, own_draws
from .queue_feed import WAIT_S, BulkSpan, BySampler, CheckedFeed, QueueFeed, own_queue

if TYPE_CHECKING:
    from ..placement.row_owners_cuda import OwnersOnDevice

Algorithm = Literal["owners", "1.5d", "auto"]


@dataclass(frozen=True)
class SampledByOwners(BySampler):
    """Minibatches sampled in bulk over block rows: each rank its own, with the help of the owners of the rows."""

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

    def record(self) -> dict[str, Any]:
        """See `SamplePolicy.record`: unless seeds are local, the same minibatches as from the whole topology."""
        return super().record() | ({"local_seeds": True} if self.local_seeds else {})

    def plan_of_all(self, placement: BlockRows, sizes: Sizes) -> SeedPlan:
        """Seeds of all ranks' minibatches: see `Sampled.plan`."""
        return SeedPlan(placement.seeds, sizes.batch_size, sizes.bulk_size, sizes.seed)

    def plan(self, placement: BlockRows, job: RankJob) -> SeedPlan:
        """Seeds of this rank's minibatches. A bulk holds those among k P consecutive ones."""
        plan, ranks = self.plan_of_all(placement, job), job.group.size
        steps = Steps(plan.num_minibatches, job.minibatches_per_step, ranks, job.group.rank)
        return replace(plan, bulk_size=plan.bulk_size * ranks, local=self.local_seeds, steps=steps)

    def is_seed(self, placement: BlockRows) -> Mask:
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
        if row is None or self._asks_owners(placement, job, column, row):
            return Owners(placement, column)
        return StagedRows(placement, column, row)

    def _asks_owners(self, placement: BlockRows, job: RankJob, column: Group, row: Group) -> bool:
        # With one block there is nothing to fetch, and nobody to ask.
        return column.size == 1 or self.chosen(placement, job, column, row.size) == "owners"

    def meet_aside(self, placement: BlockRows, job: RankJob) -> Owners:
        """`meet`, for a thread of its own."""
        column, row = placement.owners, placement.row
        group = column.sub("sample", range(column.size))
        return self.meet(placement, job, group, None if row is None else row.sub("sample", range(row.size)))

    def meet_on_device(self, placement: BlockRows, job: RankJob) -> "OwnersOnDevice":
        """`meet`, for the thread that trains, by devices."""
        from ..placement.row_owners_cuda import OwnersOnDevice, StagedOnDevice

        column, row, me = placement.owners, placement.row, job.group.rank
        assert job.device is not None
        grid = Grid(job.group.size, job.group.size // column.size)
        if row is None or self._asks_owners(placement, job, column, row):
            return OwnersOnDevice(placement, column, job.device, grid.column(me))
        return StagedOnDevice(placement, column, row, job.device, grid.row(me))

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
            Grid(job.group.size, replication),
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
        expected, group = (Expected(self.is_seed(placement), self.num_layers),), job.group
        if not self.uses_queue:
            plan, expected = self.plan(placement, job), ()
            queue, draws = own_queue(plan), own_draws(plan, BulkSpan.of_phase(plan, phase, first), group.size)
        elif not job.produce:
            return CheckedFeed(*expected, job.queue, None, job.ledger, job.producer_alive)
        else:
            plan, queue = self.plan_of_all(placement, job), job.queue
            draws = dealt_draws(plan, lacking_rounds(plan, queue, group, first, phase.last_epoch), group)
        if job.resident:
            from .collective_feed_cuda import OwnersFeedOnDevice, SharedFeedOnDevice

            owners, kind = self.meet_on_device(placement, job), SharedFeedOnDevice if expected else OwnersFeedOnDevice
        else:
            owners, kind = self.meet_aside(placement, job), SharedOwnersFeed if expected else OwnersFeed
        filled: Any = (*expected, queue, draws, self.sampler, owners, self.max_bytes, job)
        return kind(*filled)


class OwnersFeed(FilledFeed):
    """A rank's own minibatches, and the thread that samples them; `owners` are for that, and bytes those of this
    rank."""

    def _begin(self, draws: Iterator[Draw], job: RankJob) -> None:
        self._expected_until = (-1, -1)
        self._thread = Lockstep("sampling", self._owners.group, draws, self._has_room, self._sample, self._wake)
        self._thread.start()

    def _has_room(self, draw: Draw) -> bool:
        # A copy, since the training thread releases meanwhile.
        return draw.first <= self._expected_until or sum(size for _, size in [*self._held]) <= self._max_bytes

    def _sample(self, draw: Draw) -> None:
        start = time.perf_counter()
        bulk = self._sampler.sample_by_owners(self._owners, draw.request)
        self._sample_s += time.perf_counter() - start
        size = self._waiting(bulk)
        self._held.append((draw.last, size))
        if bulk.minibatches:
            self._queue.put(bulk, WAIT_S)
        del bulk
        # A bulk in the making takes many times its final size on this thread's part of the heap, where other threads
        # cannot use it.
        give_back()

    def _waiting(self, bulk: Bulk) -> int:
        """Bytes that wait when ranks have drawn."""
        return sum(m.nbytes for m in bulk.minibatches)

    def _wake(self) -> None:
        assert self._thread.error is not None
        self._queue.fail(self._thread.error)

    def expect(self, epoch: int, index: int) -> None:
        self._expected_until = max(self._expected_until, (epoch, index))
        self._thread.notify()

    def get(self, epoch: int, index: int) -> MiniBatch:
        try:
            return super().get(epoch, index)
        except Exception:
            self._thread.check()
            raise

    def release(self, epoch: int, index: int) -> None:
        super().release(epoch, index)
        self._thread.notify()

    def close(self) -> None:
        """See `Feed.close`. All ranks call it."""
        self._thread.close()


class SharedOwnersFeed(CheckedFeed, OwnersFeed):
    """All ranks' minibatches in one queue on disk, which they fill together. All ranks begin whole bulks together, so
    the slowest decides."""

    def _waiting(self, bulk: Bulk) -> int:
        size, column = torch.tensor([packed_bytes(bulk)]), self._owners.group
        column.all_reduce(size, "control")
        # Of all grid columns, which draw alike.
        return int(size) * self._ranks // column.size
