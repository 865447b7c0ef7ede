"""The partition policy of a training system, one of its five (`stages.policies`)."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..messages import Part, Phase, PlacedData, Placement, RankJob
from ..partition.base import Partitioner
from .chunk_schedule import ChunkSchedule


class PartTraffic(Protocol):
    """Counts for plans what ranks that hold parts send each other, or read of them, besides gradients."""

    def visits(self, prune: bool) -> None:
        """Each layer reads rows of other ranks; with `prune` only those that train nodes depend on."""

    def boundaries(self) -> None:
        """The rows that other ranks' edges read travel once for each phase."""

    def views(self, halo: float) -> None:
        """Each rank reads the chunks of its schedule from stores, and this share of the nodes around them."""


class PartitionPolicy(ABC):
    """Layout of graph, features and seeds over ranks."""

    if TYPE_CHECKING:  # a field of each policy

        @property
        def partitioner(self) -> Partitioner | None:
            """Partitioner of the stored parts that several ranks open, one each; None: ranks open the whole data."""

    evaluates_on_shares: ClassVar[bool] = False
    """True if `place` gives a `placement.sharded.Share` of the whole graph, on which ranks evaluate together."""
    has_blocks: ClassVar[bool] = False
    """True if `place` gives a `placement.row_blocks.BlockRows`: each rank has a block of the graph's rows."""
    changes: ClassVar[bool] = False
    """True if `place` gives other data in each phase; else one call is for all phases."""

    @abstractmethod
    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> PlacedData:
        """This rank's view of the data in this phase; `before` is the view of the previous phase."""

    def schedule(self, seed: int, ranks: int) -> ChunkSchedule:
        """Parts that each of so many ranks sees in each phase: its own."""
        return ChunkSchedule(seed, ranks, rotation="none")

    def count(self, traffic: PartTraffic) -> None:  # noqa: B027
        """Count what several ranks move with their parts."""
