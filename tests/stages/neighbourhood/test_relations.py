"""Relations of a block, against dense matrices in float64, with gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.neighbourhood.block import BlockNeighbourhood, types_of_edges
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError
from millrace.storage.typed.graph_types import SINGLE
from millrace.tests.contracts.typed import typed_dataset, typed_graphs
from millrace.tests.contracts.whole_graph import whole_graph
from millrace.tests.oracles.sampling import backend as reference


def matrix(graph, block, relation, coefficient):
    """[num_dst of the relation, num_src] dense, with a column for each row of `h`."""
    r = graph.types.relations.index(relation.type)
    dense = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
    rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    for e in np.flatnonzero(graph.edge_type[block.edge_id] == r):
        dense[rows[e], block.indices[e]] += coefficient[e]
    return dense[relation.targets]


def check(graph, block, coefficient):
    degree = torch.from_numpy(graph.degree[block.src])
    neighbourhood = BlockNeighbourhood(block, degree, edge_types=types_of_edges(graph, block.edge_id))
    torch.manual_seed(0)
    h = torch.randn(block.num_src, 3, dtype=torch.float64, requires_grad=True)
    types = graph.types.types_of(block.src)
    for t, rows in enumerate(neighbourhood.node_types()):
        assert rows.name == graph.types.node_types[t]
        assert rows.sources.tolist() == np.flatnonzero(types == t).tolist()
        assert rows.targets.tolist() == np.flatnonzero(types[: block.num_dst] == t).tolist()
    relations = neighbourhood.relations()
    assert [r.type for r in relations] == list(graph.types.relations)
    assert sum(r.num_edges for r in relations) == block.num_edges
    for relation in relations:
        dense = matrix(graph, block, relation, coefficient)
        total = dense.sum(1, keepdim=True)
        present = matrix(graph, block, relation, np.ones(block.num_edges)) > 0
        most = torch.where(present[:, :, None], h, -torch.inf).amax(1) if len(h) else h[:0]
        wanted = {
            "sum": dense @ h,
            "mean": dense @ h / torch.where(total > 0, total, 1),
            "max": torch.where(present.any(1, keepdim=True), most, 0.0),
        }
        for name, expected in wanted.items():
            ways = [
                getattr(relation, name)(h),
                getattr(relation.compact, name)(h[relation.sources]),
                relation.apply(lambda source, own, weight: source + 0 * own, h, h[relation.targets], (), name),
            ]
            (slope,) = torch.autograd.grad(expected.square().sum(), h, retain_graph=True)
            for found in ways:
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
                if name != "max":
                    (own,) = torch.autograd.grad(found.square().sum(), h, retain_graph=True)
                    torch.testing.assert_close(own, slope, rtol=1e-10, atol=1e-10)


def block_of(graph, sampler, seed=0, kernel=cpu):
    plan = SeedPlan(np.arange(graph.num_nodes), 5, 1, seed)
    return sampler.sample(graph, plan.request(0, 0), kernel).minibatches[0].blocks[0]


@settings(max_examples=25, deadline=None)
@given(typed_graphs())
def test_relations_of_a_sample_are_those_of_a_dense_matrix(graph):
    block = block_of(graph, NeighborSampler((2, 2)))
    check(graph, block, block.weight.astype(np.float64))


@settings(max_examples=15, deadline=None)
@given(typed_graphs(), st.sampled_from([(2,), (-1,)]))
def test_an_edge_that_was_kept_stands_for_those_of_its_relation_by_its_weight(graph, fanout):
    weight = np.random.default_rng(0).random(graph.num_edges).astype(np.float32)
    weighted = replace(graph, edge_weight=weight)
    for kernel in (cpu, reference):
        plain, block = (block_of(g, NeighborSampler(fanout), kernel=kernel) for g in (graph, weighted))
        np.testing.assert_array_equal(block.edge_id, plain.edge_id)
        np.testing.assert_array_equal(block.weight, plain.weight * weight[block.edge_id])
        check(weighted, block, block.weight.astype(np.float64))
    if fanout == (-1,):
        np.testing.assert_array_equal(block.weight, weight[block.edge_id])


def test_a_sampler_over_all_edges_weighs_relations_by_the_whole_row():
    graph = typed_dataset(degree=150).graph
    block = block_of(replace(graph, types=SINGLE, edge_type=None), NeighborSampler((3,), edge_ids=True))
    assert block.weight is None
    kept = np.diff(block.indptr)
    check(graph, block, np.repeat(graph.in_degree[block.src[: block.num_dst]] / np.maximum(kept, 1), kept))


def test_sums_of_relations_are_estimated_without_bias():
    graph = typed_dataset(degree=200).graph
    x = torch.arange(36, dtype=torch.float64)[:, None]
    exact = [r.sum(x) for r in whole_graph(graph, torch.float64).relations()]
    draws = [[] for _ in exact]
    for epoch in range(300):
        plan = SeedPlan(np.arange(36), 36, 1, 1, shuffle=False)
        block = NeighborSampler((2,)).sample(graph, plan.request(epoch, 0), cpu).minibatches[0].blocks[0]
        own = BlockNeighbourhood(block, torch.ones(36), edge_types=types_of_edges(graph, block.edge_id))
        for found, r in zip(draws, own.relations()):
            found.append(r.sum(x[torch.from_numpy(block.src.astype(np.int64))]))
    for found, expected in zip(draws, exact):
        mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / 300**0.5
        assert ((mean - expected).abs() <= 5 * error + 1e-9).all()


def test_attention_is_a_softmax_within_the_relation():
    graph = typed_dataset().graph
    neighbourhood = whole_graph(graph, torch.float64)
    torch.manual_seed(1)
    z = torch.randn(36, 2, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    for relation in neighbourhood.relations():
        logit = torch.randn(relation.num_dst, 2, dtype=torch.float64, requires_grad=True)
        src, dst = relation.ends(z.device)
        rows = []
        for v in range(relation.num_dst):
            mine = src[dst == v]
            share = F.leaky_relu((z[mine] * a).sum(-1) + logit[v], 0.2).softmax(0)
            rows.append((share[:, :, None] * z[mine]).sum(0))
        expected = torch.stack(rows)
        found = relation.attend(z, a, logit)
        compact = relation.compact.attend(z[relation.sources], a, logit)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(compact, expected, rtol=1e-12, atol=1e-12)
        for one, other in zip(*(torch.autograd.grad(x.square().sum(), (z, a, logit)) for x in (found, expected))):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
        assert relation.attend(z, a, logit, dropout=0.5).shape == expected.shape


def test_a_graph_with_one_type_and_edges_without_positions_are_refused():
    graph = typed_dataset().graph
    with pytest.raises(InputError, match="the graph has one type of nodes and edges"):
        whole_graph(replace(graph, types=SINGLE, edge_type=None)).relations()
    with pytest.raises(InputError, match="set edge_ids = true"):
        types_of_edges(graph, None)
    relation = whole_graph(graph).relations()[0]
    assert repr(relation) == "Relation(author,writes,paper: 60 edges into 20 rows)"
    with pytest.raises(InputError, match="h has shape"):
        relation.mean(torch.zeros(3, 1))
