"""Construction of graphs with several types of nodes and edges."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ....storage.graph import Graph, index_dtype
from ....storage.typed.graph_types import GraphTypes, RelationType


def graph_of_relations(
    edges: Mapping[RelationType, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    types: GraphTypes,
    keep_edge_id: bool = False,
    weights: Sequence[npt.NDArray[np.float32]] | None = None,
) -> Graph:
    """In-neighbour lists sorted by (destination, relation, source), ties in the order given.

    Args:
        edges: global ids of sources and destinations of each of the types' relations, in their order.
        types: of the graph.
        keep_edge_id: also keep each edge's position within its relation.
        weights: float32 [E] of the edges of each relation; None: the graph is unweighted.
    """
    V = types.offsets[-1]
    lengths = [len(src) for src, _ in edges.values()]
    src, dst = (np.concatenate([pair[i] for pair in edges.values()]) for i in range(2))
    kind = np.repeat(np.arange(len(lengths), dtype=types.edge_dtype), lengths)
    row = dst * types.num_relations + kind
    if V * V * types.num_relations < 2**63:
        order = np.argsort(row * V + src, kind="stable")
    else:
        order = np.lexsort((src, row))
    indptr = np.zeros(V + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=V), out=indptr[1:])
    ids = np.concatenate([np.arange(n) for n in lengths])[order] if keep_edge_id else None
    indices = src[order].astype(index_dtype(V))
    weight = None if weights is None else np.concatenate(weights)[order]
    return Graph(indptr, indices, weight, ids, None, types, kind[order]).check()
