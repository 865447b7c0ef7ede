"""Rows of minibatches that are fetched ahead of the training that reads them, by the unit: the minibatches of this rank
in a few steps, whose rows are asked for together, and once, however many of them name them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ....storage.array_kinds import Int32Array, IntArray
from ....storage.errors import RunError
from ....storage.minibatch import MiniBatch
from ....storage.optional import present, when_present
from ....storage.store.row_file import Reads
from ...assignment import Steps
from ...comm.base import Group
from ...comm.lockstep import Lockstep
from ...comm.solo import Solo
from ...kernels.row_block.numbering import Numbering
from ...memory.arena import Arena
from ...policies import Feed

MOST_STEPS = 8
"""Maximum number of steps in a unit of rows that travel."""
WAIT_S = 1.0
ListsOf = Callable[[MiniBatch], list[IntArray]]
"""Gives the positions of a minibatch's edges, list by list: see `gather.edge_lists`."""
Key = tuple[int, int]
"""Epoch and index of a minibatch."""
SPARSE = 16
"""Ids are sorted where there are this many rows for each; else they are found in a table of all rows."""


@dataclass(frozen=True, eq=False)
class Collected:
    """Requested rows, in the order of arrival: arrays, or tensors on a device."""

    rows: Any
    """[n, F]."""
    place: Any
    """Integers [n], position of each id's row."""
    degree: Tensor | None
    """[n], degrees of the ids in the whole graph, in their order; None if every rank knows them."""


