"""Samples without their pairs' own edges on the device that drew them: the host's minibatches to the bit."""

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.links.own_edges import EdgeKinds
from millrace.stages.links.plan import LinkPlan, LinkRequest
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.stages.sample.base import Sampler
from millrace.storage.graph import Graph, from_edges
from millrace.storage.links.pairs import Pairs, of_pairs
from millrace.storage.minibatch import Bulk
from millrace.storage.partition.book import RangeBook
from millrace.storage.queue.bulk_codec import pack_bulk
from millrace.storage.typed.graph_types import SINGLE
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.block_sampling import block_rows
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.contracts.typed import typed_graphs
from millrace.tests.stages.links.test_exclude import of_several

pytest.importorskip("triton")

from millrace.stages.kernels.minibatch_cuda import bulk as minibatch_cuda
from millrace.stages.kernels.minibatch_cuda.frames import Layout
from millrace.stages.kernels.sampling.cuda import tables
from millrace.stages.links import exclude_cuda
from millrace.stages.placement.row_owners_cuda import OwnersOnDevice

pytestmark = pytest.mark.usefixtures("on_device")
SAMPLERS: list[Any] = [
    mr.NeighborSampler((3, 2)),
    mr.NeighborSampler((2, -1), edge_ids=True),
    mr.NeighborSampler((3, 2, 2), expand="all", edge_ids=True),
    mr.NeighborSampler((3, 2), replace=True),
    mr.LaborSampler((2, 2)),
    mr.LaborSampler((2, 3), poisson=True, expand="all", edge_ids=True),
    mr.LadiesSampler((6, 6), edge_ids=True),
    mr.FastGCNSampler((8, 8)),
    mr.SaintSampler(layers=2, length=2),
]


def equal(want: Bulk, seen: Bulk) -> None:
    assert not any(m.on_host for m in seen.minibatches)
    for a, b in zip(want.minibatches, seen.minibatches, strict=True):
        assert (a.index, a.num_edges, a.nested) == (b.index, b.num_edges, b.nested)
        assert np.array_equal(a.seeds, b.seeds) and minibatch_digest(a) == minibatch_digest(b.check())
    assert np.array_equal(pack_bulk(want), pack_bulk(seen))


def drawn_alike(sampler: Sampler, graph: Graph, plan: LinkPlan) -> int:
    """Compare an epoch's bulks; the number of edges that were taken out."""
    gone = 0
    for number in range(plan.num_bulks):
        request = plan.request(1, number)
        without = WithoutOwnEdges(sampler)
        want = without.sample(graph, request, cpu)
        equal(want, without.sample_on_device(graph, request))
        whole = sampler.sample(graph, request, cpu)
        gone += sum(m.num_edges for m in whole.minibatches) - sum(m.num_edges for m in want.minibatches)
    return gone


def plan_of(graph: Graph, pairs: np.ndarray, batch: int, bulk: int, seed: int = 0) -> LinkPlan:
    labels = np.insert(pairs.astype(np.int64), 2, 0, axis=1)
    return LinkPlan(
        np.arange(len(pairs)), batch, bulk, seed, links=TrainPairs.from_graph(graph, Pairs(labels, {}), Negatives())
    )


def edges_of(graph: Graph) -> np.ndarray:
    return np.stack([graph.indices, np.repeat(np.arange(graph.num_nodes), graph.in_degree)], axis=1)


def with_all_defects(weighted: bool) -> tuple[Graph, np.ndarray]:
    """A hub, loops, multi-edges in both directions, nodes without edges; pairs with and without an edge, some of them
    twice, and of a node with itself."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 36, (2, 300))
    dst[:80], src[200:] = 5, rng.integers(0, 3, 100)
    src, dst = np.r_[src, dst[:60], src[:20]], np.r_[dst, src[:60], dst[:20]]
    weight = rng.random(len(src)).astype(np.float32) + 0.1 if weighted else None
    graph = from_edges(src, dst, 40, edge_weight=weight)
    pairs = np.concatenate([edges_of(graph)[::9], edges_of(graph)[:60:9, ::-1], rng.integers(0, 40, (8, 2))])
    return graph, np.concatenate([pairs, pairs[:6], [[4, 4], [5, 5], [38, 39]]])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_the_same_bits_as_on_the_host(sampler: Any, weighted: bool) -> None:
    graph, pairs = with_all_defects(weighted)
    # A minibatch of one pair, the last of an epoch, and bulks of one minibatch and of several.
    assert drawn_alike(sampler, graph, plan_of(graph, pairs[:-1], 17, 3)) > 10
    if isinstance(sampler, mr.NeighborSampler) and weighted:
        assert drawn_alike(mr.NeighborSampler((3, 2), replace=True, weighted=True), graph, plan_of(graph, pairs, 9, 1))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("sampler", [SAMPLERS[1], SAMPLERS[2], SAMPLERS[6]], ids=str)
@given(graph=graphs(), seed=st.integers(0, 5), some=st.integers(1, 4))
def test_any_graph(sampler: Any, graph: Graph, seed: int, some: int) -> None:
    if graph.num_nodes:
        others = np.random.default_rng(seed).integers(0, graph.num_nodes, (some, 2))
        drawn_alike(sampler, graph, plan_of(graph, np.concatenate([edges_of(graph), others]), 4, 3, seed))


@settings(max_examples=10)
@pytest.mark.parametrize(
    "sampler",
    [mr.NeighborSampler((2, -1), edge_ids=True), mr.NeighborSampler((3, 3), expand="all", edge_ids=True)],
    ids=str,
)
@given(graph=typed_graphs(linked=True), seed=st.integers(0, 5))
def test_with_types_only_edges_of_the_pairs_and_their_reverses(sampler: Any, graph: Graph, seed: int) -> None:
    at = of_pairs(graph)
    if len(at):
        drawn_alike(sampler, graph, plan_of(graph, edges_of(graph)[at], 3, 3, seed))


@settings(max_examples=10)
@pytest.mark.parametrize(
    "sampler",
    [mr.NeighborSampler((2, -1), edge_ids=True), mr.NeighborSampler((3, 3), expand="all", edge_ids=True)],
    ids=str,
)
@given(graph=typed_graphs(linked=True), data=st.data())
def test_with_several_relations_only_edges_of_the_pairs_own(sampler: Any, graph: Graph, data: st.DataObject) -> None:
    graph, links = of_several(graph, data.draw(st.booleans()), data.draw(st.booleans()))
    if links is not None:
        numbers = np.arange(len(links.pairs))
        drawn_alike(sampler, graph, LinkPlan(numbers, 3, 3, data.draw(st.integers(0, 5)), links=links))


def test_a_bulk_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several pieces each has minibatches and keys of its own."""
    graph, pairs = with_all_defects(True)
    monkeypatch.setattr(tables, "TABLE_BYTES", 2 * 5 * tables.stride(graph.num_nodes))
    for sampler in (SAMPLERS[1], SAMPLERS[2]):
        assert drawn_alike(sampler, graph, plan_of(graph, pairs, 12, 5))


