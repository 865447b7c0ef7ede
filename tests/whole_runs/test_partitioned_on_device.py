"""Block rows on GPUs, which are pretended: two ranks whose owners of rows draw there, over a stand-in for NCCL, learn
what ranks learn that draw on the host."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.setup import device_policies
from millrace.pipeline.setup.model import Outline
from millrace.stages.feed.collective_feed import OwnersFeed
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts import nccl
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.whole_runs.test_partitioned import Rehearsal, train_one

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
JOB: dict[str, Any] = {
    "epochs": 2, "seed": 4, "threads": 1, "dtype": "float64", "hidden": 6, "dropout": 0.3, "fanout": [3, 2], "lr": 0.02,
    "batch_size": 5, "minibatches_per_step": 2, "queue": {"bulk_size": 2}, "check": True,
    "bulk": {"topology": "partitioned", "cache_fraction": 0.1, "hot_by": "degree", "prefetch_bytes": 1500},
}  # fmt: skip
"""Five minibatches an epoch, three steps, the last of them of one rank."""
OF_EDGES = {"model": {"name": "gine", "hidden": 6, "layers": 2, "edge_width": 2}, "epochs": 1}
THERE = {"device": "cuda", "gpu": {"cache_bytes": 0}}


def dataset_with_edge_rows() -> mr.Dataset:
    found = mr.open_dataset("sbm:nodes=80,classes=3,degree=6,features=5,train=0.3", seed=1)
    rows = np.random.default_rng(0).standard_normal((found.graph.num_edges, 2))
    return replace(found, graph=replace(found.graph, edge_features=ArrayFeatures(rows)))


def train_there(
    group: Any, runs: list[tuple[Any, ...]], outline: Outline, folder: Path
) -> list[tuple[dict[str, Any] | None, int]]:
    """The rank's report of each run, None where it was stopped, and its exchanges of device tensors."""
    over = nccl.stood_in(group)
    device_policies.check_gpus = lambda job: None  # it asks for dask-cuda
    plain: Any = NeighborSampler.sample_by_owners, OwnersFeed.__init__
    found = []
    for number, (name, table, fingerprint, cut, stop_after) in enumerate(runs):
        there = table.get("device") == "cuda"
        # A rank that draws on its device has no other way.
        draws_there = there and table.get("kernel") != "cpu"
        NeighborSampler.sample_by_owners, OwnersFeed.__init__ = (None, None) if draws_there else plain
        own: Any = (over if there else group).sub(f"{number}", range(group.size), same_thread=there)
        own._ledger = type(own._ledger)()
        report = train_one(own, table, outline, folder, folder / name, fingerprint, cut, stop_after)
        asked = sum(g._on_gpus.asked.count("alltoall_base") for g in (own, *own._subs) if hasattr(g, "_on_gpus"))
        found.append((report, asked))
        own.close()
    over.close()
    return found


def test_owners_draw_on_their_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters of draws on the host; whether the topology lies on the device or in the host's locked memory,
    when a run goes on in mid-epoch, and of a model that reads features of edges, which ranks own; these too where the
    host draws from the whole graph."""
    monkeypatch.setattr(device_policies, "check_gpus", lambda job: None)
    dataset = dataset_with_edge_rows()
    rehearsal = Rehearsal(dataset, tmp_path, 2)
    rehearsal.add("host", JOB)
    rehearsal.add("there", {**JOB, **THERE})
    every = {**JOB, "sampler": {"expand": "all"}, "epochs": 1}
    rehearsal.add("pinned", {**every, **THERE, "gpu": {"topology": "pinned"}})
    rehearsal.add("again", {**JOB, **THERE}, stop_after=4)
    rehearsal.add("again", {**JOB, **THERE})
    rehearsal.add("all on the host", every)
    of_edges = {k: v for k, v in JOB.items() if k != "hidden"} | OF_EDGES
    rehearsal.add("edges on the host", of_edges)
    rehearsal.add("edges there", {**of_edges, **THERE})
    rehearsal.add("owned edges", {**of_edges, **THERE, "kernel": "cpu", "features": "owned", "bulk": {}})
    rehearsal.add("on disk", {**JOB, **THERE, "kernel": "cpu", "queue": {"bulk_size": 2, "kind": "zarr"}})
    ranks = run_ranks(train_there, 2, rehearsal.runs, Outline.from_dataset(dataset), tmp_path, timeout_s=240)
    for rank in ranks:
        (host, none), (there, many), (pinned, _), (stopped, _), (again, _), (whole, _) = rank[:6]
        of_edges, device_edges, _, on_disk = (report for report, _ in rank[6:])
        assert (none, stopped) == (0, None) and many > 0
        assert again["parameters_sha256"] == there["parameters_sha256"]
        for a, b in ((there, host), (pinned, whole), (device_edges, of_edges), (on_disk, host)):
            assert (a["minibatches"], a["sampled_edges"]) == (b["minibatches"], b["sampled_edges"])
            assert [h["train_loss"] for h in a["history"]] == pytest.approx([h["train_loss"] for h in b["history"]])
            assert a["bytes"]["network"]["features"] == b["bytes"]["network"]["features"]
    ways = (("edges there", "edges on the host"), ("owned edges", "edges on the host"))
    for a, b in (("there", "host"), ("on disk", "host"), ("again", "host"), ("pinned", "all on the host"), *ways):
        seen, want = (torch.load(tmp_path / x / "model.pt", weights_only=True) for x in (a, b))
        for key, value in want.items():
            torch.testing.assert_close(seen[key], value, rtol=1e-7, atol=1e-12)
