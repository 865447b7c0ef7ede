"""Minibatches that stay on the device that drew them: the same bits, and the same aggregates."""

import numpy as np
import pytest
import torch

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph, from_edges
from millrace.storage.queue.base import MemoryQueue
from millrace.storage.queue.bulk_codec import pack_bulk
from millrace.tests.contracts.digests import minibatch_digest

pytestmark = pytest.mark.usefixtures("on_device")
SAMPLERS = [
    NeighborSampler((3, 2)),
    NeighborSampler((4,)),
    NeighborSampler((0,)),
    NeighborSampler((3, 2, 2), expand="all", edge_ids=True),
    NeighborSampler((3, 2), replace=True, weighted=True),
    NeighborSampler((-1, 3)),
    LaborSampler((3, 2)),
    LaborSampler((3, 2), poisson=True, expand="all"),
    LaborSampler((3, -1), poisson=True, edge_ids=True),
    LadiesSampler((5, 6), edge_ids=True),
    FastGCNSampler((5, 6), debias="bottom_k"),
]


def graph(weighted: bool, seed: int = 0) -> Graph:
    """40 nodes with a hub, self loops, multi-edges and nodes without edges."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 36, 300), rng.integers(0, 36, 300)
    dst[:80] = 5
    src[200:] = rng.integers(0, 3, 100)
    return from_edges(src, dst, 40, edge_weight=rng.random(300).astype(np.float32) + 0.1 if weighted else None)


def request(g: Graph) -> BulkRequest:
    seeds = tuple(np.random.default_rng(3).permutation(g.num_nodes)[:n] for n in (7, 1, 12))
    return BulkRequest(11, 2, 1, 4, seeds, (4, 5, 7))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_the_same_bits_as_on_the_host(sampler, weighted):
    if getattr(sampler, "weighted", False) and not weighted:
        pytest.skip("needs weights")
    g = graph(weighted)
    want, seen = sampler.sample(g, request(g), cpu), sampler.sample_on_device(g, request(g))
    assert [m.index for m in seen.minibatches] == [4, 5, 7]
    assert not any(m.on_host for m in seen.minibatches)
    for a, b in zip(want.minibatches, seen.minibatches):
        assert (a.num_edges, a.nested) == (b.num_edges, b.nested)
        assert minibatch_digest(a) == minibatch_digest(b.check())
    assert np.array_equal(pack_bulk(want), pack_bulk(seen))


@pytest.mark.parametrize(
    "sampler", [NeighborSampler((3, 2)), NeighborSampler((20, 9), expand="all"), LadiesSampler((5, 6))], ids=str
)
def test_transposed_lists(sampler, monkeypatch):
    from millrace.stages.kernels.minibatch_cuda import bulk as resident_cuda

    monkeypatch.setattr(resident_cuda, "CHUNK", 4)
    g = graph(False)
    bulk = sampler.sample_on_device(g, request(g))
    for m in bulk.minibatches:
        for h in range(2):
            lists = m.bulk.block(m.q, h)
            back, edge = lists.transposed
            rows = np.repeat(np.arange(lists.num_dst), np.diff(lists.indptr.cpu()))
            order = np.argsort(lists.indices.cpu().numpy(), kind="stable")
            assert np.array_equal(edge.cpu(), order)
            assert np.array_equal(back.indices.cpu(), rows[order])
            kept = np.bincount(lists.indices.cpu(), minlength=lists.num_src)
            assert np.array_equal(back.indptr.cpu().diff(), kept) and len(back.indptr) == lists.num_src + 1
            _pieces_cover(back, kept)
            # With each edge a source of its own, and not by the bulk's.
            alone, edge = lists.of_edges.transposed
            assert np.array_equal(alone.indices.cpu(), rows) and np.array_equal(edge.cpu(), np.arange(len(rows)))
            assert np.array_equal(alone.indptr.cpu(), np.arange(len(rows) + 1))


def _pieces_cover(back, kept):
    """Beyond the first CHUNK edges of each list every edge is in one piece of its list, and pieces are in order."""
    long = np.flatnonzero(kept > 4)
    if back.rest is None:
        assert not len(long)
        return
    rest = back.rest
    assert np.array_equal(rest.long.cpu(), long) and back.longest == kept.max()
    start = np.cumsum(kept) - kept
    begin, end, of = (x.cpu().numpy() for x in (rest.begin, rest.end, rest.of))
    assert (end - begin <= 4).all() and (end > begin).all()
    for u in long:
        own = of == u
        covered = np.concatenate([np.arange(a, b) for a, b in zip(begin[own], end[own])])
        assert np.array_equal(covered, np.arange(start[u] + 4, start[u] + kept[u]))
    pieces = rest.pieces
    assert np.array_equal(pieces.indptr.cpu().diff(), (kept[long] - 1) // 4) and pieces.num_src == len(of)
    assert np.array_equal(pieces.indices.cpu(), np.arange(len(of)))
    assert np.array_equal(of, np.repeat(long, (kept[long] - 1) // 4))


def test_a_queue_in_memory_counts_what_the_device_holds_and_copies_nothing():
    g = graph(False)
    bulk = NeighborSampler((3, 2)).sample_on_device(g, request(g))
    queue = MemoryQueue(bulk_size=4, max_bytes=1 << 20)
    queue.put(bulk, 1.0)
    assert queue.level["bytes"] == sum(m.nbytes for m in bulk.minibatches) > 0
    got = queue.get(2, 7, 1.0)
    assert got is bulk.minibatches[2] and "blocks" not in vars(got)
    assert sum(m.nbytes for m in bulk.minibatches) == sum(t.nbytes for t in bulk.minibatches[0].bulk.tensors)


def test_nbytes_of_an_empty_bulk_in_a_graph_without_edges():
    g = from_edges(np.empty(0, np.int64), np.empty(0, np.int64), 3)
    bulk = NeighborSampler((2, 2)).sample_on_device(g, BulkRequest(0, 0, 0, 0, (np.array([2, 0]),)))
    (m,) = bulk.minibatches
    assert (
        m.num_edges == 0
        and m.nodes.tolist() == [2, 0]
        and torch.equal(m.bulk.inverse_kept(0, 0, torch.float32).cpu(), torch.ones(2))
    )
    back, _ = m.bulk.block(0, 1).transposed
    assert back.num_dst == 2 and back.rest is None
