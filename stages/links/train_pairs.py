"""Pairs to train on: positive ones with negatives drawn for each, or labelled ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from ...storage.array_kinds import Float32Array, Float64Array, IdArray, IntArray, Mask, NumberArray
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.links.pairs import (
    KIND_OF,
    PairArray,
    PairLabels,
    Pairs,
    SeenPairs,
    by_relation,
    edge_keys,
    given_negatives,
    keys_of,
    of_pairs,
)
from ...storage.optional import taken
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..random import branches, draw_word
from .own_edges import ways

Law = Literal["uniform", "degree", "destinations", "batch", "given"]
LAWS: tuple[Law, ...] = get_args(Law)
DrawnEnds = Literal["destination", "either", "both"]
DRAWN_ENDS: tuple[DrawnEnds, ...] = get_args(DrawnEnds)


@dataclass(frozen=True)
class Negatives:
    """Law of the negatives of a positive pair (u, v). In a graph with types, all nodes are those of the type of v, and
    degrees, other pairs and given negatives those of the pair's relation."""

    law: Law = "uniform"
    """``uniform``: (u, w) for a node w of all; ``degree``: in proportion to the in-degree of w in the training graph;
    ``destinations``: for a node w that is the destination of a pair of any set, each alike; ``batch``: w is the
    destination of another positive pair of the minibatch; ``given``: a pair of the given negatives. A drawn one may by
    chance be a positive pair."""
    count: int = 1
    """k, for each positive pair."""
    ends: DrawnEnds = "destination"
    """The drawn ends: the ``destination``; ``either``: the destination of the first half of the k, rounded up, and the
    source of the others; ``both``: source and destination, independently. Sources are drawn by the same law; by
    ``degree``, in proportion to the out-degree, and by ``destinations``, of the nodes that are sources of pairs."""
    shared: bool = False
    """The pairs of a minibatch, of relations whose negatives have the same law, have the same drawn ends."""
    exclude_known: bool = False
    """A drawn negative that is a train pair of its relation counts nothing."""

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise InputError(f"negatives is '{self.law}'; expected one of {', '.join(LAWS)}")
        if self.ends not in DRAWN_ENDS:
            raise InputError(f"negative_ends is '{self.ends}'; expected one of {', '.join(DRAWN_ENDS)}")
        if self.law == "given" and self.ends != "destination":
            raise InputError(
                f"link.negative_ends is '{self.ends}', but link.negatives is 'given': none is drawn; leave it out"
            )
        if self.shared and self.law in ("batch", "given"):
            raise InputError(
                f"link.shared_negatives is true, but link.negatives is '{self.law}', whose negatives are of each pair; "
                "leave one of them out"
            )
        if self.exclude_known and self.law == "given":
            raise InputError(
                "link.exclude_known is true, but link.negatives is 'given', of which none may be positive; leave it out"
            )
        if type(self.count) is not int or self.count < 1:
            raise InputError(f"num_negatives is {self.count!r}; expected a whole number, 1 or more")

    def record(self) -> list[Any]:
        """The settings, as part of a sampler's record."""
        more = [self.ends if self.ends != "destination" else "", "shared" * self.shared, "new" * self.exclude_known]
        return [self.law, self.count, *filter(None, more)]

    @property
    def num_destinations(self) -> int:
        """How many of the k negatives have a drawn destination, the first ones; the others have a drawn source."""
        return (self.count + 1) // 2 if self.ends == "either" else self.count

    def check(self, graph: Graph, table: PairArray, train: PairArray) -> None:
        """Check that these negatives are there.

        Args:
            graph: the training graph.
            table: all pairs, see `storage.links.pairs`.
            train: int64 [n], numbers of the positive train pairs.

        Raises:
            InputError: negatives are to be given ones and there are none, or follow degrees that are all 0.
        """
        if self.law not in ("given", "degree"):
            return
        several, of = graph.types.predicts_several, ""
        trains = np.zeros(len(table), bool)
        trains[train] = True
        for types, rows in by_relation(table, graph.types):
            if several:
                if not trains[rows].any():
                    continue
                of = f" of {types.relations[types.one_predicted][1]}"
            if self.law == "given" and not len(given_negatives(table[rows], "train")):
                raise InputError(
                    f"link.negatives is 'given', but no negatives{of} are given for train; give train_negatives, or "
                    "use another"
                )
            if self.law == "degree" and not num_edges_of_pairs(graph, types):
                raise InputError(f"link.negatives is 'degree', but the graph has no edges{of}; use 'uniform'")


