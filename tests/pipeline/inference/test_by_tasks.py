"""Predictions, embeddings and evaluations by Dask workers: the rows of one process."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch
from distributed import LocalCluster

import millrace as mr
from millrace.pipeline.inference import by_tasks
from millrace.pipeline.inference.files import FileRequest
from millrace.pipeline.inference.predict import predict_to_file
from millrace.stages.evaluate import in_files
from millrace.storage import lazy_dataset
from millrace.storage.errors import InputError
from millrace.storage.lazy_dataset import LazyDataset
from millrace.storage.store import bytes_left
from millrace.tests.contracts.command import command

SOURCE = "sbm:nodes=150,classes=3,degree=6,features=5,train=0.3"
SAMPLED = {"epochs": 2, "hidden": 8, "layers": 2, "threads": 1, "fanout": [3, 3], "batch_size": 30}

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(scope="module")
def scheduler():
    """Address of a cluster of two workers, threads of this process."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def data():
    plain = mr.open_dataset(SOURCE)
    return replace(plain, node_names=[f"n{v}" for v in range(150)], class_names=("red", "green", "blue"))


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "store"
    mr.write_dataset(path, data, features_format="npy")
    return path


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    mr.run(store, features="mapped", out=out, **SAMPLED)
    return out


@pytest.mark.parametrize("nodes", [None, "test", ["n7", "n3", "n7"], []], ids=str)
def test_predictions_are_those_of_one_process(run, scheduler, nodes):
    alone, shared = (mr.predict(run, nodes=nodes, **o) for o in ({}, {"scheduler": scheduler}))
    assert np.array_equal(alone.logits, shared.logits)
    assert np.array_equal(alone.nodes, shared.nodes)
    assert list(alone.node_names or []) == list(shared.node_names or [])
    assert not list(run.glob(".writing-*")), "files are left"


@pytest.mark.parametrize("nodes", [None, ["n7", "n3", "n7"]], ids=str)
def test_one_process_with_little_memory_computes_in_files(run, tmp_path, monkeypatch, nodes):
    """The graph of its store is never in memory, and what has no room is refused before it begins."""
    alone, scores, asked = mr.predict(run, nodes=nodes), mr.evaluate(run), list[int]()
    monkeypatch.setattr(lazy_dataset, "fits_in_memory", lambda num_bytes: asked.append(num_bytes) or False)
    monkeypatch.setattr(in_files, "fits_in_memory", lambda num_bytes: False)
    monkeypatch.setattr(LazyDataset, "as_read", lambda self: pytest.fail("the dataset was read"))
    found = mr.predict(run, nodes=nodes)
    assert np.array_equal(found.logits, alone.logits) and list(found.node_names) == list(alone.node_names)
    assert mr.evaluate(run)["accuracy"] == scores["accuracy"]
    assert asked[0] > 150 * 64
    predict_to_file(FileRequest(run, tmp_path / "p.npy"), None, False)
    assert np.array_equal(np.load(tmp_path / "p.npy"), mr.predict(run).probabilities)
    assert not list(run.glob(".writing-*")), "files are left"
    monkeypatch.setattr(bytes_left, "bytes_left", lambda: 100 << 20)
    with pytest.raises(InputError, match="over files takes 128 MiB of memory, where 100 MiB are left; give this"):
        mr.predict(run)


@pytest.mark.parametrize("layer", [1, 2])
def test_embeddings_too(run, scheduler, layer):
    alone, shared = (mr.embed(run, nodes="val", layer=layer, **o) for o in ({}, {"scheduler": scheduler}))
    np.testing.assert_allclose(alone.rows, shared.rows, rtol=1e-5, atol=1e-6)


