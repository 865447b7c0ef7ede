"""Degrees with self loops beside them, against PyG's own rule."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.self_loops import degree_of, degree_rows, has_loops, loops_of_rows, with_loops
from millrace.storage.graph import from_edges


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 8), count=st.integers(0, 30), seed=st.integers(0, 99), weighted=st.booleans())
def test_rows_are_those_of_pygs_rule(n: int, count: int, seed: int, weighted: bool) -> None:
    utils = pytest.importorskip("torch_geometric.utils")
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, n, (2, count))
    weight = rng.choice([0.0, 0.5, 1.0, 3.0], count).astype(np.float32) if weighted else None
    graph = from_edges(src, dst, n, edge_weight=weight)
    rows = np.repeat(np.arange(n), graph.in_degree)
    edges = torch.from_numpy(np.stack([graph.indices, rows]).astype(np.int64))
    given_weight = torch.ones(count) if graph.edge_weight is None else torch.from_numpy(graph.edge_weight)
    kept, of = utils.add_remaining_self_loops(edges, given_weight, 1.0, n)
    loop = kept[0] == kept[1]
    found = with_loops(graph)
    assert found[:, 0].tolist() == graph.degree.tolist()
    assert found[:, 2].tolist() == of[loop][torch.argsort(kept[0, loop])].tolist()
    others = torch.zeros(n, dtype=torch.float64).index_add(0, kept[1, ~loop], of[~loop].double())
    np.testing.assert_allclose(found[:, 1], others)
    assert has_loops(found) == bool((src == dst).any() and (not weighted or has_loops(found)))
    expected = found if has_loops(found) else graph.degree
    assert np.array_equal(degree_of(graph, loops=True), expected) and np.array_equal(
        degree_of(graph, loops=False), graph.degree
    )
    assert loops_of_rows(graph).tolist() == np.flatnonzero(graph.indices == rows).tolist()


def test_a_block_of_rows_begins_with_another_node() -> None:
    graph = from_edges([3, 1, 4], [0, 0, 1], 6)
    assert loops_of_rows(graph, 3).tolist() == [1, 2]  # row 0 is node 3, row 1 is node 4
    assert with_loops(graph, 3)[:2].tolist() == [[2, 1, 1], [1, 0, 1]]


def test_of_several_loops_the_last_one_stays() -> None:
    rows = degree_rows(np.array([6.0, 1.0]), np.array([0, 0]), np.array([2.0, 3.0]))
    assert rows.tolist() == [[6, 1, 3], [1, 1, 1]]
