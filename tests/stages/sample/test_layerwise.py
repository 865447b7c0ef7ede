"""LADIES and FastGCN: the matrix identities, the law of the draw, the promises of each debiasing, and the same bits
everywhere."""

from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import millrace as mr
from millrace.stages.assignment import BulkRequest, SeedPlan
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling import layerwise
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cpu import layerwise as layerwise_cpu
from millrace.stages.kernels.sampling.cpu import terms as terms_cpu
from millrace.stages.kernels.sampling.draws import LayerDraws
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.stages.sample import SAMPLERS
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.oracles.sampling import backend as reference
from millrace.tests.oracles.sampling import layerwise as layerwise_reference
from millrace.tests.oracles.sampling import skeleton as skeleton_reference

KERNELS = [pytest.param(cpu, id="cpu"), pytest.param(reference, id="reference")]
BOTH = pytest.mark.parametrize("kind", [LadiesSampler, FastGCNSampler])


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


@st.composite
def graphs(draw: st.DrawFn, simple: bool = False, weights: tuple[float, ...] = (0.0, 1e-6, 0.25, 1.0, 30.0)) -> Graph:
    """Empty rows, isolated nodes, self loops, multi-edges, hubs, one node, no edges; weights 0 and of unlike size."""
    n = draw(st.integers(1, 40))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150, unique=simple))
    hub = [] if simple else [(i % n, 0) for i in range(draw(st.integers(0, 60)))]
    src, dst = np.array([*edges, *hub], np.int64).reshape(-1, 2).T
    weight = None
    if draw(st.booleans()):
        weight = np.array(draw(st.lists(st.sampled_from(weights), min_size=len(src), max_size=len(src))))
    return from_edges(src, dst, n, edge_weight=weight)


sizes = st.lists(st.integers(1, 50), min_size=1, max_size=3).map(tuple)
debias = st.sampled_from(layerwise.DEBIAS)


def digests(graph, plan, sampler, kernel, workspace=None):
    requests = (plan.request(3, n) for n in range(plan.num_bulks))
    return [
        minibatch_digest(m) for r in requests for m in sampler.sample(graph, r, kernel, workspace).check().minibatches
    ]


