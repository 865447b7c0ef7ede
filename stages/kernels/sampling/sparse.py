"""Sparse matrices of samplers that are written as products: the type, and the matrix of a graph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ....storage.graph import Graph, edges_of_rows

IdArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sparse:
    """n rows of a matrix with V columns, whose values are whole numbers, so that sums do not depend on an order.

    Rows may be anywhere in `columns`, and several may be the same: a product by a selector copies nothing.
    """

    start: IdArray
    """int64 [n], where each row begins in `columns`."""
    stop: IdArray
    """int64 [n], where it ends."""
    columns: npt.NDArray[np.integer]
    """Columns; those of a row ascend, and are distinct in a product."""
    values: IdArray | None = None
    """int64, one for each of `columns`, at least 0; None: ones."""

    @classmethod
    def select(cls, nodes: npt.NDArray[np.integer], values: IdArray | None = None) -> "Sparse":
        """A selector: row i has one entry, in column nodes[i]."""
        at = np.arange(len(nodes), dtype=np.int64)
        return cls(at, at + 1, nodes, values)

    @classmethod
    def repeat(cls, n: int, times: int) -> "Sparse":
        """R = (I I ... I), [n, n * times]: R times matrices of n rows, one below the other, is their sum."""
        ends = np.arange(n + 1, dtype=np.int64) * times
        return cls(ends[:-1], ends[1:], np.arange(n * times, dtype=np.int64).reshape(times, n).T.ravel())

    @property
    def mass(self) -> IdArray:
        """int64, the values, ones included."""
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
        """The same matrix with its rows one after the other."""
        indptr, at = edges_of_rows(self.start, self.lengths)
        return Sparse(indptr[:-1], indptr[1:], self.columns[at], None if self.values is None else self.values[at])

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


_adjacency: WeakKeyDictionary[Graph, Sparse] = WeakKeyDictionary()


def adjacency(graph: Graph) -> Sparse:
    """A [V, V]: row v has the in-neighbours of v; a value is the number of parallel edges. Made once for a graph; of
    one without parallel edges, whose rows ascend, its own arrays."""
    if graph not in _adjacency:
        indptr, indices = graph.indptr, graph.indices
        found = Sparse(indptr[:-1], indptr[1:], indices)
        rising = np.ones(len(indices), np.bool_)
        rising[1:] = indices[1:] > indices[:-1]
        rising[indptr[:-1][indptr[:-1] < len(indices)]] = True
        if not rising.all():
            keys, count = np.unique(found.row_of * graph.num_nodes + indices, return_counts=True)
            ends = np.searchsorted(keys, np.arange(graph.num_nodes + 1) * graph.num_nodes)
            columns = (keys % max(1, graph.num_nodes)).astype(indices.dtype)
            found = replace(found, start=ends[:-1], stop=ends[1:], columns=columns, values=count.astype(np.int64))
        _adjacency[graph] = found
    return _adjacency[graph]
