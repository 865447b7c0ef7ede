"""Samples without their pairs' own edges: exact over multi-edges and loops, and with the law of the other edges."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import millrace as mr
from millrace.stages.kernels import sampling_backend
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.links.plan import LinkPlan, LinkRequest
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.storage.errors import InputError
from millrace.storage.links.pairs import of_pairs
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.typed import typed_graphs

SAMPLERS = [
    mr.NeighborSampler((2, 2), edge_ids=True),
    mr.NeighborSampler((3, -1), expand="all", edge_ids=True),
    mr.NeighborSampler((3, 3), replace=True),
    mr.LaborSampler((2, 2)),
    mr.LadiesSampler((4, 4)),
    mr.FastGCNSampler((6, 6)),
]


def edges_of(block):
    dst = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    return list(zip(block.src[block.indices].tolist(), block.src[dst].tolist()))


@settings(max_examples=25)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: f"{s.name}-{s.record()}"[:40])
@given(graph=graphs(), seed=st.integers(0, 5))
def test_a_sample_lacks_its_own_edges_and_no_others(sampler, graph, seed):
    n = graph.num_nodes
    if not graph.num_edges:
        return
    dst = np.repeat(np.arange(n), graph.in_degree)
    labels = np.stack([graph.indices.astype(np.int64), dst, np.zeros_like(dst)], axis=1)
    plan = LinkPlan(np.arange(len(labels)), 4, 3, seed, links=TrainPairs.of(graph, labels, Negatives()))
    kernel = sampling_backend("cpu")
    for number in range(plan.num_bulks):
        request = plan.request(1, number)
        without = WithoutOwnEdges(sampler).sample(graph, request, kernel).check()
        drawn = sampler.sample(graph, request, kernel)
        for m, all_of, positives in zip(without.minibatches, drawn.minibatches, request.positives):
            own = {p for u, v in positives.tolist() for p in ((u, v), (v, u))}
            assert np.array_equal(m.nodes, all_of.nodes) and np.array_equal(m.seeds, all_of.seeds)
            for block, before in zip(m.blocks, all_of.blocks):
                assert edges_of(block) == [e for e in edges_of(before) if e not in own]
                for name in ("weight", "edge_id"):
                    left, whole = getattr(block, name), getattr(before, name)
                    assert (left is None) == (whole is None)
                    if left is not None:
                        kept = [x for x, e in zip(whole.tolist(), edges_of(before)) if e not in own]
                        assert left.tolist() == kept
                if block.edge_id is not None:
                    assert np.array_equal(graph.indices[block.edge_id], block.src[block.indices])


@settings(max_examples=15)
@pytest.mark.parametrize(
    "sampler",
    [
        mr.NeighborSampler((2, -1), edge_ids=True),
        mr.NeighborSampler((3, 3), expand="all", edge_ids=True),
        mr.LaborSampler((2, 2), edge_ids=True),
        mr.LadiesSampler((4, 4), edge_ids=True),
    ],
    ids=lambda s: f"{s.name}-{s.record()}"[:40],
)
@given(graph=typed_graphs(linked=True), seed=st.integers(0, 5))
def test_with_types_only_edges_of_the_pairs_and_their_reverses_are_left_out(sampler, graph, seed):
    at = of_pairs(graph)
    if not len(at):
        return
    ends = np.stack([graph.indices, np.repeat(np.arange(graph.num_nodes), graph.in_degree)], 1).astype(np.int64)
    labels = np.insert(ends[at], 2, 0, axis=1)
    plan = LinkPlan(np.arange(len(labels)), 3, 3, seed, links=TrainPairs.of(graph, labels, Negatives()))
    kernel = sampling_backend("cpu")
    for number in range(plan.num_bulks):
        request = plan.request(1, number)
        without = WithoutOwnEdges(sampler).sample(graph, request, kernel).check()
        drawn = sampler.sample(graph, request, kernel)
        for m, all_of, positives in zip(without.minibatches, drawn.minibatches, request.positives):
            own = {p for u, v in positives.tolist() for p in ((u, v), (v, u))}
            for block, before in zip(m.blocks, all_of.blocks):
                others = ~np.isin(graph.edge_type[before.edge_id], graph.types.pair_relations)
                kept = [e not in own or other for e, other in zip(edges_of(before), others)]
                assert block.edge_id.tolist() == before.edge_id[kept].tolist()
                assert [tuple(e) for e in ends[block.edge_id].tolist()] == edges_of(block)


def test_the_others_have_the_law_of_a_uniform_sample():
    """Five in-neighbours of node 0, fanout 3; the edge of pair (1, 0) is left out. Given how many of the others were
    kept, each set of them is as likely."""
    graph = mr.from_edges([1, 2, 3, 4, 5], [0] * 5, 6)
    times = 4000
    request = LinkRequest(
        7, 0, 0, 0, tuple(np.array([0, 1]) for _ in range(times)), positives=(np.array([[1, 0]]),) * times
    )
    sampler = WithoutOwnEdges(mr.NeighborSampler((3,)))
    seen = Counter(
        tuple(sorted(int(u) for u, _ in edges_of(m.blocks[0])))
        for m in sampler.sample(graph, request, sampling_backend("cpu")).minibatches
    )
    sets = [*combinations((2, 3, 4, 5), 2), *combinations((2, 3, 4, 5), 3)]
    assert set(seen) == set(sets)
    # 10 equal samples of 3 of 5; six of them hold node 1, and each set of two of the others is one of these.
    assert chisquare([seen[s] for s in sets], [times / 10] * 10).pvalue > 1e-3


def test_sums_stay_without_bias_with_weights():
    """The mean of the weighted sums over samples is the sum over the edges that are left."""
    rng = np.random.default_rng(1)
    graph = mr.from_edges([1, 2, 3, 4, 5], [0] * 5, 6, edge_weight=rng.random(5) + 0.5)
    times = 3000
    request = LinkRequest(
        3, 0, 0, 0, tuple(np.array([0, 1]) for _ in range(times)), positives=(np.array([[1, 0]]),) * times
    )
    for sampler in (mr.NeighborSampler((3,)), mr.LaborSampler((3,))):
        found = WithoutOwnEdges(sampler).sample(graph, request, sampling_backend("cpu")).minibatches
        sums = np.array([m.blocks[0].weight.sum() for m in found])
        wanted = float(graph.edge_weight[1:].sum())
        assert abs(sums.mean() - wanted) < 4 * sums.std() / np.sqrt(times)


def test_what_it_passes_on():
    sampler = mr.NeighborSampler((3, 2))
    without = WithoutOwnEdges(sampler)
    assert (without.num_layers, without.host_only, without.edge_ids) == (2, False, False)
    assert without.record() == {**sampler.record(), "without": "own edges"}
    with pytest.raises(InputError, match="taken out of samples on the host"):
        without.sample_on_device(None, None)