@pytest.mark.parametrize("sampler", [SAMPLERS[1], SAMPLERS[2]], ids=str)
def test_lists_by_source_skip_the_gaps(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (minibatch_cuda, exclude_cuda):
        monkeypatch.setattr(module, "CHUNK", 2)
    graph, pairs = with_all_defects(False)
    request = plan_of(graph, pairs, 17, 4).request(0, 0)
    bulk = WithoutOwnEdges(sampler).sample_on_device(graph, request)
    there = bulk.minibatches[0].bulk
    assert any((x.begin > 0).all() for x in there.lists)
    layout = Layout.with_room_for(there, ())
    framed, longest = layout.rows(there).cpu(), 0
    for m in bulk.minibatches:
        for h in range(m.bulk.num_hops):
            lists = m.bulk.block(m.q, h)
            back, edge = lists.transposed
            kept = np.diff(lists.indptr.cpu())
            rows, indices = np.repeat(np.arange(lists.num_dst), kept), lists.indices.cpu().numpy()
            order = np.argsort(indices, kind="stable")
            assert np.array_equal(edge.cpu(), order) and np.array_equal(back.indices.cpu(), rows[order])
            assert np.array_equal(back.indptr.cpu().diff(), np.bincount(indices, minlength=lists.num_src))
            longest = max(longest, kept.max())
            at = layout.extents["indices", h][0]
            assert np.array_equal(framed[m.q, at : at + len(indices)], indices)
    # Long lists are cut by it.
    assert there.longest == longest > 2


def stops_of(work: Coroutine[None, None, Bulk]) -> tuple[int, Bulk]:
    """Places where the host waits, and what comes of it."""
    stops = 0
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return stops, end.value
        stops += 1


def test_the_host_waits_once_or_twice_whatever_the_bulk() -> None:
    """For the numbers of own edges, and before that for those of seeds' edges if layers have lists of their own."""
    graph, pairs = with_all_defects(False)
    for sampler, waits in ((SAMPLERS[0], 1), (SAMPLERS[2], 2)):
        counts = {}
        for k in (2, 4, 0):
            request = plan_of(graph, pairs, 9, max(k, 1)).request(0, 0)
            request = replace(request, positives=request.positives[:k])
            drawn = sampler.sample_on_device(graph, request) if k else Bulk(0, 0, ())
            work = exclude_cuda.without_own_edges(
                drawn, request, EdgeKinds.in_ids(SINGLE), nested=sampler.expand == "new", device=pretended_device.DEVICE
            )
            with pretended_device.Operations() as seen:
                assert stops_of(work)[0] == waits
            assert not seen.waits
            counts[k] = len(seen.asked)
        assert counts[2] == counts[4]


def test_owners_of_rows_draw_the_same_on_their_devices() -> None:
    """The last rank has no minibatches, and stops at as many places as the others."""
    graph, pairs = with_all_defects(True)
    plan = plan_of(graph, pairs, 6, 3)
    for sampler in (SAMPLERS[1], SAMPLERS[2]):
        without = WithoutOwnEdges(sampler)
        assert without.draws_by_owners_on_device

        def rank(group: ThreadGroup, without: WithoutOwnEdges = without) -> int:
            rows = block_rows(graph, RangeBook(np.array([0, 13, 29, 40])), group.rank, group)
            of_rank = [3, 2, 0]
            owners = OwnersOnDevice(rows, group, pretended_device.DEVICE)
            owners.minibatches = of_rank
            k, whole = of_rank[group.rank], plan.request(0, group.rank)
            request = LinkRequest(
                whole.seed, 0, group.rank, 0, whole.seeds[:k], whole.indices[:k], (), whole.positives[:k]
            )
            stops, seen = stops_of(without.sample_by_owners_on_device(owners, request))
            if k:
                want = without.sample(graph, request, cpu)
                equal(want, seen)
            else:
                assert not seen.minibatches
            return stops

        stops = run_threads(rank, 3)
        hops = sampler.num_layers
        assert stops == [3 * hops + (1 if sampler.expand == "new" else 2)] * 3
