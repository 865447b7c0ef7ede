"""Node-wise sampling: its invariants, its law, and that nothing but (seed, epoch, minibatch, hop, node) decides it."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from millrace.stages.kernels import sample_cpu, sample_reference, threads
from millrace.stages.sample.base import BulkRequest, SeedPlan
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError, RunError
from millrace.storage.fingerprint import minibatch_digest
from millrace.storage.graph import Graph, from_edges

KERNELS = [pytest.param(sample_cpu, id="cpu"), pytest.param(sample_reference, id="reference")]


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Empty rows, isolated nodes, self loops, multi-edges, hubs, one node, no edges."""
    n = draw(st.integers(1, 40))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150))
    hub = draw(st.integers(0, 60))
    src = [u for u, _ in edges] + [i % n for i in range(hub)]
    dst = [v for _, v in edges] + [0] * hub
    weight = np.linspace(0.5, 2.0, len(src)) if draw(st.booleans()) else None
    return from_edges(np.array(src, np.int64), np.array(dst, np.int64), n, edge_weight=weight)


fanouts = st.lists(st.sampled_from([-1, 1, 2, 3, 7, 40, 100]), min_size=1, max_size=3).map(tuple)


def digests(graph, plan, sampler, kernel, epoch=0):
    return [
        minibatch_digest(m)
        for n in range(plan.num_bulks)
        for m in sampler.sample(graph, plan.request(epoch, n), kernel).check().minibatches
    ]


@settings(max_examples=80, deadline=None)
@given(graphs(), fanouts, st.integers(1, 9), st.integers(0, 2**40))
def test_same_minibatches_for_any_kernel_threads_and_bulk_size(graph, fanout, batch_size, seed):
    sampler = NeighborSampler(fanout)
    seeds = np.arange(graph.num_nodes, dtype=np.int64)
    seen = []
    for kernel, count, k in (
        (sample_cpu, 1, 1),
        (sample_cpu, 1, 8),
        (sample_cpu, 2, 8),
        (sample_cpu, 3, 4),
        (sample_reference, 1, 1),
        (sample_reference, 1, 8),
    ):
        threads.set_num_threads(count)
        seen.append(digests(graph, SeedPlan(seeds, batch_size, k, seed), sampler, kernel, epoch=3))
    assert all(s == seen[0] for s in seen)


@settings(max_examples=80, deadline=None)
@given(graphs(), fanouts, st.integers(0, 2**32))
def test_every_row_holds_distinct_true_edges_in_the_right_number(graph, fanout, seed):
    seeds = np.arange(0, graph.num_nodes, 2, dtype=np.int64)
    request = BulkRequest(seed, 0, 0, 0, (seeds,))
    sample = sample_cpu.neighbor(graph, request.seeds, request.keys(len(fanout)), fanout, keep_positions=True)[0]
    assert np.array_equal(sample.nodes[: len(seeds)], seeds)
    for h, s in enumerate(fanout):
        begin = 0 if h == 0 else sample.node_ends[h - 1]
        new = sample.nodes[sample.node_ends[h] : sample.node_ends[h + 1]]
        assert (np.diff(new) > 0).all()
        for row in range(begin, sample.node_ends[h]):
            v = sample.nodes[row]
            at = sample.positions[sample.indptr[row] : sample.indptr[row + 1]]
            degree = graph.in_degree[v]
            assert len(at) == (degree if s < 0 else min(degree, s))
            assert len(set(at.tolist())) == len(at)
            assert ((at >= graph.indptr[v]) & (at < graph.indptr[v + 1])).all()
            assert np.array_equal(sample.nodes[sample.indices[sample.indptr[row] : sample.indptr[row + 1]]], graph.indices[at])


def stars(copies: int) -> tuple[Graph, np.ndarray]:
    """`copies` nodes of each in-degree 1..12, with sources of their own; and the degree of each of those nodes."""
    degree = np.repeat(np.arange(1, 13), copies)
    dst = np.repeat(np.arange(len(degree)), degree)
    src = len(degree) + np.arange(len(dst))
    return from_edges(src, dst, len(degree) + len(dst)), degree


def picked_offsets(graph: Graph, degree: np.ndarray, kernel, seed: int, s: int) -> list[np.ndarray]:
    """For each degree 1..12, bool [copies, degree]: which in-edges were taken."""
    seeds = np.arange(len(degree), dtype=np.int64)
    request = BulkRequest(seed, 0, 0, 0, (seeds,))
    sample = kernel.neighbor(graph, request.seeds, request.keys(1), (s,), keep_positions=True)[0]
    row = np.repeat(np.arange(len(degree)), np.diff(sample.indptr))
    offset = sample.positions - graph.indptr[row]
    taken = np.zeros((len(degree), 12), bool)
    taken[row, offset] = True
    return [taken[degree == d, :d] for d in range(1, 13)]


@pytest.mark.parametrize(
    ("kernel", "copies"), [pytest.param(sample_cpu, 12000, id="cpu"), pytest.param(sample_reference, 250, id="reference")]
)
def test_inclusion_follows_exact_enumeration(kernel, copies):
    graph, degree = stars(copies)
    worst = 1.0
    for seed in range(10):
        for s in range(1, 7):
            for taken in picked_offsets(graph, degree, kernel, seed, s):
                d = taken.shape[1]
                kept = min(s, d)
                assert (taken.sum(axis=1) == kept).all()
                if kept == d:
                    continue
                # Exact law: each of the C(d, s) sets alike, so each in-edge with probability s/d; counts of a fixed-size draw
                # are negatively correlated, which the factor (d-1)/(d-s) makes up for.
                sets = list(combinations(range(d), kept))
                probability = sum(0 in c for c in sets) / len(sets)
                expected = len(taken) * probability
                statistic = ((taken.sum(axis=0) - expected) ** 2 / expected).sum() * (d - 1) / (d - kept)
                worst = min(worst, chi2.sf(statistic, d - 1))
    assert worst >= 1e-4


