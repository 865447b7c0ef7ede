"""Labels of edges on GPUs, which are pretended where there are none: the runs that processors would have made."""

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.tests.whole_runs.test_edge_labels import nasty

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")

JOB = {
    "epochs": 2, "seed": 3, "threads": 1, "system": "bulk", "dtype": "float64", "check": True,
    "train": {"batch_size": 40, "lr": 0.02, "minibatches_per_step": 2, "metrics": ["macro_f1"]},
    "link": {"width": 8}, "sampler": {"fanout": [3, -1]},
    "model": {"name": "gcn", "hidden": 8, "layers": 2, "dropout": 0.2}, "queue": {"bulk_size": 2},
}  # fmt: skip
ALONE = {k: v for k, v in JOB["train"].items() if k != "minibatches_per_step"}
WAYS = {
    "replicated": {},
    "owned": {"features": "owned"},
    "blocks": {"bulk": {"topology": "partitioned"}},
    "grappa": {"system": "grappa", "train": ALONE},
    "in the host's memory": {"gpu": {"features": "pinned", "topology": "pinned", "cache_bytes": 400}},
    "queue on disk": {"queue": {"kind": "zarr", "bulk_size": 2}},
    "learnt": {"learned": {"width": 3}},
}


def agree(data, out, **more):
    a, b = (
        mr.run(data, config={**JOB, **more, "device": device}, out=out / device, verbose=False)
        for device in ("cpu", "cuda")
    )
    assert (b.minibatches, b.sampled_edges, b.best_epoch) == (a.minibatches, a.sampled_edges, a.best_epoch)
    assert b.train_loss == pytest.approx(a.train_loss, rel=1e-10)
    assert (b.test_accuracy, b.confusion) == (a.test_accuracy, a.confusion)
    assert b.test_metrics == pytest.approx(a.test_metrics, rel=1e-9)
    here, far = (torch.load(out / device / "model.pt", weights_only=True) for device in ("cpu", "cuda"))
    for name, value in here.items():
        torch.testing.assert_close(far[name], value, rtol=1e-9, atol=1e-11)
    host, there = (mr.predict_edges(run, "test").logits for run in (a, b))
    np.testing.assert_allclose(there, host, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("hidden", [False, True], ids=["seen", "hidden"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_that_of_processors(tmp_path, way, hidden):
    agree(nasty(hidden), tmp_path, **WAYS[way])


def test_a_full_batch(tmp_path):
    shape = {k: v for k, v in JOB.items() if k not in ("system", "train", "sampler", "queue")}
    for device in ("cpu", "cuda"):
        config = {**shape, "system": "sar", "device": device, "train": {"lr": 0.02, "metrics": ["macro_f1"]}}
        mr.run(nasty(), config=config, out=tmp_path / device, verbose=False)
    here, far = (torch.load(tmp_path / device / "model.pt", weights_only=True) for device in ("cpu", "cuda"))
    for name, value in here.items():
        torch.testing.assert_close(far[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_tasks(tmp_path, task):
    train = {k: v for k, v in JOB["train"].items() if k != "metrics"}
    agree(nasty(False, task), tmp_path, train=train, epochs=1)


def test_samples_by_time(tmp_path):
    data = mr.open_dataset("payments:accounts=60,degree=4,features=5", split="time:0.6,0.2")
    agree(data, tmp_path, sampler={"name": "temporal", "fanout": [3, 2]}, epochs=1)


@pytest.mark.parametrize("hidden", ["seen", "hidden"])
def test_types(tmp_path, hidden):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 30, 200), rng.integers(0, 40, 200)
    edges = {
        ("user", "rates", "item"): (user, item),
        ("shop", "sells", "item"): (rng.integers(0, 5, 40), np.arange(40)),
    }
    features = {"user": rng.standard_normal((30, 3)), "item": rng.standard_normal((40, 4))}
    graph = mr.from_relations(edges, num_nodes={"shop": 5}, features=features, add_reverse=True)
    options = mr.ReadOptions(labelled_edges=hidden)
    pairs, labels = np.stack([user, item], 1), rng.integers(0, 3, 200)
    data = mr.edge_dataset(graph, pairs, labels, relation="rates", options=options)
    agree(data, tmp_path, model={"name": "rgcn", "hidden": 8, "layers": 2, "dropout": 0.2}, epochs=1)
    assert mr.predict_edges(tmp_path / "cuda", "train").pairs.max(0).tolist() <= [29, 39]
