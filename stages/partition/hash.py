"""Parts by a keyed hash of the node id."""

from dataclasses import dataclass

import numpy as np

from ...storage.graph import Graph
from ...storage.partition_book import TableBook
from ..random import Purpose, node_words, stream
from .base import check_parts


@dataclass(frozen=True)
class Hash:
    """Each node goes to a part at random, by 32 bits of its word in the stream (seed, PARTITION).

    Balanced in nodes and train nodes to O(sqrt(V / P)), blind to the graph: it cuts about (P - 1) / P of the edges. The answer
    for a node depends on no other node, so any process can compute it without a table.
    """

    name = "hash"

    def assign(self, graph: Graph, parts: int, seed: int) -> TableBook:
        """See `Partitioner.assign`. O(V)."""
        parts = check_parts(parts)
        words = node_words(stream(seed, Purpose.PARTITION), np.arange(graph.num_nodes, dtype=np.int64))
        part_of = ((words >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)
        return TableBook(part_of.astype(np.int32), parts)
