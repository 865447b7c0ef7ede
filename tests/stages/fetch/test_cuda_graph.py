"""Steps that are recorded: the gradients of steps that are not, whatever a frame held before."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from millrace.stages.assignment import BulkRequest
from millrace.stages.comm.solo import Solo
from millrace.stages.fetch import cuda_graph
from millrace.stages.fetch.fetch import Degrees, Labels, MinibatchFetcher
from millrace.stages.fetch.gather_cuda import DeviceMemory, DeviceRows, Uploaded
from millrace.stages.fetch.isolated import Weights
from millrace.stages.forward_backward import forward_backward
from millrace.stages.kernels.aggregation import lists as lists_cuda
from millrace.stages.kernels.minibatch_cuda import bulk as resident_cuda
from millrace.stages.kernels.minibatch_cuda import frames as frames_cuda
from millrace.stages.kernels.runtime.triton_rng import device
from millrace.stages.messages import Placement, StepRules
from millrace.stages.models import MODELS
from millrace.stages.placement.chunks import Isolated
from millrace.stages.reduce.corrected import CoverageCorrected
from millrace.stages.reduce.seed_weighted import SeedWeightedMean
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges

pytestmark = pytest.mark.usefixtures("on_device")
V, F, CLASSES = 60, 5, 4


def setting(weighted=False, multilabel=False):
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, V, 500), rng.integers(0, V, 500)
    src[:200] = rng.integers(0, 2, 200)
    graph = from_edges(src, dst, V, edge_weight=rng.random(500).astype(np.float32) + 0.5 if weighted else None)
    labels = torch.from_numpy(
        rng.integers(0, 2, (V, CLASSES)).astype(np.float32) if multilabel else rng.integers(0, CLASSES, V)
    )
    none = np.empty(0, np.int64)
    features = ArrayFeatures(rng.standard_normal((V, F)).astype(np.float32))
    return Placement(graph, features, labels, torch.from_numpy(graph.degree).float(), Split(np.arange(V), none, none))


def gathering(place, **options):
    rows = Uploaded(torch.from_numpy(place.features.rows).to(device()), True)
    rows = DeviceRows(place, rows, DeviceMemory(**options), device())
    return MinibatchFetcher(rows, Labels(place, device(), device()), Degrees(place, device()), Weights(place, "none"))


def bulks(place, sampler, sizes, count=2):
    """Bulks of minibatches with so many seeds."""
    rng = np.random.default_rng(5)
    for number in range(count):
        seeds = tuple(rng.permutation(V)[:n] for n in sizes)
        first = number * len(sizes)
        yield sampler.sample_on_device(place.graph, BulkRequest(3, 0, number, first, seeds))


@dataclass(frozen=True)
class Watched(CoverageCorrected):
    """Remembers the sums of weights."""

    sums: list[float] = field(default_factory=list)

    def weigh(self, weight, group):
        found = super().weigh(weight, group)
        self.sums.append(found[1])
        return found


def run(model, place, sampler, sizes=(4, 4, 4, 2), task="multiclass", reduce=None, correction="none"):
    """Gradients of every minibatch, recorded where that can be and not, and how many were recorded."""
    reduce = reduce or SeedWeightedMean()
    model = model.to(device())
    gather = gathering(place)
    if correction != "none":
        gather.weights = Weights(covered(place), correction)
    parameters = list(model.parameters())
    rules = StepRules(7, task, "float32", Solo(), lambda p: torch.optim.SGD(p, lr=0.1))
    steps = gather.recorded(model, reduce, rules, parameters, True)
    assert steps is not None
    played = 0
    for bulk in bulks(place, sampler, sizes):
        for m in bulk.minibatches:
            for p in parameters:
                p.grad = None
            want = reduce.contribute(model, gather.fetch(m), rules)
            grads = [p.grad for p in parameters]
            for p in parameters:
                p.grad = None
            weighed = len(getattr(reduce, "sums", ()))
            done = steps.contribute(m)
            if correction != "none":  # once, by whichever way: ranks may wait for each other
                assert len(reduce.sums) == weighed + (done is not None)
            if done is None:
                assert all(p.grad is None for p in parameters)
                continue
            played += 1
            assert done.seeds == want.seeds
            assert (done.weight or done.seeds) == (want.weight or want.seeds)
            torch.testing.assert_close(
                torch.as_tensor(done.loss_sum).cpu(), torch.as_tensor(want.loss_sum).cpu(), rtol=1e-5, atol=1e-5
            )
            for p, grad in zip(parameters, grads):
                torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-5)
    return played


@pytest.mark.parametrize(
    ("name", "options", "sampler", "hubs"),
    [
        ("sage", {}, NeighborSampler((3, 2, 2)), False),
        ("sage", {"dropout": 0.4}, NeighborSampler((3, 2), expand="all"), False),
        ("sage", {"dropout": 0.4}, NeighborSampler((3, 2), expand="all"), True),
        ("sage", {"aggregator": "max", "dropout": 0.3}, NeighborSampler((4, 3)), False),
        ("sage", {"aggregator": "max", "dropout": 0.3}, NeighborSampler((4, 3)), True),
        ("gcn", {"norm": "layer"}, NeighborSampler((5, 1, 5)), True),
        ("gin", {}, LaborSampler((3, 3)), True),
        ("gat", {"heads": 2}, NeighborSampler((3, 3)), False),
        ("gat", {"heads": 2}, NeighborSampler((3, 3)), True),
        ("sage", {}, NeighborSampler((5,)), False),
    ],
    ids=str,
)
def test_the_same_gradients(name, options, sampler, hubs, monkeypatch):
    if hubs:
        # Lists by source are then long ones; those by destination stay short.
        # Nor is there much room beyond a minibatch's end.
        monkeypatch.setattr(frames_cuda, "ALIGN", 1)
        for module in (resident_cuda, frames_cuda, lists_cuda, cuda_graph):
            monkeypatch.setattr(module, "CHUNK", 5)
    torch.manual_seed(0)
    model = MODELS[name](**{"hidden": 8, "layers": sampler.num_layers, "dropout": 0.0, **options}).build(F, CLASSES)
    # Of two bulks of four, the first two are taken as ever, and the last of each has too few seeds.
    assert run(model, setting(), sampler) == 4


def test_edge_weights_and_multilabel():
    model = MODELS["gcn"](hidden=8, layers=2, dropout=0.2).build(F, CLASSES)
    assert run(model, setting(weighted=True, multilabel=True), NeighborSampler((3, 3)), task="multilabel") == 4


def covered(place):
    """The same data, of whose in-edges shares are present."""
    coverage = torch.from_numpy(np.random.default_rng(2).uniform(0.05, 1, V))
    return Isolated(place.graph, place.features, place.labels, place.degree, place.split, coverage=coverage)


@pytest.mark.parametrize("hubs", [False, True])
@pytest.mark.parametrize(
    ("task", "reduce"),
    [
        ("multiclass", CoverageCorrected()),
        ("multilabel", CoverageCorrected()),
        ("multiclass", CoverageCorrected(by_batch=False)),
        ("multilabel", CoverageCorrected(by_batch=False)),
        ("multiclass", CoverageCorrected(shrink="empirical")),
    ],
)
def test_weights_of_seeds(task, reduce, hubs, monkeypatch):
    """The loss that is told is not weighted; each minibatch has weights of its own, on the same recording."""
    if hubs:
        # The first recording fails for want of lists by source.
        monkeypatch.setattr(frames_cuda, "ALIGN", 1)
        for module in (resident_cuda, frames_cuda, lists_cuda, cuda_graph):
            monkeypatch.setattr(module, "CHUNK", 5)
    reduce, place = Watched(reduce.by_batch, reduce.shrink), setting(multilabel=task == "multilabel")
    torch.manual_seed(0)
    model = MODELS["sage"](hidden=8, layers=2, dropout=0.3).build(F, CLASSES)
    sampler, correction = NeighborSampler((3, 2), expand="all"), "batch" if reduce.by_batch else "node"
    assert run(model, place, sampler, (4, 4, 4, 4, 2), task, reduce=reduce, correction=correction) == 6
    assert reduce.shrink != "none" or len({round(s, 9) for s in reduce.sums}) == 10


def test_gradients_of_several_minibatches_add_up():
    place, sampler = setting(), NeighborSampler((3, 2))
    model = MODELS["sage"](hidden=8, layers=2, dropout=0.0).build(F, CLASSES).to(device())
    gather = gathering(place)
    parameters = list(model.parameters())
    rules = StepRules(7, "multiclass", "float32", Solo(), lambda p: torch.optim.SGD(p, lr=0.1))
    steps = gather.recorded(model, SeedWeightedMean(), rules, parameters, False)
    assert steps is not None
    minibatches = [m for bulk in bulks(place, sampler, (4, 4, 4)) for m in bulk.minibatches]
    assert [steps.contribute(m) is None for m in minibatches] == [True, True, False, False, False, False]
    seen = [p.grad.clone() for p in parameters]
    for p in parameters:
        p.grad = None
    for m in minibatches[2:]:
        forward_backward(model, gather.fetch(m), rules.seed, "multiclass", 1.0)
    for p, grad in zip(parameters, seen):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-5)


def test_larger_minibatches_are_given_more_room_a_few_times(monkeypatch):
    monkeypatch.setattr(frames_cuda, "ALIGN", 1)
    monkeypatch.setattr(cuda_graph, "MOST", 2)
    place = setting()
    model = MODELS["sage"](hidden=4, layers=2, dropout=0.0).build(F, CLASSES).to(device())
    gather = gathering(place)
    rules = StepRules(7, "multiclass", "float32", Solo(), lambda p: torch.optim.SGD(p, lr=0.1))
    steps = gather.recorded(model, SeedWeightedMean(), rules, list(model.parameters()), True)
    assert steps is not None
    grown = [
        NeighborSampler((k, k)).sample_on_device(place.graph, BulkRequest(3, 0, k, k, (np.arange(4),)))
        for k in (1, 1, 1, 3, 6)
    ]
    assert [steps.contribute(b.minibatches[0]) is None for b in grown] == [True, True, False, False, True]


def test_what_cannot_be_recorded():
    place = setting()
    gather = gathering(place)
    rules = StepRules(7, "multiclass", "float32", Solo(), lambda p: torch.optim.SGD(p, lr=0.1))

    def recorded(model):
        return gather.recorded(model.to(device()), SeedWeightedMean(), rules, list(model.parameters()), True)

    assert recorded(MODELS["sage"](hidden=4, norm="batch").build(F, CLASSES)) is None
    assert recorded(MODELS["gat"](hidden=4, attention_dropout=0.5).build(F, CLASSES)) is None
    assert recorded(MODELS["gatv2"](hidden=4).build(F, CLASSES)) is None
    assert recorded(torch.nn.Linear(2, 2)) is None
    off = gathering(place, graphs=False)
    assert off.recorded(MODELS["sage"]().build(F, CLASSES), SeedWeightedMean(), rules, [], True) is None
