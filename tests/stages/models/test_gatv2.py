"""GATv2: against dense matrices in float64 and against PyG on the same minibatches, with features of edges and without;
over ranks; exact evaluation in chunks."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import millrace as mr
from millrace.stages.assignment import BulkRequest
from millrace.stages.fetch.visit import VisitFetch
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.models.gatv2 import GATv2
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.dense_model import check_dense
from millrace.tests.contracts.fetched import fetched
from millrace.tests.contracts.full_batch import job as rank_job
from millrace.tests.contracts.full_batch import make_case
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
V, D, C = 40, 3, 4
X = np.random.default_rng(1).normal(size=(V, 5))


def graph_of(weighted: bool = False) -> Graph:
    """Hubs, loops, parallel edges with features of their own, and nodes without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, V, 300), rng.integers(0, V - 4, 300)
    dst[:60], src[60:80], dst[60:80] = 7, 3, 4
    weight = rng.choice([0.0, 0.5, 2.0], 300) if weighted else None
    return from_edges(src, dst, V, edge_weight=weight, edge_features=rng.normal(size=(300, D)))


def build(edge_width: int, width: int = X.shape[1], size: float = 1.0, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = GATv2(hidden=6, layers=2, heads=2, dropout=0.0, edge_width=edge_width, **options).build(width, C).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(size) if name.endswith(".a") else p.add_(0.3 * torch.randn_like(p))
    return model


def dense(model: Any, graph: Graph, x: Tensor) -> Tensor:
    """The model row by row."""
    assert graph.edge_features is not None
    attr, h = torch.from_numpy(graph.edge_features.gather(np.arange(graph.num_edges))), x
    for i, conv in enumerate(model.convs):
        shape = (-1, conv.heads, conv.head_width)
        z, own = conv.source(h).view(shape), conv.target(h).view(shape)
        rows = []
        for v in range(graph.num_nodes):
            edges = np.arange(int(graph.indptr[v]), int(graph.indptr[v + 1]))
            edges = edges[graph.indices[edges] != v]
            src = [*graph.indices[edges].tolist(), v]
            added = z[src] + own[v]
            if conv.edge is not None:
                mine = attr[edges]
                mine = torch.cat([mine, mine.mean(0, keepdim=True) if len(mine) else mine.new_zeros(1, D)])
                added = added + conv.edge(mine).view(shape)
            share = (F.leaky_relu(added, conv.slope) * conv.a).sum(-1).softmax(0)
            rows.append((share[:, :, None] * z[src]).sum(0))
        out = torch.stack(rows)
        h = (out.flatten(1) if conv.concat else out.mean(1)) + conv.bias
        h = h if i == len(model.convs) - 1 else F.elu(h)
    return h


@pytest.mark.parametrize(("edge_width", "size"), [(0, 1.0), (D, 1.0), (D, 1000.0)])
def test_values_and_gradients_are_those_of_dense_matrices(edge_width: int, size: float) -> None:
    """With logits of thousands too; weights are ignored."""
    graph, model = graph_of(weighted=True), build(edge_width, size=size)
    exact = check_dense(model, graph, X, dense, relative=True)
    for max_bytes in (1, 4000):
        assert (mr.infer(model, graph, X, max_bytes=max_bytes) - exact).abs().max() <= 1e-10


@pytest.mark.parametrize("edge_width", [0, D])
@pytest.mark.parametrize("fanout", [(-1, -1), (3, 2)])
def test_pygs_convolution_on_the_same_minibatches(fanout: tuple[int, int], edge_width: int) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    graph, model = graph_of(), build(edge_width)
    request = BulkRequest(3, 0, 0, 0, (np.arange(0, V, 3),))
    work = mr.NeighborSampler(fanout, edge_ids=True).sample(graph, request, cpu).check().minibatches[0]
    got = fetched(graph, X, work)
    h = torch.from_numpy(X[work.nodes])
    convs = [
        geometric.GATv2Conv(a, b, heads=2, concat=concat, edge_dim=edge_width or None).double()
        for a, b, concat in ((5, 3, True), (6, C, False))
    ]
    for conv, weights in zip(convs, mr.conv_weights(model, "pyg"), strict=True):
        conv.load_state_dict(weights)
    for i, (conv, block) in enumerate(zip(convs, work.blocks)):
        row = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        assert block.edge_id is not None and graph.edge_features is not None
        attr = torch.from_numpy(graph.edge_features.gather(block.edge_id)) if edge_width else None
        h = conv((h, h[: block.num_dst]), torch.from_numpy(np.stack([block.indices, row])).long(), attr)
        h = h if i else F.elu(h)
    assert (model(got.neighbourhoods, got.h) - h).abs().max() <= 1e-10
    again = build(edge_width, size=2.0)
    mr.set_conv_weights(again, convs, "pyg")
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    with pytest.raises(InputError, match="dgl"):
        mr.conv_weights(model, "dgl")


@pytest.mark.parametrize("mode", ["rematerialize", "keep", "halo"])
def test_ranks_compute_what_one_does(mode: Any) -> None:
    for seed, size in ((8, 2), (2, 2), (13, 3)):
        case = make_case(seed, size)
        rows = np.random.default_rng(seed).normal(size=(case.graph.num_edges, D))
        case = replace(case, graph=replace(case.graph, edge_features=ArrayFeatures(rows)))
        model = build(D, case.x.shape[1])
        train = torch.from_numpy(case.split.train)
        out = model([whole_graph(case.graph, F64)] * 2, torch.from_numpy(case.x))
        loss = F.cross_entropy(out[train], case.labels[train], reduction="sum")
        want = torch.autograd.grad(loss, list(model.parameters()))

        def rank(group: ThreadGroup, case: Any = case, model: Any = model) -> list[Tensor]:
            own = copy.deepcopy(model)
            share = case.share(group, 2, True)
            got = VisitFetch((mode,)).fetcher(share, rank_job(group, 2), own).fetch(share.graph)
            mine = own(got.neighbourhoods, got.h)[: len(got.y)]
            return list(torch.autograd.grad(F.cross_entropy(mine, got.y, reduction="sum"), list(own.parameters())))

        found = run_threads(rank, size)
        for at, grad in enumerate(want):
            assert (sum(grads[at] for grads in found) - grad).abs().max() <= 1e-10


def test_dropout_of_attention_drops_in_training_only() -> None:
    graph, model = graph_of(), build(0, attention_dropout=0.5)
    blocks, x = [whole_graph(graph, F64)] * 2, torch.from_numpy(X)
    want = dense(model, graph, x)
    assert (model.eval()(blocks, x) - want).abs().max() <= 1e-10
    model.train()
    torch.manual_seed(0)
    mean = sum(model.convs[0](blocks[0], x) for _ in range(400)) / 400
    assert (mean - model.eval().convs[0](blocks[0], x)).abs().mean() < 0.1
    assert not torch.allclose(model.train()(blocks, x), want)


def test_widths_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="an edge has 3 features; expected 2"):
        build(2)([whole_graph(graph_of(), F64)] * 2, torch.from_numpy(X))
    with pytest.raises(InputError, match="reads features of edges, but there are none here"):
        mr.infer(build(D), from_edges([0], [1], V), X)
    with pytest.raises(InputError, match="gatv2: edge_width is -2; expected a number of columns, 0 for none, or -1"):
        GATv2(edge_width=-2)
