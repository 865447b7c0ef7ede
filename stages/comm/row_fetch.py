"""Rows of a sparse matrix from their owners in a grid column, stage by stage: the sparsity-aware half of a 1.5D
product.

Tripathy, Yelick, Buluc, MLSys 2024 (arXiv 2311.02909), the graph-partitioned algorithm. In stage s a rank needs those
rows of block row s in whose columns its selector Q has a nonzero, each once. Rows of stage s + 1 are under way while
those of stage s are multiplied with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.array_kinds import AnyArray, IdArray, IntArray
from ...storage.graph import edges_of_rows, starts_of
from .base import Group, Swap

TAG = 0


@dataclass(frozen=True, eq=False)
class Rows:
    """n rows of a sparse matrix."""

    indptr: IdArray
    """int64 [n + 1]."""
    start: IdArray
    """int64 [n], position of each row's first entry in the whole matrix."""
    values: tuple[AnyArray, ...]
    """Each [e], of the entries: columns, and what else belongs to an entry."""

    def take(self, rows: IntArray) -> "Rows":
        """Some rows, in that order."""
        indptr, at = edges_of_rows(self.indptr[rows], np.diff(self.indptr)[rows])
        return Rows(indptr, self.start[rows], tuple(v[at] for v in self.values))


@dataclass
class Traffic:
    """Counts of one rank. A *word* is an entry of a row."""

    asked_rows: int = 0
    """Rows asked of other ranks."""
    received_words: int = 0
    sent_words: int = 0
    answers: int = 0
    """Messages received from owners: lengths of rows, and entries."""
    requests: int = 0
    """Messages received as an owner."""


class RowFetch:
    """One fetch of rows by all ranks of a grid column, begun when it is made. Every rank iterates to the end."""

    def __init__(
        self,
        column: Group,
        owned: Rows,
        wanted: Mapping[int, IntArray],
        dtype: npt.DTypeLike,
        *,
        starts: bool = False,
        traffic: Traffic | None = None,
    ) -> None:
        """
        Args:
            column: ranks that own block rows 0, 1, ... of the matrix.
            owned: this rank's block row.
            wanted: by stage, the distinct rows that this rank needs of that block, in it; not its own block's.
            dtype: of these numbers, the same on all ranks.
            starts: true on all ranks if `Rows.start` travels; else it is empty.
            traffic: counts what happens.
        """
        self.column, self.like, self.starts = column, owned.values, starts
        self.traffic = traffic or Traffic()
        none = np.empty(0, dtype)
        self.stages = [s for s in sorted(wanted) if len(wanted[s])]
        assert column.rank not in self.stages
        numbers = [torch.from_numpy(np.asarray(wanted.get(s, none), dtype)) for s in range(column.size)]
        asked = [owned.take(ids.numpy()) for ids in column.all_to_all(numbers, "graph")]
        heads = [_bytes(np.diff(rows.indptr).astype(np.int32), *([rows.start] if starts else [])) for rows in asked]
        each = 12 if starts else 4
        sizes = [each * len(ids) for ids in numbers]
        into = list(torch.empty(sum(sizes), dtype=torch.uint8).split(sizes))
        self._heads = column.all_to_all(heads, "graph", into)
        self._sent: list[Swap] = []
        for r, rows in enumerate(asked):
            body = _bytes(*rows.values)
            self._sent.append(column.swap(body, r, body[:0], r, TAG, "graph"))
            self.traffic.sent_words += int(rows.indptr[-1])
            self.traffic.requests += len(rows.start) > 0
        self._coming = {s: self._expect(s) for s in self.stages[:1]}
        self.traffic.asked_rows += sum(len(wanted[s]) for s in self.stages)

    def _expect(self, s: int) -> tuple[IdArray, IdArray, Tensor, Swap]:
        """Begin to receive the rows of a stage."""
        head = self._heads[s].numpy()
        n = len(head) // (12 if self.starts else 4)
        indptr = starts_of(head[: 4 * n].view(np.int32))
        start = head[4 * n :].copy().view(np.int64) if self.starts else np.empty(0, np.int64)
        into = torch.empty(int(indptr[-1]) * sum(v.itemsize for v in self.like), dtype=torch.uint8)
        self.traffic.received_words += int(indptr[-1])
        self.traffic.answers += 1 + (len(into) > 0)
        return indptr, start, into, self.column.swap(into[:0], s, into, s, TAG, "graph")

    def __iter__(self) -> Iterator[tuple[int, Rows]]:
        """The stages of other ranks in which this one needs rows, ascending, with these rows."""
        for s, later in zip(self.stages, [*self.stages[1:], None]):
            indptr, start, into, swap = self._coming.pop(s)
            if later is not None:
                self._coming[later] = self._expect(later)
            swap.received(f"rows of block {s}")
            values, at = [], 0
            for v in self.like:
                end = at + int(indptr[-1]) * v.itemsize
                part = into[at:end].numpy()
                values.append((part if at % v.itemsize == 0 else part.copy()).view(v.dtype))
                at = end
            yield s, Rows(indptr, start, tuple(values))
        for swap in self._sent:
            swap.sent("rows of this rank's block")
        self._sent.clear()


def _bytes(*arrays: AnyArray) -> Tensor:
    packed = [np.ascontiguousarray(a).view(np.uint8) for a in arrays]
    return torch.from_numpy(packed[0] if len(packed) == 1 else np.concatenate(packed))