def distinct(ids: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Distinct ids of [0, count), ascending, and the position of each of `ids` among them."""
    if count > SPARSE * len(ids):
        return np.unique(ids, return_inverse=True)
    is_asked = np.zeros(count, np.bool_)
    is_asked[ids] = True
    known = np.flatnonzero(is_asked)
    place = np.empty(count, np.int32 if count < 2**31 else np.int64)
    place[known] = np.arange(len(known), dtype=place.dtype)
    return known, place[ids]


def bytes_of(found: Iterable[Collected]) -> int:
    """Bytes of all rows, of which several may lie in one array."""
    return sum({id(each.rows): each.rows.nbytes for each in found}.values())


class ReadRows:
    """Rows on disk that are read ahead for a unit of minibatches at a time. Each rank reads for itself."""

    group: Group = Solo()
    name = "features from disk"
    """Name of what is read, for the user."""

    def __init__(self) -> None:
        self.needed, self.read = Reads(), Reads()
        """Rows that were asked for, and the reads that brought them, of files."""
        self.is_wanted: Callable[[], bool] = lambda: True
        """False: reading may stop, and rows may be lacking or have any values."""
        self.end()

    def end(self) -> None:
        """Keep no memory for units to come."""
        # Fresh pages for a unit would cost as much as reading it. Two units are held: none that is free besides.
        self._buffers = Arena(idle_steps=0, huge_pages=False)


class RowSource(Protocol):
    """Rows of nodes or of edges that are fetched together."""

    group: Group
    """Ranks that fetch together, for the thread that does."""

    def collect(self, ids: IntArray) -> Collected:
        """Rows of `ids`, which may be none."""


@dataclass(eq=False)
class Unit:
    """The minibatches of this rank in a few steps, which are counted over all epochs."""

    first_step: int
    last_step: int
    """Exclusive."""
    minibatches: dict[Key, MiniBatch] = field(default_factory=dict)
    has_arrived: bool = False
    """True once all minibatches are there."""
    rows: Any = None
    """Their rows, once these have been asked for."""
    bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """Range of work to be trained."""

    steps: Steps
    """Steps of an epoch."""
    last_epoch: int
    """Exclusive."""
    first: Key
    """Minibatch to begin with."""

    @property
    def last_step(self) -> int:
        """End of the steps, counted over all epochs; exclusive."""
        return self.last_epoch * len(self.steps)

    def step_of(self, epoch: int, index: int) -> int:
        """Step that trains on a minibatch, counted over all epochs."""
        return epoch * len(self.steps) + self.steps.step_of(index)

    def mine(self, step: int) -> tuple[int, list[int], int]:
        """Epoch of a step, indices of this rank's minibatches, and the last one of all ranks."""
        epoch, step = divmod(step, len(self.steps))
        span = self.steps.minibatches_of(step)
        return epoch, [*filter(self.steps.is_mine, span)], span.stop - 1


class Units(Feed):
    """Takes minibatches from another feed in units, whose rows are fetched together. The first unit has one step; its
    size decides the size of the others."""

    def __init__(self, feed: Feed, group: Group, plan: Plan, prefetch_bytes: int) -> None:
        """
        Args:
            feed: gives this rank's minibatches.
            group: ranks that fetch together.
            plan: range of work to come.
            prefetch_bytes: bytes of rows that may be ready or under way beside those that are trained on.
        """
        self._feed, self._column, self._plan, self._ahead_bytes = feed, group, plan, prefetch_bytes
        self._units: list[Unit] = []
        """Units begun and not trained yet, in order."""
        self._trained = self._first = plan.step_of(*plan.first)
        """Steps that have been trained, over all epochs."""
        self._together = 0
        """Steps per unit; 0: not known yet."""
        self.exchange_s = 0.0

    def _all(self) -> Iterator[Unit]:
        """All units in order, each of one epoch."""
        step, steps = self._first, len(self._plan.steps)
        while step < self._plan.last_step:
            unit = Unit(step, min(step + max(1, self._together), (step // steps + 1) * steps))
            yield unit
            step = unit.last_step

    def _work(self, unit: Unit) -> dict[Key, MiniBatch]:
        """This rank's minibatches of a unit, once they have arrived."""
        epoch, _, last = self._plan.mine(unit.last_step - 1)
        self._feed.expect(epoch, last)
        of_steps = (self._plan.mine(step)[1] for step in range(unit.first_step, unit.last_step))
        return {(epoch, i): self._feed.get(epoch, i) for mine in of_steps for i in mine}

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
        self._trained = self._plan.step_of(epoch, index) + 1
        self._units = [u for u in self._units if u.last_step > self._trained]

    @property
    def sample_s(self) -> float:
        return self._feed.sample_s


Got = tuple[dict[Key, Collected], Collected | None]
"""Rows of each minibatch of a unit, often in one array, none of those that are read where they lie; and, if they are
read, rows of the edges of all minibatches, in order."""


class RowsAhead(Units):
    """A `Feed` that fetches the rows of its minibatches ahead, in a thread of its own.

    A unit is fetched as soon as there is room for it. When all steps before it have been trained, it is fetched
    regardless of room: then all ranks need it.
    """

    def __init__(
        self,
        feed: Feed,
        rows: RowSource,
        plan: Plan,
        prefetch_bytes: int,
        of_edges: RowSource | None = None,
        lists_of: ListsOf = lambda _: [],
    ) -> None:
        """See `Units`; `rows` has those of nodes, and `of_edges` those of edges, by positions (`lists_of`), if they
        are read too, of the same group."""
        super().__init__(feed, rows.group, plan, prefetch_bytes)
        self._source, self._of_edges, self._lists_of = rows, of_edges, lists_of
        self._changed = threading.Condition()
        self._step_bytes = 0
        """Bytes per step of a unit, the largest so far."""
        self._thread = Lockstep(
            "fetching rows", rows.group, self._all(), self._has_room, self._load, self._notify, prepare=self._take
        )
        self._thread.start()

    def _has_room(self, unit: Unit) -> bool:
        with self._changed:
            if self._trained >= unit.first_step:
                return True
            waiting = sum(u.bytes for u in self._units if u.first_step > self._trained)
            return 0 < self._ahead_bytes >= waiting + self._step_bytes * (unit.last_step - unit.first_step)

    def _take(self, unit: Unit) -> None:
        """Wait for a unit's minibatches."""
        with self._changed:
            self._units.append(unit)
        work = self._work(unit)
        with self._changed:
            unit.minibatches, unit.has_arrived = work, True
            self._changed.notify_all()

    def _load(self, unit: Unit) -> None:
        """Fetch their rows."""
        start = time.perf_counter()
        got, edges = self._collected(unit, list(unit.minibatches.values()))
        self.exchange_s += time.perf_counter() - start
        with self._changed:
            unit.rows, unit.bytes = (got, edges), bytes_of([*got.values(), *present((edges,))])
            self._step_bytes = max(self._step_bytes, -(-unit.bytes // (unit.last_step - unit.first_step)))
            self._changed.notify_all()
        if not self._together:
            self._agree(unit.bytes)

    def _collected(self, unit: Unit, work: list[MiniBatch]) -> Got:
        nodes, places = united(work)
        got = self._source.collect(nodes)
        edges = when_present(lambda rows: rows.collect(self._edges_of(work)), self._of_edges)
        if len(work) < 2:
            return {(m.epoch, m.index): got for m in work}, edges
        found = {}
        for m, place in zip(work, places):
            degree = None if got.degree is None else got.degree[torch.from_numpy(place).long()]
            found[m.epoch, m.index] = Collected(got.rows, got.place[place], degree)
        return found, edges

    def _edges_of(self, work: list[MiniBatch]) -> IntArray:
        """Positions of the edges of all lists of some minibatches."""
        return np.concatenate([np.empty(0, np.int64), *(ids for m in work for ids in self._lists_of(m))])

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, epoch: int, index: int, has_rows: bool) -> Unit:
        """The unit of a minibatch, once its minibatches, or their rows, are there."""
        step = self._plan.step_of(epoch, index)
        with self._changed:
            while True:
                self._thread.check()
                for unit in self._units:
                    if unit.first_step <= step < unit.last_step and (unit.rows if has_rows else unit.has_arrived):
                        return unit
                if self._thread.is_over:
                    raise RunError(
                        f"the rows of minibatch {index} of epoch {epoch} will not come: another rank has ended its "
                        "training"
                    )
                self._changed.wait(WAIT_S)

    def get(self, epoch: int, index: int) -> MiniBatch:
        return self._wait(epoch, index, has_rows=False).minibatches[epoch, index]

    def edge_rows(self, work: MiniBatch) -> Iterator[Tensor]:
        """Rows of the edges of each list (see `gather.edge_lists`) of a minibatch from `get`; nothing if they
        are read where they lie, or not at all."""
        unit = self._wait(work.epoch, work.index, has_rows=True)
        at, edges = 0, unit.rows[1]
        if edges is None:
            return
        for key, m in unit.minibatches.items():
            for ids in self._lists_of(m):
                if key == (work.epoch, work.index):
                    yield torch.from_numpy(edges.rows[edges.place[at : at + len(ids)]])
                at += len(ids)

    def rows(self, work: MiniBatch) -> Collected | None:
        """Rows, the position of each node's among them, and the nodes' degrees, for a minibatch from `get`; None if
        they are to be read where they lie."""
        return self._wait(work.epoch, work.index, has_rows=True).rows[0].get((work.epoch, work.index))

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


def united(work: list[MiniBatch]) -> tuple[IntArray, list[Int32Array]]:
    """Distinct nodes of some minibatches, and the position of each minibatch's among them; of one, its nodes alone."""
    if len(work) < 2:
        return work[0].nodes if work else np.empty(0, np.int64), []
    nodes, places = Numbering(work[0].nodes, work[0].nodes.dtype), []
    for m in work[1:]:
        nodes.add(m.nodes)
    for m in work:
        places.append(place := np.empty(len(m.nodes), np.int32))
        nodes.positions(m.nodes, place)
    return nodes.nodes, places