def dense(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, A's number of edges, and P's terms (W o W edge by edge, parallel edges added up), float64 [V, V]: row v,
    column u."""
    V = graph.num_nodes
    row = np.repeat(np.arange(V), graph.in_degree)
    a = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight.astype(np.float64)
    degree = 1 + np.bincount(row, a, minlength=V)
    A, count, squared = np.zeros((V, V)), np.zeros((V, V)), np.diag(1 / degree**2)
    np.add.at(A, (row, graph.indices), a)
    np.add.at(count, (row, graph.indices), 1)
    np.add.at(squared, (row, graph.indices), (a / degree[row]) ** 2)
    return A, count, squared


@BOTH
@settings(max_examples=25, deadline=None)
@given(
    graph=graphs(),
    sizes=sizes,
    debias=debias,
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    edge_ids=st.booleans(),
)
def test_same_minibatches_for_any_kernel_threads_and_bulk_size(kind, graph, sizes, debias, batch_size, seed, edge_ids):
    sampler = kind(sizes, debias, edge_ids)
    nodes = np.arange(graph.num_nodes, dtype=np.int64)
    seen = []
    for kernel, count, k in ((cpu, 1, 1), (cpu, 3, 8), (reference, 1, 8)):
        threads.set_num_threads(count)
        seen.append(digests(graph, SeedPlan(nodes, batch_size, k, seed), sampler, kernel))
    assert all(s == seen[0] for s in seen)


@settings(max_examples=25, deadline=None)
@given(graphs(simple=True, weights=(0.0, 0.5, 1.0, 2.0)), st.data())
def test_probabilities_are_q_times_the_squared_weights(graph, data):
    """P = Q (W o W) in exact integers, against float64 SciPy; and the two kernels' integers against each other."""
    V = graph.num_nodes
    rows = np.array(data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=6, unique=True)))
    A = sp.csr_array(dense(graph)[0]) + sp.identity(V)
    W = sp.diags_array(1 / np.asarray(A.sum(axis=1)).ravel()) @ A
    Q = skeleton_reference.select([rows], V)
    expected = (Q @ W.multiply(W).tocsr()).toarray().ravel()
    squared = layerwise_reference.SquaredWeights.of(graph)
    P = np.asarray((Q @ squared.matrix).toarray()).ravel()
    bits = layerwise.fraction_bits(V)
    # A loop of the graph and the added one are entries apart; in SciPy's sum they are one.
    at = dense(graph)[1].diagonal() == 0
    assert np.allclose(P[at] / 2.0**bits, expected[at], rtol=1e-5, atol=2.0**-bits * (len(rows) + 1))
    columns, mass, place = np.empty(V, np.int64), np.empty(V, np.int64), np.empty(V, np.int32)
    m = terms_cpu.add_terms(
        *terms_cpu.rates(graph).common, rows, len(rows), columns, mass, place, np.zeros((V + 63) // 64, np.uint64)
    )
    ours = np.zeros(V, np.int64)
    ours[columns[:m]] = mass[:m]
    assert np.array_equal(ours, P)
    assert np.array_equal(terms_cpu.rates(graph).everywhere[0], np.asarray(squared.matrix.sum(axis=0)).ravel())


@pytest.mark.parametrize("kernel", KERNELS)
@BOTH
@settings(max_examples=20, deadline=None)
@given(graph=graphs(weights=(0.0, 0.5, 1.0, 2.0)), sizes=sizes, debias=debias, seed=st.integers(0, 2**32))
def test_blocks_hold_every_edge_between_their_rows_and_columns(kernel, kind, graph, sizes, debias, seed):
    A, count, squared = dense(graph)
    seeds = np.arange(0, graph.num_nodes, 2)[::-1].copy()
    (minibatch,) = kind(sizes, debias).sample(graph, BulkRequest(seed, 0, 0, 0, (seeds,)), kernel).check().minibatches
    assert np.array_equal(minibatch.seeds, seeds)
    for size, block in zip(sizes, reversed(minibatch.blocks)):
        dst, src = block.src[: block.num_dst], block.src
        new = src[block.num_dst :]
        assert (np.diff(new) > 0).all() and len(new) <= size
        assert np.array_equal(sp.csr_array((np.ones(block.num_edges), block.indices, block.indptr),
        shape=(len(dst), len(src))).toarray(),
                              count[np.ix_(dst, src)])  # fmt: skip
        if block.weight is None:
            assert debias == "none" and graph.edge_weight is None
            continue
        got = sp.csr_array(
            (block.weight.astype(np.float64), block.indices, block.indptr), shape=(len(dst), len(src))
        ).toarray()
        if debias in ("ratio", "none"):
            p = (squared if kind is FastGCNSampler else squared[dst]).sum(axis=0)
            c = A[np.ix_(dst, src)] / (p[src] if debias == "ratio" else 1.0)
            total = c.sum(axis=1, keepdims=True)
            expected = np.divide(c * A[dst].sum(axis=1, keepdims=True), total, out=np.zeros_like(c), where=total > 0)
            assert np.allclose(got, expected, rtol=1e-3, atol=1e-6)
        else:
            # Destinations count as they are; every other column by one factor of its own.
            assert np.allclose(got[:, : len(dst)], A[np.ix_(dst, dst)], rtol=1e-6)
            weights = A[np.ix_(dst, new)]
            if debias == "bottom_k":
                assert (got[:, len(dst) :] >= weights * (1 - 1e-6)).all()


@settings(max_examples=20, deadline=None)
@given(graphs(), st.integers(0, 2**32))
def test_structure_does_not_depend_on_how_it_is_debiased(graph, seed):
    plan = SeedPlan(np.arange(graph.num_nodes), 5, 4, seed)
    nodes = []
    for way in ("ratio", "bottom_k", "none"):
        bulks = [LadiesSampler((4, 3), way).sample(graph, plan.request(0, n), cpu) for n in range(plan.num_bulks)]
        nodes.append([m.nodes.tolist() for b in bulks for m in b.minibatches])
    assert nodes[0] == nodes[1] == nodes[2]


@pytest.mark.parametrize("kernel", KERNELS)
@BOTH
def test_more_than_there_is_takes_all_of_it(kernel, kind):
    graph = from_edges([1, 2, 3, 5], [0, 0, 1, 4], 6, edge_weight=[1.0, 0.0, 2.0, 1.0])
    (m,) = kind((50,), "bottom_k").sample(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)), kernel).check().minibatches
    # LADIES: the neighbours of weight > 0; FastGCN: all nodes.
    assert m.nodes.tolist() == ([0, 1] if kind is LadiesSampler else [0, 1, 2, 3, 4, 5])
    assert m.blocks[0].weight.tolist() == ([1.0] if kind is LadiesSampler else [1.0, 0.0])


