"""Parts by passes over the nodes, with few edges cut: LDG and Fennel.

Nodes come in the order of their ids. Each is assigned to the part with the highest score; ties go to the smallest part,
then to the first; full parts take none. In the first pass, a node's neighbours are its in-neighbours that came before
it: of an undirected graph, every edge is looked at once with both ends known. In each further one (restreaming:
Nishimura, Ugander, KDD 2013), parts fill anew, and all in-neighbours count, each where it was put last. The number of
cut edges depends on the order: it is lowest if neighbours have close ids. Nothing is drawn from the seed. Beside the
book, memory holds numbers for each part and for each size of a part, O(V + P), and a stretch of rows; time is O(V + E +
P) a pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...storage.errors import InputError
from ...storage.partition.book import TableBook
from ..kernels.partition.stream import assign
from .base import check_parts, check_passes, check_slack
from .rows import Passes, RowSource

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Ldg:
    """Linear deterministic greedy (Stanton, Kliot, KDD 2012): a part S of capacity C scores ``|N(v) n S| (1 - |S| /
    C)``."""

    slack: float = 1.1
    """C over the mean size of a part, in nodes."""
    passes: int = 1
    """Times that all nodes are assigned."""

    name = "ldg"
    reads_rows = True

    def __post_init__(self) -> None:
        check_slack(self.slack)
        check_passes(self.passes, 1, "such as 5")

    def assign(
        self,
        graph: RowSource,
        parts: int,
        seed: int,
        *,
        train: npt.NDArray[np.int64] | None = None,
        on_progress: Progress | None = None,
    ) -> TableBook:
        """See `base.InPasses.assign`; train nodes count as others do."""
        size = np.arange(_capacity(graph, check_parts(parts), self.slack), dtype=np.float64)
        rows = Passes(graph, self.passes, on_progress)
        return _assign_all(rows, graph.num_nodes, parts, 1 - size / len(size), np.zeros(len(size)))


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
    passes: int = 1
    """Times that all nodes are assigned."""

    name = "fennel"
    reads_rows = True

    def __post_init__(self) -> None:
        check_slack(self.slack)
        check_passes(self.passes, 1, "such as 5")
        if not 1 <= self.gamma < 10:
            raise InputError(f"gamma is {self.gamma}; expected a number from 1 to 10, such as 1.5")

    def assign(
        self,
        graph: RowSource,
        parts: int,
        seed: int,
        *,
        train: npt.NDArray[np.int64] | None = None,
        on_progress: Progress | None = None,
    ) -> TableBook:
        """See `base.InPasses.assign`; train nodes count as others do."""
        size = np.arange(_capacity(graph, check_parts(parts), self.slack), dtype=np.float64)
        alpha = parts ** (self.gamma - 1) * graph.num_edges / max(1, graph.num_nodes) ** self.gamma
        rows, cost = Passes(graph, self.passes, on_progress), alpha * self.gamma * size ** (self.gamma - 1)
        return _assign_all(rows, graph.num_nodes, parts, np.ones(len(size)), cost)


def _capacity(graph: RowSource, parts: int, slack: float) -> int:
    """C: all nodes fit into so many parts of this capacity."""
    return max(1, int(np.ceil(min(slack, parts) * graph.num_nodes / parts)))


def _assign_all(rows: Passes, num_nodes: int, parts: int, gain: Floats, cost: Floats) -> TableBook:
    """Assign each node, in each pass, to the part with the highest ``gain[|S|] |N(v) n S| - cost[|S|]``; parts with
    ``len(gain)`` nodes are full."""
    part_of = np.full(num_nodes, -1, np.int32)
    while rows.left:
        sizes, count, least = np.zeros(parts, np.int64), np.zeros(parts, np.int64), np.zeros(2, np.int64)
        for first, piece in rows.read():
            assign(piece.indptr, piece.indices, first, part_of, sizes, count, least, gain, cost)
    return TableBook(part_of, parts)
