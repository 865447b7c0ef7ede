"""Samples by time on a GPU, or on a pretended device: drawn, trained on and evaluated as on processors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.telemetry.events import silent
from millrace.stages.kernels.runtime import triton_rng
from millrace.stages.sample.base import check_kernel
from millrace.stages.sample.temporal import TemporalSampler
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts import bulk_ranks
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.pipeline.setup.test_device_policies import agree, train
from millrace.tests.pipeline.test_run_on_device import rank_there

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
SPEC = "tsbm:nodes=60,classes=3,degree=5,days=12,features=5,train=0.5,val=0.2"
JOB: dict[str, Any] = {
    "sampler": {"name": "temporal", "fanout": [3, 2]}, "fanout": None, "epochs": 1, "batch_size": 9, "check": True,
}  # fmt: skip
"""Two minibatches an epoch, in whose trees nodes are met at several times."""


@pytest.fixture(scope="module")
def timed() -> mr.Dataset:
    return mr.open_dataset(SPEC, seed=1)


def with_edge_rows(data: mr.Dataset) -> mr.Dataset:
    rows = np.random.default_rng(0).standard_normal((data.graph.num_edges, 2)).astype(np.float32)
    return replace(data, graph=replace(data.graph, edge_features=ArrayFeatures(rows)))


def with_times(data: mr.Dataset) -> mr.Dataset:
    """With times of edges and nodes; splits are from ranges of ids, and so are these."""
    rng, V = np.random.default_rng(0), data.num_nodes
    graph = replace(data.graph, node_time=np.arange(V) // 4 + 3, edge_time=rng.integers(0, 9, data.graph.num_edges))
    return replace(data, graph=graph)


def no_draws_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, whoever draws minibatches on the host fails, for training or evaluation."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("drawn on the host")

    monkeypatch.setattr(TemporalSampler, "sample", refused)


@pytest.mark.parametrize(
    "options",
    [
        {"model": {"name": "gcn"}},
        {"model": {"name": "gine"}, "gpu": {"features": "pinned", "topology": "pinned"}},
        {"sampler": {"name": "temporal", "fanout": [2, -1], "strategy": "last", "replace": True}},
    ],
    ids=["degrees", "features of edges, all pinned", "last"],
)
def test_runs(timed: mr.Dataset, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of `gcn` read degrees until the moments of trees."""
    host = train(with_edge_rows(timed), tmp_path, "cpu", **{**JOB, **options})
    no_draws_on_the_host(monkeypatch)
    _, result = agree(with_edge_rows(timed), tmp_path, there=host, **{**JOB, **options})
    # Evaluation reads the rows that were put there, or locked, for training.
    assert not sum(result.bytes["evaluation"].values())
    # A kernel that the device chose is not recorded.
    assert "\nkernel = " not in (tmp_path / "cuda" / "job.toml").read_text()


@pytest.mark.parametrize("kernel", ["cpu", "cuda"])
def test_who_draws_does_not_show(timed: mr.Dataset, tmp_path: Path, kernel: str) -> None:
    """Samples that wait on disk are the host's, whoever has drawn them; so are those that the job says."""
    options = {"model": {"name": "gcn"}, "kernel": kernel}
    queue = {"kind": "zarr", "bulk_size": 2} if kernel == "cuda" else {"bulk_size": 2}
    agree(timed, tmp_path, **{**JOB, **options, "queue": queue})


def test_weights_of_edges(timed: mr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).random(timed.graph.num_edges).astype(np.float32) + 0.1
    data = replace(timed, graph=replace(timed.graph, edge_weight=weight))
    host = train(data, tmp_path, "cpu", **{**JOB, "model": {"name": "gcn"}})
    no_draws_on_the_host(monkeypatch)
    agree(data, tmp_path, there=host, **{**JOB, "model": {"name": "gcn"}})


def test_node_types_and_relations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_times(typed_dataset(degree=20, edge_features=True))
    options = {"model": {"name": "rgat", "heads": 1, "layers": 1}, "hidden": 4, "batch_size": 6}
    options = {**JOB, **options, "sampler": {"name": "temporal", "fanout": [2]}}
    host = train(data, tmp_path, "cpu", **options)
    no_draws_on_the_host(monkeypatch)
    agree(data, tmp_path, there=host, **options)
    # A kernel that the device chose is not recorded.
    assert "\nkernel = " not in (tmp_path / "cuda" / "job.toml").read_text()


