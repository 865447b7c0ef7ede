"""Outputs at the moments of nodes, drawn by a device, or a pretended one: those of the host's draws."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.evaluate import temporal
from millrace.stages.evaluate.temporal import Draws, temporal_outputs
from millrace.stages.models.relational import TypedInput
from millrace.stages.sample.temporal import TemporalSampler
from millrace.storage.features import ArrayFeatures, CountedFeatures
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.typed import typed_dataset

pytest.importorskip("triton")

from millrace.stages.evaluate.temporal_cuda import DeviceChunks

pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
V = 25


def timed(weighted: bool) -> mr.Graph:
    rng = np.random.default_rng(2)
    ends, weight = rng.integers(0, V, (2, 150)), rng.random(150, np.float32)
    weight = weight if weighted else None
    of_edges = rng.standard_normal((150, 3))
    return mr.from_edges(*ends, V, edge_time=rng.integers(0, 6, 150), edge_weight=weight, edge_features=of_edges)


@pytest.mark.parametrize("device_rows", [torch.float32, torch.float64, None], ids=str)
@pytest.mark.parametrize("model", [mr.GraphSAGE, mr.GCN, mr.GAT, mr.GINE])
def test_they_are_those_of_the_host(model, device_rows, monkeypatch) -> None:
    """Of nodes that repeat, at several moments, in several chunks, by fewer layers than the sampler has hops."""
    monkeypatch.setattr(temporal, "CHUNK", 7)
    graph = timed(weighted=model is not mr.GAT)
    torch.manual_seed(0)
    module = model(hidden=8, layers=2, **({"edge_width": 3} if model is mr.GINE else {})).build(5, 4).double()
    there = copy.deepcopy(module).to("cuda")
    features = ArrayFeatures(np.random.default_rng(0).integers(-9, 9, (V, 5)).astype(np.float64))
    ledger = Ledger()
    counted = CountedFeatures(features, ledger, "evaluation")
    rows = None if device_rows is None else torch.from_numpy(features.gather(np.arange(V))).to("cuda", device_rows)
    nodes, moments = np.r_[np.arange(V), 3, 7, 3], np.r_[np.arange(V) % 6, 5, 0, 5]
    for sampler in (TemporalSampler((3, 2, 4)), TemporalSampler((-1, 2), "last", replace=True)):
        want = temporal_outputs(module, graph, features, Draws(sampler, 4), nodes, moments)
        told: list[tuple[int, int]] = []
        of_edges = replace(graph, edge_features=graph.edge_features)
        draws = Draws(sampler, 4, lambda *a, told=told: told.append(a), DeviceChunks(graph, rows))
        seen = temporal_outputs(there, of_edges, counted, draws, nodes, moments)
        assert seen.is_cuda and len(told) > 1
        torch.testing.assert_close(seen.cpu(), want, rtol=1e-10, atol=1e-12)
    assert (ledger.get("evaluation", "features") > 0) == (device_rows is None)


@pytest.mark.parametrize("model", ["rgcn", "rgat"])
def test_types_and_features_of_edges(model) -> None:
    data = typed_dataset(degree=20, edge_features=True)
    graph = replace(data.graph, edge_time=np.random.default_rng(0).integers(0, 9, data.graph.num_edges))
    kind = {"rgcn": mr.RGCN, "rgat": mr.RGAT}[model]
    torch.manual_seed(0)
    more = {"heads": 2, "edge_width": 3} if model == "rgat" else {}
    module = kind(hidden=4, layers=2, **more).build_typed(TypedInput(graph.types, (5, 3, 0)), 3).double()
    nodes = np.arange(20)
    want, seen = (
        temporal_outputs(
            m, graph, data.features, Draws(TemporalSampler((2, -1), "last"), 1, chunk=chunk), nodes, nodes % 7
        )
        for m, chunk in ((module, None), (copy.deepcopy(module).to("cuda"), DeviceChunks(graph, None)))
    )
    torch.testing.assert_close(seen.cpu(), want, rtol=1e-10, atol=1e-12)
