"""Types of nodes and edges: their names, and checks of what a store or a caller gives."""

from dataclasses import replace

import numpy as np
import pytest

from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.fingerprint import graph_fingerprint
from millrace.storage.graph import from_edges
from millrace.storage.typed.graph_types import SINGLE, GraphTypes
from millrace.tests.contracts.typed import typed_dataset

TYPES = GraphTypes(("a", "b"), (0, 2, 5), (("a", "r", "b"), ("b", "r", "a"), ("a", "s", "a")))


def test_types_of_nodes_and_ends_of_relations():
    assert TYPES.types_of(np.arange(5)).tolist() == [0, 0, 1, 1, 1]
    assert GraphTypes(("a", "none", "b"), (0, 2, 2, 3), ()).types_of(np.arange(3)).tolist() == [0, 0, 2]
    # Three parts of two types each, the second without any "a".
    parts = GraphTypes(("a", "b"), (0, 2, 3, 3, 4, 5, 5), ()).check(5)
    assert parts.types_of(np.arange(5)).tolist() == [0, 0, 1, 1, 0]
    assert (parts.num_nodes(0), parts.num_nodes(1)) == (3, 2)
    assert parts.nodes(0, np.array([2, 0, 1])).tolist() == [4, 0, 1] and parts.nodes(1, np.arange(2)).tolist() == [2, 3]
    assert parts.in_ranges().offsets == (0, 3, 5) and TYPES.nodes(1, np.arange(3)).tolist() == [2, 3, 4]
    assert TYPES.ends.tolist() == [[0, 1], [1, 0], [0, 0]]
    assert (TYPES.relation("s"), TYPES.relation("b,r,a"), TYPES.node_type("b")) == (2, 1, 1)
    assert GraphTypes.of_record(TYPES.record()) == TYPES.check(5)
    wide = replace(TYPES, edge_widths=(0, 2, 1))
    assert GraphTypes.of_record(wide.record()) == wide.check(5, 2) and "edge_widths" not in TYPES.record()
    assert "pair_relations" not in TYPES.record()
    linked = replace(TYPES, pair_relations=((0, 1),))
    assert GraphTypes.of_record(linked.record()) == linked.check(5) and linked.record()["pair_relations"] == [0, 1]
    assert (linked.one_predicted, linked.own_relations, linked.predicts_several) == (0, (0, 1), False)
    several = replace(TYPES, pair_relations=((2,), (0, 1)))
    assert GraphTypes.of_record(several.record()) == several.check(5) and several.predicted == (2, 0)
    assert several.predicting(0) == linked and several.own_relations == (2, 0, 1) and several.predicts_several


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TYPES.relation("r"), "2 relations are called 'r'; say which: a,r,b or b,r,a"),
        (lambda: TYPES.relation("t"), "there is no relation 't'; expected one of r, s"),
        (lambda: TYPES.node_type("c"), "there is no node type 'c'; expected one of a, b"),
        (lambda: replace(TYPES, node_types=("a", "a")).check(5), "with distinct names"),
        (lambda: replace(TYPES, offsets=(0, 2, 5, 5)).check(5), "do not rise from 0 to V=5"),
        (lambda: TYPES.check(6), "do not rise from 0 to V=6"),
        (lambda: replace(TYPES, relations=(("a", "r", "b"),) * 2).check(5), "there are 2 relations"),
        (lambda: replace(TYPES, relations=(("a", "r", "c"),)).check(5), "node type 'c', which is not there"),
        (lambda: GraphTypes.of_record({"node_types": ["a"]}), "types are not"),
        (lambda: replace(TYPES, edge_widths=(1, 2)).check(5), r"edge_widths are \[1, 2\]; expected a number for each"),
        (lambda: replace(TYPES, edge_widths=(-1, 2, 0)).check(5), "expected a number for each of 3 relations"),
        (lambda: replace(TYPES, edge_widths=(0, 1, 0)).check(5, 2), "and 2 for the widest"),
        (lambda: TYPES.check(5, 2), "and 2 for the widest"),
        (lambda: replace(TYPES, pair_relations=((0, 3),)).check(5), r"are \[0, 3\]; expected numbers below 3"),
        (lambda: replace(TYPES, pair_relations=((0, 1, 1),)).check(5), r"are \[0, 1, 1\]; expected distinct numbers"),
        (lambda: replace(TYPES, pair_relations=((0, 1), (1,))).check(5), r"are \[\[0, 1\], \[1\]\]; expected distinct"),
    ],
)
def test_what_is_not_there_is_named(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_a_graph_checks_its_edges_against_their_relations():
    graph = typed_dataset().graph
    kinds = graph.edge_type
    assert kinds is not None and kinds.dtype == np.uint8
    swapped = kinds.copy()
    row = int(np.argmax([len(set(kinds[a:b])) > 1 for a, b in zip(graph.indptr, graph.indptr[1:])]))
    cut = slice(graph.indptr[row], graph.indptr[row + 1])
    swapped[cut] = kinds[cut][::-1]
    other = np.full_like(kinds, 4)
    for bad, said in [
        (kinds.astype(np.int64), "edge_type is int64"),
        (kinds[:-1], "edge_type is uint8"),
        (other + 1, "edge_type holds 5"),
        (swapped, "does not ascend"),
        (other, "ends of other node types"),
        (None, "types and no edge_type"),
    ]:
        with pytest.raises(InputError, match=said):
            replace(graph, edge_type=bad).check()
    with pytest.raises(InputError, match="and 2 for the widest"):
        replace(graph, edge_features=ArrayFeatures(np.ones((graph.num_edges, 2), np.float32))).check()


def test_the_digest_of_a_graph_covers_its_types_and_only_those_of_a_typed_one():
    graph = typed_dataset().graph
    plain = replace(graph, types=SINGLE, edge_type=None)
    assert not graph.types.is_single
    renamed = replace(graph.types, node_types=("p", "author", "venue"))
    assert len({graph_fingerprint(g) for g in (graph, plain, replace(graph, types=renamed))}) == 3
    same = from_edges(plain.indices, np.repeat(np.arange(36), plain.in_degree), 36)
    assert graph_fingerprint(replace(same, indices=plain.indices)) == graph_fingerprint(plain)
    assert repr(graph) == "Graph(36 nodes, 200 edges, 3 node types, 5 relations)"
