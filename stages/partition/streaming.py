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

from ...storage.array_kinds import IdArray
from ...storage.errors import InputError, whole_number
from ...storage.partition.book import TableBook
from ..kernels.partition.stream import assign
from .base import check_parts, check_slack
from .rows import Passes, RowSource

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Streamed:
    """Assigns each node, in each pass, to the part with the highest score among those that are not full."""

    slack: float = 1.1
    """The largest part over the mean size, in nodes."""
    passes: int = 1
    """Times that all nodes are assigned."""

    reads_rows = True

    def __post_init__(self) -> None:
        check_slack(self.slack)
        whole_number("passes", self.passes, 1)

    def assign(
        self,
        graph: RowSource,
        parts: int,
        seed: int,
        *,
        train: IdArray | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> TableBook:
        """See `base.InPasses.assign`; train nodes count as others do."""
        capacity = max(1, int(np.ceil(min(self.slack, check_parts(parts)) * graph.num_nodes / parts)))
        gain, cost = self._scores(graph, parts, np.arange(capacity, dtype=np.float64))
        rows, part_of = Passes(graph, self.passes, on_progress), np.full(graph.num_nodes, -1, np.int32)
        while rows.left:
            sizes, count, least = np.zeros(parts, np.int64), np.zeros(parts, np.int64), np.zeros(2, np.int64)
            for first, piece in rows.read():
                assign(piece.indptr, piece.indices, first, part_of, sizes, count, least, gain, cost)
        return TableBook(part_of, parts)

    def _scores(self, graph: RowSource, parts: int, size: Floats) -> tuple[Floats, Floats]:
        """Gain and cost of a part by its size |S|: it scores ``gain |N(v) n S| - cost``."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Ldg(_Streamed):
    """Linear deterministic greedy (Stanton, Kliot, KDD 2012): a part S of capacity C scores ``|N(v) n S| (1 - |S| /
    C)``."""

    name = "ldg"

    def _scores(self, graph: RowSource, parts: int, size: Floats) -> tuple[Floats, Floats]:
        return 1 - size / len(size), np.zeros(len(size))


@dataclass(frozen=True, kw_only=True)
class Fennel(_Streamed):
    """Fennel (Tsourakakis, Gkantsidis, Radunovic, Vojnovic, WSDM 2014): a part S scores ``|N(v) n S| - alpha gamma
    |S|^(gamma - 1)``.

    ``alpha = P^(gamma - 1) E / V^gamma``. An undirected graph has both directions of its edges here, which doubles the
    paper's alpha: on graphs with hubs that cuts less, and on others it is the same.
    """

    gamma: float = 1.5
    """At least 1; larger ones make parts more alike in size."""

    name = "fennel"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.gamma < 10:
            raise InputError(f"gamma is {self.gamma}; expected a number from 1 to 10, such as 1.5")

    def _scores(self, graph: RowSource, parts: int, size: Floats) -> tuple[Floats, Floats]:
        alpha = parts ** (self.gamma - 1) * graph.num_edges / max(1, graph.num_nodes) ** self.gamma
        return np.ones(len(size)), alpha * self.gamma * size ** (self.gamma - 1)
