"""Systems that train on parts, on GPUs, which are pretended: two ranks of a cluster, one of which is killed, over a
stand-in for NCCL, learn what one rank learns on the host."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.telemetry.events import Note
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.nccl import InPlaceOfNccl

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device", "by_value")
MODEL = {"name": "sage", "hidden": 4, "layers": 3, "dropout": 0.3}
JOB: dict[str, Any] = {
    "epochs": 3, "seed": 4, "threads": 1, "dtype": "float64", "lr": 0.05, "check": True,
    "partition": {"method": "hash"}, "checkpoint": {"every_epochs": 1},
}  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "sar": {"model": {**MODEL, "name": "gine"}},
    "retexo": {"model": {**MODEL, "layers": 2}},
    "learnt features": {"system": "sar", "model": MODEL, "learned": {"width": 3, "lr": 0.2}},
}
"""`sar` reads rows of other ranks in one way in each layer, and features of edges."""


class Dies(mr.Callback):
    """Kills the second rank once, after the second epoch, and tells in the end what ranks have begun over NCCL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_epoch(self, run: Any) -> None:
        if run.epoch == 1 and run.rank == 1 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_end(self, run: Any) -> None:
        assert all(p.is_cuda for p in run.model.parameters())
        asked = {call for group in InPlaceOfNccl.living for call in group.asked}
        (self.folder / f"asked-{run.rank}").write_text(" ".join(sorted(asked)))


@pytest.fixture(scope="module")
def gpus(start_cluster: Any) -> Any:
    """The address of a scheduler whose two workers have a GPU each."""
    if not pretended_device.is_pretended():
        pytest.skip("there is a GPU")
    with start_cluster(2, gpus=("0", "1")) as address:
        yield address


@pytest.mark.parametrize("system", SYSTEMS)
def test_two_ranks_learn_what_one_does_on_the_host(gpus: str, tmp_path: Path, system: str) -> None:
    data = mr.open_dataset("sbm:nodes=60,classes=3,degree=6,features=5,train=0.4")
    rows = np.random.default_rng(0).standard_normal((data.graph.num_edges, 2))
    mr.write_dataset(tmp_path / "store", replace(data, graph=replace(data.graph, edge_features=ArrayFeatures(rows))))
    job, said = {**JOB, "system": system, **SYSTEMS[system]}, []
    if job["system"] == "sar":
        job["sar"] = {"mode": ["halo", "keep", "rematerialize"]}
    want = mr.run(tmp_path / "store", out=tmp_path / "host", **job)
    got = mr.run(
        tmp_path / "store", out=tmp_path / "there", ranks=2, device="cuda", scheduler=gpus, emit=said.append,
        callbacks=Dies(tmp_path), **job,
    )  # fmt: skip
    assert sum("start again" in e.text for e in said if isinstance(e, Note)) == 1
    assert [(tmp_path / f"asked-{rank}").read_text() for rank in range(2)] == ["allreduce alltoall_base swap"] * 2
    assert (got.test_accuracy, got.best_epoch) == (want.test_accuracy, want.best_epoch)
    a, b = (torch.load(tmp_path / x / "model.pt", weights_only=True) for x in ("there", "host"))
    for key, value in b.items():
        torch.testing.assert_close(a[key], value, rtol=1e-9, atol=1e-12)
    if "learned" in job:
        there, host = (np.load(tmp_path / x / "learned.npy") for x in ("there", "host"))
        np.testing.assert_allclose(there, host, rtol=1e-9, atol=1e-12)
