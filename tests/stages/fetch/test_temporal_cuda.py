"""Minibatches by time on a device: degrees until then are the host's, fetching waits for nothing, and the graph is
there once, in the order of time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.assignment import BulkRequest
from millrace.stages.comm.solo import Solo
from millrace.stages.fetch.temporal import TemporalFetch
from millrace.stages.kernels import sampling_backend
from millrace.stages.messages import Placement, RankJob
from millrace.stages.sample.temporal import TemporalSampler, timed_graph
from millrace.storage.features import ArrayFeatures
from millrace.storage.ledger import Ledger
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.typed import typed_dataset

pytest.importorskip("triton")

from millrace.stages.fetch.temporal_cuda import DeviceTemporalFetch
from millrace.stages.kernels.sampling import device_graph

pytestmark = pytest.mark.usefixtures("on_device")


def placement_of(kind: str) -> Placement:
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
def test_a_minibatch_is_the_hosts_whoever_draws(kind: str, topology: str) -> None:
    placement, sampler = placement_of(kind), TemporalSampler((3, 2), "last", edge_ids=True)
    shared = {"seed": 5, "batch_size": 8, "bulk_size": 2, "epochs": 1, "dtype": torch.float64}
    shared |= {"group": Solo(), "ledger": Ledger()}
    here = TemporalFetch().fetcher(placement, RankJob(**shared, kernel=None))
    there = DeviceTemporalFetch(topology=topology).fetcher(
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


def test_no_step_is_recorded() -> None:
    """A frame has no degrees at moments."""
    placement, Job = placement_of("plain"), RankJob
    job = Job(
        seed=5, batch_size=8, bulk_size=2, epochs=1, dtype=torch.float64, kernel=sampling_backend("cuda"),
        group=Solo(), ledger=Ledger(), device=pretended_device.DEVICE, resident=True,
    )  # fmt: skip
    module = mr.GCN(hidden=7, layers=2).build(5, 3).double().to(job.device)
    fetcher = DeviceTemporalFetch().fetcher(placement, job)
    # pyrefly: ignore[bad-argument-type]
    assert fetcher.recorded(module, None, None, list(module.parameters()), True) is None
