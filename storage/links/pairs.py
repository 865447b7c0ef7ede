"""Pairs of nodes of a link task, as `Dataset.labels` has them: int64 [N, 3].

The columns are source, destination and kind. A pair of kind 0 is positive, and the split says in which set it is; one
of kind 1, 2 or 3 is a given negative of the train, val or test set, and in no set of the split.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..graph import Graph
from ..typed.graph_types import GraphTypes

PairArray = npt.NDArray[np.int64]
POSITIVE = 0
KIND_OF = {"train": 1, "val": 2, "test": 3}
"""Kind of the given negatives of each set."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of a link task beside a part of its graph."""

    labels: PairArray
    """See the module."""
    sets: Mapping[str, PairArray]
    """int64 [n], numbers of the positive pairs of train, val and test."""
    new: PairArray | None = None
    """int64 [V], the number of each node here, if the parts have renumbered them."""

    def renumbered(self, new: PairArray) -> "Pairs":
        """The same pairs where node v has the number ``new[v]``."""
        return Pairs(np.concatenate([new[self.labels[:, :2]], self.labels[:, 2:]], axis=1), self.sets, new)


@dataclass(frozen=True, eq=False)
class SeenPairs:
    """The pairs of a link task as a rank sees them that has some nodes of the graph, by its own numbers of these."""

    pairs: PairArray
    """int64 [n, 2], among them those that the rank trains on; the split has their positions."""
    given: PairArray
    """int64 [m, 2], given negatives of the train set, of seen nodes."""
    ends: tuple[PairArray, PairArray]
    """Seen nodes that are the source, and those that are the destination, of a pair of any set; ascending."""
    num_train: int
    """Train pairs of the whole graph."""

    @classmethod
    def all(cls, labels: PairArray, num_train: int) -> "SeenPairs":
        """All pairs, where all nodes are seen. `labels` is described at the head of this module."""
        ends = np.unique(labels[:, 0]), np.unique(labels[:, 1])
        return cls(labels[:, :2], given_negatives(labels, "train"), ends, num_train)

    @classmethod
    def of(cls, pairs: Pairs, nodes: PairArray, num_own: int) -> "SeenPairs":
        """The train pairs whose destination is among the rank's own nodes, and whose source is seen.

        Args:
            pairs: by global ids.
            nodes: int64 [N], global ids of the seen nodes, in the order of their numbers.
            num_own: how many of them, the first ones, are the rank's own.
        """
        order = np.argsort(nodes)
        ids = nodes[order]

        def here(ends: PairArray) -> PairArray:
            at = np.searchsorted(ids, ends)
            there = np.append(ids, -1)[at] == ends
            return np.where(there, np.append(order, -1)[at], -1)

        ends = here(pairs.labels[:, :2])
        train = ends[pairs.sets["train"]]
        given = ends[pairs.labels[:, 2] == KIND_OF["train"]]
        seen = [np.unique(column[column >= 0]) for column in ends.T]
        mine = (train[:, 0] >= 0) & (train[:, 1] >= 0) & (train[:, 1] < num_own)
        return cls(train[mine], given[(given >= 0).all(1)], (seen[0], seen[1]), len(train))


def check_pairs(labels: npt.NDArray[Any], num_nodes: int, types: GraphTypes | None = None) -> None:
    """Raise InputError unless `labels` are pairs of nodes with their kinds; with types, of nodes of one relation."""
    if labels.dtype != np.int64 or labels.ndim != 2 or labels.shape[1] != 3:
        raise InputError(
            f"pairs are {labels.dtype}{list(labels.shape)}; expected int64 [N, 3]: source, destination, kind"
        )
    ends, kinds = labels[:, :2], labels[:, 2]
    if len(labels) and (ends.min() < 0 or ends.max() >= num_nodes):
        raise InputError(f"ends of pairs lie in [{ends.min()}, {ends.max()}]; expected [0, {num_nodes})")
    if types is not None and not types.pair_relations:
        raise InputError(
            "the graph has several types, but no relation of the pairs is set; make the dataset with "
            "link_dataset(relation=...)"
        )
    for name, column, nodes in zip(("sources", "destinations"), ends.T, node_ranges(types, num_nodes)):
        if len(labels) and (column.min() < nodes.start or column.max() >= nodes.stop):
            raise InputError(
                f"{name} of pairs lie in [{column.min()}, {column.max()}]; expected [{nodes.start}, {nodes.stop})"
            )
    if len(labels) and (kinds.min() < 0 or kinds.max() > max(KIND_OF.values())):
        raise InputError(f"kinds of pairs lie in [{kinds.min()}, {kinds.max()}]; expected [0, {max(KIND_OF.values())}]")


def given_negatives(labels: npt.NDArray[Any], name: str) -> PairArray:
    """int64 [M, 2], the given negatives of a set; often none."""
    return labels[labels[:, 2] == KIND_OF[name], :2]


def keys_of(source: npt.NDArray[Any], destination: npt.NDArray[Any], num_nodes: int) -> PairArray:
    """int64, one number for each directed pair: ascending by source, then by destination."""
    return source.astype(np.int64) * num_nodes + destination


def edge_keys(graph: Graph, num_nodes: int | None = None, first: int = 0) -> PairArray:
    """int64 [E], `keys_of` the edges, in the graph's order.

    Args:
        graph: a graph, or some rows of one.
        num_nodes: V, if `graph` has rows of another.
        first: node of row 0.
    """
    rows = np.arange(first, first + graph.num_nodes, dtype=np.int64)
    return keys_of(graph.indices, np.repeat(rows, graph.in_degree), num_nodes or graph.num_nodes)


def of_pairs(graph: Graph, reverses: bool = False) -> slice | npt.NDArray[np.int64]:
    """Positions of the edges that are pairs of a link task: all; with types, those of the pairs' relation, and with
    `reverses` those of the relations that have the same edges reversed, too."""
    if graph.types is None or graph.edge_type is None:
        return slice(None)
    relations = graph.types.pair_relations
    return np.flatnonzero(np.isin(graph.edge_type, relations if reverses else relations[:1]))


def node_ranges(types: GraphTypes | None, num_nodes: int) -> tuple[range, range]:
    """Ids of the nodes that may be the source, and of those that may be the destination of a pair: all; with types,
    those of one type, each of which is one range."""
    if types is None:
        return range(num_nodes), range(num_nodes)
    source, destination = types.ends[types.pair_relations[0]].tolist()
    return range(*types.offsets[source : source + 2]), range(*types.offsets[destination : destination + 2])


def is_symmetric(graph: Graph) -> bool:
    """True if each edge's reverse is an edge too, however often either is there. With types, of the edges of the pairs'
    relation; False if it joins nodes of different types."""
    if graph.types is not None and len(set(graph.types.ends[graph.types.pair_relations[0]].tolist())) > 1:
        return False
    source, destination = np.divmod(np.unique(edge_keys(graph)[of_pairs(graph)]), max(1, graph.num_nodes))
    return bool(
        np.array_equal(
            np.sort(keys_of(destination, source, graph.num_nodes)), keys_of(source, destination, graph.num_nodes)
        )
    )


def contains(ascending: PairArray, keys: PairArray) -> npt.NDArray[np.bool_]:
    """True for each of `keys` that is among the `ascending` ones."""
    if not len(ascending):
        return np.zeros(keys.shape, bool)
    return ascending[np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)] == keys