def law(p: np.ndarray, s: int, known: set[int]) -> dict[tuple[int, ...], float]:
    """Successive sampling by enumeration: the probability of each set of new nodes."""
    candidates = np.flatnonzero(p)
    result: dict[tuple[int, ...], float] = {}
    for order in permutations(candidates.tolist(), min(s, len(candidates))):
        probability, left = 1.0, p.sum()
        for i in order:
            probability *= p[i] / left
            left -= p[i]
        new = tuple(sorted(set(order) - known))
        result[new] = result.get(new, 0.0) + probability
    return result


SMALL = from_edges(
    [1, 2, 3, 4, 5, 6, 2, 3, 0, 4, 5],
    [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 6],
    7,
    edge_weight=[1, 0.3, 2, 1, 0.5, 4, 1, 1, 1, 1, 2],
)
UNWEIGHTED = Graph(SMALL.indptr, SMALL.indices)


CASES = pytest.mark.parametrize(
    ("graph", "darts"),
    [
        pytest.param(UNWEIGHTED, None, id="uniform"),
        pytest.param(SMALL, None, id="weighted"),
        pytest.param(SMALL, 0, id="race"),
        pytest.param(SMALL, 2, id="darts-then-race"),
    ],
)


@CASES
@BOTH
def test_inclusion_follows_exact_enumeration(monkeypatch, kind, graph, darts):
    """By darts alone, by the race alone, and where darts run out half way."""
    if darts is not None:
        monkeypatch.setattr(layerwise_cpu, "budget", lambda s: darts)
    squared, worst = dense(graph)[2], 1.0
    seeds, k = np.array([0, 1]), 1500
    p = (squared if kind is FastGCNSampler else squared[seeds]).sum(axis=0)
    for s in (2, 3):
        expected = law(p, s, set(seeds.tolist()))
        seen = dict.fromkeys(expected, 0)
        for m in kind((s,)).sample(graph, BulkRequest(s, 0, 0, 0, (seeds,) * k), cpu).minibatches:
            seen[tuple(m.nodes[len(seeds) :].tolist())] += 1
        often = {new: k * pr for new, pr in expected.items() if k * pr >= 3}
        statistic = sum((seen[new] - e) ** 2 / e for new, e in often.items())
        rest, rest_seen = k - sum(often.values()), k - sum(seen[new] for new in often)
        if rest > 1:
            statistic += (rest_seen - rest) ** 2 / rest
        worst = min(worst, chi2.sf(statistic, len(often) - (rest <= 1)))
    assert worst >= 1e-4


def sums(graph: Graph, sampler, seeds: np.ndarray, h: np.ndarray, k: int) -> np.ndarray:
    """[k, seeds], what a block's weights make of the sum over in-neighbours."""
    samples = sampler.sample(graph, BulkRequest(5, 0, 0, 0, (seeds,) * k), cpu).minibatches
    out = np.zeros((k, len(seeds)))
    for i, m in enumerate(samples):
        b = m.blocks[0]
        row = np.repeat(np.arange(b.num_dst), np.diff(b.indptr))
        out[i] = np.bincount(row, b.weight * h[b.src[b.indices]], minlength=b.num_dst)
    return out


