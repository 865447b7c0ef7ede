"""Node-wise sampling: its invariants, its law, and that nothing but (seed, epoch, minibatch, hop, node) decides it."""

import json
from dataclasses import replace
from inspect import signature
from itertools import combinations, permutations
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from millrace.stages.assignment import BulkRequest, SeedPlan
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.draws import NeighborDraws
from millrace.stages.sample import SAMPLERS
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.store.manifest import require_fingerprint
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.graphs import copied
from millrace.tests.oracles.sampling import backend as reference

KERNELS = [pytest.param(cpu, id="cpu"), pytest.param(reference, id="reference")]


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
    weight = np.linspace(0.5, 2.0, len(src)) * (np.arange(len(src)) % 4 > 0) if draw(st.booleans()) else None
    return from_edges(np.array(src, np.int64), np.array(dst, np.int64), n, edge_weight=weight)


fanouts = st.lists(st.sampled_from([-1, 1, 2, 3, 7, 40, 100]), min_size=1, max_size=3).map(tuple) | st.just((0,))


def samplers(fanout, graph):
    """Every node-wise sampler that fits the graph."""
    return st.builds(
        NeighborSampler,
        st.just(fanout),
        replace=st.booleans(),
        weighted=st.just(False) if graph.edge_weight is None else st.booleans(),
        expand=st.sampled_from(["new", "all"]),
        edge_ids=st.booleans(),
    )


def digests(graph, plan, sampler, kernel, epoch=0):
    return [
        minibatch_digest(m)
        for n in range(plan.num_bulks)
        for m in sampler.sample(graph, plan.request(epoch, n), kernel).check().minibatches
    ]


@settings(max_examples=50, deadline=None)
@given(graphs(), fanouts, st.integers(1, 9), st.integers(0, 2**40), st.data())
def test_same_minibatches_for_any_kernel_threads_and_bulk_size(graph, fanout, batch_size, seed, data):
    sampler = data.draw(samplers(fanout, graph))
    seeds = np.arange(graph.num_nodes, dtype=np.int64)
    seen = []
    for kernel, count, k in ((cpu, 1, 1), (cpu, 2, 8), (cpu, 3, 4), (reference, 1, 8)):
        threads.set_num_threads(count)
        seen.append(digests(graph, SeedPlan(seeds, batch_size, k, seed), sampler, kernel, epoch=3))
    assert all(s == seen[0] for s in seen)


@settings(max_examples=30, deadline=None)
@given(graphs(), fanouts, st.integers(0, 2**32))
def test_every_row_holds_distinct_true_edges_in_the_right_number(graph, fanout, seed):
    seeds = np.arange(0, graph.num_nodes, 2, dtype=np.int64)
    request = BulkRequest(seed, 0, 0, 0, (seeds,))
    asked = NeighborDraws(request.seeds, request.keys(len(fanout)), fanout, keep_positions=True)
    (sample,) = cpu.neighbor(graph, asked)
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
            assert np.array_equal(
                sample.nodes[sample.indices[sample.indptr[row] : sample.indptr[row + 1]]], graph.indices[at]
            )


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
    sample = kernel.neighbor(graph, NeighborDraws(request.seeds, request.keys(1), (s,), keep_positions=True))[0]
    row = np.repeat(np.arange(len(degree)), np.diff(sample.indptr))
    offset = sample.positions - graph.indptr[row]
    taken = np.zeros((len(degree), 12), bool)
    taken[row, offset] = True
    return [taken[degree == d, :d] for d in range(1, 13)]


# The reference draws the bits of the other kernel, as another test proves, and takes a hundred times as long.
@pytest.mark.parametrize(
    ("kernel", "copies", "seeds"),
    [pytest.param(cpu, 12000, 4, id="cpu"), pytest.param(reference, 250, 2, id="reference")],
)
def test_inclusion_follows_exact_enumeration(kernel, copies, seeds):
    graph, degree = stars(copies)
    worst = 1.0
    for seed in range(seeds):
        for s in range(1, 7):
            for taken in picked_offsets(graph, degree, kernel, seed, s):
                d = taken.shape[1]
                kept = min(s, d)
                assert (taken.sum(axis=1) == kept).all()
                if kept == d:
                    continue
                # Exact law: each of the C(d, s) sets alike, so each in-edge with probability s/d; counts of a
                # fixed-size draw are negatively correlated, which the factor (d-1)/(d-s) makes up for.
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
        for taken in picked_offsets(graph, degree, cpu, 11, s):
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
        bulk = sampler.sample(graph, BulkRequest(1, epoch, 0, index, (seeds,)), cpu)
        return tuple(np.sort(bulk.minibatches[0].nodes))

    assert len({picks(e, i) for e in range(5) for i in range(5)}) == 25


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


