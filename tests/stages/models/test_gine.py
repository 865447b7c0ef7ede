"""GINE: against dense matrices in float64 and against PyG on the same minibatches; exact evaluation in chunks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import millrace as mr
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.models.gine import GINE
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.dense_model import check_dense
from millrace.tests.contracts.fetched import fetched
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
V, F, D, C = 40, 5, 3, 4


def graph_of(weighted: bool, seed: int = 0) -> Graph:
    """Hubs, loops, parallel edges with features of their own, and nodes without edges."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, V, 300), rng.integers(0, V - 4, 300)
    dst[:60], src[60:80], dst[60:80] = 7, 3, 4
    weight = rng.choice([0.0, 0.5, 2.0], 300) if weighted else None
    return from_edges(src, dst, V, edge_weight=weight, edge_features=rng.normal(size=(300, D)))


def build(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return GINE(hidden=6, layers=2, dropout=0.0, edge_width=D, **options).build(F, C).double()


def dense(model: Any, graph: Graph, x: Tensor) -> Tensor:
    """The model edge by edge."""
    assert graph.edge_features is not None
    edge, h = torch.from_numpy(graph.edge_features.gather(np.arange(graph.num_edges))), x
    for i, conv in enumerate(model.convs):
        rows = []
        for v in range(graph.num_nodes):
            total = (1 + conv.eps) * h[v]
            for e in range(int(graph.indptr[v]), int(graph.indptr[v + 1])):
                w = 1.0 if graph.edge_weight is None else float(graph.edge_weight[e])
                total = total + w * torch.relu(h[int(graph.indices[e])] + conv.edge.weight @ edge[e] + conv.edge.bias)
            rows.append(conv.mlp(total))
        h = torch.stack(rows)
        h = h if i == len(model.convs) - 1 else torch.relu(h)
    return h


@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_dense_matrices(weighted: bool):
    graph, model = graph_of(weighted), build()
    check_dense(model, graph, np.random.default_rng(1).normal(size=(V, F)), dense)


@pytest.mark.parametrize("max_bytes", [1, 4000, 1 << 28])
def test_exact_evaluation_in_chunks(max_bytes: int):
    graph, model = graph_of(True), build()
    x = np.random.default_rng(1).normal(size=(V, F))
    want = dense(model, graph, torch.from_numpy(x))
    nodes = np.array([7, 3, 39, 7])
    assert (mr.infer(model, graph, x, max_bytes=max_bytes) - want).abs().max() <= 1e-10
    assert (mr.infer(model, graph, x, nodes=nodes, max_bytes=max_bytes) - want[nodes]).abs().max() <= 1e-10


def drawn(graph: Graph, sampler: Any, x: np.ndarray) -> tuple[Any, Any]:
    """A minibatch, and what a model gets of it."""
    work = sampler.sample(graph, BulkRequest(3, 0, 0, 0, (np.arange(0, V, 3),)), cpu).check().minibatches[0]
    return work, fetched(graph, x, work)


@pytest.mark.parametrize("expand", ["new", "all"])
@pytest.mark.parametrize("fanout", [(-1, -1), (3, 2)])
def test_pygs_convolution_on_the_same_minibatches(fanout: tuple[int, int], expand: Any):
    """All edges: the same numbers. Sampled: PyG's sum of fewer edges, times in-degree / kept of its row."""
    geometric = pytest.importorskip("torch_geometric.nn")
    graph, model = graph_of(False), build()
    x = np.random.default_rng(1).normal(size=(V, F))
    work, got = drawn(graph, mr.NeighborSampler(fanout, expand=expand, edge_ids=True), x)
    h = torch.from_numpy(x[work.nodes])
    for i, (conv, block) in enumerate(zip(model.convs, work.blocks)):
        theirs = geometric.GINEConv(conv.mlp, train_eps=True, edge_dim=D).double()
        theirs.eps.data, theirs.lin = conv.eps.data.reshape(theirs.eps.shape), conv.edge
        kept = np.diff(block.indptr)
        row = np.repeat(np.arange(block.num_dst), kept)
        scale = torch.from_numpy(graph.in_degree[block.src[row]] / kept[row])[:, None]
        edges = torch.from_numpy(np.stack([block.indices, row])).long()
        attr = torch.from_numpy(graph.edge_features.gather(block.edge_id))
        theirs.register_message_forward_hook(lambda conv, inputs, out, scale=scale: out * scale)
        h = theirs((h, h[: block.num_dst]), edges, attr)
        h = h if i else torch.relu(h)
    assert (model(got.neighbourhoods, got.h) - h).abs().max() <= 1e-10


@pytest.mark.parametrize(
    "sampler",
    [
        mr.NeighborSampler((-1, -1), edge_ids=True),
        mr.LaborSampler((-1, -1), edge_ids=True),
        mr.LadiesSampler((V, V), debias="none", edge_ids=True),
        mr.FastGCNSampler((V, V), debias="none", edge_ids=True),
    ],
    ids=lambda s: s.name,
)
def test_every_sampler_brings_the_features_of_its_edges(sampler: Any):
    graph, model = graph_of(True), build()
    x = np.random.default_rng(1).normal(size=(V, F))
    work, got = drawn(graph, sampler, x)
    want = dense(model, graph, torch.from_numpy(x))[work.seeds]
    # Layer-wise weights are stored in float32.
    assert (model(got.neighbourhoods, got.h)[: len(work.seeds)] - want).abs().max() <= 1e-5


def test_widths_that_do_not_fit_and_edges_without_features():
    graph = graph_of(False)
    x = torch.zeros(V, F, dtype=F64)
    with pytest.raises(InputError, match="an edge has 3 features; expected 2"):
        GINE(layers=1, edge_width=2).build(F, C).double()([whole_graph(graph, F64)], x)
    bare = from_edges([0], [1], V)
    with pytest.raises(InputError, match="reads features of edges, but there are none here"):
        GINE(layers=1, edge_width=2).build(F, C).double()([whole_graph(bare, F64)], x)
    with pytest.raises(InputError, match="reads features of edges, but there are none here"):
        mr.infer(build(), bare, x)
    with pytest.raises(InputError, match="gine: edge_width is 0"):
        GINE().build(F, C)
    with pytest.raises(InputError, match=r"edge has shape \[2, 3\]; expected 300 rows"):
        whole_graph(graph, F64).apply(lambda a, b, w, e: a, x, edge=torch.zeros(2, 3))
