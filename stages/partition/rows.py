"""Rows of a graph in memory or on disk, read from first to last."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from ...storage.array_kinds import IdArray, IntArray
from ...storage.graph import TakenRows, row_ranges

ROWS = 1 << 19
"""Rows whose pointers are read at a time: a Zarr chunk of them."""
EDGES = 1 << 22
"""Edges that are read at a time, unless a single row has more."""


class RowSource(Protocol):
    """A graph, in memory or on disk, that gives consecutive rows."""

    @property
    def num_nodes(self) -> int:
        """V."""

    @property
    def num_edges(self) -> int:
        """E."""

    @property
    def part_offsets(self) -> IdArray | None:
        """int64 [P+1], the first node of each part and V, if nodes were renumbered part by part; else None."""

    def first_edge(self, first: int, stop: int) -> IdArray:
        """int64, first edge of each of the rows ``[first, stop)``; V is a row that begins at E."""

    def rows(self, first: int, stop: int) -> TakenRows:
        """Rows ``[first, stop)``."""


def in_degrees(graph: RowSource, out: IntArray) -> None:
    """Add to `out` [V] the number of in-edges of each node."""
    for first in range(0, graph.num_nodes, ROWS):
        stop = min(first + ROWS, graph.num_nodes)
        out[first:stop] += np.diff(graph.first_edge(first, stop + 1)).astype(out.dtype)


def stretches(graph: RowSource) -> Iterator[tuple[int, TakenRows]]:
    """All rows, in stretches of about `EDGES` edges: the number of each stretch's first row, and its rows.

    A thread reads the next stretch meanwhile; two of them are in memory.
    """
    with ThreadPoolExecutor(1) as reader:
        ahead = None
        for first, stop in _bounds(graph):
            coming = first, reader.submit(graph.rows, first, stop)
            if ahead is not None:
                yield ahead[0], ahead[1].result()
            ahead = coming
        if ahead is not None:
            yield ahead[0], ahead[1].result()


def _bounds(graph: RowSource) -> Iterator[tuple[int, int]]:
    for begin in range(0, graph.num_nodes, ROWS):
        end = min(begin + ROWS, graph.num_nodes)
        for first, stop in row_ranges(graph.first_edge(begin, end + 1), EDGES, ROWS):
            yield begin + first, begin + stop


class Passes:
    """A number of passes over the rows of a graph; reports how far they are."""

    def __init__(self, graph: RowSource, passes: int, on_progress: Callable[[int, int], None] | None = None) -> None:
        """
        Args:
            graph: V nodes.
            passes: to be made.
            on_progress: called with (rows read, rows to read), over all passes.
        """
        self._graph, self._total, self._tell = graph, passes * graph.num_nodes, on_progress
        self.left = passes
        """Passes that have not begun."""

    def read(self) -> Iterator[tuple[int, TakenRows]]:
        """The next pass; see `stretches`."""
        self.left -= 1
        for first, rows in stretches(self._graph):
            yield first, rows
            if self._tell is not None:
                to_come = (self.left + 1) * self._graph.num_nodes - first - len(rows.first_edge)
                self._tell(self._total - to_come, self._total)
