"""Samplers as matrices on the device: on a GPU where there is one, else on a pretended device. The same bits as on the
host, and nothing of a minibatch's edges is copied before it is read."""

from typing import Any

import numpy as np
import pytest

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling import device_graph
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cuda import backend as cuda
from millrace.stages.kernels.sampling.sparse import Sparse, adjacency
from millrace.stages.sample.ppr import PprSampler
from millrace.stages.sample.saint import SaintSampler
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import from_edges
from millrace.tests.contracts.block_sampling import random_graph, random_request, unlike
from millrace.tests.contracts.matrix_neighbor import MatrixNeighbor
from millrace.tests.stages.sample.test_matrix import dense, random_sparse, same

pytestmark = pytest.mark.usefixtures("on_device")
SAMPLERS: tuple[Any, ...] = (
    SaintSampler(2, 3, 2, edge_ids=True),
    PprSampler(3, 4, 2),
    PprSampler(2, 2, 4, 0.1, 1e-6, edge_ids=True),
    MatrixNeighbor((3, -1, 2)),
)


def test_products_and_draws_are_those_of_the_host() -> None:
    for case in range(24):
        rng = np.random.default_rng(case)
        n, m, V = (int(x) for x in rng.integers(1, 12, 3))
        Q = random_sparse(rng, n, m, ones=bool(case % 2), most=1 if case % 3 else 4)
        A = random_sparse(rng, m, V, ones=bool(case % 5))
        P, want = (kernel.multiply(Q, A, V) for kernel in (cuda.matrix, cpu.matrix))
        assert np.array_equal(dense(P, V), dense(Q, m) @ dense(A, V))
        assert same(P, want) and P.packed().columns.dtype == want.columns.dtype
        # Rows that a selector has found are drawn from where they are.
        words = rng.integers(0, 2**64, n, dtype=np.uint64)
        for s in (-1, 2, 100):
            for replace in (False, True):
                S = cuda.matrix.choose(P, s, words, replace=replace)
                assert same(S, cpu.matrix.choose(want, s, words, replace=replace)), (case, s, replace)


def test_minibatches_together_are_those_one_by_one() -> None:
    """Selectors and others, ones and values, also where some have no rows; on the device and the host."""
    for case in range(12):
        rng = np.random.default_rng(case)
        A = random_sparse(rng, 9, 11, ones=bool(case % 3), most=9)
        Q = [random_sparse(rng, n, 9, ones=bool(rng.integers(2)), most=int(rng.choice([1, 4]))) for n in (3, 0, 4, 2)]
        P, want = cuda.matrix.multiply_all(Q, A, 11), [cpu.matrix.multiply(q, A, 11) for q in Q]
        assert all(map(same, P, want))
        words = [rng.integers(0, 2**64, q.num_rows, dtype=np.uint64) for q in Q]
        mixed = [p if i % 2 else w for i, (p, w) in enumerate(zip(P, want))]
        for s, replace in ((-1, False), (2, False), (2, True)):
            S = cuda.matrix.choose_all(mixed, s, words, replace=replace)
            each = [cpu.matrix.choose(p, s, w, replace=replace) for p, w in zip(want, words)]
            assert all(map(same, S, each)), (case, s, replace)


def test_masses_near_2_to_the_63rd() -> None:
    """Sums of all rows wrap around; those of a row do not."""
    rng = np.random.default_rng(3)
    mass = rng.integers(2**58, 2**59, 120)
    P = Sparse(np.arange(0, 120, 12), np.arange(12, 132, 12), np.tile(np.arange(12, dtype=np.int32), 10), mass)
    words = rng.integers(0, 2**64, 10, dtype=np.uint64)
    for replace in (False, True):
        a, b = (kernel.choose(P, 7, words, replace=replace) for kernel in (cuda.matrix, cpu.matrix))
        assert same(a, b)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_minibatches_are_those_of_the_host(sampler: Any) -> None:
    for case in range(5):
        rng = np.random.default_rng(case)
        graph = random_graph(rng)
        request = random_request(rng, graph.num_nodes, 3, min(8, graph.num_nodes))
        want = sampler.sample(graph, request, cpu)
        assert unlike(sampler.sample(graph, request, cuda), want) == []
        left = sampler.sample_on_device(graph, request)
        assert not any(m.on_host for m in left.minibatches)
        assert [m.num_edges for m in left.minibatches] == [m.num_edges for m in want.minibatches]
        assert unlike(left, want) == []


def test_edges_stay_on_the_device() -> None:
    graph = from_edges([3, 1, 1, 0], [0, 0, 0, 2], 4)
    A = cuda.matrix.adjacency(graph)
    assert A is cuda.matrix.adjacency(graph) and A.on_device[0].is_cuda and same(A, adjacency(graph))
    plain = from_edges([3, 1], [0, 0], 4)
    # The topology is there once.
    assert cuda.matrix.adjacency(plain).on_device[0] is device_graph.on_device(plain).indices
    (m,) = SaintSampler(1, 2, 2).sample_on_device(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),))).minibatches
    assert m.bulk.lists[0].indices.is_cuda and m.num_edges > 0


def test_a_topology_in_host_memory_is_refused() -> None:
    graph = from_edges([3, 1], [0, 0], 4)
    device_graph.place_graph(graph, "pinned")
    with pytest.raises(InputError, match="samplers written as matrices need the topology in the GPU's memory"):
        SaintSampler().sample_on_device(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)))


def test_a_minibatch_of_too_many_edges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", 3)
    graph = from_edges([1, 2, 3, 0], [0, 0, 0, 2], 4)
    with pytest.raises(RunError, match=r"at most 2 fit: use a smaller batch_size"):
        PprSampler(1, 9, 2).sample_on_device(graph, BulkRequest(0, 0, 0, 0, (np.array([0]),)))
