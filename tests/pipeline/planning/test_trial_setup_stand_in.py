"""A stand-in has the types of the graph that it stands for, and features of edges, in proportion."""

from dataclasses import replace

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.planning.inputs import Numbers
from millrace.pipeline.planning.trial_setup import detailed, with_pairs
from millrace.storage.links.pairs import edge_keys, of_pairs
from millrace.storage.typed.graph_types import edges_of_types
from millrace.tests.contracts.typed import typed_dataset

BASE = "rmat:scale=9,edge_factor=4,features=5,classes=3"


def test_types_are_in_proportion() -> None:
    like = typed_dataset(edge_features=True)
    numbers, base = Numbers.from_dataset(like), mr.open_dataset(BASE)
    found = detailed(base, numbers, like)
    types, given = found.graph.types, like.graph.types
    assert not types.is_single and given is not None
    assert (types.node_types, types.relations) == (given.node_types, given.relations)
    assert (types.edge_widths, found.features.widths) == (given.edge_widths, like.features.widths)
    share = [types.num_nodes(t) / found.num_nodes for t in range(3)]
    assert share == pytest.approx([20 / 36, 12 / 36, 4 / 36], abs=0.01)
    shares = [np.array(edges_of_types(g)) / g.num_edges for g in (found.graph, like.graph)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)
    assert len(found.split.train) / found.num_nodes == pytest.approx(numbers.train, abs=0.01)
    # As skewed: a few nodes of the source type have many of a relation's edges.
    authors = np.bincount(found.graph.indices[found.graph.edge_type == 0])
    assert authors.max() > 3 * authors[authors > 0].mean()


@pytest.mark.parametrize("typed", [False, True])
def test_pairs_are_in_proportion(typed: bool) -> None:
    given = typed_dataset(degree=60) if typed else mr.open_dataset("sbm:nodes=200,classes=2,degree=9,features=5")
    relation = ",".join(given.graph.types.relations[1]) if not given.graph.types.is_single else None
    like = mr.link_dataset(given, relation=relation)
    negatives = np.insert(like.labels[:30, :2], 2, 2, axis=1)
    like = replace(like, labels=np.concatenate([like.labels, negatives]))
    made = detailed(mr.open_dataset(BASE), Numbers.from_dataset(like), like)
    found = with_pairs(made, like)
    assert found.task == "link" and Numbers.from_dataset(found).pairs == len(found.labels)
    scale = found.num_nodes / like.num_nodes
    for name, size in like.split_sizes.items():
        assert found.split_sizes[name] == pytest.approx(scale * size, abs=1)
    assert np.count_nonzero(found.labels[:, 2] == 2) == pytest.approx(scale * 30, abs=1)
    train = found.labels[found.split.train, :2]
    keys = edge_keys(found.graph)[of_pairs(found.graph)]
    assert np.isin(train @ (found.num_nodes, 1), keys).all()
    # The graph's own types are what `check` has held ends to: of one relation.
    assert (not found.graph.types.is_single) == typed


def test_edges_have_as_many_features() -> None:
    numbers = Numbers(nodes=10**8, edges=10**9, features=5, edge_features=70)
    assert detailed(mr.open_dataset(BASE), numbers, None).num_edge_features == 70
    assert "scale=18," in numbers.stand_in() and "scale=19," in replace(numbers, edge_features=0).stand_in()
