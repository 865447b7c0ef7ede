"""Sampling by pylibcugraph, with RAPIDS stood in for: the contract of the other kernels but their bits."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.draws import NeighborDraws
from millrace.stages.kernels.sampling.rapids import neighbor as sample_rapids
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError, MissingExtraError, RunError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts import rapids


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Empty rows, isolated nodes, self loops, multi-edges; with and without weights, some of them 0."""
    n = draw(st.integers(1, 12))
    edges = np.array(
        draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=50)), np.int64
    ).reshape(-1, 2)
    weight = np.linspace(0.5, 2.0, len(edges)) * (np.arange(len(edges)) % 4 > 0) if draw(st.booleans()) else None
    return from_edges(edges[:, 0], edges[:, 1], n, edge_weight=weight)


def request(graph: Graph, seed: int, k: int = 2) -> BulkRequest:
    nodes = np.arange(graph.num_nodes, dtype=np.int64)
    return BulkRequest(seed, 0, 0, 0, tuple(nodes[i::k] for i in range(k) if len(nodes[i::k])))


@settings(max_examples=25, deadline=None)
@given(graphs(), st.sampled_from(["new", "all"]), st.integers(1, 3))
def test_whole_neighbourhoods_are_those_of_the_cpu(graph, expand, hops):
    with pytest.MonkeyPatch.context() as m:
        rapids.install(m)
        asked = request(graph, 0)
        for a, b in zip(
            *(
                kernel.neighbor(
                    graph,
                    NeighborDraws(asked.seeds, asked.keys(hops), (-1,) * hops, expand=expand, keep_positions=True),
                )
                for kernel in (cpu, sample_rapids)
            ),
            strict=True,
        ):
            assert np.array_equal(a.nodes, b.nodes) and a.node_ends == b.node_ends and a.nodes.dtype == b.nodes.dtype
            for x, y in zip(a.lists, b.lists, strict=True):
                assert (
                    np.array_equal(x.indptr, y.indptr)
                    and x.indptr.dtype == y.indptr.dtype
                    and x.indices.dtype == y.indices.dtype
                )
                rows = np.repeat(np.arange(len(x.indptr) - 1), np.diff(x.indptr))
                assert np.array_equal(
                    x.positions[np.lexsort((x.positions, rows))], y.positions[np.lexsort((y.positions, rows))]
                )
                assert np.array_equal(b.nodes[y.indices], graph.indices[y.positions])