@pytest.mark.parametrize(
    ("graph", "darts", "way"),
    [
        pytest.param(UNWEIGHTED, None, "with_replacement", id="uniform-with-replacement"),
        pytest.param(SMALL, None, "with_replacement", id="weighted-with-replacement"),
        *(pytest.param(*case.values, "bottom_k", id=f"{case.id}-bottom-k") for case in CASES.args[1]),
    ],
)
@BOTH
def test_sums_are_unbiased_where_that_is_promised(monkeypatch, kind, graph, darts, way):
    if darts is not None:
        monkeypatch.setattr(layerwise_cpu, "budget", lambda s: darts)
    seeds, h = np.array([0, 1, 2]), np.array([3.0, -1, 2, 5, -4, 1, 2])
    truth = (dense(graph)[0] @ h)[seeds]
    estimates = sums(graph, kind((2,), way), seeds, h, 2000)
    # A row whose neighbours are all destinations is exact.
    allowed = 3 * estimates.std(axis=0) / np.sqrt(len(estimates)) + 1e-6
    assert (np.abs(estimates.mean(axis=0) - truth) <= allowed).all()
    assert allowed.max() > 1e-3


def test_the_ratio_is_biased_as_documented_and_the_plain_sample_too():
    seeds, h = np.array([0, 1]), np.array([3.0, -1, 2, 5, -4, 1, 2])
    A, _, squared = dense(SMALL)
    truth = (A @ h)[seeds]
    for way in ("ratio", "none"):
        estimates = sums(SMALL, LadiesSampler((2,), way), seeds, h, 2000)
        error = np.abs(estimates.mean(axis=0) - truth) / (estimates.std(axis=0) / np.sqrt(len(estimates)))
        assert (error > 6).all()
    # Where every edge is kept the ratio still weighs by 1/p; the plain sample is exact.
    p = squared[seeds].sum(axis=0)
    c = np.divide(A[seeds], p, out=np.zeros((2, 7)), where=p > 0)
    expected = (c @ h) / c.sum(axis=1) * A[seeds].sum(axis=1)
    assert np.allclose(sums(SMALL, LadiesSampler((7,)), seeds, h, 1)[0], expected, rtol=1e-5)
    assert np.allclose(sums(SMALL, LadiesSampler((7,), "none"), seeds, h, 1)[0], truth, rtol=1e-6)


def test_a_neighbourhood_reads_the_weights_as_meant():
    """Unbiased sums through `neighbourhood.sum`; the ratio's mean is the row-normalised 1/p of the authors."""
    h = torch.tensor([[3.0], [-1], [2], [5], [-4], [1], [2]], dtype=torch.float64)
    degree = torch.from_numpy(dense(SMALL)[0].sum(axis=1))
    b = LadiesSampler((2,)).sample(SMALL, BulkRequest(1, 0, 0, 0, (np.array([0, 1]),)), cpu).minibatches[0].blocks[0]
    src = torch.from_numpy(b.src.astype(np.int64))
    neighbourhood = BlockNeighbourhood(b, degree[src])
    assert torch.allclose(
        neighbourhood.sum(h[src]), neighbourhood.mean(h[src]) * degree[src[: b.num_dst], None], rtol=1e-5
    )
    plain = (
        LadiesSampler((2,), "none")
        .sample(UNWEIGHTED, BulkRequest(1, 0, 0, 0, (np.array([0, 1]),)), cpu)
        .minibatches[0]
        .blocks[0]
    )
    assert plain.weight is None


def test_minibatches_hops_and_epochs_draw_independently():
    rng = np.random.default_rng(2)
    graph = from_edges(rng.integers(0, 500, 30000), rng.integers(0, 500, 30000), 500)
    seen = set()
    for epoch in range(3):
        for index in range(4):
            (m,) = (
                LadiesSampler((10, 10))
                .sample(graph, BulkRequest(1, epoch, 0, index, (np.array([0]),)), cpu)
                .minibatches
            )
            inner, outer = m.blocks[1], m.blocks[0]
            seen |= {tuple(inner.src[inner.num_dst :].tolist()), tuple(outer.src[inner.num_src :].tolist())}
    assert len(seen) == 24