def test_sets_follow_exact_enumeration():
    """Beyond inclusion: every set of in-edges is equally likely."""
    graph, degree = stars(12000)
    worst = 1.0
    for s in (2, 3):
        for taken in picked_offsets(graph, degree, sample_cpu, 11, s):
            d = taken.shape[1]
            if d <= s:
                continue
            code = taken @ (1 << np.arange(d))
            _, counts = np.unique(code, return_counts=True)
            cells = comb(d, s)
            expected = len(taken) / cells
            statistic = ((counts - expected) ** 2 / expected).sum() + (cells - len(counts)) * expected
            worst = min(worst, chi2.sf(statistic, cells - 1))
    assert worst >= 1e-4


def test_nodes_and_hops_and_minibatches_draw_independently():
    """The same node in another minibatch, hop or epoch gets another sample."""
    graph = from_edges(np.arange(1000), np.zeros(1000, np.int64), 1001)
    sampler = NeighborSampler((10,))
    seeds = np.array([0])

    def picks(epoch, index):
        bulk = sampler.sample(graph, BulkRequest(1, epoch, 0, index, (seeds,)), sample_cpu)
        return tuple(np.sort(bulk.minibatches[0].nodes))

    assert len({picks(e, i) for e in range(5) for i in range(5)}) == 25


def test_weighted_graph_carries_unbiased_weights():
    rng = np.random.default_rng(0)
    graph = from_edges(np.arange(1, 41), np.zeros(40, np.int64), 41, edge_weight=rng.random(40))
    values = rng.random(41)
    truth = (graph.edge_weight * values[graph.indices]).sum()
    estimates = []
    for index in range(3000):
        bulk = NeighborSampler((5,)).sample(graph, BulkRequest(0, 0, 0, index, (np.array([0]),)), sample_cpu)
        block = bulk.minibatches[0].blocks[0]
        estimates.append((block.weight * values[block.src[block.indices]]).sum())
    assert abs(np.mean(estimates) - truth) < 4 * np.std(estimates) / np.sqrt(len(estimates))


def test_an_epoch_is_a_partition_of_the_seeds():
    seeds = np.array([3, 5, 8, 13, 21, 34, 55], np.int64)
    plan = SeedPlan(seeds, 2, 3, seed=4)
    assert (plan.num_minibatches, plan.num_bulks) == (4, 2)
    for epoch in range(3):
        requests = [plan.request(epoch, n) for n in range(plan.num_bulks)]
        parts = [s for r in requests for s in r.seeds]
        assert [len(p) for p in parts] == [2, 2, 2, 1]
        assert [r.first_index for r in requests] == [0, 3]
        assert sorted(np.concatenate(parts).tolist()) == seeds.tolist()
    assert plan.order(0).tolist() != plan.order(1).tolist()
    assert SeedPlan(seeds, 2, 3, 4, shuffle=False).order(1).tolist() == seeds.tolist()


@pytest.mark.parametrize("fanout", [(), (0,), (3, -2), (2.5,), (True,), (1 << 17,)])
def test_bad_fanout(fanout):
    with pytest.raises(InputError, match="fanout"):
        NeighborSampler(fanout)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-3, 1)])
def test_bad_plan_sizes(sizes):
    with pytest.raises(InputError, match="expected 1 or more"):
        SeedPlan(np.arange(3), sizes[0], sizes[1], 0)


def test_a_minibatch_that_cannot_be_indexed_is_refused():
    graph = from_edges(np.arange(3), np.zeros(3, np.int64), 4)
    request = BulkRequest(0, 0, 0, 0, (np.arange(4),))
    with pytest.raises(RunError, match="smaller batch_size or fanout"):
        sample_cpu.neighbor(graph, request.seeds, request.keys(1), (1 << 30,))


@pytest.mark.parametrize("kernel", KERNELS)
def test_64_bit_ids(kernel):
    graph = from_edges(np.arange(50), np.arange(50)[::-1].copy(), 50)
    wide = Graph(graph.indptr, graph.indices.astype(np.int64))
    plan = SeedPlan(np.arange(50), 10, 2, 0)
    sampler = NeighborSampler((2, 2))
    assert digests(graph, plan, sampler, kernel) == digests(wide, plan, sampler, kernel)


def test_workspace_is_reused_without_traces():
    rng = np.random.default_rng(1)
    graph = from_edges(rng.integers(0, 300, 3000), rng.integers(0, 300, 3000), 300)
    space = sample_cpu.Workspace()
    plan = SeedPlan(np.arange(300), 40, 3, 5)
    for fanout in ((3,), (9, 4), (-1, 2), (2,)):
        sampler = NeighborSampler(fanout)
        for n in range(plan.num_bulks):
            fresh = sampler.sample(graph, plan.request(0, n), sample_cpu)
            reused = sampler.sample(graph, plan.request(0, n), sample_cpu, space)
            assert [minibatch_digest(m) for m in fresh.minibatches] == [minibatch_digest(m) for m in reused.minibatches]
    assert space.nbytes > 0
