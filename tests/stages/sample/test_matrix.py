"""Samplers as matrices and callbacks: products and draws beside dense ones, laws by enumeration, and both backends."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.exponential_race import log2_table
from millrace.stages.kernels.sampling.sparse import Sparse, adjacency, stacked
from millrace.stages.random import node_words
from millrace.stages.sample.base import check_kernel
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.stages.sample.ppr import PprSampler
from millrace.stages.sample.saint import SaintSampler
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.block_sampling import random_graph, random_request, unlike
from millrace.tests.contracts.graphs import copied
from millrace.tests.contracts.matrix_neighbor import MatrixNeighbor
from millrace.tests.oracles.sampling import backend as reference

BACKENDS = (cpu.matrix, reference.matrix)


def random_sparse(rng: np.random.Generator, n: int, m: int, *, ones: bool, most: int = 4) -> Sparse:
    lengths = rng.integers(0, min(m, most) + 1, n)
    rows = [np.sort(rng.permutation(m)[:k]) for k in lengths]
    ends = np.cumsum([0, *lengths]).astype(np.int64)
    columns = np.concatenate([np.empty(0, np.int64), *rows]).astype(np.int32)
    return Sparse(ends[:-1], ends[1:], columns, None if ones else rng.integers(0, 50, len(columns)))


def dense(M: Sparse, columns: int) -> np.ndarray:
    M, out = M.packed(), np.zeros((M.num_rows, columns), np.int64)
    np.add.at(out, (M.row_of, M.columns), M.mass)
    return out


def same(a: Sparse, b: Sparse) -> bool:
    a, b = a.packed(), b.packed()
    values = (a.values is None) == (b.values is None) and np.array_equal(a.mass, b.mass)
    return values and all(np.array_equal(getattr(a, k), getattr(b, k)) for k in ("start", "stop", "columns"))


def test_products_are_those_of_dense_matrices() -> None:
    for case in range(200):
        rng = np.random.default_rng(case)
        n, m, V = (int(x) for x in rng.integers(1, 12, 3))
        Q = random_sparse(rng, n, m, ones=bool(case % 2), most=1 if case % 3 else 4)
        A = random_sparse(rng, m, V, ones=bool(case % 5))
        found = [kernel.multiply(Q, A, V) for kernel in BACKENDS]
        for P in found:
            assert np.array_equal(dense(P, V), dense(Q, m) @ dense(A, V))
        # Zeros of the values are entries of neither or both.
        assert same(*(P.packed().with_values(P.packed().mass) for P in found))
        assert (found[0].values is None) == (found[1].values is None)


def test_a_stack_and_its_sum() -> None:
    rng = np.random.default_rng(1)
    parts = [random_sparse(rng, 5, 7, ones=ones) for ones in (True, False, False)]
    assert np.array_equal(dense(stacked(parts), 7), np.concatenate([dense(p, 7) for p in parts]))
    total = cpu.matrix.multiply(Sparse.repeat(5, 3), stacked(parts), 7)
    assert np.array_equal(dense(total, 7), sum(dense(p, 7) for p in parts))


def test_the_matrix_of_a_graph_merges_parallel_edges() -> None:
    graph = from_edges([3, 1, 1, 0], [0, 0, 0, 2], 4)
    assert dense(adjacency(graph), 4).tolist() == [[0, 2, 0, 1], [0] * 4, [1, 0, 0, 0], [0] * 4]
    assert adjacency(graph) is adjacency(graph)
    plain = from_edges([3, 1], [0, 0], 4)
    assert adjacency(plain).columns is plain.indices and adjacency(plain).values is None


def test_both_backends_draw_the_same_entries() -> None:
    for case in range(150):
        rng = np.random.default_rng(case)
        P = random_sparse(rng, int(rng.integers(0, 9)), 40, ones=bool(case % 2), most=30)
        words = rng.integers(0, 2**64, P.num_rows, dtype=np.uint64)
        s, replace = int(rng.choice([-1, 1, 2, 5, 100])), bool(rng.integers(2))
        a, b = (kernel.choose(P, s, words, replace=replace) for kernel in BACKENDS)
        assert same(a, b), (case, s, replace)
        if s > 0 and not replace:
            want = (
                P.lengths
                if P.values is None
                else np.array([(P.values[i:j] > 0).sum() for i, j in zip(P.start, P.stop)])
            )
            assert a.lengths.tolist() == np.minimum(want, s).tolist()


def near(counts: np.ndarray, p: np.ndarray, times: int) -> None:
    """Counts of draws with these probabilities, within five standard deviations."""
    assert (np.abs(counts - p * times) <= 5 * np.sqrt(times * p * (1 - p)) + 1e-9).all(), (counts / times, p)


def test_no_draws_write_nothing():
    found, best = np.full(64, -7), np.full(64, np.inf)
    # Arrays without elements in the middle of others; a slice without elements begins where its array does.
    within = (np.ndarray(0, a.dtype, a, a.nbytes // 2) for a in (best, found))
    row = (0, 9, np.ones(9, np.int64), 0, np.arange(9, dtype=np.int32))
    assert cpu.matrix._exponential_race(np.uint64(7), *row, log2_table(), *within) == 0
    assert (found == -7).all()
    assert (best == np.inf).all()


def successive(mass: np.ndarray, s: int) -> np.ndarray:
    """Inclusion probabilities of s draws without replacement in proportion to `mass`, by enumeration."""
    found = np.zeros(len(mass))
    for order in permutations(range(len(mass)), s):
        p, left = 1.0, float(mass.sum())
        for i in order:
            p, left = p * mass[i] / left if left else 0.0, left - mass[i]
        found[list(order)] += p
    return found


@pytest.mark.parametrize(("s", "replace"), [(1, False), (2, False), (3, False), (2, True)])
def test_draws_follow_the_values(s: int, replace: bool) -> None:
    mass, times = np.array([1, 7, 0, 3, 9]), 20_000
    at = np.zeros(times, np.int64)
    P = Sparse(at, at + 5, np.arange(5, dtype=np.int32), mass)
    S = cpu.matrix.choose(P, s, node_words(5, np.arange(times)), replace=replace)
    counts = np.bincount(S.columns, minlength=5)
    if replace:
        near(counts, mass / mass.sum(), s * times)
    else:
        near(counts, successive(mass, s), times)


# Samplers.


def simple_graph(rng: np.random.Generator, nodes: int, edges: int) -> Graph:
    keys = np.unique(rng.integers(0, nodes * nodes, edges))
    return from_edges(keys % nodes, keys // nodes, nodes)


@pytest.mark.parametrize("kernel", [cpu, reference], ids=["cpu", "reference"])
def test_neighbour_sampling_as_matrices_draws_the_bits_of_its_kernel(kernel: Any) -> None:
    for case in range(12):
        rng = np.random.default_rng(case)
        graph = simple_graph(rng, int(rng.integers(1, 60)), int(rng.integers(0, 600)))
        request = random_request(rng, graph.num_nodes, 3, graph.num_nodes)
        fanout = ((3, 2), (5,), (-1, 4, 1))[case % 3]
        want = NeighborSampler(fanout).sample(graph, request, cpu)
        got = MatrixNeighbor(fanout).sample(graph, request, kernel)
        assert unlike(got, want) == []


SAMPLERS: tuple[Callable[[], Any], ...] = (
    lambda: SaintSampler(2, 3, 2),
    lambda: SaintSampler(1, 1, 1),
    lambda: PprSampler(3, 4, 2),
    lambda: PprSampler(1, 100, 1, 0.9, 0.01),
    lambda: PprSampler(2, 2, 4, 0.1, 1e-6),
    lambda: SaintSampler(2, 2, 2, edge_ids=True),
)


@pytest.mark.parametrize("make", SAMPLERS, ids=lambda make: str(make()))
def test_both_backends_make_the_same_minibatches_of_any_graph(make: Callable[[], Any]) -> None:
    sampler = make()
    try:
        for case in range(25):
            rng = np.random.default_rng(case)
            graph = random_graph(rng)
            request = random_request(rng, graph.num_nodes, 3, min(8, graph.num_nodes))
            threads.set_num_threads(1 + case % 3)
            got, want = (sampler.sample(graph, request, kernel) for kernel in (cpu, reference))
            got.check()
            assert unlike(got, want) == []
            for m, seeds in zip(got.minibatches, request.seeds):
                check_subgraph(m, graph, seeds, sampler.layers)
    finally:
        threads.set_num_threads(None)


def check_subgraph(m: Any, graph: Graph, seeds: np.ndarray, layers: int) -> None:
    """All edges between the nodes, parallel ones too, in every layer; the last one has the seeds' alone."""
    assert len(m.blocks) == layers and np.array_equal(m.seeds, seeds)
    nodes = m.nodes.tolist()
    block = m.blocks[0]
    rows = nodes if layers > 1 else nodes[: len(seeds)]
    assert block.num_dst == len(rows)
    for i, v in enumerate(rows):
        edges = slice(int(graph.indptr[v]), int(graph.indptr[v + 1]))
        inside = np.isin(graph.indices[edges], nodes)
        e = slice(int(block.indptr[i]), int(block.indptr[i + 1]))
        assert [nodes[j] for j in block.indices[e]] == graph.indices[edges][inside].tolist()
        if graph.edge_weight is not None:
            scale = len(inside) / max(1, inside.sum())
            assert np.allclose(block.weight[e], graph.edge_weight[edges][inside] * scale, rtol=1e-6)