def test_fastgcn_leaves_rows_empty():
    def empty_rows(sample):
        return int((np.diff(sample.indptr[0]) == 0).sum())

    graph = from_edges(np.arange(1, 100), np.arange(99), 200)
    request = BulkRequest(0, 0, 0, 0, (np.arange(50),))
    (sample,) = cpu.layers(graph, LayerDraws(request.seeds, request.keys(1), (5,), every_row=True))
    block = sample.blocks()[0]
    empty = int((np.diff(block.indptr) == 0).sum())
    # The other seeds are columns too, so all rows but the last have their one neighbour; then a graph in which none
    # has.
    assert empty_rows(sample) == empty <= 1
    apart = from_edges(np.arange(100, 150), np.arange(50), 200)
    (sample,) = cpu.layers(apart, LayerDraws(request.seeds, request.keys(1), (5,), every_row=True))
    drawn = sample.nodes[50:]
    assert empty_rows(sample) == 50 - int(((drawn >= 100) & (drawn < 150)).sum()) >= 45


@pytest.mark.parametrize("kernel", KERNELS)
@BOTH
def test_64_bit_ids(kernel, kind):
    graph = from_edges(np.arange(50), np.arange(50)[::-1].copy(), 50)
    wide = Graph(graph.indptr, graph.indices.astype(np.int64))
    plan = SeedPlan(np.arange(50), 10, 2, 0)
    assert digests(graph, plan, kind((5, 5)), kernel) == digests(wide, plan, kind((5, 5)), kernel)
    assert kind((5,)).sample(wide, plan.request(0, 0), kernel).minibatches[0].nodes.dtype == np.int64


@BOTH
def test_workspace_is_reused_without_traces_and_grows(kind):
    rng = np.random.default_rng(1)
    hub = rng.integers(0, 300, 40000)
    graph = from_edges(
        np.concatenate([rng.integers(0, 300, 3000), hub]), np.concatenate([rng.integers(0, 300, 3000), hub * 0]), 300
    )
    plan, space = SeedPlan(np.arange(300), 40, 3, 5), cpu.Workspace()
    for sizes in ((30,), (90, 4), (300, 2), (20,)):
        fresh = digests(graph, plan, kind(sizes), cpu)
        assert fresh == digests(graph, plan, kind(sizes), cpu, space)
    assert fresh == digests(graph, plan, kind((20,)), reference)


def test_a_minibatch_that_cannot_be_indexed_is_refused(monkeypatch):
    graph = from_edges(np.arange(1, 40001) % 50, np.zeros(40000, np.int64), 50)
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", 30000)
    with pytest.raises(RunError, match="smaller batch_size, fanout or sizes"):
        LadiesSampler((50,)).sample(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)), cpu)


@pytest.mark.parametrize("sizes", [(), (0,), (3, -1), (2.5,), (True,), (1 << 25,)])
@BOTH
def test_bad_sizes(kind, sizes):
    with pytest.raises(InputError, match="sizes"):
        kind(sizes)


@BOTH
def test_bad_debias(kind):
    with pytest.raises(InputError, match="did you mean 'ratio'"):
        kind((3,), "ration")


def test_record_names_everything_that_decides_a_sample():
    records = [kind((3, 2), way).record() for kind in (LadiesSampler, FastGCNSampler) for way in layerwise.DEBIAS]
    assert len({str(r) for r in records}) == 8
    assert SAMPLERS["ladies"] is LadiesSampler and SAMPLERS["fastgcn"] is FastGCNSampler


@pytest.mark.parametrize("name", ["ladies", "fastgcn"])
def test_whole_runs(tmp_path, name):
    dataset = mr.open_dataset("sbm:nodes=400,classes=3,degree=12")
    result = mr.run(
        dataset,
        sampler={"name": name, "sizes": [60, 60]},
        model={"hidden": 32, "dropout": 0.0},
        epochs=8,
        lr=0.02,
        batch_size=40,
        check=True,
        out=tmp_path,
    )
    assert result.test_accuracy > 0.5