@pytest.mark.parametrize("fanout", [(), (3, 0), (3, -2), (2.5,), (True,), (1 << 17,)])
def test_bad_fanout(fanout):
    with pytest.raises(InputError, match="fanout"):
        NeighborSampler(fanout)


@pytest.mark.parametrize("sampler", [NeighborSampler, LaborSampler, LadiesSampler])
def test_one_number_is_one_layer_and_several_come_in_one_argument(sampler):
    assert sampler(7).num_layers == 1
    with pytest.raises(InputError, match=r"give \w+ as one: \w+\(\(10, 5\)\)"):
        sampler(10, 5)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-3, 1)])
def test_bad_plan_sizes(sizes):
    with pytest.raises(InputError, match="expected 1 or more"):
        SeedPlan(np.arange(3), sizes[0], sizes[1], 0)


def test_a_minibatch_that_cannot_be_indexed_is_refused():
    graph = from_edges(np.arange(40000), np.arange(40000), 40000)
    request = BulkRequest(0, 0, 0, 0, (np.arange(40000),))
    with pytest.raises(RunError, match="smaller batch_size or fanout"):
        cpu.neighbor(graph, NeighborDraws(request.seeds, request.keys(1), (1 << 16,), replace=True))


def test_a_huge_fanout_costs_no_more_than_the_largest_row():
    graph = from_edges(np.arange(3), np.zeros(3, np.int64), 4)
    bulk = NeighborSampler((1 << 16, 1 << 16)).sample(graph, BulkRequest(0, 0, 0, 0, (np.arange(4),)), cpu)
    assert bulk.minibatches[0].num_edges == 3


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
    space = cpu.Workspace()
    plan = SeedPlan(np.arange(300), 40, 3, 5)
    for fanout in ((3,), (9, 4), (-1, 2), (2,)):
        sampler = NeighborSampler(fanout)
        for n in range(plan.num_bulks):
            fresh = sampler.sample(graph, plan.request(0, n), cpu)
            reused = sampler.sample(graph, plan.request(0, n), cpu, space)
            assert [minibatch_digest(m) for m in fresh.minibatches] == [minibatch_digest(m) for m in reused.minibatches]
    assert space.nbytes > 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_weighted_without_replacement_is_successive_sampling(kernel):
    """Inclusion and order of the race against exact enumeration of draws in proportion to what is left."""
    weight = np.array([4.0, 2.5, 1.5, 1.0, 0.6, 0.0, 0.4])
    copies = 20000 if kernel is cpu else 1500
    n = len(weight)
    src = copies + np.arange(copies * n)
    graph = from_edges(src, np.repeat(np.arange(copies), n), copies * (n + 1), edge_weight=np.tile(weight, copies))
    p = weight / weight.sum()
    exact = np.zeros(n)
    for order in permutations(np.flatnonzero(weight), 3):
        left, chance = 1.0, 1.0
        for i in order:
            chance *= p[i] / left
            left -= p[i]
        exact[list(order)] += chance
    request = BulkRequest(1, 0, 0, 0, (np.arange(copies),))
    sampler = NeighborSampler((3,), weighted=True, edge_ids=True)
    block = sampler.sample(graph, request, kernel).check().minibatches[0].blocks[0]
    assert (np.diff(block.indptr) == 3).all()
    taken = np.bincount(block.edge_id % n, minlength=n)
    assert taken[5] == 0
    # The covariance of the inclusions, estimated, turns their deviation into a chi-square of 5 degrees of freedom.
    rows = np.zeros((copies, n))
    rows[np.repeat(np.arange(copies), 3), block.edge_id % n] = 1
    keep = [0, 1, 2, 3, 4]
    deviation = (taken / copies - exact)[keep]
    covariance = np.cov(rows[:, keep].T) / copies
    assert chi2.sf(deviation @ np.linalg.solve(covariance, deviation), len(keep)) > 1e-4
    first = np.bincount(block.edge_id[0::3] % n, minlength=n)
    expected = p[p > 0] * copies
    assert chi2.sf(((first[p > 0] - expected) ** 2 / expected).sum(), 5) > 1e-4


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_with_replacement_draws_are_independent(kernel, weighted):
    weight = np.array([4.0, 2.5, 1.5, 0.0, 2.0])
    copies = 20000 if kernel is cpu else 1500
    n = len(weight)
    src = copies + np.arange(copies * n)
    graph = from_edges(src, np.repeat(np.arange(copies), n), copies * (n + 1), edge_weight=np.tile(weight, copies))
    p = weight / weight.sum() if weighted else np.full(n, 1 / n)
    request = BulkRequest(2, 0, 0, 0, (np.arange(copies),))
    sampler = NeighborSampler((2,), replace=True, weighted=weighted, edge_ids=True)
    block = sampler.sample(graph, request, kernel).minibatches[0].blocks[0]
    pair = (block.edge_id % n).reshape(copies, 2)
    seen = np.bincount(pair[:, 0] * n + pair[:, 1], minlength=n * n)
    expected = np.outer(p, p).ravel() * copies
    assert (seen[expected == 0] == 0).all()
    some = expected > 0
    assert chi2.sf(((seen[some] - expected[some]) ** 2 / expected[some]).sum(), some.sum() - 1) > 1e-4


