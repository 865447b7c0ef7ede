"""Rows on disk that are read ahead of the training that needs them, by the unit: ascending, each once, neighbours
together."""

import time
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from ....storage.array_kinds import IntArray
from ....storage.features import FeatureStore, MappedFeatures
from ....storage.minibatch import MiniBatch
from ....storage.optional import present, when_present
from ....storage.store.bytes_left import bytes_left
from ....storage.store.row_file import WINDOW_BYTES, Reads
from ....storage.typed.features import reads_together, stores_on_disk
from ...memory.arena import give_back
from ...messages import Placement, RankJob
from ...policies import Feed
from .packed_rows import SampledRows
from .units import Collected, Got, Key, ListsOf, Plan, ReadRows, RowsAhead, RowSource, Unit, bytes_of, distinct

PIECE_BYTES = 256 << 20
"""About this much is read between two looks at whether it is still wanted."""


class DiskRows(ReadRows):
    """Rows of a feature store. See `RowSource`."""

    def __init__(self, features: FeatureStore) -> None:
        super().__init__()
        self.features = features
        self.row_bytes = features.num_features * features.dtype.itemsize
        self._files = [store for store in stores_on_disk(features) if isinstance(store, MappedFeatures)]
        self._seen, self._count = np.empty(0, np.bool_), 0
        """Rows that are in the unit so far."""

    def is_at_hand(self, ids: IntArray) -> bool:
        """True if these rows are better read where they lie."""
        return not reads_together(self.features, ids)

    def begin(self) -> None:
        """Begin a unit."""
        self._seen, self._count = np.zeros(self.features.num_rows, np.bool_), 0

    def adds(self, work: MiniBatch) -> int:
        """Bytes of rows that a minibatch adds to the unit: those that none before it needed."""
        before, self._seen[work.nodes] = self._count, True
        # Counting is quick, and sorting is not.
        self._count = int(np.count_nonzero(self._seen))
        return (self._count - before) * self.row_bytes

    def collected(self, work: list[MiniBatch]) -> list[Collected]:
        """Rows of each minibatch of a unit, all in one array, each row once. Raises what `collect` raises."""
        got = self.collect(np.concatenate([np.empty(0, np.int32), *(m.nodes for m in work)]))
        places = np.split(got.place, np.cumsum([len(m.nodes) for m in work])[:-1])
        return [Collected(got.rows, place, None) for place in places[: len(work)]]

    def collect(self, ids: IntArray) -> Collected:
        """See `RowSource.collect`. `ids` may repeat.

        Raises:
            RunError: a file has become shorter, or the disk fails.
            StoreError: the store is damaged.
        """
        known, place = distinct(ids, self.features.num_rows)
        rows = self._buffers.array((len(known), self.features.num_features), self.features.dtype)
        self._buffers.step()
        step, start = max(1, PIECE_BYTES // max(1, self.row_bytes)), time.perf_counter()
        for at in range(0, len(known), step):
            if not self.is_wanted():
                break
            self.features.gather(known[at : at + step], out=rows[at : at + step])
        self.needed.add(rows.nbytes, len(rows))
        seconds = self.read.seconds + time.perf_counter() - start
        self.read = Reads()
        for each in (file.reads for file in self._files):
            self.read.add(each.bytes, each.count, each.under_way)
        self.read.seconds = seconds
        return Collected(rows, place, None)


class RowsFromDisk(RowsAhead):
    """`RowsAhead` of the disk: a unit is read while another is trained, and each has as many steps as its bytes allow.

    Rows that the system has in its cache of pages are not read: layers take them where they lie.
    """

    def __init__(self, feed: Feed, disk: "FromDisk", plan: Plan, lists_of: ListsOf) -> None:
        """See `RowsAhead`; `disk` has the rows, and the room for them."""
        self._rows, self._rows_of_edges, self._tell = disk.rows, disk.of_edges, disk.job.tell
        self._waiting: dict[Key, MiniBatch] = {}
        """Minibatches that came for a unit that had no room for them."""
        self._most = 0
        """Minibatches of the largest unit."""
        self._waited_s = 0.0
        # `_collected` here asks for the rows of a unit, and never for `collect`.
        super().__init__(feed, cast(RowSource, disk.rows), plan, disk.unit_bytes, disk.of_edges, lists_of)
        for each in present((disk.rows, disk.of_edges)):
            each.is_wanted = lambda: not self._thread.is_closing

    def rows(self, work: MiniBatch) -> Collected | None:
        start = time.perf_counter()
        try:
            return super().rows(work)
        finally:
            self._waited_s += time.perf_counter() - start

    def close(self) -> None:
        """See `Feed.close`. Says what was read."""
        super().close()
        for each in present((self._rows, self._rows_of_edges)):
            each.end()
        read, needed = self._rows.read, self._rows.needed
        if not needed.count:
            return
        reads = f" in {read.count:,} reads of {read.bytes / 1e9:,.2f} GB" if read.count else ""
        if read.under_way:
            used = needed.bytes / max(1, read.bytes)
            reads += f" ({used:.0%} of them needed), {read.under_way / read.count:,.0f} under way at a time,"
        self._tell(
            f"{self._rows.name}: {needed.bytes / 1e9:,.2f} GB of rows{reads} in {read.seconds:,.1f} s, of up to "
            f"{self._most} minibatches together; training waited {self._waited_s:,.1f} s"
        )

    def _has_room(self, unit: Unit) -> bool:
        with self._changed:
            is_waiting = any(u.first_step > self._trained for u in self._units)
            return self._trained >= unit.first_step or (self._step_bytes <= self._ahead_bytes and not is_waiting)

    def _work(self, unit: Unit) -> dict[Key, MiniBatch]:
        """See `Units._work`. The first unit has one step, so that training begins; others run on into next epochs, of
        which they take what is there: waiting, training would begin when all epochs have been drawn."""
        got, num_bytes, step, steps = dict[Key, MiniBatch](), 0, unit.first_step, len(self._plan.steps)
        # A bounded queue on disk may hold later ones back until these are trained.
        waits = step + 1 if self._feed.stored else (step // steps + 1) * steps
        self._rows.begin()
        while step < self._plan.last_step and (mine := self._minibatches(step, wait=step < waits)) is not None:
            num_bytes += sum(self._new_bytes(m) for m in mine.values())
            if step > unit.first_step and num_bytes > self._ahead_bytes:
                self._waiting |= mine
                break
            got |= mine
            step += 1
            if unit.first_step == self._first or self._is_at_hand([*mine.values()]):
                break
        with self._changed:
            unit.last_step = step
        self._most = max(self._most, len(got))
        return got

    def _minibatches(self, step: int, wait: bool) -> dict[Key, MiniBatch] | None:
        """This rank's minibatches of a step; None if they are not there and nobody waits."""
        epoch, indices, last = self._plan.mine(step)
        if wait:
            self._feed.expect(epoch, last)
        take, mine = self._feed.get if wait else self._feed.peek, dict[Key, MiniBatch]()
        for index in indices:
            found = self._waiting.pop((epoch, index), None) or take(epoch, index)
            if found is None:
                self._waiting |= mine
                return None
            mine[epoch, index] = found
        return mine

    def _new_bytes(self, work: MiniBatch) -> int:
        """Bytes that a minibatch adds to a unit: its lists, and rows that no minibatch before it needed."""
        edges = self._rows_of_edges
        of_edges = edges.row_bytes * sum(map(len, self._lists_of(work))) if edges else 0
        return self._rows.adds(work) + work.nodes.size * 4 + work.nbytes + of_edges

    def _is_at_hand(self, work: list[MiniBatch]) -> bool:
        """True if the rows of some minibatches are read where they lie."""
        edges = self._rows_of_edges
        at_hand = all(self._rows.is_at_hand(m.nodes) for m in work)
        return at_hand and (edges is None or edges.is_at_hand(self._edges_of(work)))

    def _collected(self, unit: Unit, work: list[MiniBatch]) -> Got:
        if unit.last_step == unit.first_step + 1 and self._is_at_hand(work):
            return {}, None
        found = self._rows.collected(work)
        num_bytes = bytes_of(found)
        if self._ahead_bytes < num_bytes and not self._step_bytes:
            self._tell(
                f"the rows of a minibatch take {num_bytes / 2**20:,.1f} MiB, but bulk.prefetch_bytes or the "
                f"memory that is left allows {self._ahead_bytes / 2**20:,.1f} MiB: reading and training take turns; "
                f"set bulk.prefetch_bytes={4 * num_bytes + WINDOW_BYTES} or more if there is room"
            )
        edges = when_present(lambda rows: rows.collect(self._edges_of(work)), self._rows_of_edges)
        return {(m.epoch, m.index): got for m, got in zip(work, found)}, edges


def unit_bytes(prefetch_bytes: int | Literal["auto"], left: int) -> int:
    """Most bytes of a unit: see `FromDisk.chosen`. `left`: bytes of memory that a rank could take."""
    room = left // 4 if prefetch_bytes == "auto" else prefetch_bytes
    return max(0, room - min(WINDOW_BYTES, room // 2)) // 2


@dataclass(frozen=True)
class FromDisk:
    """Reads the rows of nodes, and of edges if the model reads them, ahead."""

    rows: DiskRows | SampledRows
    of_edges: DiskRows | None
    unit_bytes: int
    """Most bytes of a unit that is read while another is trained."""
    job: RankJob

    @classmethod
    def chosen(cls, placement: Placement, job: RankJob, prefetch_bytes: int | Literal["auto"]) -> "FromDisk | None":
        """
        Args:
            placement: has the features.
            job: of this rank.
            prefetch_bytes: memory of two units and of what is being read; ``auto``, or more than is left: a quarter
                of what is left, shared by the ranks.

        Returns:
            None if all rows are in memory; packed rows are none of the placement's.
        """
        edges = placement.edge_features
        packed = job.packed if placement.features.num_features else None
        of_edges = None if edges is None or (packed and not stores_on_disk(edges)) else DiskRows(edges)
        if packed is not None:
            rows = SampledRows(packed, placement, job.reads_loops)
        elif any(stores_on_disk(each) for each in present((placement.features, edges))):
            rows = DiskRows(placement.features)
        else:
            return None
        give_back()  # what reading the data has freed
        left = bytes_left()
        if prefetch_bytes != "auto" and prefetch_bytes > left:
            mib = f"{prefetch_bytes / 2**20:,.0f} MiB, but {left / 2**20:,.0f} MiB of memory"
            job.tell(
                f"bulk.prefetch_bytes is {mib} are left: a quarter of that is used, as with bulk.prefetch_bytes=auto"
            )
            prefetch_bytes = "auto"
        return cls(rows, of_edges, unit_bytes(prefetch_bytes, left // job.group.size), job)

    def at_once(self, work: MiniBatch) -> Collected | None:
        """Rows of a minibatch for which none were read ahead; None: they are gathered."""
        return self.rows.collected([work])[0] if self.job.packed is not None else None
