"""Types of the nodes and edges of a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..array_kinds import AnyArray, IdArray, IntArray, ValueArray
from ..errors import InputError, nearest, one_of
from ..plural import listed

RelationType = tuple[str, str, str]
"""Type of an edge: the type of its source, the relation's name, the type of its destination."""
MOST_RELATIONS = 1 << 16
"""Most relations of a graph: an edge's relation takes at most two bytes."""


@dataclass(frozen=True)
class GraphTypes:
    """Types of a graph's nodes, each a range of ids, and its relations. In-edges of a node are sorted by relation."""

    node_types: tuple[str, ...]
    """T distinct names, in the order of their ids."""
    offsets: tuple[int, ...]
    """T+1 numbers: nodes of type t have the ids from ``offsets[t]`` up to ``offsets[t + 1]``, which is V for the
    last. Of a graph that is renumbered part by part, P T + 1 numbers: T ranges for each of P parts. Of `SINGLE` types
    none."""
    relations: tuple[RelationType, ...]
    """R distinct types of edges."""
    edge_widths: tuple[int, ...] = ()
    """R numbers, columns of the features of each relation's edges, 0 where they have none; empty: no edges have any."""
    pair_relations: tuple[tuple[int, ...], ...] = ()
    """For each relation that is predicted, or whose edges are labelled: its number, then those of the relations that
    have its edges reversed; among them itself, if it is one of several and symmetric. Empty where nodes are
    labelled."""

    @property
    def is_single(self) -> bool:
        """True if nodes and edges are of one type, which has no name: see `SINGLE`."""
        return not self.offsets

    @property
    def num_relations(self) -> int:
        """R."""
        return len(self.relations)

    @property
    def edge_dtype(self) -> np.dtype[Any]:
        """Dtype of an array with the relation of each edge."""
        return edge_dtype(self.num_relations)

    @property
    def predicted(self) -> tuple[int, ...]:
        """Numbers of the relations that are predicted, or whose edges are labelled, in the order of
        `pair_relations`."""
        return tuple(group[0] for group in self.pair_relations)

    @property
    def one_predicted(self) -> int:
        """Number of the relation that is predicted, or whose edges are labelled, where there is one."""
        (found,) = self.predicted
        return found

    @property
    def own_relations(self) -> tuple[int, ...]:
        """The distinct numbers of `pair_relations`."""
        return tuple(dict.fromkeys(r for group in self.pair_relations for r in group))

    @property
    def own_reverses(self) -> tuple[int, ...]:
        """Numbers of the predicted relations whose edges have their reverses in the same relation."""
        return tuple(first for first, *reverses in self.pair_relations if first in reverses)

    @property
    def predicts_several(self) -> bool:
        """True if pairs are of several relations."""
        return len(self.pair_relations) > 1

    def predicting(self, relation: int) -> "GraphTypes":
        """The same types where one of the predicted relations is the only one."""
        return replace(self, pair_relations=tuple(g for g in self.pair_relations if g[0] == relation))

    def num_nodes(self, node_type: int) -> int:
        """Number of nodes of a type."""
        return sum(np.diff(self.offsets)[node_type :: len(self.node_types)].tolist())

    def in_ranges(self) -> "GraphTypes":
        """The same types of a graph whose nodes are sorted by type."""
        if self.is_single:
            return self
        counts = [self.num_nodes(t) for t in range(len(self.node_types))]
        return replace(self, offsets=(0, *np.cumsum(counts).tolist()))

    def nodes(self, node_type: int, numbers: IntArray) -> IdArray:
        """int64, ids of the nodes of a type by their numbers within it: its nodes in ascending order."""
        count = len(self.node_types)
        starts, sizes = np.asarray(self.offsets[:-1])[node_type::count], np.diff(self.offsets)[node_type::count]
        before = np.cumsum(sizes) - sizes
        at = np.searchsorted(before, numbers, side="right") - 1
        return (starts - before)[at] + numbers

    def types_of(self, nodes: IntArray) -> IdArray:
        """int64 [n], type of each node."""
        ranges = np.searchsorted(np.asarray(self.offsets[1:]), nodes, side="right").astype(np.int64, copy=False)
        several = len(self.offsets) > len(self.node_types) + 1
        return ranges % len(self.node_types) if several else ranges

    def node_type(self, name: str) -> int:
        """Number of a node type. Raises InputError if there is none of this name."""
        if name not in self.node_types:
            raise InputError(f"there is no node type '{name}'; {one_of(name, self.node_types)}")
        return self.node_types.index(name)

    @cached_property
    def ends(self) -> IdArray:
        """int64 [R, 2], the node types of each relation's sources and destinations."""
        numbers = {name: t for t, name in enumerate(self.node_types)}
        return np.array([(numbers[src], numbers[dst]) for src, _, dst in self.relations], np.int64).reshape(-1, 2)

    def relation(self, text: str) -> int:
        """Number of a relation by its name, or by ``src,name,dst`` where several have one name.

        Raises:
            InputError: no relation, or several, are called so.
        """
        by_triple = [",".join(r) for r in self.relations]
        if text in by_triple:
            return by_triple.index(text)
        found = [i for i, (_, name, _) in enumerate(self.relations) if name == text]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{len(found)} relations are called '{text}'; say which: {' or '.join(by_triple[i] for i in found)}"
            )
        names = list(dict.fromkeys(name for _, name, _ in self.relations))
        raise InputError(f"there is no relation '{text}'; expected one of {listed(names)}{nearest(text, names)}")

    def record(self) -> dict[str, Any]:
        """Plain values that `of_record` takes."""
        return {
            "node_types": list(self.node_types),
            "offsets": list(self.offsets),
            "relations": [list(r) for r in self.relations],
            # Left out without any, so that older digests and checkpoints fit.
            **({"edge_widths": list(self.edge_widths)} if self.edge_widths else {}),
            # Of one relation as one list, as in older stores and digests.
            **({"pair_relations": _as_record(self.pair_relations)} if self.pair_relations else {}),
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any] | None) -> "GraphTypes":
        """The types of a `record`; `SINGLE` without one. Raises InputError if it is not one."""
        if record is None:
            return SINGLE
        try:
            names, offsets = [str(n) for n in record["node_types"]], [int(o) for o in record["offsets"]]
            relations = [(str(a), str(b), str(c)) for a, b, c in record["relations"]]
            widths = [int(w) for w in record.get("edge_widths", ())]
            pairs = groups_of(record.get("pair_relations", ()))
        except (KeyError, TypeError, ValueError):
            raise InputError("types are not node_types, offsets and relations") from None
        return cls(tuple(names), tuple(offsets), tuple(relations), tuple(widths), pairs)

    def check(self, num_nodes: int, edge_width: int | None = None) -> "GraphTypes":
        """Check the invariants above, and that the widest features of edges have `edge_width` columns if it is given.
        Raises InputError otherwise."""
        if not self.node_types or len(set(self.node_types)) < len(self.node_types):
            raise InputError(f"node types are {list(self.node_types)}; expected at least one, with distinct names")
        parts, rest = divmod(len(self.offsets) - 1, len(self.node_types))
        rises = list(self.offsets) == sorted(self.offsets) and parts > 0 and not rest
        if not rises or self.offsets[0] != 0 or self.offsets[-1] != num_nodes:
            raise InputError(f"offsets of the node types do not rise from 0 to V={num_nodes}, one for each type and V")
        if len(set(self.relations)) < self.num_relations or self.num_relations > MOST_RELATIONS:
            raise InputError(f"there are {self.num_relations} relations; expected at most {MOST_RELATIONS}, distinct")
        widths = self.edge_widths or (0,) * self.num_relations
        widest = max(widths, default=0) if edge_width is None else edge_width
        if len(widths) != self.num_relations or min(widths, default=0) < 0 or max(widths, default=0) != widest:
            raise InputError(
                f"edge_widths are {list(widths)}; expected a number for each of {self.num_relations} relations, and "
                f"{widest} for the widest"
            )
        groups = self.pair_relations
        distinct = all(group and len(set(group[1:])) == len(group) - 1 for group in groups)
        others = {r for group in groups for r in group[1:] if r != group[0]}
        if not distinct or len({group[0] for group in groups} - others) < len(groups):
            raise InputError(f"pair_relations are {_as_record(groups)}; expected distinct numbers")
        if not all(0 <= r < self.num_relations for r in self.own_relations):
            raise InputError(f"pair_relations are {_as_record(groups)}; expected numbers below {self.num_relations}")
        for relation in self.relations:
            for end in (relation[0], relation[2]):
                if end not in self.node_types:
                    said = f"the relation {','.join(relation)} has the node type '{end}', which is not there"
                    raise InputError(f"{said}; {one_of(end, self.node_types)}")
        return self


