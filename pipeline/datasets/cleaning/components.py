"""Restriction to the largest connected component, as benchmarks of node classification often do (Shchur et al.,
2018)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from ....storage.features import ReorderedFeatures
from ....storage.graph import GRAPH_ARRAYS, Graph, index_dtype
from ....storage.optional import present_items, taken, when_present
from .raw import AnyArray


def in_largest_component(graph: Graph) -> AnyArray:
    """bool [V]: nodes of the largest weakly connected component; of equally large ones, that with the smallest id."""
    n = graph.num_nodes
    # Imported here: it imports all of SciPy's linear algebra.
    from scipy.sparse.csgraph import connected_components

    adjacency = sp.csr_array((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), shape=(n, n))
    _, component = connected_components(adjacency, directed=True, connection="weak")
    return component == np.argmax(np.bincount(component))


def of_edges(graph: Graph, keep: AnyArray) -> Graph:
    """The graph of the edges in `keep`, and of all nodes."""
    indptr = np.concatenate([[0], np.cumsum(keep)])[graph.indptr].astype(np.int64)
    arrays = present_items({name: getattr(graph, name) for name, a in GRAPH_ARRAYS.items() if a.per == "edge"})
    rows = when_present(lambda rows: ReorderedFeatures(rows, np.flatnonzero(keep)), graph.edge_features)
    kept = {name: array[keep] for name, array in arrays.items()}
    return replace(graph, indptr=indptr, **kept, edge_features=rows)


def restricted(graph: Graph, keep: AnyArray) -> Graph:
    """The graph of the nodes in `keep`, renumbered in order. No kept node may have an in-neighbour outside `keep`."""
    found = of_edges(graph, np.repeat(keep, graph.in_degree))
    indices = (np.cumsum(keep) - 1)[found.indices].astype(index_dtype(int(keep.sum())))
    indptr = np.concatenate([found.indptr[:-1][keep], found.indptr[-1:]])
    return replace(found, indptr=indptr, indices=indices, node_time=taken(graph.node_time, keep))


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
