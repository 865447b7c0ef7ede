"""LABOR-0: the exact joint law of two rows, what sharing saves, and the same bits everywhere."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import millrace as mr
from millrace.stages.assignment import BulkRequest, SeedPlan
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.draws import LaborDraws
from millrace.stages.random import node_words
from millrace.stages.sample import SAMPLERS
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.graphs import copied, outcomes
from millrace.tests.oracles.sampling import backend as reference

KERNELS = [pytest.param(cpu, id="cpu"), pytest.param(reference, id="reference")]
WAYS = pytest.mark.parametrize("poisson", [False, True], ids=["exact", "poisson"])


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Empty rows, isolated nodes, self loops, multi-edges, hubs, one node, no edges."""
    n = draw(st.integers(1, 40))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150))
    hub = draw(st.integers(0, 600))
    src = [u for u, _ in edges] + [i % n for i in range(hub)]
    dst = [v for _, v in edges] + [0] * hub
    weight = np.linspace(0.5, 2.0, len(src)) * (np.arange(len(src)) % 5 > 0) if draw(st.booleans()) else None
    return from_edges(np.array(src, np.int64), np.array(dst, np.int64), n, edge_weight=weight)


fanouts = st.lists(st.sampled_from([-1, 1, 2, 3, 7, 40, 300]), min_size=1, max_size=3).map(tuple)


def digests(graph, plan, sampler, kernel, workspace=None):
    requests = (plan.request(3, n) for n in range(plan.num_bulks))
    return [
        minibatch_digest(m) for r in requests for m in sampler.sample(graph, r, kernel, workspace).check().minibatches
    ]


@WAYS
@settings(max_examples=25, deadline=None)
@given(
    graph=graphs(),
    fanout=fanouts,
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    expand=st.sampled_from(["new", "all"]),
    weighted=st.booleans(),
    edge_ids=st.booleans(),
)
def test_same_minibatches_for_any_kernel_threads_and_bulk_size(
    poisson, graph, fanout, batch_size, seed, expand, weighted, edge_ids
):
    weighted = weighted and not poisson and graph.edge_weight is not None
    sampler = LaborSampler(fanout, poisson, expand, weighted, edge_ids=edge_ids)
    nodes = np.arange(graph.num_nodes, dtype=np.int64)
    seen = []
    for kernel, count, k in ((cpu, 1, 1), (cpu, 3, 8), (reference, 1, 8)):
        threads.set_num_threads(count)
        seen.append(digests(graph, SeedPlan(nodes, batch_size, k, seed), sampler, kernel))
    assert all(s == seen[0] for s in seen)


@settings(max_examples=25, deadline=None)
@given(graphs(), fanouts, st.integers(0, 2**32))
def test_every_row_keeps_the_sources_with_the_smallest_numbers(graph, fanout, seed):
    """In every hop by the same numbers: the hop is left out of them."""
    request = BulkRequest(seed, 0, 0, 0, (np.arange(0, graph.num_nodes, 2),))
    key = request.keys(1)[0, 0]
    (sample,) = cpu.labor(graph, LaborDraws(request.seeds, request.keys(1)[:, 0], fanout))
    assert len(sample.indptr) == sample.node_ends[-2] + 1
    first = 0
    for h, s in enumerate(fanout):
        assert (np.diff(sample.nodes[sample.node_ends[h] : sample.node_ends[h + 1]]) > 0).all()
        for row in range(first, sample.node_ends[h]):
            v = sample.nodes[row]
            at = sample.positions[sample.indptr[row] : sample.indptr[row + 1]]
            sources = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
            words = node_words(int(key), sources)
            kept = len(sources) if s < 0 else min(s, len(sources))
            assert np.array_equal(np.sort(words)[:kept], np.sort(node_words(int(key), graph.indices[at])))
            assert len(set(at.tolist())) == kept and ((at >= graph.indptr[v]) & (at < graph.indptr[v + 1])).all()
            assert np.array_equal(
                sample.nodes[sample.indices[sample.indptr[row] : sample.indptr[row + 1]]], graph.indices[at]
            )
        first = sample.node_ends[h]


