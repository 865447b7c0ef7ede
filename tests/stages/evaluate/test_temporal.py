"""Outputs at the moments of nodes: those of a graph without what comes later."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.evaluate.temporal import Draws, temporal_outputs
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(2)
    ends, weight = rng.integers(0, 25, (2, 150)), rng.random(150, np.float32)
    of_edges = rng.standard_normal((150, 3))
    return mr.from_edges(*ends, 25, edge_time=rng.integers(0, 6, 150), edge_weight=weight, edge_features=of_edges)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("model", [mr.GraphSAGE, mr.GCN, mr.GIN, mr.GINE])
def test_with_all_in_edges_they_are_those_of_the_graph_until_then(graph, model, weighted):
    graph = graph if weighted else replace(graph, edge_weight=None)
    more = {"edge_width": 3} if model is mr.GINE else {}
    torch.manual_seed(0)
    module = model(hidden=8, layers=2, **more).build(5, 4).double()
    features = ArrayFeatures(np.random.default_rng(0).standard_normal((25, 5)))
    nodes, moments = np.array([3, 7, 3, 11, 7, 3]), np.array([4, 2, 0, 4, -1, 4])
    found = temporal_outputs(module, graph, features, Draws(mr.TemporalSampler((-1, -1)), 0), nodes, moments)
    destination = np.repeat(np.arange(25), graph.in_degree)
    for v, t, row in zip(nodes, moments, found):
        keep = np.flatnonzero(graph.edge_time <= t)
        before = mr.from_edges(
            graph.indices[keep], destination[keep], 25, edge_features=graph.edge_features.gather(keep),
            edge_weight=graph.edge_weight[keep] if weighted else None,
        )  # fmt: skip
        torch.testing.assert_close(row[None], mr.infer(module, before, features, nodes=[v]), rtol=1e-6, atol=1e-7)


def test_draws_are_the_same_in_every_call_and_no_nodes_give_no_rows(graph):
    module, sampler = mr.GraphSAGE(hidden=8, layers=1).build(5, 4), mr.TemporalSampler((2, 2), "last")
    features = ArrayFeatures(np.ones((25, 5), np.float32))
    told, nodes = [], np.arange(25)
    rows = [
        temporal_outputs(module, graph, features, Draws(sampler, 1, lambda *a: told.append(a)), nodes, nodes % 6)
        for _ in range(2)
    ]
    assert torch.equal(*rows) and told == [(25, 25)] * 2 and rows[0].shape == (25, 4)
    none = np.empty(0, np.int64)
    assert len(temporal_outputs(module, graph, features, Draws(sampler, 1), none, none)) == 0


def test_a_module_that_gives_no_rows_is_refused(graph):
    class Own(torch.nn.Module):
        num_layers = 1

        def layer(self, i, neighbourhood, h):
            return h.sum(1)

    features = ArrayFeatures(np.ones((25, 5), np.float32))
    with pytest.raises(InputError, match=r"Own returned \[.*\]; expected a row for each of 2"):
        temporal_outputs(Own(), graph, features, Draws(mr.TemporalSampler((2,)), 0), np.array([1, 2]), np.array([1, 1]))
