"""Embeddings: the rows that a layer reads, against the layers applied by hand; in files and by the command."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch
import zarr

import millrace as mr
from millrace.tests.contracts.command import command
from millrace.tests.contracts.whole_graph import whole_graph

SOURCE = "sbm:nodes=150,classes=3,degree=6,features=5,train=0.3"
JOB = {"epochs": 2, "hidden": 8, "layers": 3, "threads": 1}
SAMPLED = {**JOB, "fanout": [3, 3, 3], "batch_size": 30}
RUNS = {
    "bulk, sage, batch norm": {**SAMPLED, "model": {"name": "sage", "norm": "batch"}},
    "grappa, gcn": {**SAMPLED, "system": "grappa", "model": {"name": "gcn"}},
    "retexo, sage": {**JOB, "system": "retexo"},
    "sar, gat, double": {**JOB, "system": "sar", "model": {"name": "gat"}, "dtype": "float64"},
}


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset(SOURCE)


@pytest.fixture(scope="module")
def result(data, tmp_path_factory):
    named = replace(data, node_names=[f"n{v}" for v in range(150)], class_names=("red", "green", "blue"))
    return mr.run(named, out=tmp_path_factory.mktemp("runs") / "run", **RUNS["bulk, sage, batch norm"])


def by_hand(model, data, layers):
    """Rows after some layers over the whole graph."""
    dtype = next(model.parameters()).dtype
    h = torch.from_numpy(data.features.gather(np.arange(data.num_nodes))).to(dtype)
    with torch.no_grad():
        for i in range(layers):
            h = model.layer(i, whole_graph(data.graph, dtype), h)
    return h.numpy()


@pytest.mark.parametrize("kind", RUNS)
def test_rows_are_those_that_the_last_layer_reads(kind, data, tmp_path):
    run = mr.run(data, out=tmp_path / "run", **RUNS[kind])
    model = mr.load(run).model
    seen = mr.embed(run)
    assert (seen.layer, seen.rows.shape[0]) == (2, 150)
    np.testing.assert_allclose(seen.rows, by_hand(model, data, 2), rtol=1e-4, atol=1e-5)
    some = mr.embed(tmp_path / "run", nodes=[7, 3, 7], layer=1)
    np.testing.assert_allclose(some.rows, by_hand(model, data, 1)[[7, 3, 7]], rtol=1e-4, atol=1e-5)
    last = mr.embed(run, nodes="test", layer=3)
    np.testing.assert_array_equal(last.rows, mr.predict(run, nodes="test").logits)


def test_pyg_convolutions_and_ones_own_module(data):
    pyg = pytest.importorskip("torch_geometric.nn")
    model = mr.PyGModel([pyg.SAGEConv(5, 8), pyg.SAGEConv(8, 3)]).eval()
    np.testing.assert_allclose(mr.embed(model, data).rows, by_hand(model, data, 1), rtol=1e-5, atol=1e-6)


def test_another_graph_without_labels(result):
    other = mr.open_dataset("sbm:nodes=60,classes=5,degree=4,features=5,seed=9")
    unlabelled = replace(other, labels=np.full(60, -1), split=mr.Split(*[np.empty(0, np.int64)] * 3))
    seen = mr.embed(result, unlabelled, nodes=[59])
    np.testing.assert_allclose(seen.rows, by_hand(mr.load(result).model, other, 2)[[59]], rtol=1e-4, atol=1e-5)


def test_files_hold_what_is_in_memory(result, tmp_path):
    seen, said = mr.embed(result, nodes=["n7", "n3"]), mr.predict(result, nodes=["n7", "n3"])
    assert repr(seen) == "Embeddings(2 nodes, 8 columns, after layer 2)"
    for suffix in ("parquet", "npy", "zarr"):
        for flags in (["--embeddings"], []):
            out = tmp_path / f"{len(flags)}.{suffix}"
            code, _, err = command("predict", result.out, "--out", out, "--nodes", "n7,n3", *flags)
            assert code == 0, err
    rows = pyarrow.parquet.read_table(tmp_path / "1.parquet").to_pylist()
    assert [row["node"] for row in rows] == ["n7", "n3"]
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), seen.rows)
    assert np.array_equal(np.load(tmp_path / "1.npy"), seen.rows)
    assert np.array_equal(np.load(tmp_path / "0.npy"), said.probabilities)
    embedded, predicted = (zarr.open_group(str(tmp_path / f"{k}.zarr"), mode="r") for k in (1, 0))
    assert embedded["node"][:].tolist() == predicted["node"][:].tolist() == ["n7", "n3"]
    assert np.array_equal(embedded["embedding"][:], seen.rows) and embedded.attrs["layer"] == 2
    assert np.array_equal(predicted["probability"][:], said.probabilities)
    assert np.array_equal(predicted["class"][:], said.classes)
    assert predicted.attrs["class_names"] == ["red", "green", "blue"]
    assert {p.suffix for p in tmp_path.iterdir()} == {".parquet", ".npy", ".zarr"}, "nothing half-written is left"


def test_all_nodes_by_name(result, tmp_path):
    code, out, err = command(
        "predict", result.out, "--out", tmp_path / "e.npy", "--nodes", "all", "--embeddings", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["nodes"] == 150 == len(np.load(tmp_path / "e.npy"))
    code, _, err = command("predict", result.out, "--out", tmp_path / "e.npy")
    assert code == 2 and "already exists" in err


@pytest.mark.parametrize("layer", [0, 4, 1.5, True])
def test_layers_that_a_model_lacks_are_refused(result, layer):
    with pytest.raises(mr.InputError, match="expected a whole number from 1 to 3"):
        mr.embed(result, layer=layer)


def test_a_single_layer_has_no_rows_before_it(data):
    model = mr.GraphSAGE(layers=1).build(5, 3)
    with pytest.raises(mr.InputError, match="Stack has one layer, which reads the features; give layer=1"):
        mr.embed(model, data)
    assert mr.embed(model, data, layer=1).rows.shape == (150, 3)
