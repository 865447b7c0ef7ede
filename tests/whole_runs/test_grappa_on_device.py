"""System `grappa` on GPUs, which are pretended where there are none: each rank draws and fetches on its own, the
minibatches and parameters that processors compute."""

import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.pipeline.config.schema import Train
from millrace.pipeline.setup import device_policies
from millrace.pipeline.systems.grappa import grappa
from millrace.pipeline.training import step
from millrace.stages.feed.local_feed import LocalFeed
from millrace.stages.models.gcn import GCN
from millrace.stages.models.sage import SAGE
from millrace.stages.sample.base import Sampler
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.tests.contracts import isolated, pretended_device
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.full_batch import C, Case, F, make_case
from millrace.tests.contracts.isolated import train_threads

pytest.importorskip("triton")

from millrace.stages.fetch.cuda_graph import StepGraph
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.kernels.sampling import device_graph

pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
PINNED = {"gpu": {"features": "pinned", "topology": "pinned", "cache_bytes": 3 * F * 8}}


def with_edge_rows(case: Case) -> Case:
    rows = np.random.default_rng(0).standard_normal((case.graph.num_edges, 2))
    return replace(case, graph=replace(case.graph, edge_features=ArrayFeatures(rows)))


def initial(edges: int = 0) -> nn.Module:
    """A model that reads so many features of each edge."""
    torch.manual_seed(5)
    if edges:
        return GCN(hidden=4, layers=2, dropout=0.0, edge_width=edges).build(F, C).double()
    return SAGE(hidden=4, layers=2, dropout=0.0).build(F, C).double()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[bool, int, int, int], str]:
    """Digests of minibatches, by whether they lie on the host, rank, epoch and index."""
    seen = {}

    def watched(real: Any) -> Any:
        def ask(self: Any, epoch: int, index: int) -> Any:
            work = real(self, epoch, index)
            if work is not None and len(work.seeds):
                seen[work.on_host, self._job.group.rank, epoch, index] = minibatch_digest(work)
            return work

        return ask

    for name in ("get", "peek"):
        monkeypatch.setattr(LocalFeed, name, watched(getattr(LocalFeed, name)))
    return seen


