"""Learnt features on a GPU, or on a pretended device: rows stay on the host, and end as they do without a GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup import device_policies
from millrace.pipeline.setup.model import Outline
from millrace.stages.learned.table import LearnedTable
from millrace.tests.contracts import bulk_ranks
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.pipeline.setup.test_device_policies import DATASET, agree, train
from millrace.tests.pipeline.test_run_on_device import rank_there
from millrace.tests.whole_runs import test_partitioned_on_device as blocks
from millrace.tests.whole_runs.test_learned import SAMPLED, sampled_data
from millrace.tests.whole_runs.test_partitioned import Rehearsal
from millrace.tests.whole_runs.test_temporal_on_device import with_edge_rows

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
LEARNED = {"width": 4, "lr": 0.2}


@pytest.fixture(scope="module")
def sbm() -> mr.Dataset:
    return mr.open_dataset(DATASET, seed=1)


def rows_agree(a: Path, b: Path) -> None:
    np.testing.assert_allclose(np.load(a / "learned.npy"), np.load(b / "learned.npy"), rtol=1e-9, atol=1e-12)


def seen(write: Any, made: list[str]) -> Any:
    """The same, and a note of where the rows of a table are."""

    def noted(self: Any, path: Path) -> None:
        made.append(self.rows.device.type)
        write(self, path)

    return noted


@pytest.mark.parametrize(
    ("learned", "options"),
    [
        ({}, {"model": {"name": "sage"}}),
        ({"beside": False, "optimizer": "adam"}, {"model": {"name": "gat", "heads": 2}, "minibatches_per_step": 2}),
        ({"optimizer": "sgd"}, {"model": {"name": "gine"}, "gpu": {"features": "pinned"}, "kernel": "cpu"}),
        ({"beside": False}, {"queue": {"kind": "zarr", "bulk_size": 2}}),
    ],
    ids=["beside", "in place", "beside those of the host", "queue on disk"],
)
def test_runs(
    sbm: mr.Dataset, tmp_path: Path, monkeypatch: Any, learned: dict[str, Any], options: dict[str, Any]
) -> None:
    """Minibatches are drawn by the device, or by the host; `gine` reads features of edges too."""
    made: list[str] = []
    monkeypatch.setattr(LearnedTable, "write", seen(LearnedTable.write, made))
    agree(with_edge_rows(sbm), tmp_path, learned={**LEARNED, **learned}, epochs=1, **options)
    assert made == ["cpu", "cpu" if "gpu" in options else "cuda"]
    rows_agree(tmp_path / "cuda", tmp_path / "cpu")


@pytest.mark.parametrize("where", ["device", "pinned"])
def test_full_batches(sbm: mr.Dataset, tmp_path: Path, where: str) -> None:
    job = {
        "system": "sar", "epochs": 3, "seed": 3, "threads": 1, "dtype": "float64", "learned": LEARNED,
        "model": {"name": "gat", "hidden": 4, "layers": 2, "heads": 2}, "train": {"clip_norm": 0.5},
    }  # fmt: skip
    here = mr.run(sbm, config=job, out=tmp_path / "cpu", verbose=False)
    on_gpu = {"device": "cuda", "gpu": {"features": where}}
    there = mr.run(sbm, config={**job, **on_gpu}, out=tmp_path / "cuda", verbose=False)
    assert there.train_loss == pytest.approx(here.train_loss, rel=1e-9)
    assert there.test_accuracy == here.test_accuracy
    rows_agree(tmp_path / "cuda", tmp_path / "cpu")


@pytest.mark.parametrize("kind", SAMPLED)
def test_links_times_and_types(tmp_path: Path, kind: str) -> None:
    job = {
        "epochs": 1, "seed": 3, "threads": 1, "dtype": "float64", "sampler": SAMPLED[kind], "learned": LEARNED,
        "model": {"name": "rgcn" if "types" in kind else "gcn", "hidden": 4, "layers": 1}, "train": {"batch_size": 16},
    }  # fmt: skip
    here, there = (
        mr.run(sampled_data(kind), config={**job, "device": device}, out=tmp_path / device, verbose=False)
        for device in ("cpu", "cuda")
    )
    assert there.train_loss == pytest.approx(here.train_loss, rel=1e-9)
    assert there.test_accuracy == here.test_accuracy
    assert there.test_metrics == pytest.approx(here.test_metrics, rel=1e-9)
    rows_agree(tmp_path / "cuda", tmp_path / "cpu")


def test_resumed_and_predicted_on_the_other_device(sbm: mr.Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"learned": LEARNED, "epochs": 2}
    _, whole = train(sbm, tmp_path / "whole", "cuda", **options)
    asked = iter(range(1000))
    assert train(sbm, tmp_path / "parts", "cuda", stop=lambda: next(asked) == 3, **options)[1].status == "stopped"
    (tmp_path / "parts" / "cuda").rename(tmp_path / "parts" / "cpu")
    _, again = train(sbm, tmp_path / "parts", "cpu", resume=True, **options)
    assert again.train_loss == pytest.approx(whole.train_loss, rel=1e-9)
    rows_agree(tmp_path / "parts" / "cpu", tmp_path / "whole" / "cuda")
    found = mr.predict(tmp_path / "whole" / "cuda", sbm, nodes="test")
    assert (found.classes == sbm.labels[found.nodes]).mean() == pytest.approx(whole.test_accuracy)
    here = mr.predict(tmp_path / "parts" / "cpu", sbm, nodes="test")
    np.testing.assert_allclose(found.logits, here.logits, rtol=1e-7)


def test_two_ranks_learn_what_one_does_on_the_host(sbm: mr.Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    """The second rank has no minibatch in the last step of an epoch, but others want its rows."""
    mr.write_dataset(tmp_path / "store", sbm)
    table = {
        "model": {"name": "sage", "hidden": 4, "layers": 2}, "epochs": 2, "lr": 0.02, "learned": LEARNED,
        "sampler": {"name": "neighbor", "fanout": [3, 2]}, "train": {"batch_size": 4, "minibatches_per_step": 2},
        "dtype": "float64", "checkpoint": {"every_epochs": 1}, "system": "bulk",
    }  # fmt: skip
    want = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "host", table)[0]
    assert want["minibatches"] % 4, "an odd number in each epoch"
    monkeypatch.setattr(bulk_ranks, "_rank", rank_there)
    there = {**table, "device": "cuda", "ranks": 2}
    ranks = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "there", there)
    assert all(rank["test_accuracy"] == want["test_accuracy"] for rank in ranks)
    rows_agree(tmp_path / "there", tmp_path / "host")
    seen = bulk_ranks.last_parameters(tmp_path / "there")
    for name, value in bulk_ranks.last_parameters(tmp_path / "host").items():
        torch.testing.assert_close(seen[name], value, rtol=1e-7, atol=1e-12)


def test_two_ranks_learn_beside_rows_that_they_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows whose owners draw there, also after a stop, and owned features; over a stand-in for NCCL."""
    monkeypatch.setattr(device_policies, "check_gpus", lambda job: None)
    dataset = blocks.dataset_with_edge_rows()
    job = {**blocks.JOB, "learned": LEARNED, "train": {"clip_norm": 0.5}}
    owned = {**job, "features": "owned", "bulk": {}}
    rehearsal = Rehearsal(dataset, tmp_path, 2)
    rehearsal.add("host", job)
    rehearsal.add("there", {**job, **blocks.THERE})
    rehearsal.add("again", {**job, **blocks.THERE}, stop_after=4)
    rehearsal.add("again", {**job, **blocks.THERE})
    rehearsal.add("owned", {**owned, **blocks.THERE})
    everywhere = {**job["bulk"], "replication": 2}
    rehearsal.add("everywhere", {**job, **blocks.THERE, "bulk": everywhere})
    outline = Outline.from_dataset(dataset, resolve(job))
    for rank in run_ranks(blocks.train_there, 2, rehearsal.runs, outline, tmp_path, timeout_s=240):
        host, there, stopped, again, own, columns = (report for report, _ in rank)
        assert stopped is None and again["parameters_sha256"] == there["parameters_sha256"]
        for found in (there, own, columns):
            assert found["test_accuracy"] == host["test_accuracy"]
            assert [h["train_loss"] for h in found["history"]] == pytest.approx(
                [h["train_loss"] for h in host["history"]], rel=1e-9
            )
    for name in ("there", "again", "owned", "everywhere"):
        rows_agree(tmp_path / name, tmp_path / "host")
