"""The relation whose edges are the pairs of a link task, in a graph with several types."""

from dataclasses import replace

import numpy as np

from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, contains, edge_keys
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
    number, notes = _number(dataset.name, types, relation), list(dataset.notes)
    reverses = _reverses(graph, types, number, notes)
    types = replace(types, pair_relations=(number, *reverses))
    return replace(dataset, graph=replace(graph, types=types), notes=tuple(notes))


def _number(name: str, types: GraphTypes, relation: str | RelationType | None) -> int:
    every = " or ".join(",".join(r) for r in types.relations)
    if relation is None:
        raise InputError(f"{name} has several types, and pairs are of one relation; set relation, to {every}")
    if not isinstance(relation, str):
        if not (isinstance(relation, tuple | list) and all(isinstance(part, str) for part in relation)):
            raise InputError(f"relation is {relation!r}; expected its name, or three names: {every}")
        relation = ",".join(relation)
    try:
        return types.relation(relation)
    except InputError as e:
        raise InputError(f"relation is {relation!r}: {e}") from None


def _reverses(graph: Graph, types: GraphTypes, number: int, notes: list[str]) -> list[int]:
    """The relations that have the edges of a relation, reversed. `notes` gets these, and others that have most of its
    pairs, whichever way."""
    source, name, destination = types.relations[number]
    pairs, found = _keys(graph, number), []
    for r, (src, other, dst) in enumerate(types.relations):
        turned, same = (src, dst) == (destination, source), (src, dst) == (source, destination)
        if r == number or not (turned or same):
            continue
        text, none = ",".join(types.relations[r]), pairs[:0]
        back, forth = _keys(graph, r, turned=True) if turned else none, _keys(graph, r) if same else none
        if turned and (other == REVERSE + name or name == REVERSE + other or np.array_equal(back, pairs)):
            found.append(r)
            notes.append(f"Edges of {text} are treated as the reverses of {name}, and held out where these are.")
        elif len(pairs) and (share := (contains(back, pairs) | contains(forth, pairs)).mean()) >= 0.5:
            notes.append(
                f"Edges of {text} join {share:.0%} of the pairs of {name} too, and stay; where they would not be known "
                "before the pair, leave the relation out."
            )
    return found


def _keys(graph: Graph, relation: int, turned: bool = False) -> PairArray:
    """Ascending keys of a relation's distinct edges, or of these reversed."""
    keys = edge_keys(graph)[np.flatnonzero(graph.edge_type == relation)]
    if turned:
        source, destination = np.divmod(keys, max(1, graph.num_nodes))
        keys = destination * graph.num_nodes + source
    return np.unique(keys)
