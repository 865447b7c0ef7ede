"""Messages between the ranks that hold blocks of rows, about the edges of those rows."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...storage.array_kinds import AnyArray, IdArray, IntArray, Mask
from ...storage.graph import Graph
from ..comm.base import Group
from ..kernels.row_block.layerwise import Rates
from .row_blocks import BlockRows

Ids = IntArray


class RowsHere(Protocol):
    """Rows of the topology on this rank, its block or others, in which a sampler draws."""

    @property
    def graph(self) -> Graph:
        """N rows, with global sources."""

    @property
    def first(self) -> int | IdArray:
        """Global id of row 0, if rows are consecutive; otherwise int64 [N], that of each."""

    @property
    def first_edge(self) -> int | IdArray:
        """To be added to a position in this graph's edge arrays for that in the whole graph's: one number, or int64
        [N] for the edges of each row."""


class Book(Protocol):
    """Says which rank answers for a node, and where its numbering of nodes begins."""

    @property
    def offsets(self) -> IdArray:
        """int64, for each rank, what is subtracted from ids that it is asked for."""

    def part(self, ids: Ids) -> IntArray:
        """The rank that answers for each id."""


class AnsweredRows:
    """The rows in which this rank answers for layer-wise samplers: those of its block, by local ids."""

    def __init__(self, graph: Graph, rates: Rates, first: int | IdArray, first_edge: int | IdArray) -> None:
        """See `RowsHere`; `rates` are of the same graph."""
        self.graph, self.rates, self.first, self.first_edge = graph, rates, first, first_edge

    def add(self, ids: Ids) -> None:
        """Get ready to answer for these rows. All ranks call this together."""

    def index(self, ids: Ids) -> IdArray:
        """int64, the row of each id."""
        return ids.astype(np.int64)


class Owners:
    """Exchanges messages with the ranks that hold the other blocks of rows. Counted under ``graph``; sizes under
    ``control``."""

    book: Book

    def __init__(self, rows: BlockRows, group: Group) -> None:
        """
        Args:
            rows: rows of this rank.
            group: the ranks of its column, for the sampling thread.
        """
        self.rows, self.group = rows, group
        self.book = rows.book
        self.dtype = rows.graph.indices.dtype
        """Dtype of global ids."""
        longest = int(np.diff(rows.book.offsets).max(initial=0))
        self.local_dtype: np.dtype[np.integer] = np.dtype(np.int32 if longest < 2**31 else np.int64)
        """Dtype of ids within a block."""
        self.kept: dict[str, Any] = {}
        """Results that samplers have computed once."""

    @property
    def blocks(self) -> "Owners":
        """Messages to the ranks that hold the blocks themselves."""
        return self

    def visit(self, ids: Ids, *, starts: bool = False) -> Iterator[tuple[RowsHere, IdArray | None, IdArray]]:
        """The rows that this rank was asked for, piece by piece. All ranks consume all of it, together.

        Args:
            ids: as `route` has sent them here, repeats included.
            starts: also say where edges are in the whole graph (`RowsHere.first_edge`).

        Yields: rows; int64, ascending, the places of `ids` in which these rows are named, or None for all of them; and
            the row that each names.
        """
        yield self.rows, None, ids.astype(np.int64)

    def answered_rows(self, *, starts: bool = False) -> AnsweredRows:
        """The rows to answer layer-wise samplers from, for one bulk; with `starts`, its `first_edge` is known."""
        if "rates" not in self.kept:
            self.kept["rates"] = Rates(self.rows.graph, self.rows.num_nodes, self.rows.heaviest)
        return AnsweredRows(self.rows.graph, self.kept["rates"], self.rows.first, self.rows.first_edge)

    def answers(self, ids: Ids, asker: int) -> Mask:
        """True for those of these global ids for which rank `asker` asks this one."""
        return self.book.part(ids) == self.group.rank

    def route(self, ids: Ids) -> tuple[IdArray, list[Ids]]:
        """Ids by owner: int64 [n], the order of `ids` by owner, and for each owner its local ids."""
        owner = self.book.part(ids)
        order = np.argsort(owner.astype(np.uint16), kind="stable")
        local = (ids - self.book.offsets[owner]).astype(self.local_dtype)[order]
        return order, np.split(local, np.cumsum(np.bincount(owner, minlength=self.group.size))[:-1])

    def exchange(self, parts: Sequence[Sequence[AnyArray]]) -> list["Letter"]:
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

    def take(self, count: int, dtype: npt.DTypeLike) -> AnyArray:
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