@dataclass(frozen=True, eq=False)
class TrainPairs:
    """The pairs of a dataset by their numbers, and the law of their negatives, or their labels."""

    graph: Graph
    """The graph that is trained on, or rows of it."""
    pairs: PairArray
    """int64 [N, 2], of all sets."""
    negatives: Negatives | None
    """None: pairs are labelled."""
    given: PairArray
    """int64 [M, 2], given negatives of the train set."""
    time: NumberArray | None = None
    """[N], of the pairs; None: they have none."""
    num_nodes: int = field(kw_only=True)
    """V; of a rank that sees a part of the graph, the number of nodes that may be ends, the first ones."""
    ends: tuple[IdArray, IdArray] | None = field(default=None, kw_only=True)
    """Distinct sources and destinations of pairs of any set, ascending; None: those of `pairs`."""
    own: Float64Array | None = field(default=None, kw_only=True)
    """See `own_weights`; None: computed of `graph` when they are first read."""
    labels: PairLabels | None = field(default=None, kw_only=True)
    """Labels of `pairs`; None: the task is link."""
    relations: tuple[IdArray, IdArray] | None = field(default=None, kw_only=True)
    """Relation of each of `pairs` [N] and of `given` [M]; None: all are of one, or have none."""
    types: GraphTypes = field(default=SINGLE, kw_only=True)
    """Types that say which relation pairs are of; None: those of the graph."""
    train: IdArray | None = field(default=None, kw_only=True)
    """int64 [n], numbers of the train pairs; None: not known here."""

    @classmethod
    def from_graph(
        cls, graph: Graph, pairs: Pairs, negatives: Negatives | None, time: NumberArray | None = None
    ) -> "TrainPairs":
        """The pairs that a graph's train set has.

        Args:
            graph: in-neighbour lists.
            pairs: all pairs.
            negatives: their law; None: pairs are labelled.
            time: [N], of the pairs, or None.

        Raises:
            InputError: see `Negatives.check`.
        """
        if negatives is not None:
            negatives.check(graph, pairs.table, pairs.sets.get("train", np.empty(0, np.int64)))
        return cls.of_rows(graph, graph.num_nodes, pairs, negatives, time)

    @classmethod
    def of_rows(
        cls, rows: Graph, num_nodes: int, pairs: Pairs, negatives: Negatives | None, time: NumberArray | None = None
    ) -> "TrainPairs":
        """See `from_graph`: for a rank with some rows of the graph, of V nodes. No negatives by degree."""
        table, given = pairs.table, given_negatives(pairs.table, "train")
        relations = None
        if rows.types.predicts_several:
            relations = table[:, 3], table[table[:, 2] == KIND_OF["train"], 3]
        train = pairs.sets.get("train", np.empty(0, np.int64))
        of_all = {"num_nodes": num_nodes, "labels": pairs.labels, "relations": relations, "train": train}
        return cls(rows, table[:, :2], negatives, given, time, **of_all)

    @classmethod
    def of_seen(cls, graph: Graph, num_nodes: int, seen: SeenPairs, negatives: Negatives | None) -> "TrainPairs":
        """See `from_graph`: for a rank that sees a part of the graph; the first `num_nodes` nodes may be ends."""
        kept = {"num_nodes": num_nodes, "ends": seen.ends, "labels": seen.labels}
        return cls(graph, seen.pairs, negatives, seen.given, **kept)

    @property
    def hidden(self) -> bool:
        """True if a minibatch's own edges are taken out of its samples, where pairs have no times."""
        return self.labels is None or self.labels.hidden

    def with_negatives(self, numbers: IdArray, key: int) -> PairArray:
        """int64 [b, 1 + k, 2], the positive pairs of a minibatch, each followed by its negatives; [b, 1, 2] of labelled
        ones.

        Args:
            numbers: [b], of the pairs.
            key: random stream of the minibatch.
        """
        if self.negatives is None:
            return self.pairs[numbers][:, None]
        positive, count = self.pairs[numbers], self.negatives.count
        rows = 1 if self.negatives.shared else len(numbers)
        words = branches(key, np.arange(rows * count)).reshape(rows, count)

        def uniform(i: int) -> Float64Array:
            # 53 bits, in [0, 1): the error of a node's probability is below 2**-53 V.
            drawn = (draw_word(words, i) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            return np.broadcast_to(drawn, (len(numbers), count))

        made = np.empty((len(numbers), 1 + count, 2), np.int64)
        made[:, 0] = positive
        for links, at in self._by_relation(numbers):
            made[at, 1:] = links._negatives(positive[at], lambda i, at=at: uniform(i)[at])
        return made

    def _by_relation(self, numbers: IdArray) -> Iterator[tuple["TrainPairs", Any]]:
        """The pairs of each relation, and the positions in `numbers` of its own; or of relations whose negatives have
        the same law."""
        if self.relations is None:
            yield self, slice(None)
            return
        relation = self._alike[self.relations[0][numbers]]
        for r in np.unique(relation).tolist():
            yield self._of_relation[r], np.flatnonzero(relation == r)

    @cached_property
    def _alike(self) -> IdArray:
        """int64 [R], for each relation the first one by whose law its negatives are drawn: uniform ones depend on the
        types of its ends only."""
        assert self.negatives is not None
        count = self.graph.types.num_relations
        if self.negatives.law != "uniform":
            return np.arange(count)
        predicted, ends = np.array(self.graph.types.predicted), self.graph.types.ends
        same = (ends[:, None] == ends[predicted]).all(2)
        return np.where(same.any(1), predicted[same.argmax(1)], np.arange(count))

    @cached_property
    def _of_relation(self) -> dict[int, "TrainPairs"]:
        """The pairs of each predicted relation alone."""
        assert self.relations is not None
        of_pairs, of_given = self.relations
        return {
            r: replace(
                self,
                pairs=self.pairs[of_pairs == r],
                given=self.given[of_given == r],
                time=None,
                relations=None,
                types=self.graph.types.predicting(r),
                train=None,
            )
            for r in self.graph.types.predicted
        }

    def _negatives(self, positive: PairArray, uniform: Callable[[int], Float64Array]) -> PairArray:
        """int64 [b, k, 2], negatives of positive pairs of one relation [b, 2]; `uniform` gives numbers [b, k]."""
        assert self.negatives is not None
        if self.negatives.law == "given":
            return self.given[(uniform(0) * len(self.given)).astype(np.int64)]
        made = np.empty((len(positive), self.negatives.count, 2), np.int64)
        # Shared ends are drawn once.
        rows, first = slice(1 if self.negatives.shared else None), self.negatives.num_destinations
        made[:] = positive[:, None]
        made[:, :first, 1] = self._drawn(1, positive, uniform(0)[rows, :first])
        if self.negatives.ends != "destination":
            of = slice(first if self.negatives.ends == "either" else 0, None)
            made[:, of, 0] = self._drawn(0, positive, uniform(1)[rows, of])
        return made

    def shares_all(self, numbers: IdArray) -> bool:
        """True if all pairs of a minibatch have the same drawn ends, of one column."""
        negatives = self.negatives
        if negatives is None or not negatives.shared or negatives.ends == "both":
            return False
        return self.relations is None or len(np.unique(self._alike[self.relations[0][numbers]])) == 1

    def relation_indices(self, numbers: IdArray) -> IdArray | None:
        """int64 [b], of each pair the place of its relation among those predicted; None: all are of one."""
        if self.relations is None:
            return None
        place = np.empty(self.graph.types.num_relations, np.int64)
        place[list(self.graph.types.predicted)] = np.arange(len(self.graph.types.predicted))
        return place[self.relations[0][numbers]]

    def _drawn(self, column: int, positive: PairArray, x: Float64Array) -> IntArray:
        """int64 [b, k], sources (column 0) or destinations (column 1) of negatives, by uniform numbers [b, k]."""
        assert self.negatives is not None
        law, graph, size = self.negatives.law, self.graph, len(positive)
        if law == "degree":
            # The end of a uniform edge.
            if not column:
                sources = self._edge_sources
                return sources[(x * len(sources)).astype(np.int64)].astype(np.int64)
            chosen = self._edges
            count = graph.num_edges if isinstance(chosen, slice) else len(chosen)
            edge = (x * count).astype(np.int64)
            edge = edge if isinstance(chosen, slice) else chosen[edge]
            return np.searchsorted(graph.indptr, edge, side="right") - 1
        if law == "destinations":
            ends = self._ends[column]
            return ends[(x * len(ends)).astype(np.int64)]
        if law == "batch" and size > 1:
            other = np.arange(size)[:, None] + 1 + (x * (size - 1)).astype(np.int64)
            return positive[other % size, column]
        types = graph.types if self.types.is_single else self.types
        if not types.is_single:
            kind = int(types.ends[types.one_predicted][column])
            return types.nodes(kind, (x * types.num_nodes(kind)).astype(np.int64))
        return (x * self.num_nodes).astype(np.int64)

    @cached_property
    def _ends(self) -> tuple[IdArray, IdArray]:
        """Distinct sources and destinations of all pairs, given negatives too."""
        return self.ends or (np.unique(self.pairs[:, 0]), np.unique(self.pairs[:, 1]))

    @cached_property
    def _edges(self) -> slice | IdArray:
        return of_pairs(self.graph, types=self.types)

    @cached_property
    def _edge_sources(self) -> IntArray:
        """Sources of the edges between nodes that may be ends."""
        sources = self.graph.indices[self._edges]
        return sources if self.num_nodes >= self.graph.num_nodes else sources[sources < self.num_nodes]

    @cached_property
    def _own_weights(self) -> Float64Array:
        return self.own_weights() if self.own is None else self.own

    def own_weights(self, first: int = 0) -> Float64Array:
        """See the function of this name; `first` is the node of row 0 of the graph."""
        if self.relations is None:
            return own_weights(self.graph, self.pairs, self.num_nodes, first)
        return own_weights_by_relation(self, first)

    def is_edge_reversed(self, numbers: IdArray) -> Mask:
        """bool [n], True for each of some pairs (u, v) if there is an edge v -> u: see `own_weights`."""
        return self._own_weights[numbers, 1] != 0

    def lost_degree(self, numbers: IdArray, nodes: IntArray) -> Float64Array:
        """float64 [B], the weight of the in-edges that each of the ascending `nodes` loses with the edges of some pairs
        and their reverses; without weights, their number.

        Args:
            numbers: [b], of the pairs.
            nodes: [B], among them all ends of the pairs.
        """
        pairs, own = self.pairs[numbers], self._own_weights[numbers]
        n, lost = self.num_nodes, np.zeros(len(nodes))
        if self.relations is not None:  # no two pairs have an edge in common
            for column in (0, 1):
                np.add.at(lost, np.searchsorted(nodes, pairs[:, 1 - column]), own[:, column])
            return lost
        keys = [keys_of(pairs[:, 0], pairs[:, 1], n), keys_of(pairs[:, 1], pairs[:, 0], n)]
        distinct, first = np.unique(np.concatenate(keys), return_index=True)
        destinations = distinct % n
        np.add.at(lost, np.searchsorted(nodes, destinations), np.concatenate([own[:, 0], own[:, 1]])[first])
        return lost


def num_edges_of_pairs(graph: Graph, types: GraphTypes = SINGLE) -> int:
    """Number of edges that are pairs: see `of_pairs`."""
    chosen = of_pairs(graph, types=types)
    return graph.num_edges if isinstance(chosen, slice) else len(chosen)


def own_weights(graph: Graph, pairs: PairArray, num_nodes: int, first: int = 0) -> Float64Array:
    """float64 [N, 2], the sum of the weights of each pair's edges u -> v, and of those v -> u; without weights, their
    number. In a graph with types, of edges of the pairs' relation and of its reverses.

    Args:
        graph: rows of a graph of V nodes, with global sources; edges of other rows count nothing.
        pairs: int64 [N, 2].
        num_nodes: V.
        first: node of row 0.
    """
    edges, own = (edge_keys(graph, num_nodes, first), graph.edge_weight), of_pairs(graph, reverses=True)
    return _sums_of_both(edges, own, own, pairs, num_nodes)


def own_weights_by_relation(links: TrainPairs, first: int = 0) -> Float64Array:
    """`own_weights` of pairs of several relations: of the edges that `own_edges.ways` says are a pair's."""
    graph, types = links.graph, links.graph.types
    assert links.relations is not None
    found, edges = np.zeros((len(links.pairs), 2)), (edge_keys(graph, links.num_nodes, first), graph.edge_weight)
    for group in types.pair_relations:
        rows = np.flatnonzero(links.relations[0] == group[0])
        if len(rows):
            straight, turned = (np.flatnonzero(np.isin(graph.edge_relations, way)) for way in ways(group))
            found[rows] = _sums_of_both(edges, straight, turned, links.pairs[rows], links.num_nodes)
            if group[0] in group[1:]:  # both are the same edges
                found[rows[links.pairs[rows, 0] == links.pairs[rows, 1]], 1] = 0
    return found


def _sums_of_both(
    edges: tuple[PairArray, Float32Array | None],
    straight: slice | PairArray,
    turned: slice | PairArray,
    pairs: PairArray,
    num_nodes: int,
) -> Float64Array:
    """float64 [N, 2], sums of the weights of the edges u -> v among those at positions `straight`, and v -> u among
    those `turned`, of pairs [N, 2]; `edges` are keys and weights of all."""
    u, v = pairs.T
    wanted = keys_of(u, v, num_nodes), keys_of(v, u, num_nodes)
    return np.stack([_sums(*edges, chosen, keys) for chosen, keys in zip((straight, turned), wanted)], axis=1)


def _sums(keys: PairArray, weight: Float32Array | None, chosen: slice | PairArray, wanted: PairArray) -> Float64Array:
    distinct, at = np.unique(keys[chosen], return_inverse=True)
    if not len(distinct):
        return np.zeros(len(wanted))
    sums = np.bincount(at.reshape(-1), taken(weight, chosen), minlength=len(distinct))
    place = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
    return np.where(distinct[place] == wanted, sums.astype(np.float64)[place], 0.0)