def agree(
    case: Case,
    sampler: Sampler,
    options: dict[str, Any],
    device: dict[str, Any],
    seen: dict[Any, str],
    epochs: int = 3,
    every: int = 1,
) -> None:
    rows = case.graph.edge_features
    model = initial(0 if rows is None else rows.num_features)
    system, train = grappa(sampler, repartition_every=every, **options), Train(lr=0.05, batch_size=3)
    here = train_threads(case, system, model, epochs, train)
    on_host = {key[1:]: seen.pop(key) for key in [*seen]}
    there = train_threads(case, system, model, epochs, train, device=device)
    draws = device.get("kernel") != "cpu"
    assert {key[1:]: digest for key, digest in seen.items()} == on_host
    assert {key[0] for key in seen} == {not draws}
    for (a, mine, of), (b, theirs, also) in zip(here, there, strict=True):
        np.testing.assert_allclose(
            [h["train_loss"] for h in b.history], [h["train_loss"] for h in a.history], rtol=1e-10
        )
        assert (b.minibatches, b.sampled_edges) == (a.minibatches, a.sampled_edges)
        assert also.ledger.as_record() == of.ledger.as_record()
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert q.is_cuda
            torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "sampler", "options", "device"),
    [
        (make_case(8, 3), NeighborSampler((2, 2)), {"shrink": "empirical"}, {}),
        (make_case(7, 2), NeighborSampler((2, 2), weighted=True), {"correction": "node", "halo": 0.5}, PINNED),
        (make_case(1, 2), LaborSampler((2, 2)), {"halo": 0, "rotation": "fixed"}, PINNED),
        (make_case(15, 2), LadiesSampler((4, 4)), {"correction": "none", "rotation": "none"}, {}),
        (make_case(3, 4), FastGCNSampler((4, 4)), {"chunks": 2, "reshuffle_fraction": 1.0}, {}),
        (make_case(3, 2), NeighborSampler((2, -1), expand="all"), {"ahead": False}, {"kernel": "cpu"}),
        (with_edge_rows(make_case(7, 2)), NeighborSampler((2, 2), edge_ids=True), {}, {}),
        (with_edge_rows(make_case(1, 2)), NeighborSampler((2, 2), edge_ids=True), {}, PINNED | {"kernel": "cpu"}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_same_minibatches_and_parameters(case, sampler, options, device, drawn):
    """Over switches of super-epochs; a rank without seeds, without nodes, and one whose epoch is shorter."""
    agree(case, sampler, options, device, drawn)


def several_steps(parts: int, seeds: int) -> Case:
    """Parts with so many seeds each."""
    rng, n = np.random.default_rng(4), 2 * seeds * parts
    graph = from_edges(rng.integers(0, n, 6 * n), rng.integers(0, n, 6 * n), n)
    nodes, none = rng.permutation(n), np.empty(0, np.int64)
    part_of = np.empty(n, np.int64)
    part_of[nodes] = np.arange(n) % parts
    split = Split(np.sort(nodes[: n // 2]), none, none)
    return Case(graph, part_of, parts, split, rng.normal(size=(n, F)), torch.from_numpy(rng.integers(0, C, n)))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Number of replayed steps, [n] for each rank and super-epoch. What is recorded in one is freed before anything of
    the next is laid out."""
    play, fetcher = StepGraph._play, Fetch.fetcher
    mine, counts = threading.local(), []

    def began(self: Any, *args: Any) -> Any:
        if self.memory is None:  # on the host
            return fetcher(self, *args)
        assert all(ref() is None for ref in getattr(mine, "refs", ()))
        mine.refs, mine.count = [], [0]
        counts.append(mine.count)
        return fetcher(self, *args)

    def played(self: Any) -> None:
        play(self)
        mine.count[0] += 1
        mine.refs += [weakref.ref(x) for x in (self, self._graph, self._frame.words, self._loss, *self._grads)]

    monkeypatch.setattr(Fetch, "fetcher", began)
    monkeypatch.setattr(StepGraph, "_play", played)
    return counts


@pytest.mark.parametrize(
    ("parts", "seeds", "options", "fewest", "replays"),
    [
        (1, 9, {}, 9, 7),
        (2, 8, {"halo": 0.5}, 9, 4),
        (2, 8, {"halo": 0, "correction": "node"}, 9, 4),
        (2, 8, {"halo": 0, "shrink": "empirical", "rotation": "none"}, 9, 4),
        (2, 8, {"halo": 0, "correction": "none"}, 9, 4),
        (2, 8, {}, 10, 0),
    ],
)
def test_recorded_steps(parts, seeds, options, fewest, replays, drawn, replayed, monkeypatch):
    """Over two super-epochs of nine steps. The first two of each come before the recording; with eight seeds, three
    are too small for it."""
    monkeypatch.setattr(step, "FEWEST_STEPS", fewest)
    agree(several_steps(parts, seeds), NeighborSampler((2, 2)), options, {}, drawn, epochs=6, every=3)
    assert replayed == [[replays]] * 2 * parts


def test_what_a_super_epoch_had_on_the_device_goes_first(monkeypatch):
    """Lists and rows of one are freed before those of the next are made; no collector is needed to find them."""
    seen: dict[int, list[Any]] = {}
    fetcher = Fetch.fetcher

    def watched(self, placement, job, module=None):
        mine = seen.setdefault(job.group.rank, [])
        assert all(ref() is None for ref in mine)
        found = fetcher(self, placement, job, module)
        graph = device_graph.on_device(placement.graph)
        mine += [
            weakref.ref(x)
            for x in (placement.graph, graph, graph.indices, found, found.rows._base, found.targets._on_device)
        ]
        return found

    monkeypatch.setattr(Fetch, "fetcher", watched)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # see test_grappa.py
    gc.collect()
    gc.disable()
    try:
        system = grappa(NeighborSampler((2, 2)), repartition_every=1)
        train_threads(make_case(8, 3), system, initial(), 4, Train(batch_size=4), device={})
    finally:
        gc.enable()
    assert [len(refs) for refs in seen.values()] == [4 * 6] * 3


def rank_there(*args: Any) -> Any:
    """`isolated._rank` in a process that has the pretended device."""
    pretended_device.install_for_good()
    return isolated._rank(*args)


def test_processes_stop_and_go_on(tmp_path, monkeypatch):
    """In the middle of an epoch of the second super-epoch: what gloo carries, and a checkpoint."""
    data = mr.open_dataset("sbm:nodes=48,classes=3,degree=6,features=5,train=0.4", seed=1)
    table = {
        "epochs": 3, "seed": 3, "ranks": 2, "dtype": "float64", "check": True, "partition": {"method": "hash"},
        "model": {"hidden": 6, "layers": 2, "dropout": 0.3}, "sampler": {"fanout": [3, 2]},
        "train": {"lr": 0.05, "batch_size": 3}, "grappa": {"repartition_every": 1},
    }  # fmt: skip
    want = isolated.train_processes(data, tmp_path / "host", table)
    monkeypatch.setattr(device_policies, "check_gpus", lambda job: None)  # it asks for dask-cuda
    monkeypatch.setattr(isolated, "_rank", rank_there)
    table["device"] = "cuda"
    isolated.train_processes(data, tmp_path / "there", table, stop_after=5)
    got = isolated.train_processes(data, tmp_path / "there", table)
    for mine, theirs in zip(want or (), got or (), strict=True):
        losses = [[h["train_loss"] for h in report["history"]] for report in (mine, theirs)]
        np.testing.assert_allclose(*losses, rtol=1e-10)
        for key in ("test_accuracy", "best_epoch", "minibatches", "sampled_edges"):
            assert mine[key] == theirs[key], key
    a, b = (torch.load(tmp_path / run / "model.pt", weights_only=True) for run in ("host", "there"))
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=1e-10, atol=1e-12)