# Two rows that share three of their neighbours: 0 <- {2, 3, 4, 5}, 1 <- {4, 5, 6, 3, 7}.
ROWS = ((2, 3, 4, 5), (3, 4, 5, 6, 7))
PAIR = from_edges([u for r in ROWS for u in r], [v for v, r in enumerate(ROWS) for _ in r], 8)


def exact_law(s: int) -> dict[tuple[tuple[int, ...], ...], float]:
    law: dict[tuple[tuple[int, ...], ...], float] = {}
    orders = list(permutations(range(2, 8)))
    for order in orders:
        rank = {u: i for i, u in enumerate(order)}
        outcome = tuple(tuple(sorted(sorted(r, key=rank.__getitem__)[:s])) for r in ROWS)
        law[outcome] = law.get(outcome, 0.0) + 1 / len(orders)
    return law


def poisson_law(s: int) -> dict[tuple[tuple[int, ...], ...], float]:
    c = [min(1.0, s / len(r)) for r in ROWS]
    law: dict[tuple[tuple[int, ...], ...], float] = {}
    # A source's number falls below both limits, below one, or below none.
    low, high = min(c), max(c)
    for bands in product(range(3), repeat=6):
        probability = np.prod([(low, high - low, 1 - high)[b] for b in bands])
        limit = {u: (0.0, low, high)[b] for u, b in zip(range(2, 8), bands)}
        outcome = tuple(tuple(u for u in r if limit[u] < c[v]) for v, r in enumerate(ROWS))
        law[outcome] = law.get(outcome, 0.0) + float(probability)
    return law


