"""Messages between the ranks that hold blocks of rows, about the edges of those rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..comm.base import Group
from ..placement.row_blocks import BlockRows

Ids = npt.NDArray[np.integer]
IdArray = npt.NDArray[np.int64]


class Owners:
    """Exchanges messages with the ranks that hold the other blocks of rows. Counted under ``graph``; sizes under
    ``control``."""

    def __init__(self, rows: BlockRows, group: Group) -> None:
        """
        Args:
            rows: rows of this rank.
            group: the ranks of its column, for the sampling thread.
        """
        self.rows, self.group = rows, group
        self.dtype = rows.graph.indices.dtype
        """Dtype of global ids."""
        longest = int(np.diff(rows.book.offsets).max(initial=0))
        self.local_dtype = np.dtype(np.int32 if longest < 2**31 else np.int64)
        """Dtype of ids within a block."""
        self.kept: dict[str, Any] = {}
        """Results that samplers have computed once."""

    def route(self, ids: Ids) -> tuple[IdArray, list[Ids]]:
        """Ids by owner: int64 [n], the order of `ids` by owner, and for each owner its local ids."""
        owner = self.rows.book.part(ids)
        order = np.argsort(owner.astype(np.uint16), kind="stable")
        local = (ids - self.rows.book.offsets[owner]).astype(self.local_dtype)[order]
        return order, np.split(local, np.cumsum(np.bincount(owner, minlength=self.group.size))[:-1])

    def exchange(self, parts: Sequence[Sequence[npt.NDArray[Any]]]) -> list["Letter"]:
        """Send arrays to each rank, and return those received from each. If all arrays for a rank are empty, nothing
        travels."""
        packed = [
            torch.from_numpy(
                np.concatenate([np.empty(0, np.uint8), *(np.ascontiguousarray(a).view(np.uint8) for a in part)])
            )
            for part in parts
        ]
        return [Letter(t.numpy()) for t in self.group.all_to_all(packed, "graph")]


class Letter:
    """Bytes of arrays, to be read in the order in which they were written."""

    def __init__(self, raw: npt.NDArray[np.uint8]) -> None:
        self._raw, self._at = raw, 0

    def __bool__(self) -> bool:
        return len(self._raw) > 0

    @property
    def bytes(self) -> int:
        """All bytes."""
        return len(self._raw)

    def count(self, dtype: npt.DTypeLike) -> int:
        """Length in numbers of one dtype."""
        return len(self._raw) // np.dtype(dtype).itemsize

    def take(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The next `count` numbers."""
        end = self._at + count * np.dtype(dtype).itemsize
        # A copy, since numbers after bytes may be unaligned.
        part = np.frombuffer(self._raw[self._at : end].tobytes(), dtype)
        self._at = end
        return part


def split_counts(splits: IdArray, order: IdArray, owned: Sequence[Ids]) -> list[IdArray]:
    """For each owner, the number of its ids in each segment. `order` and `owned` are from `Owners.route`."""
    segment = np.repeat(np.arange(len(splits) - 1), np.diff(splits))[order]
    ends = np.cumsum([len(o) for o in owned])
    return [np.bincount(segment[e - len(o) : e], minlength=len(splits) - 1) for o, e in zip(owned, ends)]


def splits_of(parts: Sequence[Ids]) -> IdArray:
    """int64 [m + 1], where each of m parts begins in their concatenation."""
    return np.cumsum([0, *(len(p) for p in parts)], dtype=np.int64)
