"""Models tried on a small graph: the rows it gives are those of a dense mean, and nothing of the model changes."""

import numpy as np
import pytest
import torch
from torch import nn

from millrace.stages.models import GAT, GCN
from millrace.stages.models.relational import TypedInput
from millrace.stages.models.small_graph import SMALL, SmallGraph, reads_weights, rows_of_small_graph
from millrace.storage.typed.graph_types import GraphTypes

TYPES = TypedInput(
    GraphTypes(("user", "film"), (0, 10, 30), (("user", "rates", "film"), ("film", "rev", "user"))), (3, 5)
)


class Own(nn.Module):
    num_layers = 1

    def __init__(self, width=5):
        super().__init__()
        self.linear, self.norm, self.calls = nn.Linear(width, 7), nn.BatchNorm1d(7), 0

    def layer(self, i, neighbourhood, h):
        self.calls += 1
        return self.norm(self.linear(neighbourhood.mean(h))) + torch.rand(())


@pytest.mark.parametrize("given", [None, TYPES])
def test_a_block_has_the_means_of_all_in_edges(given):
    graph = SmallGraph.from_types(given, 2, torch.zeros(0, dtype=torch.float64))
    h = torch.randn(graph.num_nodes, 3, dtype=torch.float64)
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(dense, (graph.ends[1], graph.ends[0]), 1)
    mean = torch.from_numpy(dense / np.maximum(dense.sum(1, keepdims=True), 1)) @ h
    names = np.random.default_rng(0).permutation(graph.num_nodes)
    half = graph.block(names, SMALL // 2)
    assert torch.allclose(half.mean(h[names]), mean[names[: SMALL // 2]])
    assert torch.equal(half.degree, torch.from_numpy(dense.sum(1)[names]))
    if given is not None:
        starts = SMALL * given.types.ends[graph.kinds].T
        assert ((starts <= graph.ends) & (graph.ends < starts + SMALL)).all()
        whole = graph.block(np.arange(graph.num_nodes), graph.num_nodes)
        sums = sum(torch.zeros_like(h).index_add(0, r.targets, r.sum(h)) for r in whole.relations())
        assert torch.allclose(sums, torch.from_numpy(dense) @ h)


@pytest.mark.parametrize("given", [None, TYPES])
def test_the_model_and_the_random_numbers_stay_as_they_are(given):
    model, state = Own(), torch.get_rng_state()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = rows_of_small_graph(model, 5, 0, given)
    assert found is not None and found[1].shape == (SMALL if given is None else 2 * SMALL, 7)
    assert torch.equal(torch.get_rng_state(), state) and model.calls == 0 and model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not found[0].training


def test_a_model_that_fails_there_gives_nothing():
    assert rows_of_small_graph(Own(99), 5, 0, None) is None
    assert rows_of_small_graph(nn.Identity(), 5, 0, None) is None


def test_who_reads_weights():
    built = [part.build(5, 3) for part in (GCN(layers=1), GAT(layers=1))]
    assert [reads_weights(model, (5, 0, None)) for model in built] == [True, False]
    assert reads_weights(Own(99), (5, 0, None)), "of one that cannot be tried, weights are not said to be idle"