def test_resumed_and_evaluated_on_either_device(
    timed: mr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**JOB, "epochs": 2, "model": {"name": "gcn"}}
    _, host = train(timed, tmp_path, "cpu", **options)
    _, whole = train(timed, tmp_path / "whole", "cuda", **options)
    asked = iter(range(1000))
    assert train(timed, tmp_path / "parts", "cuda", stop=lambda: next(asked) == 2, **options)[1].status == "stopped"
    _, again = train(timed, tmp_path / "parts", "cuda", resume=True, **options)
    assert again.train_loss == pytest.approx(whole.train_loss, rel=1e-9)
    assert again.test_accuracy == whole.test_accuracy == host.test_accuracy
    learnt = torch.load(Path(again.out) / "model.pt", weights_only=True)
    for name, value in torch.load(Path(host.out) / "model.pt", weights_only=True).items():
        torch.testing.assert_close(learnt[name], value, rtol=1e-9, atol=1e-12)
    predicted = mr.predict(tmp_path / "whole" / "cuda", timed, nodes="test")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(triton_rng, "INTERPRETED", False)
    here = mr.predict(tmp_path / "whole" / "cuda", timed, nodes="test")
    np.testing.assert_allclose(predicted.logits, here.logits, rtol=1e-9)
    assert (here.classes == timed.labels[here.nodes]).mean() == pytest.approx(whole.test_accuracy)


def rank_that_draws_there(group: Any, *work: Any) -> Any:
    """`rank_there`, in which whoever draws minibatches of training on the host fails."""
    no_draws_on_the_host(pytest.MonkeyPatch())
    return rank_there(group, *work)


def test_two_ranks_learn_what_one_does_on_the_host(timed: mr.Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    """Also after a stop."""
    mr.write_dataset(tmp_path / "store", timed)
    table = {
        "model": {"name": "gcn", "hidden": 4, "layers": 2}, "epochs": 2, "lr": 0.02, "sampler": JOB["sampler"],
        "train": {"batch_size": 4, "minibatches_per_step": 2}, "dtype": "float64", "checkpoint": {"every_epochs": 1},
        "system": "bulk",
    }  # fmt: skip
    want = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "host", table)[0]
    monkeypatch.setattr(bulk_ranks, "_rank", rank_that_draws_there)
    work = str(tmp_path / "store"), tmp_path / "there", {**table, "device": "cuda", "ranks": 2}
    bulk_ranks.train_bulk(*work, steps=2)
    assert not (tmp_path / "there" / "model.pt").exists()
    ranks = bulk_ranks.train_bulk(*work)
    assert all(rank["test_accuracy"] == want["test_accuracy"] for rank in ranks)
    seen = bulk_ranks.last_parameters(tmp_path / "there")
    for name, value in bulk_ranks.last_parameters(tmp_path / "host").items():
        torch.testing.assert_close(seen[name], value, rtol=1e-9, atol=1e-12)


def test_samples_that_a_device_has_drawn_for_a_store(timed: mr.Dataset, tmp_path: Path) -> None:
    """They are those of processors; whoever trains on them copies them."""
    mr.write_dataset(tmp_path / "store", timed)
    options = {k: v for k, v in JOB.items() if k not in ("fanout", "check")}
    store, made = str(tmp_path / "store"), {}
    for device, kernel in (("cpu", "cpu"), ("cuda", "cuda")):
        job = resolve({**options, "dataset": store, "seed": 3, "device": device, "kernel": kernel})
        precompute(job, tmp_path / kernel, emit=silent, stop=lambda: False)
        made[kernel] = train(store, tmp_path / f"by-{kernel}", "cuda", samples=tmp_path / kernel, **options)[1]
    assert made["cpu"].train_loss == pytest.approx(made["cuda"].train_loss, rel=1e-12)


def test_what_is_refused_is_refused_in_one_sentence(timed: mr.Dataset, tmp_path: Path) -> None:
    with pytest.raises(mr.InputError, match='"partitioned", where no rank has all edges of a seed') as refused:
        train(timed, tmp_path, "cuda", **{**JOB, "bulk": {"topology": "partitioned"}})
    assert "\n" not in str(refused.value)
    with pytest.raises(mr.InputError, match='draws edges by their times, but kernel is "cugraph"') as refused:
        check_kernel(TemporalSampler((2,)), "cugraph")
    assert "\n" not in str(refused.value)
