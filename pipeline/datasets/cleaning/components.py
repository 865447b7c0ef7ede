"""Restriction to the largest connected component, as benchmarks of node classification often do (Shchur et al.,
2018)."""

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from ....storage.features import ArrayFeatures
from ....storage.graph import Graph, index_dtype
from ....storage.optional import taken
from .raw import AnyArray


def in_largest_component(graph: Graph) -> AnyArray:
    """bool [V]: nodes of the largest weakly connected component; of equally large ones, that with the smallest id."""
    n = graph.num_nodes
    # Imported here: it imports all of SciPy's linear algebra.
    from scipy.sparse.csgraph import connected_components

    adjacency = sp.csr_array((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), shape=(n, n))
    _, component = connected_components(adjacency, directed=True, connection="weak")
    return component == np.argmax(np.bincount(component))


def restricted(graph: Graph, keep: AnyArray) -> Graph:
    """The graph of the nodes in `keep`, renumbered in order. No kept node may have an in-neighbour outside `keep`."""
    number = np.cumsum(keep) - 1
    edges = np.repeat(keep, graph.in_degree)
    kept = int(keep.sum())
    return Graph(
        np.concatenate([[0], np.cumsum(graph.in_degree[keep])]).astype(np.int64),
        number[graph.indices[edges]].astype(index_dtype(kept)),
        taken(graph.edge_weight, edges),
        taken(graph.edge_id, edges),
        edge_features=None
        if graph.edge_features is None
        else ArrayFeatures(graph.edge_features.gather(np.flatnonzero(edges))),
        edge_time=taken(graph.edge_time, edges),
        node_time=taken(graph.node_time, keep),
        time_unit=graph.time_unit,
    )


def restricted_split(split: Mapping[str, AnyArray], keep: AnyArray) -> dict[str, AnyArray]:
    """Stored sets, as masks [V] or ids, for the nodes in `keep`, renumbered. Ids out of range stay so, to be reported
    later."""
    number = np.cumsum(keep) - 1
    out = {}
    for name, value in split.items():
        ids = np.asarray(value)
        if ids.dtype == bool and len(ids) == len(keep):
            out[name] = ids[keep]
        elif np.issubdtype(ids.dtype, np.integer) and (not len(ids) or (ids.min() >= 0 and ids.max() < len(keep))):
            out[name] = number[ids[keep[ids]]]
        else:
            out[name] = value
    return out
