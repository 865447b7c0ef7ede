"""Feature rows that the ranks of a grid column own between them, with a cache of hot rows of the other ranks."""

from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.features import FeatureStore, FloatArray
from ...storage.partition.book import RangeBook
from ...storage.store.scratch import Empty, in_memory
from ..comm.base import Group
from ..memory.arena import Arena
from .ahead.disk_rows import DiskRows
from .ahead.units import Collected

IdArray = npt.NDArray[np.int64]
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


A = TypeVar("A", bound=Sized)
"""Arrays of the host, or tensors on a device."""


@dataclass(frozen=True, eq=False)
class HotRows(Generic[A]):
    """Cached rows of other ranks."""

    ids: A
    """int64 [H], ascending."""
    rows: A
    """[H, F]."""
    degree: Tensor | None = None


class Owned(ABC, Generic[A]):
    """V rows of F features, of which each rank of a column holds a block. All of them ask at the same time.

    The ledger counts, as sent by this rank: rows under ``features``; degrees under ``graph``; 4 bytes for each id (8 in
    blocks of 2^31 rows and more), and 8 for how many each other rank is asked for, under ``control``. Own and hot rows
    never travel.
    """

    hot: HotRows[A]
    row_bytes: int
    """Bytes of a row."""

    def __init__(self, book: RangeBook, group: Group, degree: Tensor | None) -> None:
        """
        Args:
            book: maps rows to ranks of the group.
            group: the column, for the thread that asks.
            degree: [N] or [N, 3] of this rank's block, if ranks know only their own.
        """
        self.book, self.group, self._degree = book, group, degree
        self._id_type = torch.int32 if int(book.sizes().max(initial=0)) < 2**31 else torch.int64
        self.hits = Hits()

    @property
    def num_hot(self) -> int:
        """Number of cached rows."""
        return len(self.hot.ids)

    def keep(self, ids: IdArray) -> None:
        """Cache these rows, fetched from their owners. All ranks call this at the same time.

        Args:
            ids: int64, ascending, none of this rank's own.
        """
        hot = self._here(ids)
        got = self.collect(hot)
        self.hot = HotRows(hot, got.rows[got.place], got.degree)
        self.hits = Hits()

    def collect(self, ids: A) -> Collected:
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
        rows = self._buffer(n)
        *into, mine, near = torch.as_tensor(rows).split(counts)
        answers = mine.new_empty(len(asked), mine.shape[1])
        self._take([asked, own], [answers, mine])
        self._take_hot(hot, near)
        group.all_to_all(list(answers.split(sizes)), "features", into)

        degree = None
        if self._degree is not None:
            came = self._degree.new_empty(n, *self._degree.shape[1:])
            *into, mine, near = came.split(counts)
            mine.copy_(self._degree[own.long()])
            if self.hot.degree is not None:
                near.copy_(self.hot.degree[hot.long()])
            group.all_to_all(list(self._degree[asked.long()].split(sizes)), "graph", into)
            degree = torch.empty_like(came)
            degree[order] = came
        place = torch.empty(n, dtype=torch.int32 if n < 2**31 else torch.int64, device=order.device)
        place[order] = torch.arange(n, dtype=place.dtype, device=order.device)
        return Collected(rows, place if isinstance(rows, Tensor) else place.numpy(), degree)

    @abstractmethod
    def _here(self, ids: IdArray) -> A:
        """The ids, where rows are."""

    @abstractmethod
    def _by_source(self, ids: A) -> tuple[Tensor, list[int], Tensor]:
        """Order of ids by where their rows come from: of each rank, of this one, of the cache; how many come from each;
        and in this order their positions there."""

    @abstractmethod
    def _buffer(self, n: int) -> A:
        """[n, F], not initialised."""

    @abstractmethod
    def _take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        """Write the rows of each list of positions in the block to its own place."""

    @abstractmethod
    def _take_hot(self, asked: Tensor, out: Tensor) -> None:
        """Write cached rows, by their positions."""


