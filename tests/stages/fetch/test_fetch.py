"""Minibatches as tensors. Of pairs: with all neighbours, loss and gradient are those of a dense model on the graph
without the minibatch's own edges, in float64."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.assignment import BulkRequest
from millrace.stages.comm.solo import Solo
from millrace.stages.feed.link_feed import SampledLinks
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.forward_backward import forward_backward
from millrace.stages.kernels import sampling_backend
from millrace.stages.links.decoders import make_decoder
from millrace.stages.links.train_pairs import Negatives
from millrace.stages.losses import NamedLoss
from millrace.stages.messages import Placement, RankJob
from millrace.stages.sample.temporal import TemporalSampler, timed_graph
from millrace.storage.features import ArrayFeatures
from millrace.storage.ledger import Ledger
from millrace.storage.links.pairs import Pairs
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.typed import typed_dataset

V, F, D = 24, 5, 6


def placement_of(weighted):
    """A graph with multi-edges and loops, some of whose edges are pairs."""
    rng = np.random.default_rng(4)
    src, dst = rng.integers(V, size=(2, 120))
    src, dst = np.r_[src, dst[:40], src[:20]], np.r_[dst, src[:40], dst[:20]]
    weight = rng.random(len(src)) + 0.1 if weighted else None
    graph = mr.from_edges(src, dst, V, edge_weight=weight, edge_features=rng.normal(size=(len(src), 2)))
    pairs = np.unique(np.stack([src[:30], dst[:30]], 1), axis=0)
    of_pairs = Pairs(np.insert(pairs, 2, 0, axis=1), {"train": np.arange(len(pairs))})
    none = np.empty(0, np.int64)
    features = ArrayFeatures(rng.normal(size=(V, F)))
    degree = torch.from_numpy(graph.degree)
    split = mr.Split(np.arange(len(pairs)), none, none)
    labels = torch.zeros(V, dtype=torch.int64)
    return Placement(graph, features, labels, degree, split, edge_features=graph.edge_features, pairs=of_pairs)


def work_of(placement, negatives, model):
    sample = SampledLinks.of_sampler(mr.NeighborSampler((-1, -1), edge_ids=True), negatives)
    job = RankJob(
        seed=5, batch_size=12, bulk_size=2, epochs=1, dtype=torch.float64,
        kernel=sampling_backend("cpu"), group=Solo(), ledger=Ledger(),
    )  # fmt: skip
    fetcher = Fetch(pairs=sample).fetcher(placement, job, model)
    return sample.plan(placement, job), fetcher, list(sample.preview(placement, job, 1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [mr.GCN, mr.GraphSAGE, mr.GIN, partial(mr.GINE, edge_width=2)], ids=str)
def test_loss_and_gradient_are_those_of_the_graph_without_own_edges(kind, weighted):
    placement = placement_of(weighted)
    torch.manual_seed(1)
    model = kind(hidden=7, layers=2, dropout=0.0).build(F, D).double()
    model.decoder = make_decoder("mlp", D).double()
    loss = NamedLoss("link", "bce")
    plan, fetcher, work = work_of(placement, Negatives("uniform", 3), model)
    assert len(work) > 1
    for m in work:
        model.zero_grad()
        done = forward_backward(model, fetcher.fetch(m), 0, "link", 1.0, loss=loss)
        found = {name: p.grad.clone() for name, p in model.named_parameters()}
        # The same by inference on the graph without these edges: exact, with its own degrees.
        graph, pairs = placement.graph, plan.pairs(m.index, 1)
        dst = np.repeat(np.arange(V), graph.in_degree)
        own = {p for u, v in pairs[:, 0].tolist() for p in ((u, v), (v, u))}
        keep = np.array([(u, v) not in own for u, v in zip(graph.indices.tolist(), dst.tolist())])
        assert not keep.all()
        weight = None if graph.edge_weight is None else graph.edge_weight[keep]
        of_edges = graph.edge_features.gather(np.flatnonzero(keep))
        left = mr.from_edges(graph.indices[keep], dst[keep], V, edge_weight=weight, edge_features=of_edges)
        model.zero_grad()
        rows = dense(model, left, torch.from_numpy(placement.features.gather(np.arange(V))))
        scores = model.decoder(rows[pairs[..., 0]], rows[pairs[..., 1]])
        expected = loss(scores, torch.zeros(len(pairs), dtype=torch.int64)).sum()
        expected.backward()
        assert done.loss_sum == pytest.approx(expected.item(), abs=1e-9) and done.seeds == len(pairs)
        for name, p in model.named_parameters():
            torch.testing.assert_close(found[name], p.grad, rtol=1e-9, atol=1e-9)


def dense(model, graph, h):
    """All rows of all layers, over the whole graph as one block."""
    from millrace.stages.neighbourhood.block import BlockNeighbourhood
    from millrace.storage.minibatch import Block

    block = Block(V, np.arange(V), graph.indptr, graph.indices.astype(np.int32), graph.edge_weight)
    degree, of_edges = torch.from_numpy(graph.degree), torch.from_numpy(graph.edge_features.rows)
    for i in range(model.num_layers):
        h = model.layer(i, BlockNeighbourhood(block, degree, edges=lambda: of_edges), h)
    return h


@pytest.mark.parametrize("weighted", [False, True])
def test_a_minibatch_on_a_device_is_the_hosts_and_fetching_it_waits_for_nothing(weighted, on_device):
    pytest.importorskip("triton")
    from millrace.stages.fetch.gather_cuda import DeviceMemory

    placement, device = placement_of(weighted), pretended_device.DEVICE
    model = mr.GCN(hidden=7, layers=2).build(F, D).double()
    model.decoder = make_decoder("dot", D)
    plan, here, work = work_of(placement, Negatives("uniform", 3), model)
    sample = SampledLinks.of_sampler(mr.NeighborSampler((-1, -1), edge_ids=True), Negatives("uniform", 3))
    job = RankJob(
        seed=5, batch_size=12, bulk_size=2, epochs=1, dtype=torch.float64, kernel=sampling_backend("cuda"),
        group=Solo(), ledger=Ledger(), device=device, resident=True,
    )  # fmt: skip
    there = Fetch(pairs=sample, memory=DeviceMemory()).fetcher(placement, job, model.to(device))
    drawn = [
        m
        for number in range(plan.num_bulks)
        for m in sample.sampler.sample_on_device(placement.graph, plan.request(1, number)).minibatches
    ]
    for m, n in zip(work, drawn, strict=True):
        want = here.fetch(m)
        with pretended_device.Operations() as seen_by_host:
            seen = there.fetch(n)
            degrees = [x.degree for x in seen.neighbourhoods]
        assert seen_by_host.asked and not seen_by_host.waits
        assert torch.equal(seen.y.cpu(), want.y) and torch.equal(seen.links.there.cpu(), want.links.pairs)
        for a, b in zip(degrees, want.neighbourhoods):
            assert torch.equal(a.cpu(), b.degree)


def timed_placement_of(kind: str) -> Placement:
    """A graph with times, and perhaps weights or types."""
    rng, V = np.random.default_rng(4), 36
    if kind == "types":
        graph = typed_dataset(degree=40).graph
    else:
        src, dst = rng.integers(V, size=(2, 200))
        graph = mr.from_edges(src, dst, V, edge_weight=rng.random(200) if kind == "weights" else None)
    graph = replace(graph, edge_time=rng.integers(0, 9, graph.num_edges), node_time=rng.integers(2, 9, V))
    features, labels = ArrayFeatures(rng.normal(size=(V, 5))), torch.arange(V) % 3
    split = mr.Split(np.arange(20), np.arange(20, 25), np.arange(25, V))
    return Placement(graph, features, labels, torch.from_numpy(graph.degree), split)


@pytest.mark.parametrize("topology", ["device", "pinned"])
@pytest.mark.parametrize("kind", ["plain", "weights", "types"])
def test_a_minibatch_by_time_is_the_hosts_whoever_draws(kind: str, topology: str, on_device: torch.device) -> None:
    """Degrees until then are the host's, fetching waits for nothing, and the graph is there once, in the order of
    time."""
    pytest.importorskip("triton")
    from millrace.stages.fetch.gather_cuda import DeviceMemory
    from millrace.stages.kernels.sampling import device_graph

    placement, sampler = timed_placement_of(kind), TemporalSampler((3, 2), "last", edge_ids=True)
    shared = {"seed": 5, "batch_size": 8, "bulk_size": 2, "epochs": 1, "dtype": torch.float64}
    shared |= {"group": Solo(), "ledger": Ledger()}
    here = Fetch(by_time=True).fetcher(placement, RankJob(**shared, kernel=None))
    there = Fetch(by_time=True, memory=DeviceMemory(topology=topology)).fetcher(
        placement,
        RankJob(**shared, kernel=sampling_backend("cuda"), device=pretended_device.DEVICE, resident=True),
    )
    times = timed_graph(placement.graph).on_device()
    assert (times.lists.placed, times.time.is_cuda) == (topology, topology == "device")
    assert placement.graph not in device_graph._graphs
    seeds = tuple(np.random.default_rng(1).permutation(20)[:8] for _ in range(3))
    request = BulkRequest(5, 1, 0, 0, seeds)
    on_host = sampler.sample(placement.graph, request, None).minibatches
    for a, b in zip(on_host, sampler.sample_on_device(placement.graph, request).minibatches):
        if b.q == 0 and kind == "weights":
            b.bulk.degrees_until(0)  # copies sums of weights, once
        want = here.fetch(a)
        for work in (a, b):
            with pretended_device.Operations() as seen_by_host:
                seen = there.fetch(work)
                degrees = [x.degree for x in seen.neighbourhoods]
            assert work is a or (seen_by_host.asked and not seen_by_host.waits)
            assert torch.equal(seen.y.cpu(), want.y)
            for x, y in zip(degrees, want.neighbourhoods, strict=True):
                assert x.is_cuda and torch.equal(x.cpu(), y.degree)


def test_no_step_by_time_is_recorded(on_device: torch.device) -> None:
    """A frame has no degrees at moments."""
    pytest.importorskip("triton")
    from millrace.stages.fetch.gather_cuda import DeviceMemory

    placement, Job = timed_placement_of("plain"), RankJob
    job = Job(
        seed=5, batch_size=8, bulk_size=2, epochs=1, dtype=torch.float64, kernel=sampling_backend("cuda"),
        group=Solo(), ledger=Ledger(), device=pretended_device.DEVICE, resident=True,
    )  # fmt: skip
    module = mr.GCN(hidden=7, layers=2).build(5, 3).double().to(job.device)
    fetcher = Fetch(by_time=True, memory=DeviceMemory()).fetcher(placement, job)
    # pyrefly: ignore[bad-argument-type]
    assert fetcher.recorded(module, None, None, list(module.parameters()), True) is None