def together(calls):
    """Results of calls that wait for each other, each in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [f.result(30) for f in [pool.submit(c) for c in calls]]


@settings(max_examples=20, deadline=None)
@given(graphs(), st.sampled_from(["new", "all"]), st.integers(1, 4), st.data())
def test_a_graph_on_several_gpus_is_the_whole_graph_to_each(graph, expand, size, data):
    nodes = np.arange(graph.num_nodes)
    dealt = [[nodes[i::5] for i in range(5) if i % size == rank and len(nodes[i::5])] for rank in range(size)]
    weighted = graph.edge_weight is not None and data.draw(st.booleans())
    sampler = NeighborSampler((2, 1), weighted=weighted, expand=expand, edge_ids=True)

    def process(rank: int, unique: bytes):
        kernel = sample_rapids.AcrossGpus(graph, rank, size, unique)
        asked = BulkRequest(0, 0, 0, 0, tuple(dealt[rank]))
        whole = kernel.neighbor(
            graph, NeighborDraws(asked.seeds, asked.keys(2), (-1, -1), expand=expand, keep_positions=True)
        )
        # A last round with nothing to draw for all but the first.
        some = [sampler.sample(graph, r, kernel) for r in (asked, asked if not rank else BulkRequest(0, 0, 0, 0, ()))]
        kernel.close()
        return asked, whole, some

    with pytest.MonkeyPatch.context() as m:
        rapids.install(m)
        unique = sample_rapids.new_unique_id()
        found = together([partial(process, rank, unique) for rank in range(size)])
    for rank, (asked, whole, (drawn, last)) in enumerate(found):
        drawn_here = cpu.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(2), (-1, -1), expand=expand))
        for a, b in zip(drawn_here, whole, strict=True):
            assert np.array_equal(a.nodes, b.nodes) and a.node_ends == b.node_ends
            assert all(np.array_equal(x.indptr, y.indptr) for x, y in zip(a.lists, b.lists, strict=True))
            assert all(np.array_equal(b.nodes[y.indices], graph.indices[y.positions]) for y in b.lists)
        assert len(last.minibatches) == (0 if rank else len(dealt[0]))
        for minibatch in drawn.check().minibatches if dealt[rank] else ():
            for block in minibatch.blocks:
                rows = block.src[np.repeat(np.arange(block.num_dst), np.diff(block.indptr))]
                assert ((block.edge_id >= graph.indptr[rows]) & (block.edge_id < graph.indptr[rows + 1])).all()
                assert np.array_equal(block.src[block.indices], graph.indices[block.edge_id])
                assert len(np.unique(block.edge_id)) == len(block.edge_id)
                assert not weighted or (graph.edge_weight[block.edge_id] > 0).all()


def test_a_process_that_calls_alone_is_not_answered(monkeypatch):
    rapids.install(monkeypatch)
    monkeypatch.setattr(rapids, "PATIENCE_S", 0.5)
    graph, unique = from_edges([0, 1, 2], [1, 2, 0]), sample_rapids.new_unique_id()

    def process(rank: int) -> None:
        kernel = sample_rapids.AcrossGpus(graph, rank, 2, unique)
        if not rank:
            kernel.neighbor(graph, NeighborDraws((np.array([0]),), np.zeros((1, 1), np.uint64), (1,)))

    with pytest.raises(threading.BrokenBarrierError):
        together([partial(process, rank) for rank in range(2)])


@settings(max_examples=30, deadline=None)
@given(
    graphs(),
    st.lists(st.sampled_from([-1, 1, 2, 3, 7]), min_size=1, max_size=3).map(tuple),
    st.integers(0, 2**32),
    st.data(),
)
def test_minibatches_are_whole_and_rows_have_true_edges_in_the_right_number(graph, fanout, seed, data):
    weighted = graph.edge_weight is not None and data.draw(st.booleans())
    sampler = NeighborSampler(
        fanout, data.draw(st.booleans()), weighted, data.draw(st.sampled_from(["new", "all"])), edge_ids=True
    )
    with pytest.MonkeyPatch.context() as m:
        rapids.install(m)
        asked = request(graph, seed)
        bulk = sampler.sample(graph, asked, sample_rapids).check()
        again = sampler.sample(graph, asked, sample_rapids)
    possible = (
        graph.in_degree
        if not weighted
        else np.array([(graph.edge_weight[a:b] > 0).sum() for a, b in zip(graph.indptr, graph.indptr[1:])])
    )
    for m, n, seeds in zip(bulk.minibatches, again.minibatches, asked.seeds, strict=True):
        assert np.array_equal(m.seeds, seeds)
        assert np.array_equal(m.nodes, n.nodes)
        for block in m.blocks:
            for row, v in enumerate(block.src[: block.num_dst]):
                at = block.edge_id[block.indptr[row] : block.indptr[row + 1]]
                assert ((at >= graph.indptr[v]) & (at < graph.indptr[v + 1])).all()
                assert np.array_equal(
                    block.src[block.indices[block.indptr[row] : block.indptr[row + 1]]], graph.indices[at]
                )
                assert sampler.replace or len(set(at.tolist())) == len(at)
                assert not weighted or (graph.edge_weight[at] > 0).all() or -1 in fanout
        outer = m.blocks[0]
        if len(fanout) == 1 and fanout[0] > 0:
            drawn = np.diff(outer.indptr)
            degree = possible[outer.src[: outer.num_dst]]
            assert np.array_equal(
                drawn, np.where(degree > 0, fanout[0], 0) if sampler.replace else np.minimum(degree, fanout[0])
            )


def test_in_neighbours_are_drawn_alike(monkeypatch):
    rapids.install(monkeypatch)
    copies, degree, kept = 2000, 7, 3
    graph = from_edges(copies + np.arange(copies * degree), np.repeat(np.arange(copies), degree), copies * (degree + 1))
    asked = BulkRequest(5, 0, 0, 0, (np.arange(copies),))
    sample = sample_rapids.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(1), (kept,), keep_positions=True))[0]
    counts = np.bincount(sample.positions % degree, minlength=degree)
    expected = copies * kept / degree
    # Counts of draws of a fixed size hang together: the second factor makes up for it.
    assert chi2.sf(((counts - expected) ** 2 / expected).sum() * (degree - 1) / (degree - kept), degree - 1) > 1e-4


def test_a_graph_goes_to_the_gpu_once(monkeypatch):
    rapids.install(monkeypatch)
    made = []
    real = rapids.SGGraph.__init__
    monkeypatch.setattr(rapids.SGGraph, "__init__", lambda self, *a, **k: (made.append(1), real(self, *a, **k))[1])
    graph = from_edges([0, 1, 2], [1, 2, 0])
    for seed in range(3):
        asked = request(graph, seed)
        sample_rapids.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(1), (1,)))
    assert len(made) == 1
    assert sample_rapids.neighbor(graph, NeighborDraws((), np.empty((0, 1), np.uint64), (1,))) == []


def test_what_cugraph_should_not_return_is_an_error(monkeypatch):
    rapids.install(monkeypatch)
    graph = from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    asked = BulkRequest(0, 0, 0, 0, (np.array([0, 1]),))
    module, real = sys.modules["pylibcugraph"], rapids.neighbor_sample

    def turned(*args, **options):
        found = real(*args, **options)
        return {**found, "majors": found["minors"], "minors": found["majors"]}

    def short(*args, **options):
        found = real(*args, **options)
        return {**found, "label_hop_offsets": rapids.DeviceArray([0, 1])}

    monkeypatch.setattr(module, "neighbor_sample", turned)
    with pytest.raises(RunError, match="not in the frontier of hop 1"):
        sample_rapids.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(2), (1, 1)))
    monkeypatch.setattr(module, "neighbor_sample", short)
    with pytest.raises(RunError, match="2 offsets for 1 minibatches of 2 hops"):
        sample_rapids.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(2), (1, 1)))


def test_without_a_gpu_it_is_refused(monkeypatch):
    graph = from_edges([0], [1])
    asked = request(graph, 0)
    rapids.install(monkeypatch, 0)
    with pytest.raises(InputError, match=r'kernel "cugraph" needs an NVIDIA GPU.* use kernel = "cpu"'):
        sample_rapids.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(1), (1,)))
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(MissingExtraError, match="cupy cannot be found"):
        sample_rapids.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(1), (1,)))
