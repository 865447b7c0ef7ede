"""Tables of pairs of nodes: of a link task int64 [N, 3] or [N, 4], as `Dataset.labels` has them, or of labelled edges
int64 [N, 2], as `Dataset.pairs` has them.

The columns are source, destination, kind and relation. A pair of kind 0 is positive, and the split says in which set it
is; one of kind 1, 2 or 3 is a given negative of the train, val or test set, and in no set of the split. Labelled edges
have no kind. Pairs have a relation, its number in the graph, where those of several are predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..array_kinds import AnyArray, FloatArray, IdArray, Mask, ValueArray
from ..errors import InputError
from ..graph import Graph
from ..optional import taken, when_present
from ..typed.graph_types import SINGLE, GraphTypes

PairArray = npt.NDArray[np.int64]
POSITIVE = 0
KIND_OF = {"train": 1, "val": 2, "test": 3}
"""Kind of the given negatives of each set."""


@dataclass(frozen=True, eq=False)
class PairLabels:
    """Labels of pairs, and what a prediction reads of the pairs themselves."""

    values: AnyArray
    """See `Dataset.labels`: int64 [N], or floating [N, C]."""
    features: FloatArray | None = None
    """[N, K]; None: they have none."""
    hidden: bool = False
    """See `Dataset.hides_pairs`."""

    def take(self, numbers: PairArray) -> "PairLabels":
        """Labels and features of some pairs."""
        return PairLabels(self.values[numbers], taken(self.features, numbers), self.hidden)


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of a link task, or labelled edges, beside the graph or a part of it."""

    table: PairArray
    """See the module."""
    sets: Mapping[str, PairArray]
    """int64 [n], numbers of the (positive) pairs of train, val and test."""
    new: PairArray | None = None
    """int64 [V], the number of each node here, if the parts have renumbered them."""
    labels: PairLabels | None = None
    """None: the task is link."""

    def renumbered(self, new: PairArray) -> "Pairs":
        """The same pairs where node v has the number ``new[v]``."""
        return Pairs(np.concatenate([new[self.table[:, :2]], self.table[:, 2:]], axis=1), self.sets, new, self.labels)


@dataclass(frozen=True, eq=False)
class SeenPairs:
    """Pairs as a rank sees them that has some nodes of the graph, by its own numbers of these."""

    pairs: PairArray
    """int64 [n, 2], among them those that the rank trains on; the split has their positions."""
    given: PairArray
    """int64 [m, 2], given negatives of the train set, of seen nodes."""
    ends: tuple[PairArray, PairArray]
    """Seen nodes that are the source, and those that are the destination, of a pair of any set; ascending."""
    num_train: int
    """Train pairs of the whole graph."""
    labels: PairLabels | None = None
    """Labels of `pairs`; None: the task is link."""

    @classmethod
    def all(cls, pairs: Pairs) -> "SeenPairs":
        """All pairs, where all nodes are seen."""
        table = pairs.table
        ends = np.unique(table[:, 0]), np.unique(table[:, 1])
        return cls(table[:, :2], given_negatives(table, "train"), ends, len(pairs.sets["train"]), pairs.labels)

    @classmethod
    def from_pairs(cls, pairs: Pairs, nodes: PairArray, num_own: int) -> "SeenPairs":
        """The train pairs whose destination is among the rank's own nodes, and whose source is seen.

        Args:
            pairs: by global ids.
            nodes: int64 [N], global ids of the seen nodes, in the order of their numbers.
            num_own: how many of them, the first ones, are the rank's own.
        """
        ends = places_in(nodes, pairs.table[:, :2])
        numbers = pairs.sets["train"]
        train, given = ends[numbers], places_in(nodes, given_negatives(pairs.table, "train"))
        seen = [np.unique(column[column >= 0]) for column in ends.T]
        mine = (train[:, 0] >= 0) & (train[:, 1] >= 0) & (train[:, 1] < num_own)
        labels = when_present(lambda of: of.take(numbers[mine]), pairs.labels)
        return cls(train[mine], given[(given >= 0).all(1)], (seen[0], seen[1]), len(train), labels)


