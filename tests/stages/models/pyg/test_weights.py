"""In sums and means a sampled edge stands for as many copies as its correction says; elsewhere for itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.evaluate.temporal import Draws, temporal_outputs
from millrace.stages.messages import Placement
from millrace.stages.models.pyg.checks import TRIED, TRIED_NODES
from millrace.stages.models.pyg.hetero import HeteroPyGModel
from millrace.stages.models.pyg.model import PyGModel
from millrace.stages.models.relational import TypedInput
from millrace.stages.models.small_graph import SMALL, SmallGraph, weights_tried
from millrace.stages.sample.temporal import TemporalSampler
from millrace.storage.dataset import Split
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.storage.typed.graph_types import SINGLE, GraphTypes

pyg = pytest.importorskip("torch_geometric.nn")
data_of = pytest.importorskip("torch_geometric.data")
COPIES = np.arange(len(TRIED)) * 3 % 4
COPIED = {"add": True, "mean": True, "max": True, "softmax": False, "std": False}


def graph_of(weighted):
    ends, kinds = np.array(TRIED).T, np.zeros(len(TRIED), np.int64)
    weight = weights_tried(len(TRIED)) if weighted else None
    if weighted:
        weight[4] = 0.0
    return SmallGraph(SINGLE, ends, kinds, torch.zeros(len(TRIED), 0), weight, TRIED_NODES)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("aggr", COPIED)
def test_rows_of_a_sample(aggr, weighted):
    torch.manual_seed(0)
    model, graph = PyGModel([pyg.GraphConv(3, 4, aggr=aggr)]), graph_of(weighted)
    model.fit(3, 0)
    copies = COPIES * (graph.weight > 0) if weighted and aggr == "mean" else COPIES
    at, x = np.repeat(np.arange(len(TRIED)), copies if COPIED[aggr] else COPIES > 0), torch.randn(TRIED_NODES, 3)
    weight = [torch.from_numpy(graph.weight[at])] if weighted else []
    out = model.layer(0, graph.block(np.arange(TRIED_NODES), TRIED_NODES, COPIES), x)
    whole = model.convs[0](x, torch.from_numpy(graph.ends[:, at]), *weight)
    rows = np.ones(TRIED_NODES, bool)
    if weighted and aggr == "mean":  # an edge of weight 0 counts as one of the others' mean correction
        rows[TRIED[4][1]] = False
    torch.testing.assert_close(out[rows], whole[rows], rtol=1e-4, atol=1e-5)
    assert torch.isfinite(out).all()


class Squared(pyg.GraphConv):
    def message(self, x_j, edge_weight):
        return x_j if edge_weight is None else edge_weight[:, None] ** 2 * x_j


@pytest.mark.parametrize("aggr", ["add", "mean"])
def test_messages_that_are_no_products_with_weights_are_refused(aggr):
    with pytest.raises(InputError, match="on a sample its rows are not those of the edges"):
        PyGModel([Squared(3, 4, aggr=aggr)]).fit(3, 0)
    PyGModel([Squared(3, 4, aggr="max")]).fit(3, 0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
def test_relations_of_a_sample(aggr, weighted):
    types = GraphTypes(("a", "b"), (0, SMALL, 2 * SMALL), (("a", "to", "b"), ("b", "to", "b")))
    given = TypedInput(types, (3, 3))
    torch.manual_seed(0)
    convs = {r: pyg.GraphConv(3, 4, aggr=aggr) for r in types.relations}
    model = HeteroPyGModel([pyg.HeteroConv(convs)])
    graph = SmallGraph.from_types(given, 0, torch.zeros(0))
    count = len(graph.kinds)
    copies, weight = np.arange(count) * 3 % 4, weights_tried(count) if weighted else None
    graph = SmallGraph(types, graph.ends, graph.kinds, graph.attr, weight)
    model.widths = [(3, 3), (0, 4)]
    x = torch.randn(2 * SMALL, 3)
    block = graph.block(np.arange(2 * SMALL), 2 * SMALL, copies)
    out = model.outputs(0, block, x)["b"]
    expected: Any = 0
    for r, kind in enumerate(types.relations):
        at = np.repeat(np.flatnonzero(graph.kinds == r), copies[graph.kinds == r])
        ends = torch.from_numpy(graph.ends[:, at]) - torch.tensor([[SMALL * r], [SMALL]])
        rows = x[:SMALL] if kind[0] == "a" else x[SMALL:]
        extra = [torch.from_numpy(weight[at])] if weighted else []
        expected = expected + convs[kind]((rows, x[SMALL:]), ends, *extra)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


SAMPLERS = [
    {"name": "neighbor", "fanout": [5]},
    {"name": "labor", "fanout": [5], "poisson": True},
    {"name": "ladies", "sizes": [5], "debias": "bottom_k"},
]


@pytest.mark.parametrize("weight", [None, 2.0])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s["name"])
@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_training_sees_the_mean_and_the_maximum_of_equal_weights(tmp_path, aggr, sampler, weight):
    n, seen = 21, []
    data = data_of.Data(
        x=torch.ones(n, 1), edge_index=torch.stack([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.long)]),
        y=torch.arange(n) % 2, train_mask=torch.arange(n) == 0, val_mask=torch.arange(n) > 0,
        test_mask=torch.arange(n) < 0,
    )  # fmt: skip
    if weight is not None:
        data.edge_weight = torch.full((n - 1,), weight)
    conv = pyg.GraphConv(1, 2, aggr=aggr, bias=False)
    with torch.no_grad():
        conv.lin_rel.weight.fill_(1.0)
        conv.lin_root.weight.zero_()

    def loss(out, y):
        seen.append(out.detach().clone())
        return torch.nn.functional.cross_entropy(out, y, reduction="none")

    mr.run(
        data, model=[conv], sampler=sampler, loss=loss, epochs=1, batch_size=4, metrics=["loss"], out=tmp_path / "run",
        optimizer=lambda p: torch.optim.SGD(p, lr=1e-9), read={"direction": "directed"}, verbose=False,
    )  # fmt: skip
    torch.testing.assert_close(seen[0], torch.full((1, 2), weight or 1.0))


def graph_with(weight):
    return Graph(indptr=np.arange(7), indices=np.zeros(6, np.int32), edge_weight=weight)


def test_weights_that_a_rank_does_not_have_are_refused():
    graph = graph_with(np.arange(6, dtype=np.float32))
    placed = Placement(graph, None, None, torch.zeros(graph.num_nodes), Split(*[np.arange(0)] * 3))
    with pytest.raises(InputError, match=r"reads edge weights and does not sum, .* use aggr='add'"):
        placed.weights_of(None)
    assert placed.weights_of(np.array([3, 1])).tolist() == graph.edge_weight[[3, 1]].tolist()
    assert replace(placed, graph=graph_with(None)).weights_of(None) is None


@pytest.mark.parametrize("aggr", ["mean", "max"])
@pytest.mark.parametrize("fanout", [-1, 5])
def test_evaluation_by_time_reads_the_edges_own_weights(aggr, fanout):
    conv = pyg.GraphConv(1, 2, aggr=aggr, bias=False)
    with torch.no_grad():
        conv.lin_rel.weight.fill_(1.0)
        conv.lin_root.weight.zero_()
    star = {"edge_weight": np.full(20, 2, np.float32), "edge_time": np.zeros(20, np.int64)}
    graph = Graph(np.array([0, *[20] * 21]), np.arange(1, 21, dtype=np.int32), **star).check()
    draws = Draws(TemporalSampler((fanout,)), 0)
    features = ArrayFeatures(np.ones((21, 1), np.float32))
    out = temporal_outputs(PyGModel([conv]), graph, features, draws, np.array([0]), np.array([5]))
    assert out.tolist() == [[2.0, 2.0]]
