"""The relation whose edges are the pairs of a link task, in a graph with several types."""

from dataclasses import replace

import numpy as np

from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, edge_keys
from ...storage.typed.graph_types import GraphTypes, RelationType

REVERSE = "rev_"
"""Beginning of the name of a relation that `from_relations` and PyG's `ToUndirected` make of another one."""


def with_pair_relation(dataset: Dataset, relation: str | RelationType | None) -> Dataset:
    """The dataset whose graph says which relations pairs are of: see `GraphTypes.pair_relations`. A graph with one type
    of nodes and edges has none.

    Raises:
        InputError: the graph has several relations, and none of them is named so, or one and it is named.
    """
    graph, types = dataset.graph, dataset.graph.types
    if types is None:
        if relation is not None:
            raise InputError(f"relation is {relation!r}, but {dataset.name} has one type of edges; leave it out")
        return dataset
    numbers = _relations(dataset, _number(dataset.name, types, relation))
    notes, (pairs, *reverses) = [], (",".join(types.relations[r]) for r in numbers)
    if reverses:
        notes.append(f"Edges of {' and '.join(reverses)} are those of {pairs} turned round, and are left out with them.")
    types = replace(types, pair_relations=numbers)
    return replace(dataset, graph=replace(graph, types=types), notes=(*dataset.notes, *notes))


def _number(name: str, types: GraphTypes, relation: str | RelationType | None) -> int:
    every = " or ".join(",".join(r) for r in types.relations)
    if relation is None:
        raise InputError(f"{name} has several types, and pairs are of one relation; set relation, to {every}")
    try:
        return types.relation(relation if isinstance(relation, str) else ",".join(relation))
    except (InputError, TypeError) as e:
        raise InputError(f"relation is {relation!r}: {e}") from None


def _relations(dataset: Dataset, number: int) -> tuple[int, ...]:
    """The relation, and those that have its edges turned round."""
    graph, types = dataset.graph, dataset.graph.types
    assert types is not None
    source, name, destination = types.relations[number]
    own, found = None, [number]
    for r, (src, other, dst) in enumerate(types.relations):
        if r == number or (src, dst) != (destination, source):
            continue
        if other != REVERSE + name and name != REVERSE + other:
            own = _keys(graph, number, turned=True) if own is None else own
            if not np.array_equal(own, _keys(graph, r)):
                continue
        found.append(r)
    return tuple(found)


def _keys(graph: Graph, relation: int, turned: bool = False) -> PairArray:
    """Ascending keys of a relation's distinct edges, or of these turned round."""
    keys = edge_keys(graph)[np.flatnonzero(graph.edge_type == relation)]
    if turned:
        source, destination = np.divmod(keys, max(1, graph.num_nodes))
        keys = destination * graph.num_nodes + source
    return np.unique(keys)
