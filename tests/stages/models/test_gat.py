"""GAT against PyG's convolution, on graphs with self loops, parallel and weighted edges and nodes without any."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import millrace as mr
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.models.gat import GAT
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.storage.graph import Graph, from_edges

V, C = 50, 3


def graph_of(weighted: bool) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, V, 400), rng.integers(0, V - 6, 400)
    # Loops of every kind: several of one node, one that is a node's only edge, and beside parallel edges.
    dst[:60], src[60:90], dst[60:80], src[90:92], dst[90:92] = src[:60] % 44, 3, 4, V - 1, V - 1
    return from_edges(src, dst, V, edge_weight=rng.choice([0.0, 0.5, 2.0], 400) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("wide", [4, 60])
@pytest.mark.parametrize("fanout", [(-1, -1), (4, 3)])
def test_pygs_convolution_gives_the_same_rows_and_gradients(fanout: tuple[int, int], wide: int, weighted: bool) -> None:
    """On whole neighbourhoods and on samples; few and many features, so that either order of sum and product is
    taken."""
    nn = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    graph, x = graph_of(weighted), torch.randn(V, wide, dtype=torch.float64)
    model = GAT(hidden=6, layers=2, heads=2, dropout=0.0).build(wide, C).double()
    convs = [nn.GATConv(wide, 3, 2).double(), nn.GATConv(6, C, 2, concat=False).double()]
    mr.set_conv_weights(model, convs, "pyg")
    seeds = np.arange(0, V, 2)
    work = mr.NeighborSampler(fanout).sample(graph, BulkRequest(3, 0, 0, 0, (seeds,)), cpu).check().minibatches[0]
    x = x[work.nodes].requires_grad_()
    got = model([BlockNeighbourhood(b, lambda b=b: torch.ones(b.num_src).double()) for b in work.blocks], x)
    h = x
    for i, (conv, block) in enumerate(zip(convs, work.blocks)):
        row = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        h = conv((h, h[: block.num_dst]), torch.from_numpy(np.stack([block.indices, row])).long())
        h = h if i else F.elu(h)
    torch.testing.assert_close(got, h, rtol=0, atol=1e-10)
    grad = torch.randn_like(h)
    mine = torch.autograd.grad(got, [x, *(c.linear.weight for c in model.convs)], grad)
    theirs = torch.autograd.grad(h, [x, *(c.lin.weight for c in convs)], grad)
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    if fanout == (-1, -1):
        whole = torch.randn(V, wide, dtype=torch.float64)
        h, ends = whole, torch.from_numpy(np.stack([graph.indices, np.repeat(np.arange(V), graph.in_degree)])).long()
        for i, conv in enumerate(convs):
            h = conv(h, ends) if i else F.elu(conv(h, ends))
        for max_bytes in (1, 1 << 20):
            found = mr.infer(model, graph, whole.numpy(), max_bytes=max_bytes)
            torch.testing.assert_close(found, h.detach(), rtol=0, atol=1e-10)
