"""Runs with ``device = "cuda"``, on a pretended device where there is no GPU."""

import pytest
import torch

import millrace as mr
from millrace.pipeline.setup import device_policies
from millrace.stages.kernels.runtime import triton_rng
from millrace.tests.contracts import bulk_ranks, pretended_device
from millrace.tests.contracts.typed import typed_dataset

pytestmark = pytest.mark.usefixtures("on_device")
DATASET = "sbm:nodes=300,classes=3,train=0.2"
SMALL = {"fanout": [3, 2], "epochs": 2, "batch_size": 30}


def parameters(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def trained(folder, model, device):
    """A run's parameters."""
    mr.run(DATASET, model=model, device=device, out=folder, **SMALL)
    return parameters(folder)


def layers(conv):
    torch.manual_seed(0)
    return mr.PyGModel([conv(64, 8), conv(8, 3)])


def test_pyg_convolutions_learn_the_same_as_on_the_cpu(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    for name, conv in {"sage": pyg.SAGEConv, "gcn": lambda a, b: pyg.GCNConv(a, b, normalize=False)}.items():
        want, seen = (trained(tmp_path / f"{name}-{device}", layers(conv), device) for device in ("cpu", "cuda"))
        untrained = layers(conv).state_dict()
        for key, value in want.items():
            torch.testing.assert_close(seen[key], value, rtol=1e-3, atol=1e-4)
        assert not all(torch.allclose(seen[key], untrained[key]) for key in want), "it has learnt something"


def test_a_run_is_evaluated_where_there_is_no_gpu(tmp_path, monkeypatch):
    """The sampler is written as matrices, and draws the same on the device as on the host."""
    sampler = {"name": "ppr", "nodes": 3, "steps": 2}
    given = {"sampler": sampler, "hidden": 8, "layers": 2, "epochs": 2, "batch_size": 30}
    ran = mr.run(DATASET, model="sage", device="cuda", out=tmp_path / "run", **given)
    assert mr.load(tmp_path / "run").config.kernel == "cuda"
    mr.run(DATASET, model="sage", out=tmp_path / "host", **given)
    for key, value in parameters(tmp_path / "host").items():
        torch.testing.assert_close(parameters(tmp_path / "run")[key], value, rtol=1e-3, atol=1e-4)
    if not torch.cuda.is_available():
        # As on a machine where the interpreter is off.
        monkeypatch.setattr(triton_rng, "INTERPRETED", False)
    seen = mr.evaluate(tmp_path / "run")
    assert seen["accuracy"]["test"] == pytest.approx(ran.test_accuracy, abs=0.01)
    said, dataset = mr.predict(ran, nodes="test"), mr.open_dataset(DATASET)
    assert (said.classes == dataset.labels[said.nodes]).mean() == seen["accuracy"]["test"]


def rank_there(group, *work):
    """`bulk_ranks._rank` in a process that has the pretended device."""
    pretended_device.install_for_good()
    device_policies.check_gpus = lambda job: None  # it asks for dask-cuda
    return bulk_ranks._rank(group, *work)


def test_two_ranks_learn_from_types_what_one_does_on_the_host(tmp_path, monkeypatch):
    """Attention within relations reads features of edges; the host's run is of one rank."""
    mr.write_dataset(tmp_path / "store", typed_dataset(degree=20, edge_features=True))
    table = {
        "model": {"name": "rgat", "heads": 1, "layers": 1, "hidden": 4, "dropout": 0.3}, "epochs": 2, "lr": 0.02,
        "sampler": {"name": "neighbor", "fanout": [2]}, "train": {"batch_size": 6, "minibatches_per_step": 2},
        "dtype": "float64", "checkpoint": {"every_epochs": 1}, "system": "bulk",
    }  # fmt: skip
    there = {**table, "device": "cuda", "kernel": "cuda", "ranks": 2}
    want = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "host", table)[0]
    monkeypatch.setattr(bulk_ranks, "_rank", rank_there)
    ranks = bulk_ranks.train_bulk(str(tmp_path / "store"), tmp_path / "there", there)
    assert sum(rank["sampled_edges"] for rank in ranks) == want["sampled_edges"]
    for rank in ranks:
        assert rank["history"][-1]["train_loss"] == pytest.approx(want["history"][-1]["train_loss"], rel=1e-9)
    seen = bulk_ranks.last_parameters(tmp_path / "there")
    for name, value in bulk_ranks.last_parameters(tmp_path / "host").items():
        torch.testing.assert_close(seen[name], value, rtol=1e-7, atol=1e-12)
