"""What blocks and relations have in common."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from millrace.storage.errors import InputError
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.contracts.whole_graph import whole_graph


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_edges_by_their_coefficients(weighted):
    graph = typed_dataset().graph
    if weighted:
        graph = replace(graph, edge_weight=np.linspace(0, 3, graph.num_edges, dtype=np.float32))
    block = whole_graph(graph, torch.float64)
    x = torch.arange(2 * graph.num_nodes, dtype=torch.float64).view(-1, 2)
    for edges in (block, *block.relations()):
        (src, dst), coefficient = edges.ends(x.device), edges.coefficients(x)
        assert coefficient.dtype == x.dtype and len(coefficient) == edges.num_edges
        added = x.new_zeros(edges.num_dst, 2).index_add(0, dst, coefficient[:, None] * x[src])
        torch.testing.assert_close(edges.sum(x), added)
        total = x.new_zeros(edges.num_dst).index_add(0, dst, coefficient)[:, None]
        torch.testing.assert_close(edges.mean(x), torch.where(total > 0, added / total, 0.0))
        with pytest.raises(InputError, match="features of edges"):
            _ = edges.edge_features
