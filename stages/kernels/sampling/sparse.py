"""Sparse matrices of samplers that are written as products: the type, and the matrix of a graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....storage.array_kinds import IdArray, IntArray
from ....storage.graph import Graph, edges_of_rows
from ....storage.optional import taken
from ..runtime.once_per_graph import once_per_graph


@dataclass(frozen=True, eq=False)
class Sparse:
    """n sparse rows of V columns. Values are whole numbers, so their sums do not depend on the order.

    A row may begin anywhere in `columns`, and rows may overlap, so a product by a selector copies nothing.
    """

    start: IdArray
    """int64 [n], where each row begins in `columns`."""
    stop: IdArray
    """int64 [n], where each row ends in `columns`."""
    columns: IntArray
    """Columns; those of a row ascend, and are distinct in a product."""
    values: IdArray | None = None
    """int64, one for each of `columns`, at least 0; None: ones."""

    @classmethod
    def select(cls, nodes: IntArray, values: IdArray | None = None) -> "Sparse":
        """A selector: row i has one entry, in column nodes[i]."""
        at = np.arange(len(nodes), dtype=np.int64)
        return cls(at, at + 1, nodes, values)

    @classmethod
    def repeat(cls, n: int, times: int) -> "Sparse":
        """R = (I I ... I), [n, n * times]. R S adds up the `times` matrices of n rows that S stacks."""
        ends = np.arange(n + 1, dtype=np.int64) * times
        return cls(ends[:-1], ends[1:], np.arange(n * times, dtype=np.int64).reshape(times, n).T.ravel())

    @property
    def mass(self) -> IdArray:
        """int64 [e], the value of each entry: ones if `values` is None."""
        return np.ones(len(self.columns), np.int64) if self.values is None else self.values

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.start)

    @cached_property
    def lengths(self) -> IdArray:
        """int64 [n], entries of each row."""
        return self.stop - self.start

    @property
    def row_of(self) -> IdArray:
        """int64 [e], the row of each entry, row by row."""
        return np.repeat(np.arange(self.num_rows), self.lengths)

    def packed(self) -> "Sparse":
        """The same matrix, whose rows follow each other in `columns`."""
        indptr, at = edges_of_rows(self.start, self.lengths)
        return Sparse(indptr[:-1], indptr[1:], self.columns[at], taken(self.values, at))

    def with_values(self, values: IdArray) -> "Sparse":
        """A packed matrix with other values; entries that are 0 are dropped."""
        kept = values > 0
        ends = np.concatenate([[0], np.cumsum(kept)])
        return Sparse(ends[self.start], ends[self.stop], self.columns[kept], values[kept])


def stacked(parts: Sequence[Sparse]) -> Sparse:
    """Packed matrices with values, one below the other."""
    offsets = np.cumsum([0, *(len(p.columns) for p in parts[:-1])])
    starts, stops = (np.concatenate([getattr(p, at) + o for p, o in zip(parts, offsets)]) for at in ("start", "stop"))
    return Sparse(starts, stops, *(np.concatenate([getattr(p, at) for p in parts]) for at in ("columns", "mass")))


def has_distinct_entries(graph: Graph) -> bool:
    """True if the sources of each row ascend and no row names one twice."""
    indptr, indices = graph.indptr, graph.indices
    rising = np.ones(len(indices), np.bool_)
    rising[1:] = indices[1:] > indices[:-1]
    rising[indptr[:-1][indptr[:-1] < len(indices)]] = True
    return bool(rising.all())


def merged(graph: Graph, num_columns: int, *, distinct: bool) -> Sparse:
    """Rows of A: row v has the in-neighbours of v; a value is the number of parallel edges.

    Args:
        graph: rows.
        num_columns: V.
        distinct: see `has_distinct_entries`; the matrix is the graph's own arrays then, with values of 1.
    """
    found = Sparse(graph.indptr[:-1], graph.indptr[1:], graph.indices)
    if distinct:
        return found
    keys, count = np.unique(found.row_of * num_columns + graph.indices, return_counts=True)
    ends = np.searchsorted(keys, np.arange(graph.num_nodes + 1) * num_columns)
    columns = (keys % max(1, num_columns)).astype(graph.indices.dtype)
    return Sparse(ends[:-1], ends[1:], columns, count.astype(np.int64))


@once_per_graph
def adjacency(graph: Graph) -> Sparse:
    """A [V, V]; see `merged`. Made once for a graph."""
    return merged(graph, graph.num_nodes, distinct=has_distinct_entries(graph))
