"""Feature rows that the ranks of a grid column own between them, with a cache of hot rows of the other ranks."""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.features import FeatureStore, FloatArray
from ...storage.partition.book import RangeBook
from ...storage.store.scratch import Empty, in_memory
from ..comm.base import Group
from ..memory.lazy_rows import torch_dtype
from .ahead.units import Collected

IdArray = npt.NDArray[np.int64]
LOAD_BYTES = 64 << 20
"""Rows are loaded in slices of about this size, since a store may hold a second copy while it converts."""
SPARE = 3
"""Buffers that are kept for reuse."""


@dataclass
class Hits:
    """Hit counts of the cache."""

    asked: int = 0
    """Rows of other ranks that minibatches needed."""
    hits: int = 0
    """Rows found in the cache."""


@dataclass(frozen=True, eq=False)
class HotRows:
    """Cached rows of other ranks."""

    ids: IdArray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [H], ascending."""
    rows: FloatArray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    degree: Tensor | None = None

    def find(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """[n], cached row of each id, or -1."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)


class Owned(ABC):
    """V rows of F features, of which each rank of a column holds a block. All of them ask at the same time.

    The ledger counts, as sent by this rank: rows under ``features``; degrees under ``graph``; 4 bytes for each id (8 in
    blocks of 2^31 rows and more), and 8 for how many each other rank is asked for, under ``control``. Own and hot rows
    never travel.
    """

    def __init__(self, book: RangeBook, group: Group) -> None:
        """
        Args:
            book: maps rows to ranks of the group.
            group: the column, for the thread that asks.
        """
        self.book, self.group = book, group
        self._id_type = torch.int32 if int(book.sizes().max(initial=0)) < 2**31 else torch.int64
        self.hits = Hits()

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of a row."""

    @property
    @abstractmethod
    def num_hot(self) -> int:
        """Number of cached rows."""

    @abstractmethod
    def keep(self, ids: IdArray) -> None:
        """Cache these rows, fetched from their owners. All ranks call this at the same time.

        Args:
            ids: int64, ascending, none of this rank's own.
        """


class OwnedRows(Owned):
    """`Owned` in host memory."""

    def __init__(
        self,
        own: FeatureStore,
        first: int,
        book: RangeBook,
        group: Group,
        degree: Tensor | None,
        empty: Empty = in_memory,
    ) -> None:
        """
        Args:
            own: rows to keep; read here and not kept.
            first: row of `own` that this rank's block begins with.
            book: maps rows to ranks of the group.
            group: the column, for the thread that asks.
            degree: [N] or [N, 3] of this rank's block, if ranks know only their own.
            empty: makes the array for the rows.

        Raises:
            StoreError: the store is damaged.
        """
        super().__init__(book, group)
        self._degree = degree
        self._own = empty((int(book.sizes()[group.rank]), own.num_features), own.dtype)
        step = max(1, LOAD_BYTES // max(1, own.num_features * own.dtype.itemsize))
        for at in range(0, len(self._own), step):
            part = self._own[at : at + step]
            own.gather(np.arange(first + at, first + at + len(part)), out=part)
        self._spare: list[npt.NDArray[np.uint8]] = []
        self.hot = HotRows(rows=np.empty((0, own.num_features), own.dtype))

    @property
    def row_bytes(self) -> int:
        return self._own.shape[1] * self._own.itemsize

    @property
    def num_hot(self) -> int:
        return len(self.hot.ids)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank keeps: its block, and hot rows."""
        return self._own.nbytes + self.hot.rows.nbytes

    def keep(self, ids: IdArray) -> None:
        got = self.collect(ids)
        self.hot = HotRows(ids, got.rows[got.place], got.degree)
        self.hits = Hits()

    def collect(self, ids: npt.NDArray[np.integer]) -> Collected:
        """Rows of distinct `ids`, which may be empty.

        Raises:
            IndexError: an id is out of range.
            PeerLostError: a peer is gone.
        """
        group, n = self.group, len(ids)
        owner = self.book.part(ids)
        mine, hot = owner == group.rank, self.hot.find(ids)
        # Received rows are contiguous; own rows come after them, then cached ones. Two-byte keys are sorted in linear
        # time.
        source = np.where(mine, group.size, np.where(hot >= 0, group.size + 1, owner)).astype(np.uint16)
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=group.size + 2).tolist()
        self.hits.asked += n - counts[-2]
        self.hits.hits += counts[-1]
        where = np.where(source == group.size + 1, hot, ids - self.book.offsets[owner])[order]
        *wanted, own, kept = torch.from_numpy(where).to(self._id_type).split(counts)
        asked = group.all_to_all(wanted, "control")

        arrived = self._buffer(n)
        *into, mine_out, hot_out = torch.from_numpy(arrived).split(counts)
        sizes = [0 if r == group.rank else len(a) for r, a in enumerate(asked)]
        answers = torch.empty((sum(sizes), self._own.shape[1]), dtype=torch_dtype(self._own.dtype)).split(sizes)
        for r, (rows, out) in enumerate(zip(asked, answers)):
            if r != group.rank:
                _take(self._own, rows, out)
        _take(self._own, own, mine_out)
        _take(self.hot.rows, kept, hot_out)
        group.all_to_all(list(answers), "features", into)

        degree = None
        if self._degree is not None:
            came = self._degree.new_empty(n, *self._degree.shape[1:])
            *into, mine_out, hot_out = came.split(counts)
            message = torch.cat(
                [self._degree[:0], *(self._degree[a.long()] for r, a in enumerate(asked) if r != group.rank)]
            )
            mine_out.copy_(self._degree[own.long()])
            if self.hot.degree is not None:
                hot_out.copy_(self.hot.degree[kept.long()])
            group.all_to_all(list(message.split(sizes)), "graph", into)
            degree = torch.empty_like(came)
            degree[torch.from_numpy(order)] = came
        place = np.empty(n, np.int32 if n < 2**31 else np.int64)
        place[order] = np.arange(n, dtype=place.dtype)
        return Collected(arrived, place, degree)

    def _buffer(self, n: int) -> FloatArray:
        """[n, F], not initialised: memory without views, if there is enough of it (fresh pages cost as much as the
        rows)."""
        need, width = n * self.row_bytes, self._own.shape[1]
        for raw in self._spare:
            # Three references: the list's, the loop's and the argument's. Views would add theirs.
            if len(raw) >= need and sys.getrefcount(raw) == 3:
                break
        else:
            raw = np.empty(need * 9 // 8, np.uint8)
            # The smallest free ones go first: sizes grow slowly.
            self._spare = sorted([*self._spare, raw], key=len)[-SPARE:]
        return raw[:need].view(self._own.dtype).reshape(n, width)


def _take(rows: npt.NDArray[Any], ids: Tensor, out: Tensor) -> None:
    # In range by construction of the ids; mode="clip" skips the buffering that mode="raise" needs with `out`.
    if len(ids):
        np.take(rows, ids.numpy(), axis=0, out=out.numpy(), mode="clip")