def visits(graph: Graph, seed: int, length: int) -> np.ndarray:
    """For each node, the probability that a walk from `seed` visits it, by enumeration of all walks."""
    found = np.zeros(graph.num_nodes)

    def walk(v: int, p: float, seen: frozenset[int], left: int) -> None:
        sources = graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()
        if not left or not sources:
            found[list(seen)] += p
            return
        for u in sources:
            walk(u, p / len(sources), seen | {u}, left - 1)

    walk(seed, 1.0, frozenset([seed]), length)
    return found


def included(sampler: Any, graph: Graph, seed: int, times: int) -> np.ndarray:
    """Number of draws in which each node was drawn for one seed, which has a copy of the graph for itself: in three
    minibatches, each of as many copies, whose draws are independent like those of minibatches."""
    V, copies = graph.num_nodes, times // 3
    seeds = (seed + V * np.arange(copies),) * 3
    counts = np.zeros(V, np.int64)
    for m in sampler.sample(copied(graph, copies), BulkRequest(3, 0, 0, 0, seeds), cpu).minibatches:
        counts += np.bincount(m.nodes % V, minlength=V)
    return counts


LAW = from_edges([1, 1, 2, 3, 0, 4, 5, 2, 2, 6], [0, 0, 0, 1, 2, 2, 3, 4, 1, 3], 8)
"""A parallel edge, a dead end, and a node out of reach."""


