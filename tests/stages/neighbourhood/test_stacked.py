"""Own rows and means of all relations at once, against dense matrices in float64, with gradients."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.neighbourhood.block import BlockNeighbourhood, types_of_edges
from millrace.stages.neighbourhood.stacked import OWN
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.tests.contracts.typed import typed_graphs
from millrace.tests.contracts.whole_graph import whole_graph
from millrace.tests.stages.neighbourhood.test_relations import block_of, matrix


@settings(max_examples=20, deadline=None)
@given(typed_graphs(), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=3), st.booleans())
def test_means_are_those_of_dense_matrices(graph, some, whole):
    types = graph.types
    chosen, flagged = zip(*some[: len(types.node_types)])
    if whole:
        neighbourhood = whole_graph(graph, torch.float64)
        coefficient, edges = np.ones(graph.num_edges), np.arange(graph.num_edges)
    else:
        block = block_of(graph, NeighborSampler((2, 2)), kernel=cpu)
        degree = torch.from_numpy(graph.degree[block.src])
        neighbourhood = BlockNeighbourhood(block, degree, edge_types=types_of_edges(graph, block.edge_id))
        coefficient, edges = block.weight.astype(np.float64), block.edge_id
    block = neighbourhood.block
    block = type(block)(block.num_dst, block.src, block.indptr, block.indices, block.weight, edges)
    torch.manual_seed(0)
    h = torch.randn(block.num_src, 3, dtype=torch.float64)
    read = torch.from_numpy(np.asarray(chosen)[types.types_of(block.src)])
    x, full = h[read].clone().requires_grad_(), h.clone().requires_grad_()
    relations = neighbourhood.relations()
    for t, found in enumerate(neighbourhood.means_by_type(x, chosen, flagged)):
        targets = neighbourhood.node_types()[t].targets
        sources = {OWN: t} | {r: a for r, (a, b) in enumerate(types.ends.tolist()) if b == t}
        assert found.of == [r for r, a in sources.items() if chosen[a]]
        assert found.flagged == [r for r, a in sources.items() if flagged[a]]
        for numbers, columns, wide in ((found.of, found.rows, 3), (found.flagged, found.present, 1)):
            for i, r in enumerate(numbers):
                mine = columns[:, i * wide : (i + 1) * wide]
                if r == OWN:
                    dense = torch.eye(block.num_src, dtype=torch.float64)[targets]
                else:
                    dense = matrix(graph, block, relations[r], coefficient)
                if wide == 1:
                    assert torch.equal(mine[:, 0] > 0, dense.sum(1) > 0)
                    continue
                expected = dense @ full / dense.sum(1, keepdim=True).clamp(min=1e-300)
                torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)
                if len(targets):
                    (own,) = torch.autograd.grad(mine.square().sum(), x, retain_graph=True)
                    (slope,) = torch.autograd.grad(expected.square().sum(), full, retain_graph=True)
                    torch.testing.assert_close(own, slope[read], rtol=1e-10, atol=1e-10)
