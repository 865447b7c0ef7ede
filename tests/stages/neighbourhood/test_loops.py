"""What a GCN reads of self loops: sums over blocks that hold some of the edges stay unbiased."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.comm.solo import Solo
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.stages.neighbourhood.loops import agreed, gcn_norm
from millrace.stages.self_loops import with_loops
from millrace.storage.graph import from_edges
from millrace.storage.minibatch import Block
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64


def graph_of(weighted: bool):
    src, dst = [0, 1, 2, 3, 1, 2, 2, 3], [0, 0, 0, 0, 1, 1, 2, 2]
    return from_edges(src, dst, 5, edge_weight=[3.0, 1, 2, 0.5, 0.25, 1, 2, 1] if weighted else None)


def dense(graph):
    """PyG's normalised adjacency, by hand."""
    A = np.zeros((5, 5))
    rows = np.repeat(np.arange(5), graph.in_degree)
    weight = np.ones(len(rows)) if graph.edge_weight is None else graph.edge_weight
    np.add.at(A, (rows, graph.indices), weight)
    A[range(5), range(5)] = np.where(np.diag(A) > 0, np.diag(A), 1)
    d = A.sum(1) ** -0.5
    return d[:, None] * A * d


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_all_samples_is_the_whole_sum(weighted) -> None:
    """Two of the four in-edges of node 0, its self loop among them or not."""
    graph, x = graph_of(weighted), torch.randn(5, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    degree, found = torch.from_numpy(with_loops(graph)), []
    for kept in ([a, b] for a in range(4) for b in range(a)):
        src = np.array([0, 1, 2, 3])
        weight = None if graph.edge_weight is None else 2 * graph.edge_weight[kept]
        block = Block(1, src, np.array([0, 2]), graph.indices[kept].astype(np.int32), weight)
        neighbourhood = BlockNeighbourhood(block, degree[src])
        scale, own = gcn_norm(neighbourhood, F64)
        found.append(neighbourhood.sum(x[src], factor=scale, own=own) * scale[:1, None])
    torch.testing.assert_close(torch.cat(found).mean(0), torch.from_numpy(dense(graph)[0]) @ x)


@pytest.mark.parametrize("weighted", [False, True])
def test_all_edges_give_the_dense_matrix(weighted) -> None:
    graph = graph_of(weighted)
    scale, own = gcn_norm(whole_graph(graph, F64), F64)
    got = whole_graph(graph, F64).sum(torch.eye(5, dtype=F64), factor=scale, own=own) * scale[:, None]
    torch.testing.assert_close(got, torch.from_numpy(dense(graph)))


def test_without_self_loops_degrees_stay_alone() -> None:
    plain = from_edges([1, 2], [0, 0], 3)
    assert agreed(with_loops(plain), Solo()).shape == (3,)
    assert agreed(with_loops(graph_of(False)), Solo()).shape == (5, 3)
    scale, own = gcn_norm(whole_graph(plain, F64), F64)
    assert torch.equal(scale, torch.tensor([3.0, 1, 1], dtype=F64).rsqrt()) and torch.equal(own, scale)


@pytest.mark.parametrize("system", ["bulk", "sar", "grappa", "retexo"])
def test_each_system_evaluates_as_pyg_does(system, tmp_path) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    data = mr.open_dataset("sbm:nodes=60,classes=3,degree=4,features=5,train=0.4")
    rows = np.repeat(np.arange(60), data.graph.in_degree)
    src, dst = np.append(data.graph.indices, np.arange(0, 60, 2)), np.append(rows, np.arange(0, 60, 2))
    graph = from_edges(src, dst, 60)
    data = replace(data, graph=graph)
    options = {"epochs": 1, "verbose": False} | ({"fanout": [3, 3]} if system in ("bulk", "grappa") else {})
    mr.run(data, system=system, model=mr.GCN(hidden=4, layers=2), out=tmp_path / system, **options)
    trained = mr.load(tmp_path / system)
    got = torch.as_tensor(np.asarray(mr.infer(trained.model, data)))
    if system == "retexo":
        return  # its layers have heads of their own
    net = pyg.GCN(5, 4, 2, 3).eval()
    for conv, weights in zip(net.convs, mr.conv_weights(trained.model, "pyg")):
        conv.load_state_dict(weights)
    order = np.repeat(np.arange(60), graph.in_degree)
    x = torch.from_numpy(data.features.gather(np.arange(60)))
    edges = torch.from_numpy(np.stack([graph.indices, order]).astype(np.int64))
    torch.testing.assert_close(got, net(x, edges).detach(), rtol=1e-4, atol=1e-5)
