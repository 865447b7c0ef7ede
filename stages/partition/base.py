"""Partitioners: assign each node to a part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ...storage.array_kinds import IdArray
from ...storage.dataset import Dataset
from ...storage.errors import InputError, whole_number
from ...storage.fingerprint import dataset_fingerprint
from ...storage.graph import Graph
from ...storage.lazy_dataset import LazyGraph
from ...storage.partition.book import PartitionBook
from .rows import RowSource

MAX_PARTS = 1_000_000
"""Larger numbers are taken for a mistake: every part is a folder and a rank's work."""


@runtime_checkable
class Partitioner(Protocol):
    """Assigns every node of a graph to one part. A pure function of (graph, parts, seed): frozen, holds only its
    options. One with ``reads_rows = True`` takes any `RowSource`, such as a graph on disk."""

    @property
    def name(self) -> str:
        """Its name in configuration, on the command line and in fingerprints."""

    def assign(self, graph: Graph, parts: int, seed: int) -> PartitionBook:
        """Owner of every node.

        Args:
            graph: V nodes; only its structure is read.
            parts: P >= 1; may exceed V, which leaves parts empty.
            seed: the run's seed; partitioners that draw nothing ignore it.

        Raises:
            InputError: `parts` is not a positive integer.
        """


@runtime_checkable
class InPasses(Protocol):
    """Partitioner that reads all rows of a graph several times."""

    @property
    def passes(self) -> int:
        """Times that all rows are read."""

    def assign(
        self,
        graph: RowSource,
        parts: int,
        seed: int,
        *,
        train: IdArray | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> PartitionBook:
        """See `Partitioner.assign`.

        Args:
            graph: V nodes.
            parts: P >= 1.
            seed: the run's seed.
            train: int64 train nodes; none by default.
            on_progress: called with (rows read, rows to read), over all passes.
        """


def reads_rows(partitioner: Partitioner) -> bool:
    """True if the partitioner takes any `RowSource`, so that the graph may stay on disk."""
    return bool(getattr(partitioner, "reads_rows", False))


def make_book(
    partitioner: Any,
    graph: Graph | RowSource,
    parts: int,
    seed: int,
    train: IdArray | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PartitionBook:
    """`assign` of any partitioner.

    Args:
        partitioner: see `Partitioner` and `InPasses`.
        graph: V nodes; a `Graph`, unless the partitioner reads rows.
        parts: P.
        seed: the run's seed.
        train: int64 train nodes, for a partitioner that balances them.
        on_progress: see `InPasses.assign`; a partitioner that makes no passes does not call it.
    """
    if isinstance(partitioner, InPasses):
        return partitioner.assign(graph, parts, seed, train=train, on_progress=on_progress)
    return partitioner.assign(graph, parts, seed)


@dataclass(frozen=True)
class Cut:
    """A way to divide nodes: the partitioner and the parts."""

    partitioner: Partitioner
    parts: int
    seed: int = 0
    order: str = "ids"
    """Order of the nodes within a part, where they are renumbered; see `storage.partition.node_order`."""

    def fingerprint(self, dataset: Dataset) -> dict[str, str]:
        """That of the parts of a dataset."""
        made = {"partitioner": repr(self.partitioner), "parts": str(self.parts), "seed": str(self.seed)}
        return {**dataset_fingerprint(dataset), **made}


def book_of(dataset: Dataset, cut: Cut, on_progress: Callable[[int, int], None] | None = None) -> PartitionBook:
    """Owner of every node of a dataset; see `make_book`. The graph of a lazy one stays on disk if the partitioner
    reads rows."""
    graph: Any = dataset.graph
    partitioner = cut.partitioner
    if isinstance(graph, LazyGraph) and reads_rows(partitioner):
        graph = graph.on_disk
    train = dataset.split.train if isinstance(partitioner, InPasses) and not dataset.of_pairs else None
    return make_book(partitioner, graph, cut.parts, cut.seed, train, on_progress)


READS_GRAPH = ("contiguous", "ldg", "fennel", "metis", "metis-work", "metis-streamed")
"""Partitioners of this folder that read the graph, in one process and without a GPU."""


def can_travel(partitioner: Partitioner) -> bool:
    """True if a task should do the work of a partitioner. Others need not see the graph, have a cluster of their own,
    or are the user's, who may have them here only."""
    ours = type(partitioner).__module__.startswith(__name__.rpartition(".")[0])
    return ours and partitioner.name in READS_GRAPH


def check_parts(parts: int, num_nodes: int | None = None) -> int:
    """Return `parts` if it is a positive integer, and at most `num_nodes` if that is given.

    Raises:
        InputError: it is not.
    """
    parts = whole_number("parts", parts, 1, MAX_PARTS)
    if num_nodes is not None and parts > num_nodes:
        raise InputError(f"parts is {parts}, but the graph has {num_nodes} nodes; expected at most one per node")
    return parts


def check_slack(slack: float) -> None:
    """Raise InputError unless `slack` is a number from 1 on."""
    if not slack >= 1:
        raise InputError(f"slack is {slack}; expected at least 1: parts of the mean size")
