"""Typed graphs whose rows ranks own, on GPUs that are pretended: two ranks over a stand-in for NCCL learn what two
ranks learn on the host."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup import device_policies
from millrace.pipeline.setup.model import Outline
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.whole_runs.test_partitioned import Rehearsal
from millrace.tests.whole_runs.test_partitioned_on_device import train_there

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
MODEL = {"name": "rgat", "heads": 1, "layers": 2, "hidden": 4, "dropout": 0.3}
JOB: dict[str, Any] = {
    "epochs": 1, "seed": 4, "threads": 1, "dtype": "float64", "check": True, "model": MODEL, "lr": 0.02,
    "batch_size": 3, "minibatches_per_step": 2, "queue": {"bulk_size": 2},
    "sampler": {"fanout": [2, 2], "relations": {"prints": [0, -1]}},
}  # fmt: skip
SAMPLED = ("batch_size", "minibatches_per_step", "queue", "sampler")
THERE = {"device": "cuda", "gpu": {"cache_bytes": 0}}
OWNED = {"features": "owned", "bulk": {"cache_fraction": 0.1, "hot_by": "degree", "prefetch_bytes": 1500}}
PARTITIONED = {"bulk": {"topology": "partitioned", "prefetch_bytes": 1500}, "partition": {"method": "hash"}}


def test_ranks_own_rows_of_nodes_and_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention within relations reads features of edges; the host draws, or the device; any cut over all types; a run
    goes on in mid-epoch, and full batches are trained on and evaluated there too."""
    monkeypatch.setattr(device_policies, "check_gpus", lambda job: None)
    dataset = typed_dataset(degree=20, edge_features=True)
    rehearsal = Rehearsal(dataset, tmp_path, 2)
    rehearsal.add("owned", {**JOB, **OWNED})
    rehearsal.add("owned there", {**JOB, **OWNED, **THERE})
    rehearsal.add("owned there, drawn here", {**JOB, **OWNED, **THERE, "kernel": "cpu"})
    rehearsal.add("cut", {**JOB, **PARTITIONED})
    rehearsal.add("cut there", {**JOB, **PARTITIONED, **THERE})
    rehearsal.add("cut there, drawn here", {**JOB, **PARTITIONED, **THERE, "kernel": "cpu"})
    rehearsal.add("cut there again", {**JOB, **PARTITIONED, **THERE}, stop_after=1)
    rehearsal.add("cut there again", {**JOB, **PARTITIONED, **THERE})
    sar = {k: v for k, v in JOB.items() if k not in SAMPLED} | {"system": "sar", "partition": {"method": "hash"}}
    rehearsal.add("sar", sar)
    rehearsal.add("sar there", {**sar, **THERE})
    names = [name for name, *_ in rehearsal.runs]
    for rank in run_ranks(train_there, 2, rehearsal.runs, Outline.from_dataset(dataset), tmp_path, timeout_s=240):
        reports = dict(zip(names, (report for report, _ in rank)))
        for name in names:
            seen, want = reports[name], reports[name.split()[0]]
            for key in ("minibatches", "sampled_edges", "test_accuracy"):
                assert seen[key] == want[key]
            kind = "activations" if name.startswith("sar") else "features"
            assert name.endswith("again") or seen["bytes"]["network"][kind] == want["bytes"]["network"][kind] > 0
            for got, host in zip(seen["history"], want["history"]):
                np.testing.assert_allclose(got["train_loss"], host["train_loss"], rtol=1e-9)
                assert got["val_accuracy"] == host["val_accuracy"]
    for name in names:
        seen, want = (torch.load(tmp_path / x / "model.pt", weights_only=True) for x in (name, name.split()[0]))
        for key, value in want.items():
            torch.testing.assert_close(seen[key], value, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("sampler", "kernel"),
    [
        ({"name": "labor", "fanout": [2, 3], "relations": {"prints": [0, -1]}}, "cuda"),
        ({"name": "labor", "fanout": [2, 3], "poisson": True, "expand": "all"}, "cuda"),
        ({"name": "ladies", "sizes": [8, 8]}, "cpu"),
    ],
)
def test_samplers(tmp_path: Path, sampler: dict[str, Any], kernel: str) -> None:
    """By default the device draws where it can; minibatches and parameters are those of the host."""
    dataset = typed_dataset(degree=20, edge_features=True)
    job = {**JOB, "sampler": sampler}
    here = mr.run(dataset, out=tmp_path / "cpu", verbose=False, config=job)
    there = mr.run(dataset, out=tmp_path / "cuda", verbose=False, config={**job, **THERE})
    # A kernel is recorded unless the device chose its own.
    assert ('kernel = "cpu"' in (tmp_path / "cuda" / "job.toml").read_text()) == (kernel == "cpu")
    assert there.train_loss == pytest.approx(here.train_loss, rel=1e-9)
    assert (there.test_accuracy, there.sampled_edges) == (here.test_accuracy, here.sampled_edges)
    seen, want = (torch.load(tmp_path / x / "model.pt", weights_only=True) for x in ("cuda", "cpu"))
    for key, value in want.items():
        torch.testing.assert_close(seen[key], value, rtol=1e-7, atol=1e-12)


def test_a_kernel_that_draws_no_relations_is_refused_by_name(tmp_path: Path) -> None:
    ladies = {"sampler": {"name": "ladies", "sizes": [8, 8]}, "kernel": "cuda"}
    said = "kernel is 'cuda', by which the sampler ladies draws no relations in this version; use kernel = \"cpu\""
    with pytest.raises(mr.InputError, match=said) as refused:
        mr.run(typed_dataset(), out=tmp_path / "run", verbose=False, config={**JOB, **THERE, **ladies})
    assert "\n" not in str(refused.value)


def test_systems_of_other_packages_run_without_types_there() -> None:
    job = resolve({"system": "sar", "device": "cuda"})
    system: Any = SimpleNamespace(fetch=SimpleNamespace(reads_edges_on_device=False), sample=None)
    with pytest.raises(mr.InputError, match="on which system 'sar' runs without relations in this version; use device"):
        device_policies.check_types_on_device(job, system, "the graph has 2 node types")
