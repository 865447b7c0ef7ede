"""Everything that a step reads is on the device when it begins, wherever rows and minibatches were before."""

from typing import Any

import numpy as np
import pytest
import torch

from millrace.stages.assignment import BulkRequest
from millrace.stages.fetch import gather_cuda
from millrace.stages.fetch.fetch import Degrees, Labels, MinibatchFetcher
from millrace.stages.fetch.gather_cuda import DeviceMemory, DeviceRows, upload
from millrace.stages.fetch.isolated import Weights
from millrace.stages.kernels.minibatch_cuda.rows import gather_rows
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.messages import Placement
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures, ConvertedFeatures, FeatureStore
from millrace.storage.graph import from_edges

V, F = 30, 4
X = np.arange(V * F, dtype=np.float64).reshape(V, F)
LABELS = torch.arange(V) % 3
STORES: dict[str, FeatureStore] = {
    "memory": ArrayFeatures(X),
    "pieces": ConvertedFeatures(ArrayFeatures(X.astype(np.float32)), np.float64),
}


def placement(weighted: bool) -> Placement:
    rng = np.random.default_rng(0)
    weight = rng.random(90).astype(np.float32) if weighted else None
    graph = from_edges(rng.integers(0, V, 90), rng.integers(0, V, 90), V, edge_weight=weight)
    none = np.empty(0, np.int64)
    split = Split(np.arange(V), none, none)
    return Placement(graph, ArrayFeatures(X), LABELS, torch.from_numpy(graph.degree).double(), split)


@pytest.mark.parametrize(
    ("where", "cache_rows", "nested"), [("device", 0, True), ("pinned", 0, True), ("pinned", 5, False)]
)
def test_a_minibatch_of_the_host(where: Any, cache_rows: int, nested: bool, on_device: torch.device) -> None:
    place = placement(weighted=not nested)
    sampler = NeighborSampler((3, 2), expand="new" if nested else "all")
    seeds = (np.array([4, 9, 1]), np.array([2, 7]))
    rows = DeviceRows(
        place, upload(place.features, on_device, where), DeviceMemory(where, cache_rows * F * 8), on_device
    )
    fetcher = MinibatchFetcher(
        rows, Labels(place, on_device, on_device), Degrees(place, on_device), Weights(place, "none")
    )
    for work in sampler.sample(place.graph, BulkRequest(1, 0, 0, 0, seeds), cpu).minibatches:
        fetched = fetcher.fetch(work)
        assert fetched.h.is_cuda and fetched.y.is_cuda
        assert np.array_equal(fetched.h.cpu().numpy(), X[work.nodes])
        assert torch.equal(fetched.y.cpu(), LABELS[torch.from_numpy(work.seeds)])
        for neighbourhood, block in zip(fetched.neighbourhoods, work.blocks, strict=True):
            assert neighbourhood.degree.is_cuda
            assert np.array_equal(neighbourhood.degree.cpu(), place.graph.degree[block.src])
            weight: Any = neighbourhood.weight
            assert (weight is None) == nested
            assert block.weight is None or np.array_equal(weight.cpu(), block.weight)
            total = neighbourhood.sum(torch.ones(block.num_src, 1, dtype=torch.float64, device=on_device))
            assert total.is_cuda and total.shape == (block.num_dst, 1)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("where", ["device", "pinned"])
def test_rows_are_uploaded_to_where_kernels_read_them(
    store: str, where: Any, monkeypatch: pytest.MonkeyPatch, on_device: torch.device
) -> None:
    monkeypatch.setattr(gather_cuda, "UPLOAD_BYTES", 7 * F * 8)
    got = upload(STORES[store], on_device, where, range(3, 25))
    assert (got.rows.is_cuda, got.in_device_memory) == (where == "device", where == "device")
    assert np.array_equal(got.rows.cpu(), X[3:25])
    cache = got.cache(placement(False), 4 * F * 8, on_device, first=3)
    assert (cache is None) == got.in_device_memory
    rows = gather_rows(got.rows, torch.tensor([1, 0, 21], device=on_device), cache)
    assert rows.is_cuda and np.array_equal(rows.cpu(), X[[4, 3, 24]])
