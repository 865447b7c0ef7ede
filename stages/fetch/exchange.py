"""Fetches features that ranks own between them, ahead of the training that reads them.

Each row lies in the memory of one rank of a grid column, and travels to those that ask for it. A thread of each rank
fetches the rows of the next minibatches while the last ones are trained on: a *unit* is the minibatches of this rank in
a few steps, whose rows are asked for once, however many of them name it.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.errors import RunError
from ...storage.features import CountedFeatures, FeatureStore
from ...storage.minibatch import MiniBatch
from ...storage.partition.book import RangeBook
from ..assignment import Steps
from ..comm.base import Group
from ..comm.lockstep import Lockstep
from ..feed.collective_feed import SampledByOwners
from ..feed.queue_feed import QueueFeed, Sampled
from ..kernels.row_block.numbering import Numbering
from ..memory.lazy_rows import LazyRows
from ..messages import Fetched, Phase, Placement, RankJob
from ..placement.row_blocks import BlockRows, Grid
from ..policies import Feed
from .feature_cache import HotBy, choose
from .gather import Gather, edge_lists, rows_of_blocks
from .owned_rows import Collected, Owned, OwnedRows

PREFETCH_BYTES = 512 << 20
MOST_STEPS = 8
"""Maximum number of steps in a unit."""
WAIT_S = 1.0


@dataclass(frozen=True)
class ExchangeFetch:
    """The rank in row i of the grid keeps block i of the rows in memory, read once, and serves them to its column."""

    replication: int = 1
    """c: number of ranks that hold each block."""
    cache_fraction: float = 0.0
    """Share of all rows that each rank caches of the others', chosen before the run."""
    hot_by: HotBy = "samples"
    """Choice of cached rows: those that the rank's own minibatches of the first epoch need most, or those that the most
    in-neighbour lists hold."""
    prefetch_bytes: int = PREFETCH_BYTES
    """Rows that may be ready or under way beside those that are trained on. 0, or less than the rows of a step:
    fetching and training take turns."""

    def fetcher(self, placement: Placement, job: RankJob, module: nn.Module | None = None) -> "Exchange":
        """See `FetchPolicy.fetcher`. All ranks call this at the same time. Reads this rank's rows and nothing later."""
        return Exchange(self, placement, job, *self.owned(placement, job))

    def owned(self, placement: Placement, job: RankJob) -> tuple[OwnedRows, OwnedRows | None]:
        """Rows of nodes, and of edges if the model reads them. All ranks call this at the same time."""
        features, first, book, group, degree = self.open_rows(placement, job)
        owned = OwnedRows(features, first, book, group, degree, job.arrays.features)
        edges = self.open_edges(placement, job, group)
        if edges is None:
            return owned, None
        return owned, OwnedRows(*edges, group, None, job.arrays.features)

    def open_edges(
        self, placement: Placement, job: RankJob, group: Group
    ) -> tuple[FeatureStore, int, RangeBook] | None:
        """Rows of edges, the first one of this rank, and their owners in the group; None if the model reads none."""
        if placement.edge_features is None:
            return None
        edges = CountedFeatures(placement.edge_features, job.ledger, "store")
        if isinstance(placement, BlockRows):
            return edges, 0, placement.edge_book
        book = RangeBook(edges.num_rows * np.arange(group.size + 1, dtype=np.int64) // group.size)
        return edges, int(book.offsets[group.rank]), book

    def open_rows(
        self, placement: Placement, job: RankJob, same_thread: bool = False
    ) -> tuple[FeatureStore, int, RangeBook, Group, Tensor | None]:
        """This rank's rows, and access to the others: see `OwnedRows`. All ranks call this at the same time.

        Args:
            placement: placement of this rank.
            job: job of this rank.
            same_thread: see `Group.sub`.
        """
        grid = Grid(job.group.size, self.replication)
        blocks = placement if isinstance(placement, BlockRows) else None
        # One thread uses one group, for rows and for whatever else it sends within the column.
        column = blocks.column if blocks is not None and same_thread else None
        group = grid.among(job.group, "rows", same_thread) if column is None else column
        features = CountedFeatures(placement.features, job.ledger, "store")
        if blocks is not None:
            return features, 0, blocks.book, group, blocks.degree
        book = RangeBook(features.num_rows * np.arange(grid.blocks + 1, dtype=np.int64) // grid.blocks)
        return features, int(book.offsets[group.rank]), book, group, None


class Exchange(Gather):
    """`Gather` over rows that other ranks own."""

    _ahead: "Units[Any] | None" = None

    def __init__(
        self,
        policy: ExchangeFetch,
        placement: Placement,
        job: RankJob,
        owned: Owned,
        owned_edges: OwnedRows | None = None,
    ) -> None:
        """See `ExchangeFetch.fetcher`; `owned_edges` are the features of edges, if the model reads them."""
        super().__init__(placement, placement.features)
        self._policy, self._job, self._owned, self._owned_edges = policy, job, owned, owned_edges

    def ahead(self, feed: Feed, sample: Any, phase: Phase, first: tuple[int, int]) -> "Units[Any]":
        """See `FetchesAhead.ahead`."""
        assert isinstance(feed, QueueFeed) and isinstance(sample, Sampled | SampledByOwners)
        job, policy = self._job, self._policy
        placement: Any = self._placement
        if policy.cache_fraction and self._owned.group.size > 1:
            count = int(policy.cache_fraction * self._owned.book.num_nodes)

            def previewed() -> Iterator[npt.NDArray[np.integer]]:
                # The samples of any epoch are known before it begins.
                return (m.nodes for m in sample.preview(placement, job, first[0]))

            self._owned.keep(
                choose(policy.hot_by, count, placement.graph, self._owned.book, self._owned.group, previewed)
            )
        total = sample.num_minibatches(placement, job)
        self._ahead = self._begun(feed, Plan(job.steps(total), phase.last_epoch, first), policy.prefetch_bytes)
        return self._ahead

    def _begun(self, feed: QueueFeed, plan: "Plan", prefetch_bytes: int) -> "Units[Any]":
        assert isinstance(self._owned, OwnedRows)
        lists_of = partial(edge_lists, placement=self._placement)
        return RowsAhead(feed, self._owned, plan, prefetch_bytes, self._owned_edges, lists_of)

    @property
    # pyrefly: ignore[bad-override]
    def exchange_s(self) -> float:
        """See `Fetcher.exchange_s`: of the fetching thread."""
        return self._ahead.exchange_s if self._ahead else 0.0

    @property
    def hit_counts(self) -> dict[str, int]:
        """See `FetchesAhead.hit_counts`."""
        owned = self._owned
        saved = owned.hits.hits * owned.row_bytes
        return {"rows": owned.num_hot, "asked": owned.hits.asked, "hits": owned.hits.hits, "saved_bytes": saved}

    def fetch(self, work: MiniBatch) -> Fetched:
        """See `Fetcher.fetch`: waits for the rows of `work`, if they have not arrived yet."""
        assert isinstance(self._ahead, RowsAhead)
        rows, place, degree = self._ahead.rows(work)
        return self._fetched(work, LazyRows(rows, place), degree)

    def _of_edges(self, work: MiniBatch) -> list[Callable[[], Tensor]] | None:
        """See `Gather._of_edges`: rows that have arrived with the minibatch's others."""
        if self._owned_edges is None:
            return None
        assert isinstance(self._ahead, RowsAhead)
        lists = list(self._ahead.edge_rows(work))
        return rows_of_blocks(work, lists.__getitem__)

    def idle(self) -> None:
        """See `Fetcher.idle`: the thread answers the requests of others."""


class Unit:
    """The minibatches of this rank in a few steps of an epoch."""

    def __init__(self, epoch: int, first_step: int, last_step: int) -> None:
        """`last_step` is exclusive."""
        self.epoch, self.first_step, self.last_step = epoch, first_step, last_step
        self.minibatches: dict[int, MiniBatch] | None = None
        """By index; None until all have arrived."""


@dataclass(frozen=True)
class Plan:
    """Range of work to be trained."""

    steps: Steps
    """Steps of an epoch."""
    last_epoch: int
    """Exclusive."""
    first: tuple[int, int]
    """(epoch, index) to begin with."""


U = TypeVar("U", bound=Unit)


class Units(ABC, Generic[U]):
    """A `Feed` that takes minibatches from another one in units, whose rows are fetched together. The first unit has
    one step; its size decides the size of the others."""

    _unit: type[U]

    def __init__(self, feed: QueueFeed, group: Group, plan: Plan, prefetch_bytes: int) -> None:
        """
        Args:
            feed: gives this rank's minibatches.
            group: ranks that fetch together.
            plan: range of work to come.
            prefetch_bytes: see `ExchangeFetch`.
        """
        self._feed, self._column, self._plan, self._ahead_bytes = feed, group, plan, prefetch_bytes
        self._units: list[U] = []
        """Units begun and not trained yet, in order."""
        self._trained = plan.first[0] * len(plan.steps) + plan.steps.step_of(plan.first[1])
        """Steps that have been trained, over all epochs."""
        self._together = 0
        """Steps per unit; 0: not known yet."""
        self.exchange_s = 0.0

    def _all(self) -> Iterator[U]:
        """All units in order."""
        plan = self._plan
        for epoch in range(plan.first[0], plan.last_epoch):
            step = plan.steps.step_of(plan.first[1]) if epoch == plan.first[0] else 0
            while step < len(plan.steps):
                last = min(step + max(1, self._together), len(plan.steps))
                yield self._unit(epoch, step, last)
                step = last

    def _work(self, unit: U) -> dict[int, MiniBatch]:
        """This rank's minibatches of a unit, once they have arrived."""
        steps = self._plan.steps
        span = steps.minibatches_of(unit.first_step, unit.last_step)
        self._feed.expect(unit.epoch, span.stop - 1)
        return {i: self._feed.get(unit.epoch, i) for i in filter(steps.is_mine, span)}

    def _agree(self, num_bytes: int) -> int:
        """Number of steps whose rows may wait for training, on the rank with the largest minibatches; a unit has as
        many, within bounds. 0 if no rank had any minibatches: decided again after the next unit."""
        table = torch.zeros(self._column.size, dtype=torch.int64)
        table[self._column.rank] = num_bytes
        self._column.all_reduce(table, "control")
        if not (most := int(table.max())):
            return 0
        may_wait = self._ahead_bytes // most
        self._together = max(1, min(1 if self._feed.stored else MOST_STEPS, may_wait))
        return may_wait

    def _leave(self, epoch: int, index: int) -> None:
        """Drop what is trained, up to and including that minibatch, the last of a step."""
        steps = len(self._plan.steps)
        self._trained = epoch * steps + self._plan.steps.step_of(index) + 1
        self._units = [u for u in self._units if u.epoch * steps + u.last_step > self._trained]

    @property
    def sample_s(self) -> float:
        """See `Feed.sample_s`."""
        return self._feed.sample_s

    @abstractmethod
    def get(self, epoch: int, index: int) -> MiniBatch:
        """See `Feed.get`."""

    @abstractmethod
    def release(self, epoch: int, index: int) -> None:
        """See `Feed.release`: `index` is the last of a step."""

    @abstractmethod
    def close(self) -> None:
        """See `Feed.close`. All ranks call it after the same step."""


class _Unit(Unit):
    def __init__(self, epoch: int, first_step: int, last_step: int) -> None:
        super().__init__(epoch, first_step, last_step)
        self.got: Collected | None = None
        self.positions: dict[int, npt.NDArray[np.integer]] = {}
        """Positions of each minibatch's nodes among the ids of the unit, by minibatch; empty for a unit of one
        minibatch."""
        self.bytes = 0
        self.edges: Collected | None = None
        """Rows of the edges of all minibatches, in order."""


class RowsAhead(Units[_Unit]):
    """A `Feed` that fetches the rows of its minibatches ahead, in a thread of its own.

    A unit is fetched as soon as there is room for it. When all steps before it have been trained, it is fetched
    regardless of room: then all ranks need it.
    """

    _unit = _Unit

    def __init__(
        self,
        feed: QueueFeed,
        owned: OwnedRows,
        plan: Plan,
        prefetch_bytes: int,
        owned_edges: OwnedRows | None = None,
        lists_of: Callable[[MiniBatch], list[npt.NDArray[np.integer]]] = lambda _: [],
    ) -> None:
        """
        Args:
            feed: gives this rank's minibatches.
            owned: own rows, and access to the others.
            plan: range of work to come.
            prefetch_bytes: see `ExchangeFetch`.
            owned_edges: rows of edges, if they are read too; of the same group.
            lists_of: positions of a minibatch's edges: see `gather.edge_lists`.
        """
        super().__init__(feed, owned.group, plan, prefetch_bytes)
        self._owned, self._owned_edges, self._lists_of = owned, owned_edges, lists_of
        self._changed = threading.Condition()
        self._step_bytes = 0
        """Bytes per step of a unit, the largest so far."""
        self._thread = Lockstep(
            "fetching rows", owned.group, self._all(), self._has_room, self._load, self._notify, self._take
        )
        self._thread.start()

    def _has_room(self, unit: _Unit) -> bool:
        with self._changed:
            steps = len(self._plan.steps)
            if self._trained >= unit.epoch * steps + unit.first_step:
                return True
            waiting = sum(u.bytes for u in self._units if u.epoch * steps + u.first_step > self._trained)
            return 0 < self._ahead_bytes >= waiting + self._step_bytes * (unit.last_step - unit.first_step)

    def _take(self, unit: _Unit) -> None:
        """Wait for a unit's minibatches."""
        with self._changed:
            self._units.append(unit)
        work = self._work(unit)
        with self._changed:
            unit.minibatches = work
            self._changed.notify_all()

    def _load(self, unit: _Unit) -> None:
        """Fetch their rows."""
        assert unit.minibatches is not None
        work = unit.minibatches
        start = time.perf_counter()
        got = self._owned.collect(self._united(unit, list(work.values())))
        edges = None
        if self._owned_edges is not None:
            ids = [ids for m in work.values() for ids in self._lists_of(m)]
            edges = self._owned_edges.collect(np.concatenate([np.empty(0, np.int64), *ids]))
        self.exchange_s += time.perf_counter() - start
        with self._changed:
            unit.got, unit.bytes, unit.edges = got, got.rows.nbytes, edges
            unit.bytes += 0 if edges is None else edges.rows.nbytes
            self._step_bytes = max(self._step_bytes, -(-unit.bytes // (unit.last_step - unit.first_step)))
            self._changed.notify_all()
        if not self._together:
            self._agree(unit.bytes)

    def _united(self, unit: _Unit, work: list[MiniBatch]) -> npt.NDArray[np.integer]:
        """Distinct nodes of some minibatches."""
        if len(work) < 2:
            return work[0].nodes if work else np.empty(0, np.int64)
        nodes = Numbering(work[0].nodes, work[0].nodes.dtype)
        for m in work[1:]:
            nodes.add(m.nodes)
        for m in work:
            place = np.empty(len(m.nodes), np.int32)
            nodes.positions(m.nodes, place)
            unit.positions[m.index] = place
        return nodes.nodes

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, epoch: int, index: int, ready: Callable[[_Unit], bool]) -> _Unit:
        """The unit of a minibatch, once it is ready."""
        step = self._plan.steps.step_of(index)
        with self._changed:
            while True:
                if self._thread.error is not None:
                    self._thread.check()
                for unit in self._units:
                    if unit.epoch == epoch and unit.first_step <= step < unit.last_step and ready(unit):
                        return unit
                if self._thread.is_over:
                    raise RunError(
                        f"the rows of step {step} of epoch {epoch} will not come: another rank has ended its training"
                    )
                self._changed.wait(WAIT_S)

    def get(self, epoch: int, index: int) -> MiniBatch:
        """See `Feed.get`."""
        unit = self._wait(epoch, index, lambda u: u.minibatches is not None)
        assert unit.minibatches is not None
        return unit.minibatches[index]

    def edge_rows(self, work: MiniBatch) -> Iterator[Tensor]:
        """Rows of the edges of each list (see `gather.edge_lists`) of a minibatch from `get`."""
        unit = self._wait(work.epoch, work.index, lambda u: u.got is not None)
        assert unit.edges is not None and unit.minibatches is not None
        at = 0
        for index, m in unit.minibatches.items():
            for ids in self._lists_of(m):
                if index == work.index:
                    yield torch.from_numpy(unit.edges.rows[unit.edges.place[at : at + len(ids)]])
                at += len(ids)

    def rows(self, work: MiniBatch) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.integer], Tensor | None]:
        """Rows, position of each node's among them, and the nodes' degrees, for a minibatch from `get`."""
        unit = self._wait(work.epoch, work.index, lambda u: u.got is not None)
        got, among = unit.got, unit.positions.get(work.index)
        assert got is not None
        if among is None:
            return got.rows, got.place, got.degree
        return got.rows, got.place[among], None if got.degree is None else got.degree[torch.from_numpy(among).long()]

    def release(self, epoch: int, index: int) -> None:
        """See `Feed.release`: `index` is the last of a step."""
        with self._changed:
            self._leave(epoch, index)
        self._feed.release(epoch, index)
        self._thread.notify()

    def close(self) -> None:
        """See `Feed.close`. All ranks call it after the same step."""
        self._thread.stop()
        # Samplers elsewhere may be waiting for steps that will not be trained any more.
        self._feed.give_up()
        self._thread.close()
        self._feed.close()
