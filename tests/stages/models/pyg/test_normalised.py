"""PyG's `GCNConv` with its options, beside PyG on the whole graph: with self loops, parallel edges and weights."""

import copy

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.models.pyg.model import PyGModel
from millrace.stages.models.pyg.normalised import HONOURED, is_normalised, normalised, reads_loops, unhonoured
from millrace.storage.graph import from_edges
from millrace.tests.contracts.whole_graph import whole_graph

pyg = pytest.importorskip("torch_geometric.nn")
OPTIONS = {
    "as it is": {},
    "no loops": {"add_self_loops": False},
    "as given": {"normalize": False},
    "no bias": {"bias": False},
    "mean": {"aggr": "mean"},
    "max": {"aggr": "max"},
}


class Narrower(pyg.GCNConv):
    """A subclass with another name."""


class Other(pyg.GCNConv):
    """A subclass that computes something else."""

    def forward(self, x, edge_index, edge_weight=None):
        return super().forward(x, edge_index, edge_weight) + 1


def graph_of(weighted: bool):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 9, (2, 40))
    return from_edges(src, dst, 10, edge_weight=rng.choice([0.0, 0.5, 2.0], 40) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_give_what_pyg_gives(name: str, weighted: bool) -> None:
    torch.manual_seed(0)
    graph, conv, x = graph_of(weighted), pyg.GCNConv(5, 3, **OPTIONS[name]), torch.randn(10, 5)
    rows = np.repeat(np.arange(10), graph.in_degree)
    assert (graph.indices == rows).any()
    edges = torch.from_numpy(np.stack([graph.indices, rows]).astype(np.int64))
    want = conv(x, edges, None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight)).detach()
    assert not unhonoured(conv) or name in ("mean", "max")
    model = PyGModel([copy.deepcopy(conv)])
    assert model.fit(5, 0) == 3
    torch.testing.assert_close(mr.infer(model, graph, x), want)
    torch.testing.assert_close(mr.infer(model, graph, x, nodes=[7, 2]), want[[7, 2]])
    torch.testing.assert_close(normalised(conv, whole_graph(graph), x).detach(), want)


def test_which_convolutions_are_normalised_here() -> None:
    assert is_normalised(pyg.GCNConv(5, 3)) and is_normalised(Narrower(5, 3))
    assert not is_normalised(Other(5, 3)) and not is_normalised(pyg.SAGEConv(5, 3))
    assert reads_loops(pyg.GCNConv(5, 3)) and not reads_loops(pyg.GCNConv(5, 3, normalize=False))
    assert unhonoured(pyg.GCNConv(5, 3, improved=True)) == ["improved=True"] and "GCNConv" in HONOURED
    with pytest.raises(mr.InputError, match=r"layer 0, Other\(5, 3\), cannot take 5 columns"):
        PyGModel([Other(5, 3)]).fit(5, 0)