@pytest.mark.parametrize(("length", "walks"), [(1, 1), (3, 1), (2, 3)])
def test_walks_visit_nodes_as_by_enumeration(length: int, walks: int) -> None:
    p = 1 - (1 - visits(LAW, 0, length)) ** walks
    near(included(SaintSampler(1, length, walks), LAW, 0, 1500), p, 1500)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_nodes_are_drawn_by_their_pagerank(nodes: int) -> None:
    degree = np.maximum(np.diff(LAW.indptr), 1)
    W = dense(adjacency(LAW), 8) / degree[:, None]
    x, total = np.eye(8)[0], np.zeros(8)
    for _ in range(3):
        x = 0.75 * x @ W
        total += x
    total[0] = 0
    p = successive(total, nodes)
    p[0] = 1
    near(included(PprSampler(1, nodes, 3, 0.25, 1e-6), LAW, 0, 1500), p, 1500)


def test_hubs_that_are_not_followed_can_be_drawn() -> None:
    """A mass below the cutoff for each in-edge is still the node's own."""
    graph = from_edges([1, *range(2, 102)], [0, *[1] * 100], 102)
    (m,) = PprSampler(1, 3, 3, 0.25, 0.05).sample(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)), cpu).minibatches
    assert m.nodes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SaintSampler(0), "layers of the sampler saint is 0; expected 1 to 100"),
        (lambda: SaintSampler(2, True), "length of the sampler saint is True; expected"),
        (lambda: SaintSampler(walks=1.5), "walks of the sampler saint is 1.5"),  # type: ignore[arg-type]
        (lambda: PprSampler(nodes=0), "nodes of the sampler ppr is 0"),
        (lambda: PprSampler(teleport=1.0), "teleport of the sampler ppr is 1.0; expected a number between 0 and 1"),
        (lambda: PprSampler(cutoff="x"), "cutoff of the sampler ppr is 'x'"),  # type: ignore[arg-type]
    ],
)
def test_bad_options_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_a_method_of_the_old_name_is_refused() -> None:
    with pytest.raises(InputError, match="Old overrides words, which is row_streams now; rename the method"):
        type("Old", (MatrixNeighbor,), {"words": MatrixNeighbor.row_streams})


def test_rapids_is_refused() -> None:
    with pytest.raises(InputError, match=r'the sampler saint is written as matrices, but kernel is "cugraph"'):
        check_kernel(SaintSampler(), "cugraph")


def test_a_minibatch_of_too_many_edges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", 3)
    with pytest.raises(RunError, match=r"would hold 10 edges; at most 2 fit: use a smaller batch_size"):
        SaintSampler(1, 9, 9).sample(LAW, BulkRequest(0, 0, 0, 0, (np.array([0]),)), cpu)


def test_the_subgraph_has_as_many_layers_as_the_model() -> None:
    job = resolve({"dataset": "digits", "model": {"layers": 4}, "sampler": {"name": "ppr", "nodes": 5}})
    assert job.sampler["layers"] == 4
    job = resolve({"dataset": "digits", "sampler": {"name": "saint", "layers": 2}})
    assert job.model["layers"] == 2
    assert resolve({"dataset": "digits", "sampler": {"name": "saint"}}).model["layers"] == 3


@pytest.mark.parametrize("sampler", [SaintSampler(2, 2, 3), PprSampler(2, 8, 2)], ids=lambda s: s.name)
def test_a_run_learns_from_subgraphs(sampler: Any, tmp_path: Any) -> None:
    options = {"epochs": 3, "batch_size": 64, "hidden": 16, "lr": 0.02, "verbose": False}
    spec = "sbm:nodes=400,classes=3,degree=10,features=8,train=0.5"
    first, again = (mr.run(spec, system=mr.bulk(sampler), out=tmp_path / str(i), **options) for i in range(2))
    assert first.test_accuracy > 0.8
    assert first.parameters_sha256 == again.parameters_sha256
