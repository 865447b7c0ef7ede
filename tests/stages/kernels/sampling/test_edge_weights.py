"""Weights of sampled edges are those that NumPy finds by the edges' positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.edge_weights import scaled
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import from_edges
from millrace.tests.contracts.messages import graphs
from millrace.tests.oracles.sampling import backend as reference


def test_scaled_is_a_product_rounded_once():
    rng = np.random.default_rng(0)
    weight, kept = rng.random(500).astype(np.float32), rng.integers(0, 9, 60)
    positions, scale = rng.integers(0, 500, kept.sum()), rng.random(60) * 100
    want = (weight[positions] * np.repeat(scale, kept)).astype(np.float32)
    assert np.array_equal(scaled(weight, positions, kept, scale), want)
    assert np.array_equal(scaled(weight[positions], None, kept, scale), want)
    assert scaled(weight, np.empty(0, np.int64), np.zeros(3, np.int64), np.ones(3)).shape == (0,)


@settings(max_examples=25, deadline=None)
@given(
    graph=graphs(12, 60).filter(lambda g: g.num_nodes > 0),
    fanout=st.lists(st.sampled_from([-1, 1, 3, 70]), min_size=1, max_size=3).map(tuple),
    replace=st.booleans(),
    expand=st.sampled_from(["new", "all"]),
    kernel=st.sampled_from([cpu, reference]),
)
def test_uniform_draws_on_a_weighted_graph(graph, fanout, replace, expand, kernel):
    """The same whether positions are kept too or not."""
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    graph = from_edges(graph.indices, dst, graph.num_nodes, edge_weight=np.linspace(0.1, 3, graph.num_edges))
    request = BulkRequest(1, 0, 0, 0, (np.arange(graph.num_nodes), np.array([0])))
    options = {"replace": replace, "expand": expand}
    bulks = [
        NeighborSampler(fanout, edge_ids=e, **options).sample(graph, request, kernel).check() for e in (True, False)
    ]
    for with_ids, without in zip(*(bulk.minibatches for bulk in bulks)):
        for a, b in zip(with_ids.blocks, without.blocks):
            assert b.edge_id is None
            kept = np.diff(a.indptr)
            scale = graph.in_degree[a.src[: a.num_dst]] / np.maximum(kept, 1)
            want = (graph.edge_weight[a.edge_id] * np.repeat(scale, kept)).astype(np.float32)
            assert np.array_equal(a.weight, want)
            assert np.array_equal(b.weight, want)


@pytest.mark.parametrize("kernel", [cpu, reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("poisson", [False, True])
def test_labor_on_a_weighted_graph(kernel, poisson):
    rng = np.random.default_rng(2)
    src = np.concatenate([rng.permutation(60)[:20] for _ in range(30)])
    graph = from_edges(src, np.repeat(np.arange(30), 20), 60, edge_weight=rng.random(600))
    (m,) = LaborSampler((5,), poisson).sample(graph, BulkRequest(0, 0, 0, 0, (np.arange(30),)), kernel).minibatches
    b = m.blocks[0]
    rows = np.repeat(np.arange(30), np.diff(b.indptr))
    weight = np.zeros((30, 60))
    weight[np.repeat(np.arange(30), graph.in_degree[:30]), graph.indices] = graph.edge_weight
    scale = 20 / 5 if poisson else (20 / np.diff(b.indptr))[rows]
    assert np.array_equal(b.weight, (weight[rows, b.src[b.indices]].astype(np.float32) * scale).astype(np.float32))
