"""In-neighbour lists: built from edges as they are, and refused when they are not what they claim."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.storage import graph as module
from millrace.storage.errors import InputError
from millrace.storage.graph import GRAPH_ARRAYS, Graph, from_edges, index_dtype
from millrace.tests.contracts.messages import graphs


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=30))
    )
)
def test_from_edges_keeps_every_edge(case):
    n, edges = case
    src, dst = np.array([s for s, _ in edges], np.int32), np.array([d for _, d in edges], np.int64)
    g = from_edges(src, dst, n, edge_weight=np.arange(len(edges)), keep_edge_id=True)
    assert g.check() is g
    assert (g.num_nodes, g.num_edges) == (n, len(edges))
    assert g.in_degree.tolist() == [sum(d == v for _, d in edges) for v in range(n)]
    for v in range(n):
        row = slice(g.indptr[v], g.indptr[v + 1])
        want = sorted((s, i) for i, (s, d) in enumerate(edges) if d == v)
        assert list(zip(g.indices[row].tolist(), g.edge_id[row].tolist())) == want
        assert g.edge_weight[row].tolist() == [i for _, i in want]
    assert g.nbytes == g.indptr.nbytes + g.indices.nbytes + g.edge_weight.nbytes + g.edge_id.nbytes


def test_number_of_nodes_is_one_more_than_the_largest_id():
    assert from_edges([0, 4], [2, 1]).num_nodes == 5
    assert from_edges([], []).num_nodes == 0
    assert from_edges([], [], 3).in_degree.tolist() == [0, 0, 0]


def test_index_width():
    assert index_dtype(2**31 - 2) == np.int32
    assert index_dtype(2**31 - 1) == np.int64
    assert from_edges([0], [0]).indices.dtype == np.int32


@pytest.mark.parametrize(
    ("src", "dst", "n", "message"),
    [
        ([0, 1], [0], None, "vectors of one length"),
        ([[0]], [[0]], None, "vectors of one length"),
        ([0.5], [0], None, "src holds float64"),
        ([0], [0.5], None, "dst holds float64"),
        ([-1], [0], None, r"lie in \[-1, 0\]"),
        ([0], [3], 3, r"expected \[0, 3\)"),
        ([0], [2**40], None, "there would be 1,099,511,627,777 nodes; expected at most 3,037,000,499"),
    ],
)
def test_from_edges_refuses(src, dst, n, message):
    with pytest.raises(InputError, match=message):
        from_edges(src, dst, n)


GOOD = from_edges([0, 1, 1], [1, 0, 2], 3, edge_weight=[1, 2, 3], keep_edge_id=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indptr": GOOD.indptr.astype(np.int32)}, "indptr is int32"),
        ({"indptr": np.empty(0, np.int64)}, r"expected int64 \[V\+1\]"),
        ({"indices": GOOD.indices.astype(np.float32)}, "indices is float32"),
        ({"indptr": np.array([1, 1, 2, 3])}, "rise from 0"),
        ({"indptr": np.array([0, 1, 2, 2])}, "rise from 0 to E=3"),
        ({"indptr": np.array([0, 2, 1, 3])}, "rise from 0"),
        ({"indices": np.array([0, 1, 3], np.int32)}, r"expected \[0, 3\)"),
        ({"indices": np.array([0, -1, 1], np.int32)}, r"lie in \[-1, 1\]"),
        ({"edge_weight": np.ones(3)}, "edge_weight is float64"),
        ({"edge_weight": np.ones(2, np.float32)}, r"expected float32 \[3\]"),
        ({"edge_weight": np.array([1, np.nan, 1], np.float32)}, "NaN"),
        ({"edge_weight": np.array([1, np.inf, 1], np.float32)}, "infinite"),
        ({"edge_weight": np.array([1, -1, 1], np.float32)}, "negative"),
        ({"edge_id": np.arange(3, dtype=np.int32)}, "edge_id is int32"),
        ({"edge_id": np.arange(2)}, r"expected int64 \[3\]"),
    ],
)
def test_check_names_what_is_wrong(change, message):
    with pytest.raises(InputError, match=message):
        replace(GOOD, **change).check()


def test_wide_indices_are_fine():
    Graph(GOOD.indptr, GOOD.indices.astype(np.int64)).check()


@given(graphs(), st.integers(1, 9))
def test_weighted_degrees_are_summed_row_by_row(graph, most):
    graph = replace(graph, edge_weight=np.geomspace(1e-9, 1e9, graph.num_edges).astype(np.float32))
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    want = np.bincount(rows, graph.edge_weight, minlength=graph.num_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", most)
        got = replace(graph).degree
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, want.astype(np.float64))


def test_an_array_is_declared_once_for_check_and_order() -> None:
    assert [name for name, a in GRAPH_ARRAYS.items() if a.later] == ["edge_time", "node_time"]
    graph = from_edges([1, 2, 0], [0, 0, 1], 3, edge_time=[5, 6, 7], node_time=[1, 2, 3])
    assert graph.has_later and [*graph.later] == ["edge_time", "node_time"]
    assert not from_edges([1], [0], 2).has_later
    for name, short in (("edge_time", graph.edge_time), ("node_time", graph.node_time)):
        assert short is not None
        with pytest.raises(InputError, match=name):
            replace(graph, **{name: short[:2]}).check()
