"""LABOR with importance iterations: chances by an oracle of their own, the joint law of two rows, unbiased sums, fewer
nodes with each iteration, and the same bits by both kernels."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import chi2

import millrace as mr
from millrace.stages.assignment import BulkRequest, SeedPlan
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.base import check_kernel
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.graphs import copied, outcomes
from millrace.tests.contracts.messages import graphs
from millrace.tests.oracles.sampling import backend as reference

fanouts = st.lists(st.sampled_from([-1, 1, 2, 3, 7, 40]), min_size=1, max_size=3).map(tuple)
KERNELS = pytest.mark.parametrize("kernel", [pytest.param(cpu, id="cpu"), pytest.param(reference, id="reference")])


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


def sampler(fanout: tuple[int, ...], iterations: int, expand: str = "new") -> LaborSampler:
    return LaborSampler(fanout, True, expand, iterations=iterations)


def drawn(graph, which, seeds, kernel=cpu, seed=0):
    return which.sample(graph, BulkRequest(seed, 0, 0, 0, seeds), kernel).check().minibatches


def chances(graph: Graph, rows: list[int], s: int, iterations: int) -> list[np.ndarray]:
    """The paper's equations, solved by bisection: pi is 1 at first; c of a row solves sum(1 / min(1, c pi)) = d^2 / s;
    pi is then multiplied by the largest c of its rows."""
    pi = np.ones(graph.num_nodes)
    lists = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in rows]

    def solved(row: np.ndarray) -> float:
        x, d = pi[row], len(row)
        if d <= s:
            return float((1 / x).max(initial=0))
        return brentq(lambda c: (1 / np.minimum(1, c * x)).sum() - d * d / s, 1e-9, 1 / x.min(), xtol=1e-15, rtol=1e-14)

    for _ in range(iterations):
        c = [solved(row) for row in lists]
        pi = pi * np.array([max([c[v] for v, row in enumerate(lists) if t in row], default=1) for t in range(len(pi))])
    return [np.minimum(1, solved(row) * pi[row]) for row in lists]


@st.composite
def hubs(draw: st.DrawFn) -> Graph:
    """Two rows that may be far longer than the others."""
    graph = draw(graphs(40, 150))
    n, hub = graph.num_nodes, draw(st.integers(0, 1500)) if graph.num_nodes else 0
    dst = np.repeat(np.arange(n), graph.in_degree)
    src, dst = np.append(graph.indices, np.arange(hub) % max(n, 1)), np.append(dst, np.arange(hub) // 900)
    return from_edges(src, np.minimum(dst, max(n - 1, 0)), n, edge_weight=draw(st.sampled_from([None, src % 3 + 0.5])))


@settings(max_examples=25, deadline=None)
@given(
    graph=hubs(),
    fanout=fanouts,
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    expand=st.sampled_from(["new", "all"]),
    iterations=st.integers(1, 4),
)
def test_same_minibatches_for_any_kernel_threads_and_bulk_size(graph, fanout, batch_size, seed, expand, iterations):
    seen = []
    for kernel, count, k in ((cpu, 1, 1), (cpu, 3, 8), (reference, 1, 8)):
        threads.set_num_threads(count)
        plan = SeedPlan(np.arange(graph.num_nodes, dtype=np.int64), batch_size, k, seed)
        which = sampler(fanout, iterations, expand)
        bulks = (which.sample(graph, plan.request(3, n), kernel, None).check() for n in range(plan.num_bulks))
        seen.append([minibatch_digest(m) for bulk in bulks for m in bulk.minibatches])
    assert all(s == seen[0] for s in seen)


# Rows that share some sources, one of them with at most s edges, one far longer than the others.
ROWS = ((4, 5, 6, 7), (6, 7, 8, 9, 10), (7, 8), (4, 8, 9, 10, 11, 12))
FEW = from_edges([u for r in ROWS for u in r], [v for v, r in enumerate(ROWS) for _ in r], 13)


@KERNELS
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_edges_say_one_over_their_chances(kernel, iterations):
    want = chances(FEW, [0, 1, 2, 3], 2, iterations)
    for row, p in zip(ROWS, want):
        assert np.isclose((1 / p).sum(), max(len(row), len(row) ** 2 / 2))
    for m in drawn(FEW, sampler((2,), iterations), (np.arange(4),) * 30, kernel):
        b = m.blocks[0]
        for v in range(4):
            at = slice(b.indptr[v], b.indptr[v + 1])
            kept = np.searchsorted(ROWS[v], b.src[b.indices[at]])
            assert np.allclose(b.weight[at], 1 / want[v][kept], rtol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "k"), [pytest.param(cpu, 8000, id="cpu"), pytest.param(reference, 400, id="reference")]
)
def test_all_rows_follow_exact_enumeration_together(kernel, k):
    want = chances(FEW, [0, 1, 2, 3], 2, 2)
    limit = [dict(zip(row, p)) for row, p in zip(ROWS, want)]
    # A source's number falls between two of the chances of its edges.
    cuts = {t: sorted({0.0, 1.0, *(p[t] for p in limit if t in p)}) for t in range(4, 13)}
    law: dict[tuple[tuple[int, ...], ...], float] = {}
    for bands in product(*(range(len(cuts[t]) - 1) for t in range(4, 13))):
        low = {t: cuts[t][b] for t, b in zip(range(4, 13), bands)}
        outcome = tuple(tuple(t for t in row if low[t] < p[t] - 1e-12) for row, p in zip(ROWS, limit))
        width = np.prod([cuts[t][b + 1] - cuts[t][b] for t, b in zip(range(4, 13), bands)])
        law[outcome] = law.get(outcome, 0.0) + float(width)
    assert abs(sum(law.values()) - 1) < 1e-9
    rows = np.add.outer(13 * np.arange(k // 4), np.arange(4)).ravel()
    bulk = sampler((2,), 2).sample(copied(FEW, k // 4), BulkRequest(0, 0, 0, 0, (rows,) * 4), kernel).check()
    seen = outcomes(bulk, 4, 13)
    assert set(seen) <= set(law)
    often = {o: k * pr for o, pr in law.items() if k * pr >= 5}
    statistic = sum((seen.get(o, 0) - e) ** 2 / e for o, e in often.items())
    rest, rest_seen = k - sum(often.values()), k - sum(seen.get(o, 0) for o in often)
    if rest > 1:
        statistic += (rest_seen - rest) ** 2 / rest
    assert chi2.sf(statistic, len(often) - (rest <= 1)) >= 1e-4


def crowd(weighted: bool = False) -> Graph:
    """40 rows with 20 to 60 of 200 sources; some sources are in many rows, some edges come twice."""
    rng = np.random.default_rng(7)
    popular = (200 * rng.random(6000) ** 2).astype(np.int64)
    lengths, at, src, dst = rng.integers(20, 60, 40), 0, [], []
    for v, d in enumerate(lengths):
        src.append(40 + popular[at : at + d])
        dst.append(np.full(d, v))
        at += d
    weight = rng.random(lengths.sum()) + 0.1 if weighted else None
    return from_edges(np.concatenate(src), np.concatenate(dst), 240, edge_weight=weight)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "edge weights"])
@pytest.mark.parametrize("expand", ["new", "all"])
def test_sums_of_every_row_are_unbiased(weighted, expand):
    """With edge weights too, and with parallel edges."""
    graph, values = crowd(weighted), np.random.default_rng(1).random(240)
    a = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    truth = np.add.reduceat(a * values[graph.indices], graph.indptr[:40])
    k = 3000
    seeds = np.add.outer(240 * np.arange(k // 4), np.arange(40)).ravel()
    estimates = np.empty((4, k // 4, 40))
    for i, m in enumerate(drawn(copied(graph, k // 4), sampler((6,), 3, expand), (seeds,) * 4)):
        b = m.blocks[0]
        rows = np.repeat(np.arange(b.num_dst), np.diff(b.indptr))
        sums = np.bincount(rows, b.weight * values[b.src[b.indices] % 240], minlength=b.num_dst)
        estimates[i] = sums.reshape(-1, 40)
    estimates = estimates.reshape(k, 40)
    z = (estimates.mean(0) - truth) / (estimates.std(0) / np.sqrt(k))
    assert np.abs(z).max() < 4
    assert np.abs(z).mean() < 1.2


def test_each_iteration_finds_fewer_nodes_and_as_many_as_the_chances_say():
    graph, k = crowd(), 400
    rows, found = list(range(40)), []
    for i in range(5):
        p = chances(graph, rows, 6, i)
        largest = np.zeros(240)
        np.maximum.at(largest, graph.indices[: graph.indptr[40]], np.concatenate(p))
        counts = [m.blocks[0].num_src - 40 for m in drawn(graph, sampler((6,), i), (np.arange(40),) * k)]
        assert abs(np.mean(counts) - largest.sum()) < 4 * np.std(counts) / np.sqrt(k)
        found.append(largest.sum())
    assert all(b <= a + 1e-9 for a, b in zip(found, found[1:]))
    neighbor = drawn(graph, NeighborSampler((6,)), (np.arange(40),) * k)
    assert found[3] < 0.9 * found[0] < 0.9 * np.mean([m.blocks[0].num_src - 40 for m in neighbor])


@KERNELS
def test_64_bit_ids_and_a_reused_workspace(kernel):
    graph = crowd()
    wide = Graph(graph.indptr, graph.indices.astype(np.int64))
    space = cpu.Workspace() if kernel is cpu else None
    request = BulkRequest(0, 0, 0, 0, (np.arange(30), np.arange(40)))
    digests = [
        [minibatch_digest(m) for m in sampler((4, 2), 2).sample(g, request, kernel, w).minibatches]
        for g, w in ((graph, None), (wide, None), (graph, space), (graph, space))
    ]
    assert all(d == digests[0] for d in digests)


def test_a_whole_run_learns(tmp_path):
    which = {"name": "labor", "fanout": [5, 5], "poisson": True, "iterations": 1}
    model = {"hidden": 32, "dropout": 0.0}
    data = mr.open_dataset("sbm:nodes=400,classes=3,degree=12")
    result = mr.run(data, sampler=which, model=model, epochs=8, lr=0.02, batch_size=40, check=True, out=tmp_path)
    assert result.test_accuracy > 0.5


def test_options_are_checked_and_recorded():
    assert LaborSampler((3,), True, iterations=2).record()["iterations"] == 2
    assert "iterations" not in LaborSampler((3,), True).record()
    for bad in (-1, 1.5, True, 101):
        with pytest.raises(InputError, match=r"iterations is .*whole number from 0 to 100"):
            LaborSampler((3,), True, iterations=bad)
    with pytest.raises(InputError, match="iterations is 1, but poisson is false"):
        LaborSampler((3,), iterations=1)


def test_only_a_whole_graph_in_host_memory_is_drawn_from(tmp_path):
    which = sampler((3,), 1)
    with pytest.raises(InputError, match='kernel is "cuda"; set kernel = "cpu"'):
        mr.sample_minibatches(FEW, which, [0], kernel="cuda")
    with pytest.raises(InputError, match='kernel is "cuda"'):
        which.sample_on_device(FEW, BulkRequest(0, 0, 0, 0, (np.array([0]),)))
    with pytest.raises(InputError, match="the topology is partitioned"):
        mr.run("digits", system=mr.bulk(which, topology="partitioned"), ranks=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check_kernel(LaborSampler((3,), True), "cuda", partitioned=True)
