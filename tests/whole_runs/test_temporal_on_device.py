"""Samples by time on a GPU, or on a pretended device: drawn on the host, trained on and evaluated there as on
processors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.kernels.runtime import triton_rng
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


@pytest.mark.parametrize(
    "options",
    [
        {"model": {"name": "gcn"}},
        {"model": {"name": "gine"}, "gpu": {"features": "pinned"}},
        {
            "sampler": {"name": "temporal", "fanout": [2, -1], "strategy": "last"},
            "queue": {"kind": "zarr", "bulk_size": 2},
        },
    ],
    ids=["degrees", "features of edges", "queue on disk"],
)
def test_runs(timed: mr.Dataset, tmp_path: Path, options: dict[str, Any]) -> None:
    """Layers of `gcn` read degrees until the moments of trees."""
    agree(with_edge_rows(timed), tmp_path, **{**JOB, **options})
    assert 'kernel = "cpu"' in (tmp_path / "cuda" / "job.toml").read_text()


def test_node_types_and_relations(tmp_path: Path) -> None:
    data = with_times(typed_dataset(degree=20, edge_features=True))
    options = {"model": {"name": "rgat", "heads": 1, "layers": 1}, "hidden": 4, "batch_size": 6}
    agree(data, tmp_path, **{**JOB, **options, "sampler": {"name": "temporal", "fanout": [2]}})


def test_resumed_and_evaluated_on_either_device(
    timed: mr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**JOB, "epochs": 2}
    _, whole = train(timed, tmp_path / "whole", "cuda", **options)
    asked = iter(range(1000))
    assert train(timed, tmp_path / "parts", "cuda", stop=lambda: next(asked) == 2, **options)[1].status == "stopped"
    _, again = train(timed, tmp_path / "parts", "cuda", resume=True, **options)
    assert again.train_loss == pytest.approx(whole.train_loss, rel=1e-9)
    assert again.test_accuracy == whole.test_accuracy
    predicted = mr.predict(tmp_path / "whole" / "cuda", timed, nodes="test")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(triton_rng, "INTERPRETED", False)
    here = mr.predict(tmp_path / "whole" / "cuda", timed, nodes="test")
    np.testing.assert_allclose(predicted.logits, here.logits, rtol=1e-9)
    assert (here.classes == timed.labels[here.nodes]).mean() == pytest.approx(whole.test_accuracy)


def test_two_ranks_learn_what_one_does_on_the_host(timed: mr.Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    mr.write_dataset(tmp_path / "store", timed)
    table = {
        "model": {"name": "gcn", "hidden": 4, "layers": 2}, "epochs": 1, "lr": 0.02, "sampler": JOB["sampler"],
        "train": {"batch_size": 4, "minibatches_per_step": 2}, "dtype": "float64", "checkpoint": {"every_epochs": 1},
        "system": "bulk",
    }  # fmt: skip
    want = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "host", table)[0]
    monkeypatch.setattr(bulk_ranks, "_rank", rank_there)
    ranks = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "there", {**table, "device": "cuda", "ranks": 2})
    assert all(rank["test_accuracy"] == want["test_accuracy"] for rank in ranks)
    seen = bulk_ranks.last_parameters(tmp_path / "there")
    for name, value in bulk_ranks.last_parameters(tmp_path / "host").items():
        torch.testing.assert_close(seen[name], value, rtol=1e-7, atol=1e-12)


def test_draws_on_the_device_are_refused(timed: mr.Dataset, tmp_path: Path) -> None:
    """Asked for, with what to set in its place."""
    options = {**JOB, "kernel": "cuda"}
    with pytest.raises(mr.InputError, match='in host memory, but kernel is "cuda"; set kernel = "cpu"') as refused:
        train(timed, tmp_path, "cuda", **options)
    assert "\n" not in str(refused.value)
