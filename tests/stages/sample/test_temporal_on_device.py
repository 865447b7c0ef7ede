"""Samples by time that a GPU draws, or a pretended one: the bits of the host's, minibatches and degrees."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.stages.assignment import BulkRequest
from millrace.stages.links.plan import LinkRequest
from millrace.stages.sample.temporal import TemporalSampler, degrees_until, timed_graph
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import ALWAYS, Graph, from_edges
from millrace.storage.typed.graph_types import GraphTypes
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.typed import typed_graphs

pytest.importorskip("triton")

from millrace.stages.kernels.sampling import device_graph, device_times
from millrace.stages.kernels.sampling.cuda import backend as cuda
from millrace.stages.kernels.sampling.cuda import temporal as temporal_cuda

pytestmark = pytest.mark.usefixtures("on_device")


def same(graph: Graph, request: BulkRequest, sampler: TemporalSampler) -> None:
    """Drawn on either, minibatches and degrees have the same bits."""
    want, seen = sampler.sample(graph, request, None), sampler.sample_on_device(graph, request)
    moments = request.moments or tuple(graph.node_time[s] for s in request.seeds)
    assert (seen.epoch, seen.number, len(seen.minibatches)) == (want.epoch, want.number, len(want.minibatches))
    for a, b, when in zip(want.minibatches, seen.minibatches, moments):
        assert (a.index, a.num_edges, a.nested) == (b.index, b.num_edges, b.nested)
        b.check(repeats=True)
        assert a.nodes.dtype == b.nodes.dtype and a.blocks[0].indices.dtype == b.blocks[0].indices.dtype
        assert minibatch_digest(a) == minibatch_digest(b)
        degrees = b.bulk.degrees_until(b.q).cpu().numpy()
        assert np.array_equal(degrees, degrees_until(graph, a, when))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, BulkRequest, TemporalSampler]:
    """Whole and broken times, equal ones, multi-edges, weights, types, edges that have been there always, isolated
    seeds, seeds at several moments, minibatches without seeds, and moments between whole times."""
    graph = draw(st.one_of(graphs(), typed_graphs()))
    whole = draw(st.booleans())
    values = [-3, 0, 1, 2, 5, 2**40] if whole else [-np.inf, -1.5, -0.0, 0.0, 2.0, 2.5, np.inf]
    dtype = np.int64 if whole else np.float64
    some = lambda n: np.array(draw(st.lists(st.sampled_from(values), min_size=n, max_size=n)), dtype)  # noqa: E731
    times = some(graph.num_edges)
    if not graph.types.is_single and draw(st.booleans()):
        times[graph.edge_type == 0] = ALWAYS[times.dtype]
    weight = None
    if draw(st.booleans()):
        weight = np.random.default_rng(0).random(graph.num_edges).astype(np.float32)
    graph = replace(graph, edge_time=times, edge_weight=weight, node_time=some(graph.num_nodes))
    k, V = draw(st.integers(1, 4)), graph.num_nodes
    fanout = tuple(draw(st.lists(st.sampled_from([-1, 1, 2, 3, 70]), min_size=1, max_size=3)))
    sampler = TemporalSampler(
        fanout, draw(st.sampled_from(["uniform", "last"])), draw(st.booleans()), draw(st.booleans())
    )
    indices = tuple(range(0, 2 * k, 2))
    if draw(st.booleans()):
        node = st.integers(0, max(0, V - 1))
        seeds = tuple(np.array(draw(st.lists(node, unique=True, max_size=5 if V else 0)), np.int64) for _ in indices)
        return graph, BulkRequest(7, 1, 0, 0, seeds, indices), sampler
    between = draw(st.booleans())
    moment = st.sampled_from([v + 0.5 for v in values] if between else values)
    pair = st.tuples(st.integers(0, max(0, V - 1)), moment)
    nodes, moments = [], []
    for _ in indices:
        # Distinct in the order of times, where -0.0 is 0.0 and whole times have nothing between.
        pairs = draw(
            st.lists(pair, unique_by=lambda p: (p[0], np.floor(p[1]) + 0.0 if whole else p[1] + 0.0), max_size=6)
        )
        pairs = pairs if V else []
        nodes.append(np.array([v for v, _ in pairs], np.int64))
        moments.append(np.array([t for _, t in pairs], np.float64 if between else dtype))
    positives = tuple(np.empty((0, 2), np.int64) for _ in indices)
    return graph, LinkRequest(7, 1, 0, 0, tuple(nodes), indices, tuple(moments), positives), sampler


@given(cases())
def test_the_same_bits_as_on_the_host(case: tuple[Graph, BulkRequest, TemporalSampler]) -> None:
    same(*case)


def hubs(typed: bool, dtype: type, weighted: bool = True, wide: bool = False) -> Graph:
    """40 nodes, two of them with most of the edges, self loops, multi-edges, equal times; perhaps two relations between
    the same nodes, one of which has been there always, and a third into them."""
    rng = np.random.default_rng(4)
    src, dst, time = rng.integers(0, 36, 400), rng.integers(0, 36, 400), rng.integers(0, 12, 400).astype(dtype)
    dst[:200] = rng.integers(0, 2, 200)
    weight = rng.random(400).astype(np.float32) + 0.1 if weighted else None
    if not typed:
        graph = from_edges(src, dst, 40, edge_weight=weight, edge_time=time)
        return replace(graph, indices=graph.indices.astype(np.int64)) if wide else graph
    types = GraphTypes(
        ("a", "none", "b"), (0, 30, 30, 40), (("a", "x", "a"), ("a", "ever", "a"), ("b", "y", "a"), ("a", "z", "b"))
    )
    rows = {0: (30, 0), 1: (30, 0), 2: (10, 30), 3: (30, 0)}
    edges = {}
    for r, relation in enumerate(types.relations):
        n, first = rows[r]
        to = rng.integers(0, 10, 90) + 30 if r == 3 else rng.integers(0, 2, 90)
        edges[relation] = rng.integers(0, n, 90) + first, to
    graph = graph_of_relations(edges, types)
    time = rng.integers(0, 12, graph.num_edges).astype(dtype)
    time[graph.edge_type == 1] = ALWAYS[time.dtype]
    return replace(graph, edge_time=time, edge_weight=None if weight is None else weight[: graph.num_edges])


def asked(graph: Graph, k: int = 3, size: int = 9) -> BulkRequest:
    """Seeds at several moments, some of them twice."""
    rng = np.random.default_rng(2)
    nodes = tuple(np.r_[rng.permutation(8)[: size - 2], [0, 1]] for _ in range(k))
    assert graph.edge_time is not None
    moments = tuple(np.r_[rng.integers(3, 9, size - 2), [10, 11]].astype(graph.edge_time.dtype) for _ in range(k))
    return LinkRequest(3, 2, 1, 5, nodes, (), moments, ())


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("fanout", [(3, 2), (-1, 4), (40, -1, 1)], ids=str)
def test_rows_with_more_edges_than_are_drawn(fanout, typed, strategy, replaced) -> None:
    """A relation whose edges have been there always is drawn from uniformly, also by ``last``."""
    for dtype in (np.int64, np.float64):
        graph = hubs(typed, dtype)
        same(graph, asked(graph), TemporalSampler(fanout, strategy, replaced, True))


def test_ids_of_eight_bytes_and_edges_without_weights() -> None:
    graph = hubs(False, np.int64, weighted=False, wide=True)
    sampler = TemporalSampler((3, 2), "last")
    same(graph, asked(graph), sampler)
    (m, *_) = sampler.sample_on_device(graph, asked(graph)).minibatches
    assert not m.bulk.is_weighted and m.bulk.positions_of(0, 0) is None and m.blocks[0].src.dtype == np.int64


def test_a_bulk_is_drawn_in_pieces_where_it_would_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sampler = hubs(True, np.int64), TemporalSampler((3, 2), edge_ids=True)
    request = asked(graph, k=5)
    whole = [minibatch_digest(m) for m in sampler.sample_on_device(graph, request).minibatches]
    most = 9 * 3 * 3 * (1 + 2 * 3)
    assert len({id(m.bulk) for m in sampler.sample_on_device(graph, request).minibatches}) == 1
    monkeypatch.setattr(temporal_cuda, "AT_ONCE", 2 * most)
    cut = sampler.sample_on_device(graph, request).minibatches
    assert [len([m for m in cut if m.bulk is b]) for b in dict.fromkeys(m.bulk for m in cut)] == [2, 2, 1]
    assert [minibatch_digest(m) for m in cut] == whole
    monkeypatch.setattr(temporal_cuda, "ROOM", 0)
    same(graph, request, sampler)


@pytest.mark.parametrize("typed", [False, True])
def test_the_host_waits_once_a_hop(typed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sampler = hubs(typed, np.int64), TemporalSampler((3, 2, 2), "last", edge_ids=True)
    sampler.sample_on_device(graph, asked(graph))
    came, there = [], temporal_cuda.ToHost
    monkeypatch.setattr(temporal_cuda, "ToHost", lambda x: came.append(len(x)) or there(x))
    with pretended_device.Operations() as seen:
        drawn = sampler.sample_on_device(graph, asked(graph))
        assert not seen.waits and len(came) == 3
        assert drawn.minibatches[0].bulk.longest == (9 if typed else 3)
        drawn.minibatches[0].bulk.degrees_until(0)
        assert not seen.waits


def test_lists_and_times_may_lie_in_locked_memory() -> None:
    graph = hubs(True, np.float64)
    times = timed_graph(graph).on_device("pinned")
    assert not times.time.is_cuda and not times.lists.indices.is_cuda and times.lists.indptr.is_cuda
    same(graph, asked(graph), TemporalSampler((3, 2), "last", edge_ids=True))
    assert timed_graph(graph).on_device() is times and not times.beside("order", np.empty(0)).is_cuda
    assert timed_graph(graph).on_device("device").time.is_cuda


def test_what_waits_for_training_is_counted() -> None:
    graph = hubs(False, np.int64)
    (m, *others) = TemporalSampler((3, 2)).sample_on_device(graph, asked(graph)).minibatches
    moments = m.bulk.tensors[-1]
    assert sum(x.nbytes for x in (m, *others)) == sum(t.nbytes for t in m.bulk.tensors) - moments.nbytes


@pytest.mark.parametrize(
    ("fanout", "ids", "most"), [((10, 5, 3), False, 72), ((-1, -1), True, 80), ((-1, 500), True, 80)], ids=str
)
def test_memory_of_a_bulk(fanout: tuple[int, ...], ids: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many bytes an edge, of nodes that are hardly met twice, also where more might be drawn than are there;
    in the end only what is counted."""
    monkeypatch.setattr(temporal_cuda, "ROOM", 15_000)
    rng = np.random.default_rng(0)
    graph = from_edges(*rng.integers(0, 3000, (2, 60000)), 3000, edge_time=rng.integers(0, 100, 60000))
    nodes, moments = tuple(rng.integers(0, 3000, (2, 40))), (np.arange(40) + 50,) * 2
    request, sampler = LinkRequest(3, 2, 1, 5, nodes, (), moments, ()), TemporalSampler(fanout, edge_ids=ids)
    sampler.sample_on_device(graph, request)
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    bulk = sampler.sample_on_device(graph, request).minibatches[0].bulk
    edges = int(bulk.edge_ends[-1].sum())
    assert edges > 10_000
    assert torch.cuda.max_memory_allocated() - before < most * edges
    assert torch.cuda.memory_allocated() - before == sum(t.nbytes for t in bulk.tensors)


