"""The types that a run reads, the relations whose links it has learnt, and the one that a caller asks for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.dataset import Dataset, IdArray
from ...storage.errors import InputError
from ...storage.optional import when_present
from ...storage.plural import listed
from ...storage.typed.graph_types import SINGLE, GraphTypes, RelationType
from ..datasets.pairs import predicted_number, predicted_numbers
from ..datasets.type_order import in_type_order
from ..setup.model import types_of
from ..setup.result import Result

Relation = str | RelationType


def types_of_pairs(result: Result, data: Dataset) -> GraphTypes:
    """Types of the data, with the relations whose pairs the run has learnt."""
    trained, types = GraphTypes.of_record(result.types), data.graph.types
    if types.is_single or trained.is_single:
        return SINGLE
    return replace(types, pair_relations=trained.pair_relations)


def check_same_types(result: Result, data: Dataset, folder: Path) -> None:
    """Refuse data whose types of nodes, relations or widths of features are others than a run's. Numbers of nodes may
    differ.

    Raises:
        InputError: names what differs.
    """
    trained, found = GraphTypes.of_record(result.types), data.graph.types
    if trained.is_single != found.is_single:
        seen = "one type of nodes and edges" if found.is_single else "several types of nodes or edges"
        raise InputError(f"{data.name} has {seen}, unlike the data of {folder}; give a dataset with the same types")
    of_run, of_data = result.types or {}, types_of(data) or {}
    keys = ["node_types", "relations", "widths", *(["edge_widths"] if result.num_edge_features else [])]
    for key in () if trained.is_single else keys:
        if of_run[key] != (other := of_data.get(key) or [0] * found.num_relations):
            raise InputError(
                f"{data.name} has the {key.replace('_', ' ')} {other}, but {result.model} of {folder} reads "
                f"{of_run[key]}; give a dataset with the same types"
            )
    own, other = trained.predicted, found.predicted
    if own and other and own != other:
        seen, wanted = ("; ".join(",".join(trained.relations[r]) for r in of) for of in (other, own))
        raise InputError(
            f"{data.name} has pairs of {seen}, but {result.model} of {folder} predicts those of {wanted}; give a "
            "dataset with the same"
        )


def in_order_of_run(result: Result, data: Dataset, folder: Path) -> Dataset:
    """Data with node types and relations in the order of a run's, if they are the same.

    Raises:
        InputError: the labels are of another type than those of the run.
    """
    trained, found = GraphTypes.of_record(result.types), data.graph.types
    names = ((trained.node_types, found.node_types), (trained.relations, found.relations))
    if all(a == b for a, b in names) or any({*a} != {*b} for a, b in names):
        return data
    (target, *_), (seen, *_) = names[0]
    if target != seen and not data.of_pairs:
        raise InputError(f"{data.name} has labels of '{seen}', but {folder} predicts '{target}'; set target={target}")
    return in_type_order(data, trained)


@dataclass(frozen=True, eq=False)
class Asked:
    """One relation that a run predicts."""

    types: GraphTypes
    """Types where it is the only one that is predicted."""
    place: int | None = None
    """Its place among those that the run predicts; None: there is one."""

    @property
    def name(self) -> str:
        """Its name, or three names joined by commas where others are called so too."""
        every, number = self.types.relations, self.types.one_predicted
        alone = sum(name == every[number][1] for _, name, _ in every) == 1
        return every[number][1] if alone else ",".join(every[number])


def asked(types: GraphTypes, relation: Relation | None, folder: Path) -> Asked:
    """The relation that is asked for.

    Args:
        types: see `types_of_pairs`.
        relation: its name, or three names; None: the one that the run predicts.
        folder: of the run.

    Raises:
        InputError: the run predicts several, and none is named; or others.
    """
    if types.is_single and relation is not None:
        raise InputError(f"relation is given, but {folder} has one type of edges; leave it out")
    if types.predicts_several and relation is None:
        some = listed([types.relations[r][1] for r in types.predicted])
        raise InputError(f"{folder} predicts links of several relations; say which, as relation: {some}")
    number = when_present(lambda relation: predicted_number(types, relation), relation)
    if number is None or not types.predicts_several:
        return Asked(types)
    return Asked(types.predicting(number), types.predicted.index(number))


def relations_asked(types: GraphTypes, relation: Any, count: int, folder: Path) -> IdArray | None:
    """int64 [count], the relation of each pair; None where the run predicts one.

    Args:
        types: see `asked`.
        relation: of all pairs, see there; or a sequence with that of each.
        count: n.
        folder: of the run.

    Raises:
        InputError: see `asked`; or numbers differ.
    """
    relation = relation.tolist() if isinstance(relation, np.ndarray) else relation
    of_each = isinstance(relation, Sequence) and not isinstance(relation, str)
    if types.is_single or not of_each or tuple(relation) in types.relations:
        one = asked(types, relation, folder)
        return when_present(lambda _: np.full(count, one.types.one_predicted), one.place)
    if len(relation) != count:
        raise InputError(f"relation has {len(relation)} names for {count} pairs; expected one for each, or one for all")
    numbers = predicted_numbers(types, relation)
    return numbers if types.predicts_several else None


def by_asked(types: GraphTypes, relations: IdArray | None) -> Iterator[tuple[Asked, slice | IdArray]]:
    """Each relation of pairs by their numbers (see `relations_asked`), and the positions of the pairs that are of
    it."""
    if relations is None:
        yield Asked(types), slice(None)
        return
    for number in np.unique(relations).tolist():
        yield Asked(types.predicting(number), types.predicted.index(number)), np.flatnonzero(relations == number)
