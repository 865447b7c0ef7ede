"""Sources of rows on the host, for steps on a device."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from millrace.stages.assignment import SeedPlan
from millrace.stages.fetch.fetch import HOST, Degrees, Labels, MinibatchFetcher
from millrace.stages.fetch.gather import HostRows
from millrace.stages.fetch.isolated import Weights
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.messages import Placement
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges

V = 40


def test_rows_labels_and_degrees_of_the_host_reach_the_device(on_device: torch.device) -> None:
    rng = np.random.default_rng(0)
    graph = from_edges(*rng.integers(V, size=(2, 200)), V)
    x, labels, none = rng.random((V, 3), np.float32), torch.arange(V) % 5, np.empty(0, np.int64)
    placement = Placement(
        graph, ArrayFeatures(x), labels, torch.from_numpy(graph.degree).float(), Split(np.arange(V), none, none)
    )
    seen: Any = SimpleNamespace(coverage=torch.linspace(0.5, 1, V, dtype=torch.float64))
    labels_there, weights = Labels(placement, HOST, on_device), Weights(seen, "node")
    fetcher = MinibatchFetcher(
        HostRows(placement, placement.features), labels_there, Degrees(placement, HOST), weights, on_device
    )
    for work in NeighborSampler((4, 3)).sample(graph, SeedPlan(np.arange(V), 16, 3, 0).request(1, 0), cpu).minibatches:
        got = fetcher.fetch(work)
        assert (got.epoch, got.index) == (work.epoch, work.index)
        assert got.h.is_cuda and np.array_equal(got.h.cpu().numpy(), x[work.nodes])
        assert got.y.is_cuda and torch.equal(got.y.cpu(), labels[torch.from_numpy(work.seeds).long()])
        torch.testing.assert_close(got.weight, seen.coverage[torch.from_numpy(work.seeds).long()])
        assert got.neighbourhoods[0].num_dst == work.blocks[0].num_dst
    assert fetcher.exchange_s == 0 and fetcher.hit_counts == {}
    step: Any = None
    assert fetcher.recorded(step, step, step, [], True) is None, "rows of the host are in no frame"
    with pytest.raises(NotImplementedError):
        fetcher.rows.framed(step)