class _InMemory:
    """A block of rows that is read once."""

    def __init__(self, rows: FeatureStore, first: int, count: int, empty: Empty) -> None:
        self._rows = empty((count, rows.num_features), rows.dtype)
        self.nbytes = self._rows.nbytes
        step = max(1, LOAD_BYTES // max(1, rows.num_features * rows.dtype.itemsize))
        for at in range(0, count, step):
            part = self._rows[at : at + step]
            rows.gather(np.arange(first + at, first + at + len(part)), out=part)

    def take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        """Write the rows of each list of ids within the block to its own place."""
        for ids, into in zip(asked, out):
            _take(self._rows, ids, into)


class _OnDisk:
    """A block of rows that stays on disk: those of all lists are read together, each once."""

    nbytes = 0

    def __init__(self, rows: FeatureStore, first: int) -> None:
        self._rows, self._first = DiskRows(rows), first

    def take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        """As `_InMemory.take` does."""
        got = self._rows.collect(torch.cat(asked).numpy().astype(np.int64) + self._first)
        for place, into in zip(np.split(got.place, np.cumsum([len(ids) for ids in asked])), out):
            _take(got.rows, torch.from_numpy(place), into)


class OwnedRows(Owned[npt.NDArray[Any]]):
    """`Owned` in host memory, or on disk."""

    def __init__(
        self,
        own: FeatureStore,
        first: int,
        book: RangeBook,
        group: Group,
        degree: Tensor | None,
        empty: Empty | None = in_memory,
    ) -> None:
        """
        Args:
            own: rows to keep, or to read.
            first: row of `own` that this rank's block begins with.
            book: maps rows to ranks of the group.
            group: the column, for the thread that asks.
            degree: [N] or [N, 3] of this rank's block, if ranks know only their own.
            empty: makes the array for the rows; None: they stay on disk.

        Raises:
            StoreError: the store is damaged.
        """
        super().__init__(book, group, degree)
        count = int(book.sizes()[group.rank])
        self._own = _OnDisk(own, first) if empty is None else _InMemory(own, first, count, empty)
        self._width, self._dtype = own.num_features, own.dtype
        self.row_bytes = self._width * self._dtype.itemsize
        self._buffers = Arena(idle_steps=IDLE_STEPS)
        self.hot = HotRows(np.empty(0, np.int64), np.empty((0, own.num_features), own.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes that this rank keeps: its block, and hot rows."""
        return self._own.nbytes + self.hot.rows.nbytes

    def _here(self, ids: IdArray) -> IdArray:
        return ids

    def _by_source(self, ids: npt.NDArray[Any]) -> tuple[Tensor, list[int], Tensor]:
        owner, size, hot = self.book.part(ids), self.group.size, self.hot.ids
        source, where = np.where(owner == self.group.rank, size, owner), ids - self.book.offsets[owner]
        if len(hot):
            at = np.minimum(np.searchsorted(hot, ids), len(hot) - 1)
            kept = hot[at] == ids
            source, where = np.where(kept, size + 1, source), np.where(kept, at, where)
        # Two-byte keys are sorted in linear time.
        source = source.astype(np.uint16)
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=size + 2).tolist()
        return torch.from_numpy(order), counts, torch.from_numpy(where[order])

    def _take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        self._own.take(asked, out)

    def _take_hot(self, asked: Tensor, out: Tensor) -> None:
        _take(self.hot.rows, asked, out)

    def _buffer(self, n: int) -> FloatArray:
        """[n, F], not initialised: memory of the units before, since fresh pages cost as much as the rows."""
        rows = self._buffers.array((n, self._width), self._dtype)
        self._buffers.step()
        return rows


def _take(rows: npt.NDArray[Any], ids: Tensor, out: Tensor) -> None:
    # In range by construction of the ids; mode="clip" skips the buffering that mode="raise" needs with `out`.
    if len(ids):
        np.take(rows, ids.numpy(), axis=0, out=out.numpy(), mode="clip")