@pytest.mark.parametrize(
    "sampler",
    [NeighborSampler((5,)), NeighborSampler((5,), replace=True), NeighborSampler((5,), replace=True, weighted=True)],
)
def test_kept_edges_stand_for_the_whole_row_without_bias(sampler):
    rng = np.random.default_rng(0)
    graph = from_edges(np.arange(1, 41), np.zeros(40, np.int64), 41, edge_weight=rng.random(40))
    values = rng.random(41)
    truth = (graph.edge_weight * values[graph.indices]).sum()
    request = BulkRequest(5, 0, 0, 0, (41 * np.arange(1000),) * 3)
    estimates = []
    for m in sampler.sample(copied(graph, 1000), request, cpu).check().minibatches:
        b = m.blocks[0]
        estimates += np.add.reduceat(b.weight * values[b.src[b.indices] % 41], b.indptr[:-1]).tolist()
    assert abs(np.mean(estimates) - truth) < 4 * np.std(estimates) / np.sqrt(len(estimates))


def test_whole_frontier_is_drawn_again_at_each_hop():
    rng = np.random.default_rng(3)
    graph = from_edges(rng.integers(0, 60, 2000), rng.integers(0, 60, 2000), 60)
    request = BulkRequest(0, 0, 0, 0, (np.arange(10),))
    again = NeighborSampler((4, 3), expand="all").sample(graph, request, cpu).check().minibatches[0]
    outer, inner = again.blocks
    assert not again.nested
    assert np.array_equal(outer.src[: outer.num_dst], inner.src)
    assert (np.diff(inner.indptr) == 4).all()
    assert (np.diff(outer.indptr) == 3).all()
    seeds = [set(b.src[b.indices[b.indptr[0] : b.indptr[1]]].tolist()) for b in again.blocks]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("name", SAMPLERS)
def test_edge_ids_name_the_edges_of_the_graph_and_change_nothing_else(name):
    rng = np.random.default_rng(4)
    graph = from_edges(
        rng.integers(0, 50, 700), rng.integers(0, 50, 700), 50, edge_weight=rng.random(700),
        edge_time=rng.integers(0, 9, 700), node_time=rng.integers(0, 9, 50),
    )  # fmt: skip
    options = [{"expand": "new"}, {"expand": "all"}] if name in ("neighbor", "labor") else [{}]
    for option in options:
        request = BulkRequest(0, 0, 0, 0, (np.arange(20),))
        size = 2 if name in ("saint", "ppr") else (3, 2)
        plain, sampler = SAMPLERS.find(name)(size, **option), SAMPLERS.find(name)(size, edge_ids=True, **option)
        assert sampler.record() == {**plain.record(), "edge_ids": True}
        found = sampler.sample(graph, request, cpu).minibatches[0]
        without = replace(found, blocks=tuple(replace(b, edge_id=None) for b in found.blocks))
        assert minibatch_digest(plain.sample(graph, request, cpu).minibatches[0]) == minibatch_digest(without)
        for block in found.blocks:
            assert block.edge_id is not None and block.edge_id.dtype == np.int64
            row = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
            v = block.src[row]
            assert np.array_equal(graph.indices[block.edge_id], block.src[block.indices])
            assert ((block.edge_id >= graph.indptr[v]) & (block.edge_id < graph.indptr[v + 1])).all()


