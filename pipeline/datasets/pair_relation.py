"""The relations whose edges are the pairs of a link task, in a graph with several types."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...storage.array_kinds import IdArray
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, contains, edge_keys, keys_of
from ...storage.plural import counted, listed
from ...storage.typed.graph_types import GraphTypes, RelationType
from .cleaning.relations import REVERSE
from .pairs import relation_text

Relations = str | RelationType | Sequence[str | RelationType]
"""One relation of a graph, by its name or its three names, or several."""
ALL = "all"


def with_pair_relation(dataset: Dataset, relation: Relations | None) -> Dataset:
    """The dataset whose graph says which relations pairs are of, where they are of one: see
    `GraphTypes.pair_relations`. A graph with one type of nodes and edges has none. Raises InputError: the graph has
    several relations, and none of them is named so, or one and it is named."""
    types = dataset.graph.types
    if relation is None and types.num_relations > 1:
        raise InputError(
            f"{dataset.name} has several types, and pairs are of one relation; set relation, to {_every(types)}"
        )
    found = with_pair_relations(dataset, relation)
    if (types := found.graph.types).predicts_several:
        raise InputError(f"relation is {relation!r}, {len(types.predicted)} relations; expected one for edge labels")
    return found


def with_pair_relations(dataset: Dataset, relation: Relations | None) -> Dataset:
    """The same, where pairs may be of several relations: one, a list, in text separated by semicolons, or ``"all"``:
    each but those that have the edges of an earlier one reversed. Raises InputError: see above; or of two that are
    named one has the edges of the other reversed."""
    graph, types = dataset.graph, dataset.graph.types
    if types.is_single:
        if relation is not None:
            raise InputError(f"relation is {relation!r}, but {dataset.name} has one type of edges; leave it out")
        return dataset
    numbers, keys = _numbers(dataset.name, types, relation), _Keys(graph)
    groups = _groups(types, numbers, keys)
    if relation != ALL:
        _check_apart(types, numbers, groups, relation)
    notes = [f"Pairs are of {counted(len(groups), 'relation')}."] if len(numbers) > 1 else []
    if reverses := {r for group in groups for r in group[1:]}:
        named = listed([",".join(types.relations[r]) for r in sorted(reverses)])
        of = types.relations[numbers[0]][1] if len(numbers) == 1 else "others"
        notes.append(f"Edges of {named} are treated as the reverses of {of}, and held out where these are.")
    notes += _also_joined(types, groups[0], keys) if len(numbers) == 1 else []
    types = replace(types, pair_relations=tuple(groups))
    return replace(dataset, graph=replace(graph, types=types), notes=(*dataset.notes, *notes))


def _numbers(name: str, types: GraphTypes, relation: Relations | None) -> list[int]:
    """Numbers of the relations that are named."""
    if relation is None and types.num_relations == 1:
        return [0]
    if relation is None:
        raise InputError(
            f"{name} has several types, and pairs are of one relation or more; set relation, to {_every(types)}, or all"
        )
    if relation == ALL and ALL not in (by_name for _, by_name, _ in types.relations):
        return list(range(types.num_relations))
    if isinstance(relation, str):
        is_one = any(relation in (r[1], ",".join(r)) for r in types.relations)  # a name may have a semicolon
        named: list[Any] = [relation] if is_one else [part.strip() for part in relation.split(";")]
    else:
        named = list(relation) if isinstance(relation, tuple | list) else [relation]
        if tuple(named) in types.relations:
            named = [named]
        if not named:
            raise InputError(f"relation is {relation!r}, which names none; expected {_every(types)}, or all")
    try:
        return [types.relation(relation_text(one)) for one in named]
    except InputError as e:
        raise InputError(f"relation is {relation!r}: {e}") from None


def _every(types: GraphTypes) -> str:
    return listed([",".join(r) for r in types.relations], " or ")


def _groups(types: GraphTypes, numbers: Sequence[int], keys: "_Keys") -> list[tuple[int, ...]]:
    """The groups of relations (see `GraphTypes.pair_relations`), without those that have the edges of an earlier one
    reversed."""
    groups, reverses = dict[int, tuple[int, ...]](), set[int]()
    for number in dict.fromkeys(numbers):
        if number not in reverses:
            groups[number] = (number, *(r for r in _reverses(types, number, keys) if r not in groups))
            reverses |= set(groups[number][1:])
    return list(groups.values())


def _also_joined(types: GraphTypes, group: tuple[int, ...], keys: "_Keys") -> list[str]:
    """Notes on relations outside the group of one that have most of its pairs, whichever way."""
    notes, pairs = list[str](), keys.own[group[0]]
    source, name, destination = types.relations[group[0]]
    for r, (src, _, dst) in enumerate(types.relations):
        ways = [(src, dst) == (destination, source), (src, dst) == (source, destination)]
        if r in group or not any(ways) or not len(pairs):
            continue
        also = [contains(of(r), pairs) for of, there in zip((keys.turned, keys.own.__getitem__), ways) if there]
        if (share := np.any(also, axis=0).mean()) >= 0.5:
            notes.append(
                f"Edges of {','.join(types.relations[r])} join {share:.0%} of the pairs of {name} too, and stay; where "
                "they would not be known before the pair, leave the relation out."
            )
    return notes


def _check_apart(types: GraphTypes, numbers: Sequence[int], groups: Sequence[tuple[int, ...]], relation: Any) -> None:
    """Raise InputError if a relation is named twice, or beside its reverse."""
    for i, number in enumerate(numbers):
        one = ",".join(types.relations[number])
        if number in numbers[:i]:
            raise InputError(f"relation is {relation!r}, but {one} is named twice; leave one out")
        for group in groups:
            if number in group[1:]:
                raise InputError(
                    f"relation is {relation!r}, but {one} has the edges of {','.join(types.relations[group[0]])} "
                    "reversed, which are held out with these; leave one out"
                )


def _reverses(types: GraphTypes, number: int, keys: "_Keys") -> list[int]:
    """The relations that have the edges of a relation, reversed."""
    source, name, destination = types.relations[number]
    found = []
    for r, (src, other, dst) in enumerate(types.relations):
        if r == number or (src, dst) != (destination, source):
            continue
        by_name = other == REVERSE + name or name == REVERSE + other
        if by_name or (len(keys.own[r]) == len(keys.own[number]) and np.array_equal(keys.turned(r), keys.own[number])):
            found.append(r)
    return found


def edges_by_relation(graph: Graph) -> list[IdArray]:
    """Positions of the edges of each relation; of a graph with one type, of all."""
    if graph.edge_type is None:
        return [np.arange(graph.num_edges)]
    ends = np.cumsum(np.bincount(graph.edge_type, minlength=graph.types.num_relations))
    return np.split(np.argsort(graph.edge_type, kind="stable"), ends[:-1])


class _Keys:
    """Ascending keys of each relation's distinct edges."""

    def __init__(self, graph: Graph) -> None:
        self._num_nodes, keys = max(1, graph.num_nodes), edge_keys(graph)
        self.own = [np.unique(keys[own]) for own in edges_by_relation(graph)]

    def turned(self, relation: int) -> PairArray:
        """int64, of its edges reversed."""
        source, destination = np.divmod(self.own[relation], self._num_nodes)
        return np.sort(keys_of(destination, source, self._num_nodes))
