"""GCN with learnt weights of edges: against dense matrices in float64, against PyG, and beside GCN without them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import millrace as mr
from millrace.stages.models.gcn import GCN
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.dense_model import check_dense
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
V, D, C = 40, 3, 4
X = np.random.default_rng(1).normal(size=(V, 8))


def graph_of(weighted: bool) -> Graph:
    """Hubs, loops, parallel edges with features of their own, and nodes without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, V, 300), rng.integers(0, V - 4, 300)
    dst[:60], src[60:80], dst[60:80] = 7, 3, 4
    weight = rng.choice([0.0, 0.5, 2.0], 300) if weighted else None
    return from_edges(src, dst, V, edge_weight=weight, edge_features=rng.normal(size=(300, D)))


def build(moved: float = 1.0) -> Any:
    """A layer that multiplies first, and one that aggregates first."""
    torch.manual_seed(0)
    model = GCN(hidden=4, layers=2, dropout=0.0, edge_width=D).build(X.shape[1], C).double()
    with torch.no_grad():
        for conv in model.convs:
            conv.a.add_(moved * torch.randn_like(conv.a))
            conv.bias.add_(moved * torch.randn_like(conv.bias))
    return model


def edges_of(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Sources, destinations and features."""
    assert graph.edge_features is not None
    dst = np.repeat(np.arange(V), np.diff(graph.indptr))
    attr = torch.from_numpy(graph.edge_features.gather(np.arange(graph.num_edges)))
    return torch.from_numpy(graph.indices).long(), torch.from_numpy(dst), attr


def learnt(conv: Any, graph: Graph) -> Tensor:
    """w c of each edge, [E]."""
    src, dst, attr = edges_of(graph)
    given = (
        torch.ones(len(src), dtype=F64) if graph.edge_weight is None else torch.from_numpy(graph.edge_weight).double()
    )
    degree = loops_of(graph)[0]
    return F.softplus(attr @ conv.a[0] + conv.s) * given / (degree[src] * degree[dst]).sqrt()


def loops_of(graph: Graph) -> tuple[Tensor, Tensor]:
    """Degrees with one self loop for each node, the last one of the graph or one of weight 1; and the weight of that
    loop less that of all loops, by hand."""
    degree, loop, own = torch.zeros(V, dtype=F64), torch.ones(V, dtype=F64), torch.zeros(V, dtype=F64)
    for v in range(V):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            weight = 1.0 if graph.edge_weight is None else float(graph.edge_weight[e])
            if graph.indices[e] == v:
                loop[v], own[v] = weight, own[v] + weight
            else:
                degree[v] += weight
    return degree + loop, loop - own


def dense(model: Any, graph: Graph, x: Tensor) -> Tensor:
    (src, dst, _), h = edges_of(graph), x
    degree, loop = loops_of(graph)
    own = loop / degree
    for i, conv in enumerate(model.convs):
        matrix = torch.zeros(V, V, dtype=F64).index_put((dst, src), learnt(conv, graph), accumulate=True)
        h = (matrix + torch.diag(own)) @ h @ conv.linear.weight.T + conv.bias
        h = h if i == len(model.convs) - 1 else torch.relu(h)
    return h


@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_dense_matrices(weighted: bool) -> None:
    graph, model = graph_of(weighted), build()
    want = check_dense(model, graph, X, dense)
    for max_bytes in (1, 4000):
        assert (mr.infer(model, graph, X, max_bytes=max_bytes) - want).abs().max() <= 1e-10


def test_it_begins_as_gcn_does() -> None:
    torch.manual_seed(0)
    plain = GCN(hidden=4, layers=2, dropout=0.0).build(X.shape[1], C).double()
    model = build(0.0)
    assert all(torch.equal(a.linear.weight, b.linear.weight) for a, b in zip(model.convs, plain.convs))
    graph = graph_of(True)
    assert (mr.infer(model, graph, X) - mr.infer(plain, graph, X)).abs().max() <= 1e-6  # s is made in float32


def test_pygs_convolution_with_these_weights() -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    graph, model = graph_of(False), build()
    conv, (src, dst, _) = model.convs[0], edges_of(graph)
    theirs = geometric.GCNConv(X.shape[1], 4, normalize=False).double()
    theirs.load_state_dict({"lin.weight": conv.linear.weight, "bias": conv.bias})
    (degree, loop), nodes = loops_of(graph), torch.arange(V)
    edges = torch.stack([torch.cat([src, nodes]), torch.cat([dst, nodes])])
    want = theirs(torch.from_numpy(X), edges, torch.cat([learnt(conv, graph), loop / degree]))
    assert (conv(whole_graph(graph, F64), torch.from_numpy(X)) - want).abs().max() <= 1e-10


def test_widths_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="an edge has 3 features; expected 2"):
        GCN(layers=1, edge_width=2).build(8, C).double()([whole_graph(graph_of(False), F64)], torch.from_numpy(X))
    with pytest.raises(InputError, match="gcn: edge_width is True; expected a number of columns"):
        GCN(edge_width=True)
