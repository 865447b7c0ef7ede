"""Feature rows that the ranks of a grid column own between them, with a cache of hot rows of the other ranks."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IdArray, IntArray
from ...storage.features import FeatureStore, FloatArray
from ...storage.partition.book import RangeBook
from ...storage.store.scratch import Empty, in_memory
from ..comm.base import Group
from ..kernels.runtime.device_memory import to_device, wait_for_copies
from ..memory.arena import Arena
from .ahead.disk_rows import DiskRows
from .ahead.units import Collected

LOAD_BYTES = 64 << 20
"""Rows are loaded in slices of about this size, since a store may hold a second copy while it converts."""
IDLE_STEPS = 2
"""Collections for which a buffer that is free is kept."""


@dataclass
class Hits:
    """Hit counts of the cache."""

    asked: int = 0
    """Rows of other ranks that minibatches needed."""
    hits: int = 0
    """Rows found in the cache."""


class Block(Protocol):
    """Rows of which some are taken at a time."""

    def empty(self, n: int) -> FloatArray | Tensor:
        """[n, F], not initialised, where taken rows go."""

    def take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        """Write the rows of each list of positions to its own place."""

    def beside(self, rows: Any) -> "Block":
        """Taken rows as a block."""


@dataclass(eq=False)
class InMemory:
    """`Block` in host memory."""

    rows: FloatArray

    def __post_init__(self) -> None:
        self._buffers = Arena(idle_steps=IDLE_STEPS)

    @classmethod
    def loaded(cls, store: FeatureStore, first: int, count: int, empty: Empty) -> "InMemory":
        """Rows of a store, read once. Raises StoreError if it is damaged."""
        rows = empty((count, store.num_features), store.dtype)
        step = max(1, LOAD_BYTES // max(1, store.num_features * store.dtype.itemsize))
        for at in range(0, count, step):
            part = rows[at : at + step]
            store.gather(np.arange(first + at, first + at + len(part)), out=part)
        return cls(rows)

    def empty(self, n: int) -> FloatArray:
        """Memory of the units before, since fresh pages cost as much as the rows."""
        rows = self._buffers.array((n, self.rows.shape[1]), self.rows.dtype)
        self._buffers.step()
        return rows

    def take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        for ids, into in zip(asked, out):
            if len(ids):
                # In range by construction of the ids; mode="clip" skips the buffering that mode="raise" needs.
                np.take(self.rows, ids.numpy(), axis=0, out=into.numpy(), mode="clip")

    def beside(self, rows: FloatArray) -> "InMemory":
        return InMemory(rows)


class OnDisk(InMemory):
    """`Block` that stays on disk: rows of all lists are read together, each once."""

    def __init__(self, store: FeatureStore, first: int) -> None:
        super().__init__(np.empty((0, store.num_features), store.dtype))
        self._store, self._first = DiskRows(store), first

    def take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        got = self._store.collect(torch.cat(asked).numpy().astype(np.int64) + self._first)
        places = np.split(got.place, np.cumsum([len(ids) for ids in asked]))
        InMemory(got.rows).take([torch.from_numpy(place) for place in places[:-1]], out)


class OwnedRows:
    """V rows of F features, of which each rank of a column holds a block. All of them ask at the same time.

    The ledger counts, as sent by this rank: rows under ``features``; degrees under ``graph``; 4 bytes for each id (8 in
    blocks of 2^31 rows and more), and 8 for how many each other rank is asked for, under ``control``. Own and hot rows
    never travel.
    """

    def __init__(
        self, own: Block, book: RangeBook, group: Group, degree: Tensor | None, device: torch.device | None = None
    ) -> None:
        """
        Args:
            own: this rank's rows.
            book: maps rows to ranks of the group.
            group: the column, for the thread that asks.
            degree: [N] or [N, 3] of this rank's block, if ranks know only their own; on the device.
            device: where ids are sorted, and rows are; None: on the host.
        """
        self.own, self.book, self.group, self._degree = own, book, group, degree
        self._on_host, to = device is None, device or torch.device("cpu")
        self._begins, self._ends = (to_device(a.copy(), to) for a in (book.offsets[:-1], book.offsets[1:-1]))
        self._id_type = torch.int32 if int(book.sizes().max(initial=0)) < 2**31 else torch.int64
        none = own.empty(0)
        self.row_bytes = none.shape[1] * none.itemsize
        self.hits, self.hot, self._hot_degree = Hits(), own, degree
        self.hot_ids = self._begins[:0]
        """int64 [H], ascending, rows of other ranks that lie in `hot`."""
        wait_for_copies(to)

    def keep(self, ids: IdArray) -> None:
        """Cache these rows, fetched from their owners. All ranks call this at the same time.

        Args:
            ids: int64, ascending, none of this rank's own.
        """
        hot = to_device(ids, self._begins.device)
        wait_for_copies(hot.device)
        got = self.collect(ids if self._on_host else hot)
        self.hot_ids, self.hot, self._hot_degree = hot, self.own.beside(got.rows[got.place]), got.degree
        self.hits = Hits()

    def collect(self, ids: IntArray | Tensor) -> Collected:
        """Rows of distinct `ids`, which may be none.

        Raises:
            IndexError: an id is out of range.
            PeerLostError: a peer is gone.
        """
        group, n = self.group, len(ids)
        # Received rows are contiguous; own rows come after them, then cached ones.
        order, counts, where = self._by_source(ids)
        self.hits.asked += n - counts[-2]
        self.hits.hits += counts[-1]
        *wanted, own, hot = where.to(self._id_type).split(counts)
        message = group.all_to_all(wanted, "control")

        asked, sizes = torch.cat(message), [len(a) for a in message]
        rows = self.own.empty(n)
        *into, mine, near = torch.as_tensor(rows).split(counts)
        answers = mine.new_empty(len(asked), mine.shape[1])
        self.own.take([asked, own], [answers, mine])
        if len(hot):
            self.hot.take([hot], [near])
        group.all_to_all(list(answers.split(sizes)), "features", into)

        degree = None
        if self._degree is not None and self._hot_degree is not None:
            came = self._degree.new_empty(n, *self._degree.shape[1:])
            *into, mine, near = came.split(counts)
            mine.copy_(self._degree[own.long()])
            near.copy_(self._hot_degree[hot.long()])
            group.all_to_all(list(self._degree[asked.long()].split(sizes)), "graph", into)
            degree = torch.empty_like(came)
            degree[order] = came
        place = torch.empty(n, dtype=torch.int32 if n < 2**31 else torch.int64, device=order.device)
        place[order] = torch.arange(n, dtype=place.dtype, device=order.device)
        return Collected(rows, place.numpy() if self._on_host else place, degree)

    def _by_source(self, ids: IntArray | Tensor) -> tuple[Tensor, list[int], Tensor]:
        """Order of ids by where their rows come from: of each rank, of this one, of the cache; how many come from each;
        and in this order their positions there."""
        # On a device the host waits once for it, for the number of rows requested from each rank, and once for the
        # other ranks, to exchange these.
        size, cached = self.group.size, self.hot_ids
        if isinstance(ids, Tensor):
            ids = ids.long()
            owner = torch.searchsorted(self._ends, ids, right=True)
        else:
            owner, ids = torch.from_numpy(self.book.part(ids)), torch.from_numpy(ids.astype(np.int64))
        source, where = torch.where(owner == self.group.rank, size, owner), ids - self._begins[owner]
        if len(cached):
            at = torch.searchsorted(cached, ids).clamp_(max=len(cached) - 1)
            kept = cached[at] == ids
            source, where = torch.where(kept, size + 1, source), torch.where(kept, at, where)
        if self._on_host:
            # Two-byte keys are sorted in linear time.
            order = torch.from_numpy(np.argsort(source.numpy().astype(np.uint16), kind="stable"))
            source = source[order]
        else:
            source, order = torch.sort(source, stable=True)
        last = torch.arange(size + 2, dtype=source.dtype, device=source.device)
        return order, np.diff(torch.searchsorted(source, last, right=True).tolist(), prepend=0).tolist(), where[order]


def opened(
    store: FeatureStore,
    first: int,
    book: RangeBook,
    group: Group,
    degree: Tensor | None,
    empty: Empty | None = in_memory,
) -> OwnedRows:
    """The rows that ranks own between them on the host, of which this one's block begins at row `first` of the store;
    `empty` makes the array for its rows; None: they stay on disk. Raises StoreError if the store is damaged."""
    count = int(book.sizes()[group.rank])
    own = OnDisk(store, first) if empty is None else InMemory.loaded(store, first, count, empty)
    return OwnedRows(own, book, group, degree)