def test_modules_of_ones_own_and_learnt_rows(data, scheduler, tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    convs = [pyg.SAGEConv(5, 8), pyg.SAGEConv(8, 3)]
    options = {key: value for key, value in SAMPLED.items() if key not in ("hidden", "layers")}
    mr.run(data, model=convs, out=tmp_path / "pyg", **options)
    mr.run(data, learned=4, out=tmp_path / "learned", **SAMPLED)
    for name, model in (("pyg", convs), ("learned", None)):
        alone, shared = (mr.predict(tmp_path / name, model=model, **o) for o in ({}, {"scheduler": scheduler}))
        np.testing.assert_allclose(alone.logits, shared.logits, rtol=1e-5, atol=1e-6)


def test_relations(scheduler, tmp_path):
    data = mr.open_dataset("hsbm:nodes=40,features=4")
    mr.run(data, model="rgcn", out=tmp_path / "run", **SAMPLED)
    alone, shared = (mr.predict(tmp_path / "run", **o) for o in ({}, {"scheduler": scheduler}))
    assert alone.logits.shape == (40, data.num_classes)
    np.testing.assert_allclose(alone.logits, shared.logits, rtol=1e-5, atol=1e-6)


def test_a_model_alone_and_workers_of_this_machine(data, run, tmp_path):
    """By the command line; a bare module from Python. Each starts two processes."""
    args = ("--nodes", "n5,n2", "--workers", "2", "--out", tmp_path / "p.parquet")
    code, _, err = command("predict", run, *args)
    assert code == 0, err
    rows = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pylist()
    want = mr.predict(run, nodes=["n5", "n2"])
    assert [row["node"] for row in rows] == ["n5", "n2"]
    assert [row["probability"] for row in rows] == want.probabilities.max(1).tolist()


def test_evaluation_too(run, scheduler):
    reports = []
    for given in ([], ["--scheduler", scheduler]):
        code, out, err = command("evaluate", run, "--json", *given)
        assert code == 0, err
        reports.append({k: v for k, v in json.loads(out).items() if k != "seconds"})
    assert reports[0] == reports[1]
    assert reports[0]["accuracy"]["test"] == mr.load(run).result.test_accuracy


def test_a_bare_model(data, run, scheduler, monkeypatch):
    model = mr.load(run).model
    with pytest.raises(mr.InputError, match="no folder which its workers see; give the folder of a run, or workers"):
        mr.predict(model, data, scheduler=scheduler)
    lazy = torch.nn.LazyLinear(3)
    lazy.num_layers, lazy.layer = 1, lambda i, neighbourhood, h: h
    with pytest.raises(mr.InputError, match="is lazy and has no shape yet"):
        mr.predict(lazy, data, workers=2)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_a_number_of_workers_that_is_none(run, workers):
    with pytest.raises(mr.InputError, match=r"workers is .*; expected a whole number, 1 or more"):
        mr.predict(run, workers=workers)


def test_no_scheduler_answers(run, tmp_path):
    code, out, err = command("evaluate", run, "--scheduler", "tcp://127.0.0.1:9")
    assert (code, out) == (2, "")
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in err.splitlines()[-1]
    assert not list(run.glob(".writing-*"))


def test_keys_of_the_cluster(run, tmp_path):
    """A scheduler beyond this machine wants TLS, or the user's word."""
    for args, match in (
        (["--scheduler", "tcp://192.0.2.1:9"], "or set cluster.insecure = true"),
        (["--scheduler", "tls://127.0.0.1:9", "--set", "cluster.tls_ca=none.pem"], "cluster.tls_cert is not set"),
        (["--workers", "2", "--set", "cluster.insecure=perhaps"], "cluster.insecure"),
        (["--workers", "2", "--set", "train.lr=1"], "--set train is a key of the run, which has been trained"),
    ):
        code, _, err = command("evaluate", run, *args)
        assert code == 2 and match in err.splitlines()[-1], err
        code, _, err = command("predict", run, "--out", tmp_path / "p.csv", *args)
        assert code == 2 and match in err.splitlines()[-1], err


def test_folders_of_killed_processes_are_removed(tmp_path):
    with by_tasks._folder(tmp_path) as alive:
        (tmp_path / ".writing-layers-0badf00d").mkdir()
        with by_tasks._folder(tmp_path) as mine:
            assert {p.name for p in tmp_path.iterdir()} == {alive.name, mine.name}
    assert not list(tmp_path.iterdir())


def test_a_run_of_somebody_else_is_written_beside(tmp_path, monkeypatch):
    """Its folder can be read only, which root does not notice."""
    monkeypatch.setattr(by_tasks.os, "access", lambda path, mode: path != tmp_path / "run")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with by_tasks._folder(tmp_path / "run") as folder:
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())
