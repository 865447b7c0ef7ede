"""In-edges of a graph with types as rows of their own: one for each node and each relation into its type."""

from dataclasses import dataclass, replace

import numpy as np

from ....storage.array_kinds import IdArray, IntArray
from ....storage.graph import Graph
from ....storage.typed.graph_types import GraphTypes


@dataclass(frozen=True, eq=False)
class RelationRows:
    """A typed graph whose rows are cut by relation, so that one row is what a sampler draws from.

    Takes 8 bytes for each node and relation into its type; the edge arrays are those of the typed graph.
    """

    graph: Graph
    """[S] rows, by node and then by relation, with the edges in the order of the typed graph; sources are its ids."""
    types: GraphTypes
    first: IdArray
    """int64 [R], row of each relation's first destination."""
    step: IdArray
    """int64 [R], rows from a destination to the next: the relations into its type."""

    @classmethod
    def from_graph(cls, graph: Graph) -> "RelationRows":
        """The rows of a graph with types."""
        types, kind = graph.types, graph.edge_type
        assert kind is not None
        into = types.ends[:, 1]
        counts = np.bincount(into, minlength=len(types.node_types))
        rows = np.diff(types.offsets) * counts
        first, step = np.cumsum(rows) - rows, counts[into]
        rank = np.array([np.count_nonzero(into[:r] == t) for r, t in enumerate(into)], np.int64)
        found = cls(graph, types, first[into] + rank, step)
        nodes = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
        indptr = np.zeros(int(rows.sum()) + 1, np.int64)
        np.cumsum(np.bincount(found.rows(kind, nodes), minlength=len(indptr) - 1), out=indptr[1:])
        return replace(found, graph=Graph(indptr, graph.indices, graph.edge_weight, graph.edge_id))

    def rows(self, relation: int | IntArray, nodes: IdArray) -> IdArray:
        """int64 [n], the row of each node, a destination of `relation` (one, or [n])."""
        begin = np.asarray(self.types.offsets)[self.types.ends[relation, 1]]
        return self.first[relation] + (nodes - begin) * self.step[relation]

    def parts(self, nodes: IdArray) -> list[tuple[int, IdArray, IdArray]]:
        """Each relation with edges into `nodes`: its number, the positions of its destinations among them, and their
        rows."""
        kinds = self.types.types_of(nodes)
        places = [np.flatnonzero(kinds == t) for t in range(len(self.types.node_types))]
        found = ((r, places[t]) for r, t in enumerate(self.types.ends[:, 1].tolist()))
        return [(r, at, self.rows(r, nodes[at])) for r, at in found if len(at)]