SINGLE = GraphTypes(("",), (), (("", "", ""),))
"""Types of a graph whose nodes and edges are of one type, which has no name. Kernels draw its edges without asking for
relations."""


def groups_of(record: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """`GraphTypes.pair_relations` of a record: one list of numbers, or a list of lists of several."""
    groups = record if any(isinstance(group, Sequence) for group in record) else [record] if len(record) else []
    return tuple(tuple(int(r) for r in group) for group in groups)


def _as_record(groups: tuple[tuple[int, ...], ...]) -> list[object]:
    return list(groups[0]) if len(groups) == 1 else [list(group) for group in groups]


def edge_dtype(num_relations: int) -> np.dtype[Any]:
    """Dtype of an array with the relation of each edge: uint8, or uint16 for more than 256 relations."""
    return np.dtype(np.uint8 if num_relations <= 256 else np.uint16)


def relation_dtype(array: ValueArray) -> np.dtype[np.generic]:
    """uint16 for an array of it, else uint8: the dtypes that relations of edges may have."""
    return np.dtype(np.uint16 if array.dtype == np.uint16 else np.uint8)


def edges_of_types(graph: Any) -> list[int]:
    """Number of edges of each relation of a graph with types."""
    return np.bincount(graph.edge_type, minlength=graph.types.num_relations).tolist()


def check_edge_type(types: GraphTypes, edge_type: AnyArray, indptr: IdArray, indices: IntArray) -> None:
    """Raise InputError unless `edge_type` has the relation of each edge, in ascending order within a row, and edges
    have ends of the types of their relations."""
    if edge_type.dtype != types.edge_dtype or edge_type.shape != indices.shape:
        raise InputError(
            f"edge_type is {edge_type.dtype}{list(edge_type.shape)}; expected {types.edge_dtype}[{len(indices)}]"
        )
    if not len(edge_type):
        return
    if int(edge_type.max()) >= types.num_relations:
        raise InputError(f"edge_type holds {edge_type.max()}; expected less than {types.num_relations} relations")
    first = np.zeros(len(edge_type) + 1, np.bool_)
    first[indptr] = True
    if (first[1:-1] < (edge_type[1:] < edge_type[:-1])).any():
        raise InputError("edge_type does not ascend within a row")
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    ends = types.ends[edge_type]
    if (types.types_of(indices) != ends[:, 0]).any() or (types.types_of(rows) != ends[:, 1]).any():
        raise InputError("an edge has ends of other node types than its relation")
