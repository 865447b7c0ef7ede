"""Negatives that are train pairs, against a search pair by pair."""

from dataclasses import replace

import numpy as np
import pytest

import millrace as mr
from millrace.stages.links.known import KnownTrainPairs
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.storage.links.pairs import Pairs
from millrace.tests.contracts.typed import typed_dataset

NEW = Negatives("uniform", 40, "both", exclude_known=True)


@pytest.mark.parametrize("symmetric", [False, True])
def test_of_one_relation_they_are_train_pairs_and_their_reverses_that_are_edges(symmetric):
    rng = np.random.default_rng(1)
    src, dst = rng.integers(9, size=(2, 40))
    ends = (np.r_[src, dst], np.r_[dst, src]) if symmetric else (src, dst)
    graph = mr.from_edges(*ends, 9)
    pairs = np.unique(np.stack([src, dst], 1)[:20], axis=0)
    table, train = np.insert(pairs, 2, 0, axis=1), np.arange(len(pairs))[::2]
    links = TrainPairs.from_graph(graph, Pairs(table, {"train": train}), NEW)
    made = links.with_negatives(train, 7)[:, 1:]
    edges = set(zip(*(a.tolist() for a in ends)))
    known = {(u, v) for u, v in pairs[train].tolist()}
    known |= {(v, u) for u, v in known if (v, u) in edges}
    found = KnownTrainPairs.from_links(links).mask(made, train)
    assert found.tolist() == [[(u, v) in known for u, v in row] for row in made.tolist()]
    assert found.any() and not found.all()


@pytest.mark.parametrize("relations", [((0, 1),), ((0, 1), (2,)), ((2, 2), (0, 1)), ((2, 2),)])
def test_with_types_they_are_train_pairs_of_the_pairs_own_relation(relations):
    """Relation 2 is between nodes of one type, and in the last cases its own reverse."""
    data = typed_dataset(degree=20)
    graph = replace(data.graph, types=replace(data.graph.types, pair_relations=relations))
    dst = np.repeat(np.arange(36), graph.in_degree)
    edges = list(zip(graph.indices.tolist(), dst.tolist(), graph.edge_type.tolist()))
    predicted = graph.types.predicted
    rows = np.unique([(u, v, 0, r) for u, v, r in edges if r in predicted], axis=0)
    rows = rows if len(predicted) > 1 else rows[:, :3]
    train = np.arange(len(rows))[::2]
    links = TrainPairs.from_graph(graph, Pairs(rows, {"train": train}), NEW)
    made = links.with_negatives(train, 7)[:, 1:]
    of = rows[:, 3] if len(predicted) > 1 else np.full(len(rows), predicted[0])
    known = {(*rows[i, :2].tolist(), int(of[i])) for i in train}
    known |= {(v, u, r) for u, v, r in known if (r, r) in relations and (v, u, r) in edges}
    found = KnownTrainPairs.from_links(links).mask(made, train)
    assert found.tolist() == [[(u, v, r) in known for u, v in row] for row, r in zip(made.tolist(), of[train].tolist())]
    assert found.any() and not found.all()