@pytest.mark.parametrize("typed", [False, True])
def test_hubs_are_expected_where_all_edges_are_taken(typed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of edges have more edges than nodes have on average."""
    graph = hubs(typed, np.int64)
    request = LinkRequest(3, 2, 1, 5, (np.arange(2),) * 6, (), (np.full(2, 99),) * 6, ())
    of_nodes = np.bincount(np.repeat(np.arange(graph.num_nodes), graph.in_degree), minlength=graph.num_nodes)
    ends = np.repeat(of_nodes, of_nodes).mean(), of_nodes[graph.indices].mean()
    assert timed_graph(graph).on_device().edges_of_end == pytest.approx(max(ends)) and max(ends) > 40
    room = int(5 * max(ends))
    monkeypatch.setattr(temporal_cuda, "AT_ONCE", room)
    bulks = dict.fromkeys(m.bulk for m in TemporalSampler((-1,)).sample_on_device(graph, request).minibatches)
    assert len(bulks) == 3
    assert all(int(bulk.edge_ends[-1].sum()) < 2 * room for bulk in bulks)


@pytest.mark.parametrize("typed", [False, True])
def test_what_is_placed_is_complete_before_another_thread_sees_it(typed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, waits = hubs(typed, np.int64), []
    rows = timed_graph(graph).graph

    def seen(of: str) -> bool:
        times = device_times._known.get(rows)
        names = () if times is None else times._others
        places = {"lists": rows in device_graph._graphs, "times": times is not None}
        return places.get(of, of in names or of in device_graph._numbers.get(rows, {}))

    def wait(of: str) -> Any:
        return lambda to: waits.append((of, seen(of)))

    for module, of in ((device_graph, "lists"), (device_times, "times")):
        monkeypatch.setattr(module, "wait_for_copies", wait(of))
    times = timed_graph(graph).on_device()
    monkeypatch.setattr(device_times, "wait_for_copies", wait("order"))
    times.beside("order", timed_graph(graph).order)
    monkeypatch.setattr(device_graph, "wait_for_copies", wait("edge_weight"))
    device_graph.number_on_device(rows, "edge_weight")
    assert waits == [("lists", False), ("times", False), ("order", False), ("edge_weight", False)]
    assert all(seen(of) for of, _ in waits)


@pytest.mark.parametrize("sampler", [TemporalSampler((3, -1)), TemporalSampler((3,), replace=True)], ids=str)
def test_too_many_edges_for_a_list(sampler: TemporalSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hubs(False, np.int64)
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", 20)
    with pytest.raises(RunError, match="a minibatch would hold"):
        sampler.sample_on_device(graph, asked(graph))


def test_what_is_refused() -> None:
    plain = from_edges([0], [1], 2)
    with pytest.raises(InputError, match="but the edges have none"):
        TemporalSampler((2,)).sample_on_device(plain, BulkRequest(0, 0, 0, 0, (np.array([1]),)))
    timed = from_edges([0], [1], 2, edge_time=[3])
    with pytest.raises(InputError, match="needs the times of seeds"):
        TemporalSampler((2,)).sample_on_device(timed, BulkRequest(0, 0, 0, 0, (np.array([1]),)))


@pytest.mark.parametrize("typed", [False, True])
def test_the_kernel_of_a_device_gives_minibatches_of_the_host(typed: bool) -> None:
    graph, sampler = hubs(typed, np.int64), TemporalSampler((3, 2), edge_ids=True)
    want = sampler.sample(graph, asked(graph), None).minibatches
    seen = sampler.sample(graph, asked(graph), cuda).minibatches
    assert all(m.on_host and isinstance(m.nodes, np.ndarray) for m in seen)
    assert list(map(minibatch_digest, want)) == list(map(minibatch_digest, seen))