def pairs(seed: int, k: int) -> BulkRequest:
    """Four minibatches, of both rows of a quarter of k copies."""
    return BulkRequest(seed, 0, 0, 0, (np.add.outer(8 * np.arange(k // 4), [0, 1]).ravel(),) * 4)


@pytest.mark.parametrize(
    ("kernel", "k"), [pytest.param(cpu, 5000, id="cpu"), pytest.param(reference, 400, id="reference")]
)
@WAYS
def test_both_rows_follow_exact_enumeration_together(kernel, k, poisson):
    for s in (1, 2):
        law = (poisson_law if poisson else exact_law)(s)
        assert abs(sum(law.values()) - 1) < 1e-12
        bulk = LaborSampler((s,), poisson).sample(copied(PAIR, k // 4), pairs(s, k), kernel)
        seen = outcomes(bulk, 2, PAIR.num_nodes)
        assert set(seen) <= {o for o, pr in law.items() if pr > 0}
        often = {o: k * pr for o, pr in law.items() if k * pr >= 5}
        statistic = sum((seen.get(o, 0) - e) ** 2 / e for o, e in often.items())
        rest, rest_seen = k - sum(often.values()), k - sum(seen.get(o, 0) for o in often)
        if rest > 1:
            statistic += (rest_seen - rest) ** 2 / rest
        assert chi2.sf(statistic, len(often) - (rest <= 1)) >= 1e-4


@WAYS
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_unbiased(poisson, weighted):
    rng = np.random.default_rng(0)
    graph = from_edges(np.arange(1, 41), np.zeros(40, np.int64), 41, edge_weight=rng.random(40) if weighted else None)
    values, a = rng.random(41), np.ones(40) if graph.edge_weight is None else graph.edge_weight
    truth = (a * values[graph.indices]).sum()
    estimates = []
    request = BulkRequest(0, 0, 0, 0, (41 * np.arange(1000),) * 4)
    for m in LaborSampler((5,), poisson).sample(copied(graph, 1000), request, cpu).minibatches:
        b = m.blocks[0]
        assert (b.weight is None) == (not poisson and not weighted)
        w, row = (
            (np.full(b.num_edges, 40 / 5) if b.weight is None else b.weight),
            np.repeat(np.arange(1000), np.diff(b.indptr)),
        )
        estimates += np.bincount(row, w * values[b.src[b.indices] % 41], minlength=1000).tolist()
    assert abs(np.mean(estimates) - truth) < 3 * np.std(estimates) / np.sqrt(len(estimates))


def test_poisson_weights_follow_each_hop():
    graph = from_edges([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1], 7)
    for index in range(20):
        request = BulkRequest(0, 0, 0, index, (np.array([0]),))
        (m,) = LaborSampler((-1, 2), True).sample(graph, request, cpu).check().minibatches
        outer = m.blocks[0]
        assert outer.weight[:3].tolist() == [1, 1, 1]
        assert outer.weight[3:].tolist() == [1.5] * (outer.num_edges - 3)


@WAYS
def test_a_row_that_is_drawn_again_keeps_some_of_its_edges(poisson):
    """By the same numbers: a smaller fanout is a stricter limit. And its weights are those of its own hop."""
    rng = np.random.default_rng(5)
    graph = from_edges(rng.integers(0, 300, 6000), rng.integers(0, 300, 6000), 300)
    request = BulkRequest(0, 0, 0, 0, (np.arange(20),))
    (m,) = LaborSampler((9, 4), poisson, "all").sample(graph, request, cpu).check().minibatches
    outer, inner = m.blocks
    assert not m.nested
    assert np.array_equal(outer.src[: outer.num_dst], inner.src)
    for row in range(inner.num_dst):
        few, many = (set(b.src[b.indices[b.indptr[row] : b.indptr[row + 1]]].tolist()) for b in (outer, inner))
        assert few <= many
    for block, s in ((outer, 4), (inner, 9)):
        degree = graph.in_degree[block.src[: block.num_dst]]
        if poisson:
            assert block.weight is not None
            assert np.allclose(block.weight, np.repeat(np.maximum(degree / s, 1), np.diff(block.indptr)))
        else:
            assert np.array_equal(np.diff(block.indptr), np.minimum(degree, s))


WEIGHT = {2: 4.0, 3: 1.0, 4: 0.5, 5: 2.0, 6: 1.0, 7: 8.0}


def weighted_law(s: int) -> dict[tuple[tuple[int, ...], ...], float]:
    """If an edge weighs what its source weighs, sources finish in one race, and each row keeps its first."""
    law: dict[tuple[tuple[int, ...], ...], float] = {}
    for order in permutations(range(2, 8)):
        left, chance = sum(WEIGHT.values()), 1.0
        for u in order:
            chance *= WEIGHT[u] / left
            left -= WEIGHT[u]
        rank = {u: i for i, u in enumerate(order)}
        outcome = tuple(tuple(sorted(sorted(r, key=rank.__getitem__)[:s])) for r in ROWS)
        law[outcome] = law.get(outcome, 0.0) + chance
    return law


@pytest.mark.parametrize(
    ("kernel", "k"), [pytest.param(cpu, 8000, id="cpu"), pytest.param(reference, 400, id="reference")]
)
@pytest.mark.parametrize("s", [1, 2, 3])
def test_weighted_rows_follow_exact_enumeration_together(kernel, k, s):
    graph = from_edges(
        [u for r in ROWS for u in r],
        [v for v, r in enumerate(ROWS) for _ in r],
        8,
        edge_weight=[WEIGHT[u] for r in ROWS for u in r],
    )
    bulk = LaborSampler((s,), weighted=True).sample(copied(graph, k // 4), pairs(s, k), kernel).check()
    for m in bulk.minibatches:
        assert m.blocks[0].weight is not None
        sums = [sum(WEIGHT[u] for u in r) / s for r in ROWS]
        assert np.allclose(m.blocks[0].weight, np.tile(np.repeat(sums, s), k // 4))
    seen = outcomes(bulk, 2, 8)
    law = weighted_law(s)
    assert abs(sum(law.values()) - 1) < 1e-12
    assert set(seen) <= set(law)
    often = {o: k * pr for o, pr in law.items() if k * pr >= 5}
    statistic = sum((seen.get(o, 0) - e) ** 2 / e for o, e in often.items())
    rest, rest_seen = k - sum(often.values()), k - sum(seen.get(o, 0) for o in often)
    if rest > 1:
        statistic += (rest_seen - rest) ** 2 / rest
    assert chi2.sf(statistic, len(often) - (rest <= 1)) >= 1e-4


def test_weighted_needs_weights_and_rows_of_exact_size():
    with pytest.raises(InputError, match="no edge weights"):
        LaborSampler((2,), weighted=True).sample(PAIR, BulkRequest(0, 0, 0, 0, (np.array([0]),)), cpu)
    with pytest.raises(InputError, match="poisson and weighted are both true"):
        LaborSampler((2,), True, weighted=True)
    assert LaborSampler((3,), weighted=True).record()["weighted"] is True


def test_the_record_names_what_is_expanded():
    assert LaborSampler((3,)).record() == {"sampler": "labor", "fanout": [3], "poisson": False}
    assert LaborSampler((3,), expand="all").record()["expand"] is True
    with pytest.raises(InputError, match="expand is 'both'"):
        LaborSampler((3,), expand="both")


@WAYS
def test_sharing_finds_fewer_nodes_than_independent_rows(poisson):
    rng = np.random.default_rng(3)
    graph = from_edges(rng.integers(0, 2000, 80000), rng.integers(0, 2000, 80000), 2000)
    request = BulkRequest(0, 0, 0, 0, tuple(np.arange(100 * i, 100 * i + 100) for i in range(10)))
    nodes, edges = {}, {}
    for sampler in (NeighborSampler((5, 5)), LaborSampler((5, 5), poisson)):
        minibatches = sampler.sample(graph, request, cpu).minibatches
        nodes[sampler.name] = sum(m.blocks[-1].num_src for m in minibatches)
        edges[sampler.name] = sum(m.blocks[-1].num_edges for m in minibatches)
    assert nodes["labor"] < 0.8 * nodes["neighbor"]
    assert abs(edges["labor"] - edges["neighbor"]) <= 0.05 * edges["neighbor"]


def test_minibatches_share_no_numbers():
    graph = from_edges(np.arange(1, 200), np.zeros(199, np.int64), 200)
    bulk = LaborSampler((10,)).sample(graph, BulkRequest(1, 0, 0, 0, (np.array([0]),) * 20), cpu)
    assert len({tuple(m.nodes.tolist()) for m in bulk.minibatches}) == 20


@pytest.mark.parametrize("kernel", KERNELS)
@WAYS
def test_64_bit_ids(kernel, poisson):
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(0, 50, 500), rng.integers(0, 50, 500), 50)
    wide = Graph(graph.indptr, graph.indices.astype(np.int64))
    plan, sampler = SeedPlan(np.arange(50), 10, 2, 0), LaborSampler((2, 2), poisson)
    assert digests(graph, plan, sampler, kernel) == digests(wide, plan, sampler, kernel)
    assert sampler.sample(wide, plan.request(0, 0), kernel).minibatches[0].nodes.dtype == np.int64


@WAYS
def test_workspace_is_reused_without_traces_and_grows(poisson):
    rng = np.random.default_rng(1)
    graph = from_edges(np.append(rng.integers(0, 300, 3000), rng.integers(0, 300, 40000)),
                       np.append(rng.integers(0, 300, 3000), np.zeros(40000, np.int64)), 300)  # fmt: skip
    plan, space = SeedPlan(np.arange(300), 40, 3, 5), cpu.Workspace()
    for fanout in ((3,), (9, 4), (-1, 2), (2,)):
        sampler = LaborSampler(fanout, poisson)
        assert digests(graph, plan, sampler, cpu) == digests(graph, plan, sampler, cpu, space)


def test_a_minibatch_that_cannot_be_indexed_is_refused(monkeypatch):
    graph = from_edges(np.arange(1, 40001) % 50, np.zeros(40000, np.int64), 50)
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", 30000)
    with pytest.raises(RunError, match="smaller batch_size or fanout"):
        LaborSampler((-1,)).sample(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)), cpu)


@pytest.mark.parametrize("fanout", [(), (0,), (3, -2), (2.5,), (True,), (1 << 17,)])
def test_bad_fanout(fanout):
    with pytest.raises(InputError, match="fanout"):
        LaborSampler(fanout)


def test_bad_poisson():
    with pytest.raises(InputError, match="poisson is 1; expected true or false"):
        LaborSampler((3,), 1)


@WAYS
def test_whole_runs(tmp_path, poisson):
    assert SAMPLERS["labor"] is LaborSampler
    dataset = mr.open_dataset("sbm:nodes=400,classes=3,degree=12")
    sampler = {"name": "labor", "fanout": [5, 5], "poisson": poisson}
    result = mr.run(
        dataset,
        sampler=sampler,
        model={"hidden": 32, "dropout": 0.0},
        epochs=8,
        lr=0.02,
        batch_size=40,
        check=True,
        out=tmp_path,
    )
    assert result.test_accuracy > 0.5
