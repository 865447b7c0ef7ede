"""Parts in one pass over the nodes, with few edges cut: LDG and Fennel.

Nodes come in the order of their ids. Each is assigned once to the part with the highest score; ties go to the smallest
part, then to the first; full parts take none. A node's neighbours are its in-neighbours that came before
it: of an undirected graph, every edge is looked at once with both ends known. The number of cut edges depends on the
order: it is lowest if neighbours have close ids. Nothing is drawn from the seed. Beside the book, memory holds numbers
for each part and for each size of a part, O(V + P), and `ROWS` rows of the graph, which is read once; time is O(V + E +
P).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...storage.errors import InputError
from ...storage.graph import TakenRows
from ...storage.partition.book import TableBook
from ..kernels.partition.stream import assign
from .base import check_parts

Floats = npt.NDArray[np.float64]
ROWS = 1 << 16
"""Rows that are read at a time."""


class RowSource(Protocol):
    """A graph, in memory or on disk, that gives consecutive rows."""

    @property
    def num_nodes(self) -> int:
        """V."""
        ...

    @property
    def num_edges(self) -> int:
        """E."""
        ...

    def rows(self, first: int, stop: int) -> TakenRows:
        """Rows ``[first, stop)``."""
        ...


@dataclass(frozen=True)
class Ldg:
    """Linear deterministic greedy (Stanton, Kliot, KDD 2012): a part S of capacity C scores ``|N(v) n S| (1 - |S| /
    C)``."""

    slack: float = 1.1
    """C over the mean size of a part, in nodes."""

    name = "ldg"

    def __post_init__(self) -> None:
        _check_slack(self.slack)

    def assign(self, graph: RowSource, parts: int, seed: int) -> TableBook:
        """See `Partitioner.assign`."""
        size = np.arange(_capacity(graph, check_parts(parts), self.slack), dtype=np.float64)
        return _one_pass(graph, parts, 1 - size / len(size), np.zeros(len(size)))


@dataclass(frozen=True)
class Fennel:
    """Fennel (Tsourakakis, Gkantsidis, Radunovic, Vojnovic, WSDM 2014): a part S scores ``|N(v) n S| - alpha gamma
    |S|^(gamma - 1)``.

    ``alpha = P^(gamma - 1) E / V^gamma``. An undirected graph has both directions of its edges here, which doubles the
    paper's alpha: on graphs with hubs that cuts less, and on others it is the same.
    """

    gamma: float = 1.5
    """At least 1; larger ones make parts more alike in size."""
    slack: float = 1.1
    """The largest part over the mean size, in nodes."""

    name = "fennel"

    def __post_init__(self) -> None:
        _check_slack(self.slack)
        if not 1 <= self.gamma < 10:
            raise InputError(f"gamma is {self.gamma}; expected a number from 1 to 10, such as 1.5")

    def assign(self, graph: RowSource, parts: int, seed: int) -> TableBook:
        """See `Partitioner.assign`."""
        size = np.arange(_capacity(graph, check_parts(parts), self.slack), dtype=np.float64)
        alpha = parts ** (self.gamma - 1) * graph.num_edges / max(1, graph.num_nodes) ** self.gamma
        return _one_pass(graph, parts, np.ones(len(size)), alpha * self.gamma * size ** (self.gamma - 1))


def _check_slack(slack: float) -> None:
    if not slack >= 1:
        raise InputError(f"slack is {slack}; expected at least 1: parts of the mean size")


def _capacity(graph: RowSource, parts: int, slack: float) -> int:
    """C: all nodes fit into so many parts of this capacity."""
    return max(1, int(np.ceil(min(slack, parts) * graph.num_nodes / parts)))


def _one_pass(graph: RowSource, parts: int, gain: Floats, cost: Floats) -> TableBook:
    """Assign each node to the part with the highest ``gain[|S|] |N(v) n S| - cost[|S|]``; parts with ``len(gain)``
    nodes are full."""
    part_of = np.full(graph.num_nodes, -1, np.int32)
    sizes, count, least = np.zeros(parts, np.int64), np.zeros(parts, np.int64), np.zeros(2, np.int64)
    for first in range(0, graph.num_nodes, ROWS):
        rows = graph.rows(first, min(first + ROWS, graph.num_nodes))
        assign(rows.indptr, rows.indices, first, part_of, sizes, count, least, gain, cost)
    return TableBook(part_of, parts)
