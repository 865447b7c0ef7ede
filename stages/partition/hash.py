"""Parts by a keyed hash of the node id."""

from dataclasses import dataclass

from ...storage.partition.book import HashBook
from ..random import Purpose, stream
from .base import check_parts
from .rows import RowSource


@dataclass(frozen=True)
class Hash:
    """Each node goes to a part at random, by 32 bits of its word in the stream (seed, PARTITION).

    Balanced in nodes and train nodes to O(sqrt(V / P)), blind to the graph: it cuts about (P - 1) / P of the edges. The
    owner of a node depends on no other node, so any process can compute it without a table.
    """

    name = "hash"
    reads_rows = True

    def assign(self, graph: RowSource, parts: int, seed: int) -> HashBook:
        """See `Partitioner.assign`. Reads nothing, and takes no memory."""
        return HashBook(stream(seed, Purpose.PARTITION), graph.num_nodes, check_parts(parts))