def test_one_workspace_serves_bulks_and_graphs_of_any_size():
    """Buffers that have grown for one bulk are larger than the next one needs, in either direction."""
    rng = np.random.default_rng(6)
    small, large = (from_edges(rng.integers(0, n, 9 * n), rng.integers(0, n, 9 * n), n) for n in (700, 5000))
    space = cpu.Workspace()
    sampler = NeighborSampler((4, 3))
    for graph, k, batch in (
        (small, 1, 7),
        (small, 9, 30),
        (large, 2, 100),
        (small, 20, 5),
        (large, 30, 150),
        (small, 3, 200),
        (large, 1, 9),
    ):
        plan = SeedPlan(np.arange(graph.num_nodes), batch, k, seed=2)
        reused = sampler.sample(graph, plan.request(0, 0), cpu, space).check()
        fresh = sampler.sample(graph, plan.request(0, 0), cpu)
        assert [minibatch_digest(m) for m in fresh.minibatches] == [minibatch_digest(m) for m in reused.minibatches]


def test_the_record_of_weighted_draws_has_a_version():
    """Stores and checkpoints of weighted samples by races, which had no version, are refused; others are not."""
    assert NeighborSampler((3,)).record() == {"sampler": "neighbor", "fanout": [3]}
    old = {"sampler": "neighbor", "fanout": [3], "weighted": True}
    record = NeighborSampler((3,), weighted=True).record()
    assert record == old | {"version": 2}
    with pytest.raises(StoreError, match=r'^RUN/queue was made from .*"weighted": true.*"version": 2.*$'):
        require_fingerprint("RUN/queue", {"sampler": json.dumps(old)}, {"sampler": json.dumps(record)})


def test_a_weighted_sampler_needs_weights():
    graph = from_edges(np.arange(3), np.zeros(3, np.int64), 4)
    with pytest.raises(InputError, match="no edge weights"):
        NeighborSampler((2,), weighted=True).sample(graph, BulkRequest(5, 0, 0, 0, (np.array([0]),)), cpu)
    with pytest.raises(InputError, match="expand is 'both'"):
        NeighborSampler((2,), expand="both")


def test_outputs_that_are_still_held_are_never_handed_out_again():
    rng = np.random.default_rng(1)
    graph = from_edges(rng.integers(0, 300, 3000), rng.integers(0, 300, 3000), 300)
    space = cpu.Workspace()
    plan = SeedPlan(np.arange(300), 20, 3, 5)
    sampler = NeighborSampler((5, 3))
    held = [sampler.sample(graph, plan.request(e, 0), cpu, space) for e in range(30)]
    fresh = [sampler.sample(graph, plan.request(e, 0), cpu) for e in range(30)]
    for a, b in zip(held, fresh):
        assert [minibatch_digest(m) for m in a.minibatches] == [minibatch_digest(m) for m in b.minibatches]
    size = space.nbytes
    held.clear()
    for e in range(30):
        sampler.sample(graph, plan.request(e, 0), cpu, space)
    assert space.nbytes <= size * 1.5, "buffers come back once nobody views them"


@pytest.mark.parametrize(
    ("args", "options", "strange"),
    [
        ((torch.zeros(2, 60, dtype=torch.long), [5, 5]), {}, "a Tensor"),
        ((torch.zeros(2, 60, dtype=torch.long),), {"sizes": [5], "node_idx": None}, "a Tensor, node_idx, sizes"),
        ((SimpleNamespace(edge_index=0),), {"num_neighbors": [5]}, "a SimpleNamespace, num_neighbors"),
        ((), {"sizes": [5], "batch_size": 2}, "batch_size, sizes"),
    ],
)
def test_arguments_of_pygs_classes_of_the_name_are_answered_in_a_sentence(args, options, strange):
    with pytest.raises(InputError, match=f"^NeighborSampler got {strange}; .*mr.NeighborLoader"):
        NeighborSampler(*args, **options)
    assert replace(NeighborSampler([5]), weighted=True).weighted
    assert "fanout" in signature(NeighborSampler).parameters
