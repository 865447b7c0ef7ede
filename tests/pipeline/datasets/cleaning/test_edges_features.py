"""Features of edges through merging, dropping, turning and symmetrising: each edge against a table of the input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipeline.datasets.cleaning.edges import clean_edges
from millrace.pipeline.datasets.cleaning.options import ReadOptions
from millrace.pipeline.datasets.cleaning.raw import RawEdges


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 6), st.booleans())
@pytest.mark.parametrize("direction", ["directed", "reverse", "undirected"])
@pytest.mark.parametrize("duplicates", ["merge", "keep"])
def test_each_edge_has_the_row_that_the_rules_say(direction, duplicates, data, nodes, weighted):
    pairs = data.draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=20))
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    drop = data.draw(st.booleans())
    options = ReadOptions(direction=direction, duplicates=duplicates, self_loops="drop" if drop else "keep")
    rows = np.arange(len(pairs), dtype=np.float64)
    weight = np.ones(len(pairs)) if weighted else None
    graph = clean_edges(RawEdges((src, dst), weight, rows), nodes, options, None, [])

    stored: dict[tuple[int, int], list[float]] = {}
    for number, (u, v) in enumerate(pairs):
        if not (drop and u == v):
            stored.setdefault((v, u) if direction == "reverse" else (u, v), []).append(float(number))
    if duplicates == "merge":
        stored = {pair: numbers[:1] for pair, numbers in stored.items()}
    if direction == "undirected":
        # The i-th copy of an edge pairs with the i-th of its reverse; where one is missing, it has the other's row.
        both = {*stored, *((v, u) for u, v in stored)}
        stored = {
            (u, v): [*stored.get((u, v), []), *stored.get((v, u), [])[len(stored.get((u, v), [])) :]] for u, v in both
        }
    found: dict[tuple[int, int], list[float]] = {}
    got = np.empty((0, 1)) if graph.edge_features is None else graph.edge_features.gather(np.arange(graph.num_edges))
    for v in range(nodes):
        for e in range(int(graph.indptr[v]), int(graph.indptr[v + 1])):
            found.setdefault((int(graph.indices[e]), v), []).append(float(got[e, 0]))
    assert found == stored
