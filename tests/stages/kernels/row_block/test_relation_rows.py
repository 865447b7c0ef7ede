"""Rows by relation against their definition, over typed graphs with empty types and relations."""

import numpy as np
from hypothesis import given, settings

from millrace.stages.kernels.row_block.relation_rows import RelationRows
from millrace.storage.graph import Graph
from millrace.tests.contracts.typed import typed_graphs


@settings(max_examples=25)
@given(typed_graphs())
def test_each_row_has_the_edges_of_its_relation(graph: Graph) -> None:
    relations, types = RelationRows.from_graph(graph), graph.types
    assert not types.is_single and graph.edge_type is not None
    nodes = np.random.default_rng(0).permutation(graph.num_nodes)
    parts = relations.parts(nodes)
    seen = []
    for r, at, rows in parts:
        first, stop = types.offsets[types.ends[r, 1]], types.offsets[types.ends[r, 1] + 1]
        assert at.tolist() == [i for i, v in enumerate(nodes) if first <= v < stop]
        for v, row in zip(nodes[at], rows):
            begin, end = graph.indptr[v], graph.indptr[v + 1]
            edges = begin + np.flatnonzero(graph.edge_type[begin:end] == r)
            assert list(range(*relations.graph.indptr[row : row + 2])) == edges.tolist()
        seen += rows.tolist()
    assert sorted(seen) == list(range(relations.graph.num_nodes)) and relations.graph.num_edges == graph.num_edges
    assert {r for r, _, _ in parts} == {r for r, t in enumerate(types.ends[:, 1]) if types.num_nodes(int(t))}