def check_pairs(table: ValueArray, num_nodes: int, types: GraphTypes = SINGLE, columns: int = 3) -> None:
    """Raise InputError unless `table` holds pairs of nodes, with their kinds if it is to have three `columns`; with
    types, of nodes of their relation, and where several are predicted with one column more."""
    columns += types.predicts_several
    if table.dtype != np.int64 or table.ndim != 2 or table.shape[1] != columns:
        what = ", ".join(("source", "destination", "kind", "relation")[:columns])
        raise InputError(f"pairs are {table.dtype}{list(table.shape)}; expected int64 [N, {columns}]: {what}")
    ends, kinds = table[:, :2], table[:, 2:3]
    if len(table) and (ends.min() < 0 or ends.max() >= num_nodes):
        raise InputError(f"ends of pairs lie in [{ends.min()}, {ends.max()}]; expected [0, {num_nodes})")
    if not types.is_single and not types.pair_relations:
        raise InputError(
            "the graph has several types, but no relation of the pairs is set; make the dataset with "
            f"{'link' if columns == 3 else 'edge'}_dataset(relation=...)"
        )
    if types.predicts_several and len(wrong := np.setdiff1d(table[:, 3], types.predicted)):
        raise InputError(f"pairs have the relation {wrong[0]}; expected one of {list(types.predicted)}")
    for one, rows in by_relation(table, types):
        for name, column, nodes in zip(("sources", "destinations"), ends[rows].T, node_ranges(one, num_nodes)):
            if len(column) and (column.min() < nodes.start or column.max() >= nodes.stop):
                raise InputError(
                    f"{name} of pairs lie in [{column.min()}, {column.max()}]; expected [{nodes.start}, {nodes.stop})"
                )
    if kinds.size and (kinds.min() < 0 or kinds.max() > max(KIND_OF.values())):
        raise InputError(f"kinds of pairs lie in [{kinds.min()}, {kinds.max()}]; expected [0, {max(KIND_OF.values())}]")


def by_relation(table: AnyArray, types: GraphTypes) -> Iterator[tuple[GraphTypes, slice | IdArray]]:
    """The rows of a table of pairs for each relation that is predicted, and the types with this one alone: all rows,
    where there is one."""
    if not types.predicts_several:
        yield types, slice(None)
        return
    # One sort, not a pass over the table for each relation.
    order = np.argsort(table[:, 3], kind="stable")
    ends = np.searchsorted(table[order, 3], np.arange(types.num_relations + 1))
    for r in types.predicted:
        yield types.predicting(r), order[ends[r] : ends[r + 1]]


def given_negatives(table: AnyArray, name: str) -> PairArray:
    """int64 [M, 2], the given negatives of a set; often none."""
    return table[(table[:, 2:3] == KIND_OF[name]).any(1), :2]


def keys_of(source: AnyArray, destination: AnyArray, num_nodes: int) -> PairArray:
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


def keys_of_pairs(graph: Graph, types: GraphTypes = SINGLE) -> PairArray:
    """int64, `edge_keys` of the edges `of_pairs`."""
    own = of_pairs(graph, types=types)
    if isinstance(own, slice):
        return edge_keys(graph)
    rows = np.searchsorted(graph.indptr, own, side="right") - 1
    return keys_of(graph.indices[own], rows, graph.num_nodes)


def of_pairs(graph: Graph, reverses: bool = False, types: GraphTypes = SINGLE) -> slice | IdArray:
    """Positions of the edges that may be pairs: all; with types, those of the predicted relations, and with
    `reverses` those of the relations that have the same edges reversed, too. `types` say which are predicted, if not
    those of the graph."""
    types = graph.types if types.is_single else types
    if types.is_single:
        return slice(None)
    return np.flatnonzero(np.isin(graph.edge_relations, types.own_relations if reverses else types.predicted))


def node_ranges(types: GraphTypes, num_nodes: int) -> tuple[range, range]:
    """Ids of the nodes that may be the source, and of those that may be the destination of a pair: all; with types,
    those of one type, each of which is one range, of the one relation that is predicted."""
    if types.is_single:
        return range(num_nodes), range(num_nodes)
    source, destination = types.ends[types.one_predicted].tolist()
    return range(*types.offsets[source : source + 2]), range(*types.offsets[destination : destination + 2])


def is_symmetric(graph: Graph, types: GraphTypes = SINGLE) -> bool:
    """True if each edge's reverse is an edge too, however often either is there. With types, of the edges of the one
    relation that is predicted (see `of_pairs`): if the types say so, whatever edges are left; False if it has none, or
    joins nodes of different types."""
    types = graph.types if types.is_single else types
    if not types.is_single:
        ((relation, *reverses),) = types.pair_relations
        if relation in reverses:
            return True
        if len(set(types.ends[relation].tolist())) > 1:
            return False
    own = np.unique(keys_of_pairs(graph, types))
    if not types.is_single and not len(own):
        return False
    source, destination = np.divmod(own, max(1, graph.num_nodes))
    return bool(
        np.array_equal(
            np.sort(keys_of(destination, source, graph.num_nodes)), keys_of(source, destination, graph.num_nodes)
        )
    )


def contains(ascending: PairArray, keys: PairArray) -> Mask:
    """True for each of `keys` that is among the `ascending` ones."""
    if not len(ascending):
        return np.zeros(keys.shape, bool)
    return ascending[np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)] == keys


def places_in(names: IdArray, ids: IdArray) -> IdArray:
    """The position of each id in `names`, which are distinct; -1 where it is not."""
    order = np.argsort(names)
    ascending = names[order]
    at = np.searchsorted(ascending, ids)
    found = np.append(ascending, -1)[at] == ids
    return np.where(found, np.append(order, -1)[at], -1)
