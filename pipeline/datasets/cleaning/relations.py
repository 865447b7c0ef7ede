"""Construction of graphs with several types of nodes and edges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ....storage.array_kinds import Float32Array, FloatArray, IdArray
from ....storage.features import ArrayFeatures
from ....storage.graph import Graph, index_dtype, starts_of
from ....storage.typed.graph_types import GraphTypes, RelationType
from .raw import AnyArray

REVERSE = "rev_"
"""Beginning of the name of a relation that `from_relations` and PyG's `ToUndirected` make of another one."""


def graph_of_relations(
    edges: Mapping[RelationType, tuple[IdArray, IdArray]],
    types: GraphTypes,
    keep_edge_id: bool = False,
    weights: Sequence[Float32Array] | None = None,
    features: Sequence[FloatArray | None] = (),
    times: Sequence[AnyArray] | None = None,
) -> Graph:
    """In-neighbour lists sorted by (destination, relation, source), ties in the order given. Edges are global ids of
    sources and destinations of each of the types' relations, in their order; `weights` are float32 [E] of those of
    each, `features` [E, D], of which D differs, or None of one without, and `times` [E] of one dtype. None, or no
    features: no relation has any. With `keep_edge_id` each edge's position within its relation is kept too."""
    V = types.offsets[-1]
    lengths = [len(src) for src, _ in edges.values()]
    src, dst = (np.concatenate([pair[i] for pair in edges.values()]) for i in range(2))
    kind = np.repeat(np.arange(len(lengths), dtype=types.edge_dtype), lengths)
    row = dst * types.num_relations + kind
    if V * V * types.num_relations < 2**63:
        order = np.argsort(row * V + src, kind="stable")
    else:
        order = np.lexsort((src, row))
    indptr = starts_of(np.bincount(dst, minlength=V))
    ids = np.concatenate([np.arange(n) for n in lengths])[order] if keep_edge_id else None
    indices = src[order].astype(index_dtype(V))
    weight, time = (None if each is None else np.concatenate(each)[order] for each in (weights, times))
    of_edges = None
    if any(x is not None for x in features):
        types = replace(types, edge_widths=tuple(0 if x is None else x.shape[1] for x in features))
        of_edges = _padded(features, lengths, order)
    graph = Graph(indptr, indices, weight, ids, None, types, edge_type=kind[order], edge_features=of_edges)
    return replace(graph, edge_time=time).check()


def _padded(features: Sequence[FloatArray | None], lengths: Sequence[int], order: IdArray) -> ArrayFeatures:
    """Rows of all edges in their new order, as wide as the widest relation's."""
    given = [x for x in features if x is not None]
    rows = np.zeros((len(order), max(x.shape[1] for x in given)), np.result_type(*given))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    for x, end, length in zip(features, np.cumsum(lengths), lengths):
        if x is not None:
            rows[place[end - length : end], : x.shape[1]] = x
    return ArrayFeatures(rows)
