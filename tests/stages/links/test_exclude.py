"""Samples without their pairs' own edges: exact over multi-edges and loops, and with the law of the other edges."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, product

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
from millrace.storage.links.pairs import Pairs, of_pairs
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
    plan = LinkPlan(
        np.arange(len(labels)), 4, 3, seed, links=TrainPairs.from_graph(graph, Pairs(labels, {}), Negatives())
    )
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
    plan = LinkPlan(
        np.arange(len(labels)), 3, 3, seed, links=TrainPairs.from_graph(graph, Pairs(labels, {}), Negatives())
    )
    kernel = sampling_backend("cpu")
    for number in range(plan.num_bulks):
        request = plan.request(1, number)
        without = WithoutOwnEdges(sampler).sample(graph, request, kernel).check()
        drawn = sampler.sample(graph, request, kernel)
        for m, all_of, positives in zip(without.minibatches, drawn.minibatches, request.positives):
            own = {p for u, v in positives.tolist() for p in ((u, v), (v, u))}
            for block, before in zip(m.blocks, all_of.blocks):
                others = ~np.isin(graph.edge_type[before.edge_id], graph.types.own_relations)
                kept = [e not in own or other for e, other in zip(edges_of(before), others)]
                assert block.edge_id.tolist() == before.edge_id[kept].tolist()
                assert [tuple(e) for e in ends[block.edge_id].tolist()] == edges_of(block)


def of_several(graph, symmetric, reverses):
    """A graph that predicts several of its relations, and all their edges as pairs; None if it has one relation."""
    types = graph.types
    predicted = list(range(types.num_relations - 1))
    if len(predicted) < 2:
        return graph, None
    groups = [(r,) for r in predicted]
    same = [r for r in predicted if types.ends[r, 0] == types.ends[r, 1]]
    if symmetric and same:
        groups[same[0]] += (same[0],)
    if reverses:
        groups[0] = (0, types.num_relations - 1, *groups[0][1:])
    graph = replace(graph, types=replace(types, pair_relations=tuple(groups)))
    dst, own = np.repeat(np.arange(graph.num_nodes), graph.in_degree), np.isin(graph.edge_type, predicted)
    rows = np.stack([graph.indices, dst, np.zeros(len(dst), np.int64), graph.edge_type], 1).astype(np.int64)[own]
    undirected = np.isin(rows[:, 3], [group[0] for group in groups if group[0] in group[1:]])
    rows[undirected, :2] = np.sort(rows[undirected, :2], axis=1)
    table = np.unique(rows, axis=0)
    if not len(table):
        return graph, None
    return graph, TrainPairs.from_graph(graph, Pairs(table, {"train": np.arange(len(table))}), Negatives())


@settings(max_examples=25)
@pytest.mark.parametrize(
    "sampler",
    [mr.NeighborSampler((2, -1), edge_ids=True), mr.NeighborSampler((3, 3), expand="all", edge_ids=True)],
    ids=["nested", "all"],
)
@given(graph=typed_graphs(linked=True), symmetric=st.booleans(), reverses=st.booleans(), seed=st.integers(0, 5))
def test_with_several_relations_only_edges_of_the_pairs_own_are_left_out(sampler, graph, symmetric, reverses, seed):
    graph, links = of_several(graph, symmetric, reverses)
    if links is None:
        return
    plan = LinkPlan(np.arange(len(links.pairs)), 3, 3, seed, links=links)
    groups = {group[0]: group for group in graph.types.pair_relations}
    for number in range(plan.num_bulks):
        request = plan.request(1, number)
        without = WithoutOwnEdges(sampler).sample(graph, request, sampling_backend("cpu")).check()
        drawn = sampler.sample(graph, request, sampling_backend("cpu"))
        work = zip(without.minibatches, drawn.minibatches, request.positives, request.relations, strict=True)
        for m, all_of, positives, relation in work:
            own = set()
            for (u, v), r in zip(positives.tolist(), relation.tolist()):
                own |= {(u, v, r)} | {(v, u, q) for q in groups[r][1:]}
                if r in groups[r][1:]:  # a pair of a symmetric relation stands for both directions
                    own |= {(u, v, q) for q in groups[r][1:]}
            for block, before in zip(m.blocks, all_of.blocks):
                kinds = graph.edge_type[before.edge_id].tolist()
                kept = [(*e, kind) not in own for e, kind in zip(edges_of(before), kinds)]
                assert block.edge_id.tolist() == before.edge_id[kept].tolist()
            # What is lost by degrees is what a sample of all edges loses.
            numbers = plan.numbers(m.index, 1)
            dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
            every = zip(graph.indices.tolist(), dst.tolist(), graph.edge_type.tolist())
            gone = [v for u, v, kind in every if (u, v, kind) in own]
            lost = links.lost_degree(numbers, m.seeds)
            assert lost.tolist() == [gone.count(v) for v in m.seeds.tolist()]


IN_EDGES = {0: (1, 1, 2, 3), 1: (0, 4, 5), 2: (3, 4, 5)}
"""Sources of the in-edges of some nodes. Of the pair (1, 0) two edges and one reverse are to go."""


def law_of_two_layers(fanout):
    """Probability of each sample of the pair (1, 0), by enumeration: its edges, and those of them that end in seeds."""
    law = Counter()

    def rows(nodes):
        """Every choice of in-edges of these nodes, each as likely."""
        return [*product(*(combinations(IN_EDGES.get(v, ()), min(fanout, len(IN_EDGES.get(v, ())))) for v in nodes))]

    for first in rows((0, 1)):
        found = sorted({u for row in first for u in row} - {0, 1})
        for second in rows(found):
            drawn = [(u, v) for v, row in zip((0, 1, *found), first + second) for u in row]
            edges = [e for e in drawn if e not in ((1, 0), (0, 1))]
            of_seeds = [e for e in edges if e[1] in (0, 1)]
            law[tuple(sorted(edges)), tuple(sorted(of_seeds))] += 1 / len(rows((0, 1))) / len(rows(found))
    return law


@pytest.mark.parametrize("fanout", [1, 2])
def test_samples_of_a_pair_have_their_law_by_enumeration(fanout):
    graph = mr.from_edges(*np.array([(u, v) for v, row in IN_EDGES.items() for u in row]).T, 6)
    times, law = 5000, law_of_two_layers(fanout)
    request = LinkRequest(7, 0, 0, 0, (np.array([0, 1]),) * times, positives=(np.array([[1, 0]]),) * times)
    sampler = WithoutOwnEdges(mr.NeighborSampler((fanout, fanout), edge_ids=True))
    found = sampler.sample(graph, request, sampling_backend("cpu")).minibatches
    seen = Counter(tuple(tuple(sorted(map(tuple, edges_of(b)))) for b in m.blocks) for m in found)
    assert set(seen) == set(law) and abs(sum(law.values()) - 1) < 1e-12
    assert chisquare([seen[s] for s in law], [times * p for p in law.values()]).pvalue > 1e-3


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
    assert (without.name, without.iterations, without.draws_by_owners_on_device) == ("neighbor", 0, True)
    without = WithoutOwnEdges(mr.LaborSampler((3, 2), poisson=True, iterations=1))
    assert (without.name, without.iterations, without.host_only) == ("labor", 1, True)
    assert not without.draws_by_owners_on_device
