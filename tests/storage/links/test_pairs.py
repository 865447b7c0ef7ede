"""Pairs of a link task: keys, symmetry, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.storage.errors import InputError
from millrace.storage.links.pairs import (
    Pairs,
    SeenPairs,
    check_pairs,
    contains,
    edge_keys,
    given_negatives,
    is_symmetric,
    keys_of,
    node_ranges,
    of_pairs,
)
from millrace.storage.typed.graph_types import GraphTypes
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.typed import typed_graphs


def ends_of(graph):
    return list(zip(graph.indices.tolist(), np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist()))


@given(graphs())
def test_keys_name_edges_in_the_graphs_order(graph):
    n, ends = graph.num_nodes, ends_of(graph)
    assert edge_keys(graph).tolist() == [u * n + v for u, v in ends]
    assert is_symmetric(graph) == ({(v, u) for u, v in ends} == set(ends))
    wanted = np.arange(n * n)
    found = contains(np.unique(edge_keys(graph)), wanted)
    assert [k for k, there in zip(wanted.tolist(), found.tolist()) if there] == sorted({u * n + v for u, v in ends})


@settings(max_examples=40)
@given(typed_graphs(linked=True))
def test_of_several_relations_those_of_pairs_count(graph):
    names = [graph.types.relations[r] for r in graph.edge_type]
    ends, own = ends_of(graph), graph.types.relations[0]
    at, both = of_pairs(graph), of_pairs(graph, reverses=True)
    assert at.tolist() == [i for i, r in enumerate(names) if r == own]
    assert both.tolist() == [i for i, r in enumerate(names) if r == own or r[1] == "back"]
    pairs = {e for e, r in zip(ends, names) if r == own}
    assert is_symmetric(graph) == (own[0] == own[2] and bool(pairs) and {(v, u) for u, v in pairs} == pairs)
    sources, destinations = node_ranges(graph.types, graph.num_nodes)
    kinds = graph.types.types_of(np.arange(graph.num_nodes))
    for nodes, t in ((sources, own[0]), (destinations, own[2])):
        assert list(nodes) == np.flatnonzero(kinds == graph.types.node_type(t)).tolist()


def test_negatives_are_found_by_their_set():
    labels = np.array([[0, 1, 0], [2, 3, 2], [4, 5, 1], [6, 7, 3], [8, 9, 2]])
    assert given_negatives(labels, "train").tolist() == [[4, 5]]
    assert given_negatives(labels, "val").tolist() == [[2, 3], [8, 9]]
    assert keys_of(np.array([1]), np.array([2]), 10).tolist() == [12]


@pytest.mark.parametrize("count", [0, 1, 7, 12])
def test_a_rank_sees_pairs_between_its_nodes_and_trains_those_into_its_own(count):
    rng = np.random.default_rng(count)
    labels = np.insert(rng.integers(12, size=(60, 2)), 2, rng.integers(4, size=60), axis=1)
    train = rng.permutation(np.flatnonzero(labels[:, 2] == 0))[:9]
    nodes, own = rng.permutation(12)[:count], count // 2
    seen = SeenPairs.from_pairs(Pairs(labels, {"train": train}), nodes, own)
    at = {v: i for i, v in enumerate(nodes.tolist())}
    ends = [(at.get(u, -1), at.get(v, -1)) for u, v in labels[:, :2].tolist()]
    assert seen.pairs.tolist() == [[*ends[i]] for i in train if ends[i][0] >= 0 and 0 <= ends[i][1] < own]
    kinds = labels[:, 2].tolist()
    assert seen.given.tolist() == [[*e] for e, kind in zip(ends, kinds) if kind == 1 and min(e) >= 0]
    assert [column.tolist() for column in seen.ends] == [sorted({e[i] for e in ends} - {-1}) for i in (0, 1)]
    assert seen.num_train == 9
    whole, same = (
        SeenPairs.all(Pairs(labels, {"train": np.arange(9)})),
        SeenPairs.from_pairs(Pairs(labels, {"train": train}), np.arange(12), 12),
    )
    assert np.array_equal(whole.pairs[train], same.pairs) and np.array_equal(whole.given, same.given)
    assert all(np.array_equal(a, b) for a, b in zip(whole.ends, same.ends))


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.zeros((2, 2), np.int64), "expected int64"),
        (np.zeros((2, 3), np.int32), "expected int64"),
        (np.array([[0, 5, 0]]), "ends of pairs lie in"),
        (np.array([[-1, 1, 0]]), "ends of pairs lie in"),
        (np.array([[0, 1, 4]]), "kinds of pairs lie in"),
    ],
)
def test_other_arrays_are_no_pairs(labels, sentence):
    with pytest.raises(InputError, match=sentence):
        check_pairs(labels, 5)


def test_pairs_of_several_types_have_ends_of_theirs():
    types = GraphTypes(("a", "b"), (0, 2, 5), (("a", "r", "b"),), pair_relations=((0,),))
    check_pairs(np.array([[0, 4, 0]]), 5, types)
    for labels, sentence in (
        ([[2, 4, 0]], r"sources of pairs lie in \[2, 2\]; expected \[0, 2\)"),
        ([[0, 1, 0]], "destinations of pairs"),
    ):
        with pytest.raises(InputError, match=sentence):
            check_pairs(np.array(labels), 5, types)
    with pytest.raises(InputError, match="no relation of the pairs is set"):
        check_pairs(np.array([[0, 4, 0]]), 5, replace(types, pair_relations=()))


def test_a_relation_is_symmetric_by_its_types_or_its_edges():
    names = (("a", "r", "a"), ("a", "s", "a"), ("a", "t", "b"))
    types = GraphTypes(("a", "b"), (0, 3, 5), names, pair_relations=((0,),))
    edges = {names[0]: (np.array([0, 1]), np.array([1, 0])), names[1]: (np.array([0]), np.array([1]))}
    edges[names[2]] = np.empty(0, np.int64), np.empty(0, np.int64)
    graph = graph_of_relations(edges, types)
    assert is_symmetric(graph) and not is_symmetric(graph, replace(types, pair_relations=((1,),)))
    # What the types say holds when its edges are held out; without edges nothing says it.
    assert is_symmetric(graph, replace(types, pair_relations=((1, 1),)))
    none = graph_of_relations({name: (np.empty(0, np.int64),) * 2 for name in names}, types)
    assert not is_symmetric(none) and is_symmetric(none, replace(types, pair_relations=((0, 0),)))
