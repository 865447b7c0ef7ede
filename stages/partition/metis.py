"""Parts with few cut edges, by METIS."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse

from ...storage.graph import Graph
from ...storage.partition.book import PartitionBook, TableBook
from ..random import Purpose, stream
from .base import check_parts
from .contiguous import Contiguous


@dataclass(frozen=True)
class Metis:
    """Multilevel graph partitioning (Karypis, Kumar, SIAM J. Sci. Comput. 1998): balanced in nodes, few edges cut.

    METIS sees the undirected simple graph: u and v are adjacent if an edge joins them in either direction, with the
    number of such edges as weight, and self loops left out. So it minimises the number of directed edges cut.

    Everything is in memory, about 40 bytes per adjacency. One thread runs for about a second per million edges and
    holds Python's global lock meanwhile: partition a large graph in a process of its own, since in a thread it would
    stop a Dask worker's heartbeats.
    """

    name = "metis"

    def node_weights(self, graph: Graph) -> npt.NDArray[np.int64] | None:
        """Weight of each node in the balance, [V]; None: all alike."""
        return None

    def assign(self, graph: Graph, parts: int, seed: int) -> PartitionBook:
        """See `Partitioner.assign`. A graph without edges, or with no more nodes than parts, is cut into ranges."""
        parts = check_parts(parts)
        adjacency = undirected(graph)
        if not adjacency.nnz or graph.num_nodes <= parts:
            return Contiguous("nodes").assign(graph, parts, seed)
        if parts == 1:
            return TableBook(np.zeros(graph.num_nodes, np.int32), 1)
        weights = self.node_weights(graph)
        if weights is not None:
            # For a node that outweighs a part, METIS prints to the standard output and leaves parts empty.
            weights = np.minimum(weights, weights.sum() // parts)
        return TableBook(metis(adjacency, parts, stream(seed, Purpose.PARTITION), weights), parts)


@dataclass(frozen=True)
class MetisWork(Metis):
    """`Metis`, balanced in the work of full-batch training: a node counts 1, plus 1 for every mean in-degree of edges.

    Ranks that train full-batch compute the layers together, so the slowest one sets the pace; if degrees differ much,
    parts with equally many nodes can differ several times in edges.
    """

    name = "metis-work"

    def node_weights(self, graph: Graph) -> npt.NDArray[np.int64]:
        """See `Metis.node_weights`."""
        return max(1, graph.num_edges // max(1, graph.num_nodes)) + graph.in_degree


def undirected(graph: Graph) -> scipy.sparse.csr_array:
    """[V, V]: the number of edges between two different nodes, in either direction."""
    ones = np.ones(graph.num_edges, np.int32)
    edges = scipy.sparse.csr_array((ones, graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes))
    both = scipy.sparse.csr_array(edges + edges.T)
    both.sum_duplicates()
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def metis(
    adjacency: scipy.sparse.csr_array, parts: int, key: int, node_weights: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int32]:
    """Owner of every node by METIS, int32 [V].

    Args:
        adjacency: [V, V], symmetric, with positive whole numbers and nothing on the diagonal; at least one edge.
        parts: P, from 2 to V: for more, METIS prints to the process's standard output and returns no table.
        key: the seed is made of its last 31 bits.
        node_weights: int64 [V], weight of each node in the balance; by default all count the same.
    """
    import pymetis

    native, weights = pymetis.zero_copy_dtype(), adjacency.data
    _, part_of = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(np.asarray(adjacency.indptr, native), np.asarray(adjacency.indices, native)),
        vweights=None if node_weights is None else node_weights.astype(native),
        eweights=None if weights.min() == weights.max() else weights.astype(native),
        options=pymetis.Options(seed=key & 0x7FFF_FFFF),
    )
    return np.asarray(part_of, np.int32)
