"""Sampling by 1.5D products P = Q A: rows of A travel to where they are drawn in, along the columns of the grid.

Tripathy, Yelick, Buluc, MLSys 2024 (arXiv 2311.02909), the graph-partitioned algorithm, sparsity-aware. The c ranks of
a grid row sample their minibatches together: their selectors make up Q_i. Column j of the grid forms its share of
P_i = Q_i A, in the stages whose block rows are its own (`Grid.stages`), from rows of A fetched from their owners in the
column (`row_fetch`).

    ids     frontier nodes, to the rank of the grid row whose column has the stage of their block       along the row
    rows    distinct rows that any of these minibatches needs, from their owners                        along the column
    result  what the minibatches need of their rows of P                                                along the row

What is reduced along the grid row is not P but what is sampled from it. Node by node, a row of P is a row of A and has
no other part: it is drawn in where it was fetched. LADIES and FastGCN resolve darts and extract edges where the rows
are, and add up P, in fixed point, only if darts run out (`remote_layerwise`). A rank reads the rows of its own block
itself.

The bits are those of `Owners` and of the serial samplers. In place of 1 + fanout words a row and minibatch, each
distinct row of the bulk travels once for a grid row, whole: less if many minibatches need the same rows, or if rows are
short.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...storage.array_kinds import Int32Array, IntArray, Mask
from ...storage.graph import Graph
from ..comm.base import Group
from ..comm.row_fetch import RowFetch, Rows, Traffic
from ..kernels.row_block.layerwise import Rates
from .row_blocks import BlockRows, Grid
from .row_owners import AnsweredRows, IdArray, Ids, Owners, RowsHere


@dataclass(frozen=True, eq=False)
class FetchedRows:
    """Rows of other ranks; see `RowsHere`."""

    graph: Graph
    first: IdArray
    first_edge: IdArray


class _StageBook:
    """See `Book`: the ranks of a grid row, by the stages of their columns; ids are global."""

    def __init__(self, book: object, column_of: Int32Array, size: int) -> None:
        self._book, self._column_of, self.offsets = book, column_of, np.zeros(size, np.int64)

    def part(self, ids: Ids) -> Int32Array:
        # pyrefly: ignore[missing-attribute]
        return self._column_of[self._book.part(ids)]


class StagedRows(Owners):
    """Messages of 1.5D products; see `Owners`, whose group is here this rank's grid row."""

    def __init__(self, rows: BlockRows, column: Group, row: Group, traffic: Traffic | None = None) -> None:
        """
        Args:
            rows: rows of this rank.
            column: the ranks of its grid column, for the sampling thread.
            row: those of its grid row, likewise.
            traffic: counts fetched rows.
        """
        super().__init__(rows, row)
        self._blocks = Owners(rows, column)
        # pyrefly: ignore[bad-override-mutable-attribute]
        self._asked_dtype, self.local_dtype = self.local_dtype, self.dtype
        grid = Grid(column.size * row.size, row.size)
        column_of = np.empty(grid.blocks, np.int32)
        for j in range(grid.replication):
            column_of[grid.stages(j).start : grid.stages(j).stop] = j
        column_of[rows.block] = row.rank
        self.book = _StageBook(rows.book, column_of, row.size)
        self.stages = [s for s in grid.stages(row.rank) if s != rows.block]
        """Blocks of other ranks that this one multiplies with."""
        graph, weight = rows.graph, rows.graph.edge_weight
        values = (graph.indices,) if weight is None else (graph.indices, weight)
        self._own = Rows(graph.indptr, graph.indptr[:-1] + rows.first_edge, values)
        self.traffic = traffic or Traffic()

    @property
    def blocks(self) -> Owners:
        return self._blocks

    def answers(self, ids: Ids, asker: int) -> Mask:
        """See `Owners.answers`. Each rank of a grid row reads their block itself."""
        mine = self.book.part(ids) == self.group.rank
        return mine if asker == self.group.rank else mine & (self.rows.book.part(ids) != self.rows.block)

    def fetch(self, wanted: dict[int, IntArray], *, starts: bool = False) -> RowFetch:
        """Begin to fetch rows of other blocks. All ranks of the grid column call this together."""
        return RowFetch(self._blocks.group, self._own, wanted, self._asked_dtype, starts=starts, traffic=self.traffic)

    def visit(self, ids: Ids, *, starts: bool = False) -> Iterator[tuple[RowsHere, IdArray | None, IdArray]]:
        block, first = self.rows.book.part(ids), self.rows.book.offsets
        at = {s: np.flatnonzero(block == s) for s in (self.rows.block, *self.stages)}
        wanted, place = {}, {}
        for s in self.stages:
            wanted[s], place[s] = np.unique(ids[at[s]] - first[s], return_inverse=True)
        fetch = self.fetch(wanted, starts=starts)
        own = at[self.rows.block]
        yield self.rows, own, ids[own].astype(np.int64) - self.rows.first
        for s, rows in fetch:
            begins = rows.start - rows.indptr[:-1] if starts else rows.start
            yield FetchedRows(_graph(rows), wanted[s] + first[s], begins), at[s], place[s]

    def answered_rows(self, *, starts: bool = False) -> AnsweredRows:
        """See `Owners.answered_rows`: nothing at first."""
        return _FetchedAnswers(self, starts)


class _FetchedAnswers(AnsweredRows):
    """Rows fetched for one bulk of a layer-wise sampler, hop after hop."""

    def __init__(self, staged: StagedRows, starts: bool) -> None:
        self._staged, self._starts = staged, starts
        self._rows = Rows(np.zeros(1, np.int64), np.empty(0, np.int64), tuple(v[:0] for v in staged._own.values))
        self._order = np.empty(0, np.int64)
        self.first = np.empty(0, np.int64)
        self._set()

    def add(self, ids: Ids) -> None:
        staged = self._staged
        book, own = staged.rows.book, staged.rows.block
        new = np.setdiff1d(ids.astype(np.int64), self.first)
        block = book.part(new)
        wanted = {s: new[block == s] - book.offsets[s] for s in (own, *staged.stages)}
        fetch = staged.fetch({s: w for s, w in wanted.items() if s != own}, starts=self._starts)
        parts = [(own, staged._own.take(wanted[own])), *fetch]
        lengths = [np.diff(self._rows.indptr), *(np.diff(rows.indptr) for _, rows in parts)]
        indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        values = zip(self._rows.values, *(rows.values for _, rows in parts))
        start = self._rows.start
        if self._starts:
            start = np.concatenate([start, *(rows.start for _, rows in parts)])
        self._rows = Rows(indptr, start, tuple(np.concatenate(v) for v in values))
        self.first = np.concatenate([self.first, *(wanted[s] + book.offsets[s] for s, _ in parts)])
        self._order = np.argsort(self.first)
        self._set()

    def index(self, ids: Ids) -> IdArray:
        return self._order[np.searchsorted(self.first, ids, sorter=self._order)]

    def _set(self) -> None:
        rows = self._staged.rows
        self.graph = _graph(self._rows)
        self.first_edge = self._rows.start - self._rows.indptr[:-1] if self._starts else self._rows.start
        self.rates = Rates(self.graph, rows.num_nodes, rows.heaviest)


def _graph(rows: Rows) -> Graph:
    return Graph(rows.indptr, rows.values[0], rows.values[1] if len(rows.values) > 1 else None)
