"""Edges that are those of pairs: which ones a minibatch that is to predict the pairs must not see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.links.pairs import PairArray
from ...storage.typed.graph_types import GraphTypes

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EdgeKinds:
    """Relations of sampled edges."""

    types: GraphTypes
    """Of the graph."""
    of_edges: Callable[[Any], Any]
    """Maps `Block.edge_id` to relations: arrays, or of minibatches on a device tensors there. Not called
    if there are no types."""

    @classmethod
    def in_ids(cls, types: GraphTypes) -> "EdgeKinds":
        """Of edges whose ids name their relations, as those of other ranks: see `sample.remote_nodewise`."""
        return cls(types, lambda ids: ids % types.num_relations)


def ways(group: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Relations in which u -> v, and those in which v -> u, are edges of the pair (u, v) of one of several relations:
    the relation itself, and those that have its edges reversed. If the relation is symmetric, both in all."""
    relation, *reverses = group
    return (tuple(dict.fromkeys(group)) if relation in reverses else (relation,)), tuple(reverses)


def own_edges(pairs: PairArray, relation: Ids | None, types: GraphTypes) -> tuple[Ids, Ids, Ids | None]:
    """Destination, source and relation of the edges of pairs, [e] each.

    Args:
        pairs: int64 [b, 2].
        relation: int64 [b], of each, where those of several are predicted. None: the edges of a pair are all between
            its ends, either way, and their relation is None.
        types: of the graph.
    """
    if relation is None:
        return np.concatenate([pairs[:, 1], pairs[:, 0]]), np.concatenate([pairs[:, 0], pairs[:, 1]]), None
    found = [(pairs[:0, 0], pairs[:0, 0], pairs[:0, 0])]
    for at, group in _of_groups(relation, types):
        u, v = pairs[at].T
        straight, turned = ways(group)
        found += [(v, u, np.full(len(u), r)) for r in straight] + [(u, v, np.full(len(u), r)) for r in turned]
    destination, source, kind = (np.concatenate(a) for a in zip(*found))
    return destination, source, kind


def own_keys(pairs: PairArray, relation: Ids | None, types: GraphTypes, width: int, first: int = 0) -> Ids:
    """int64 [e], each of `own_edges` as one number: by destination, counted from `first`, then source, of `width`, then
    relation where pairs have one."""
    destination, source, kind = own_edges(pairs, relation, types)
    keys = (first + destination) * width + source
    return keys if kind is None else keys * types.num_relations + kind


def _of_groups(relation: Ids, types: GraphTypes) -> Iterator[tuple[Ids, tuple[int, ...]]]:
    """Positions of the pairs of each relation that has some, and its group of `GraphTypes.pair_relations`."""
    group_of = {group[0]: group for group in types.pair_relations}
    order = np.argsort(relation, kind="stable")
    there, first = np.unique(relation[order], return_index=True)
    for r, at in zip(there.tolist(), np.split(order, first[1:])):
        yield at, group_of[r]
