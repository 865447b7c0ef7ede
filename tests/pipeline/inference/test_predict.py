"""Predictions of finished runs and of models: in Python, in files, and by the command."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
import zarr

import millrace as mr
from millrace.pipeline.inference.pairs import LinkScores
from millrace.pipeline.inference.predict import nodes_of_text
from millrace.pipeline.inference.predictions import Predictions
from millrace.pipeline.inference.recommend import Recommendations
from millrace.storage.errors import InputError
from millrace.tests.contracts.accuracies import accuracy
from millrace.tests.contracts.command import command
from millrace.tests.contracts.pictures import draw_only

CONVERT = pyarrow.csv.ConvertOptions(
    column_types={"labels": pa.string()}, strings_can_be_null=True, quoted_strings_can_be_null=False
)
SOURCE = "sbm:nodes=150,classes=3,degree=6,features=5,train=0.3"
SMALL = {"epochs": 2, "hidden": 8, "layers": 2, "lr": 0.05, "threads": 1}
SAMPLED = {**SMALL, "fanout": [3, 3], "batch_size": 30}
RUNS = {
    "bulk, sage, batch norm": {**SAMPLED, "model": {"name": "sage", "norm": "batch"}},
    "bulk, gin, double": {**SAMPLED, "model": {"name": "gin"}, "dtype": "float64"},
    "grappa, gcn": {**SAMPLED, "system": "grappa", "model": {"name": "gcn"}},
    "retexo, sage, inductive": {**SMALL, "system": "retexo", "retexo": {"inductive": True}},
    "sar, gat": {**SMALL, "system": "sar", "model": {"name": "gat"}},
}


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset(SOURCE)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("runs") / "plain"
    mr.run(SOURCE, out=out, **SAMPLED)
    return out


@pytest.fixture(scope="module")
def multilabel(data, tmp_path_factory):
    """The result of a run where nodes have several classes."""
    labels = np.eye(4, dtype=np.float32)[data.labels]
    labels[:, 3] = data.labels != 1
    dataset = replace(data, name="multi", labels=labels, num_classes=4, task="multilabel")
    return mr.run(dataset, out=tmp_path_factory.mktemp("multi") / "run", **{**SAMPLED, "epochs": 4})


def right(predictions, dataset):
    """The accuracy of what was predicted."""
    return accuracy(torch.from_numpy(predictions.logits), torch.from_numpy(dataset.labels[predictions.nodes]))


@pytest.mark.parametrize("kind", RUNS)
def test_every_systems_run_predicts_what_it_was_scored_by(kind, data, tmp_path):
    result = mr.run(data, out=tmp_path / "run", **RUNS[kind])
    seen = mr.predict(result, nodes="test")
    assert np.array_equal(seen.nodes, data.split.test)
    assert (seen.classes == data.labels[seen.nodes]).mean() == result.test_accuracy
    assert seen.logits.dtype == result.dtype
    whole = mr.predict(tmp_path / "run")
    assert len(whole) == data.num_nodes
    np.testing.assert_allclose(whole.logits[data.split.test], seen.logits, rtol=1e-4, atol=1e-5)


def test_pyg_convolutions_predict(data, tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")

    def made():
        torch.manual_seed(0)
        return mr.PyGModel([pyg.SAGEConv(5, 8), pyg.SAGEConv(8, 3)])

    result = mr.run(data, model=made(), out=tmp_path / "run", epochs=2, fanout=[3, 3], batch_size=30, threads=1)
    with pytest.raises(
        mr.InputError, match=r"is a PyGModel, whose convolutions are not kept in the folder; pass them again: mr.load\("
    ):
        mr.predict(result)
    loaded = mr.load(result, model=made())
    assert right(mr.predict(loaded, nodes="test"), data) == result.test_accuracy
    convolutions = [pyg.SAGEConv(-1, 8), pyg.SAGEConv(8, 3)]
    assert np.array_equal(mr.predict(mr.load(result, model=convolutions)).logits, mr.predict(loaded).logits)
    assert np.array_equal(mr.predict(result, model=convolutions).logits, mr.predict(loaded).logits)
    with pytest.raises(mr.InputError, match="model was given beside a TrainedRun, which has one"):
        mr.predict(loaded, model=convolutions)
    assert (
        repr(loaded)
        == f"TrainedRun('{tmp_path / 'run'}': PyGModel on {SOURCE}, test accuracy {result.test_accuracy:.4f})"
    )


def test_several_labels(multilabel, tmp_path):
    dataset = mr.load(multilabel).open_dataset()
    seen = mr.predict(multilabel, nodes="test")
    assert right(seen, dataset) == multilabel.test_accuracy
    np.testing.assert_allclose(seen.probabilities, 1 / (1 + np.exp(-seen.logits)), rtol=1e-5)
    assert np.array_equal(seen.classes, seen.probabilities > 0.5)
    seen.to_parquet(tmp_path / "p.parquet", all_probabilities=True)
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    for row, node, said, shares in zip(rows, seen.nodes, seen.classes, seen.probabilities, strict=True):
        assert row["node"] == node
        assert row["classes"] == np.flatnonzero(said).tolist()
        assert row["probabilities"] == shares[said].tolist()
        assert row["probability_3"] == shares[3]
    seen.to_csv(tmp_path / "p.csv")
    first = (tmp_path / "p.csv").read_text().splitlines()[1]
    assert f'"{";".join(map(str, rows[0]["classes"]))}"' in first


def test_a_loaded_run_has_its_parts(run, data):
    loaded = mr.load(run)
    assert loaded.result == mr.load(loaded.result).result
    assert loaded.config.sampler["fanout"] == [3, 3]
    assert not loaded.model.training
    assert np.array_equal(loaded.open_dataset().labels, data.labels)
    saved = torch.load(run / "model.pt", weights_only=True)
    assert all(torch.equal(value, saved[name]) for name, value in loaded.model.state_dict().items())


def test_another_graph_is_predicted(run):
    other = mr.open_dataset("sbm:nodes=60,classes=5,degree=4,features=5,seed=9")
    unlabelled = replace(other, labels=np.full(60, -1), split=mr.Split(*[np.empty(0, np.int64)] * 3))
    seen = mr.predict(run, unlabelled, nodes=[59, 0])
    assert seen.logits.shape == (2, 3)
    want = mr.infer(mr.load(run).model, other.graph, other.features, nodes=[59, 0])
    assert np.array_equal(seen.logits, want.numpy())
    assert np.array_equal(
        mr.predict(run, "sbm:nodes=60,classes=5,degree=4,features=5,seed=9", [59, 0]).logits, seen.logits
    )


def test_new_data_without_labels_are_predicted(tmp_path):
    """In no table, column or array, or -1 for all: as if there were any; a split asks for them."""
    rng = np.random.default_rng(0)
    arrays = {"edge_index": rng.integers(0, 40, (2, 200)), "x": rng.random((40, 3))}
    options = mr.ReadOptions(direction="directed", label_columns="kind", feature_columns="*")
    table = {"id": range(40), "a": arrays["x"][:, 0], "b": arrays["x"][:, 1], "kind": rng.integers(0, 2, 40)}
    pq.write_table(
        pa.table({"src": arrays["edge_index"][0], "dst": arrays["edge_index"][1]}), tmp_path / "edges.parquet"
    )
    pq.write_table(pa.table(table), tmp_path / "nodes.parquet")
    small = {"epochs": 1, "hidden": 4, "verbose": False}
    config = {"read": {"direction": "directed", "label_columns": "kind", "feature_columns": "*"}}
    run = mr.run(str(tmp_path), config=config, split="fraction:0.5,0.2", out=tmp_path / "run", **small)
    want = mr.predict(run).logits
    assert np.array_equal(mr.predict(run, mr.open_dataset(tmp_path, options=options)).logits, want)
    for kind in ([-1] * 40, None):
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "edges.parquet").write_bytes((tmp_path / "edges.parquet").read_bytes())
        new = {k: v for k, v in table.items() if k != "kind"} | ({} if kind is None else {"kind": kind})
        pq.write_table(pa.table(new), tmp_path / "new" / "nodes.parquet")
        assert np.array_equal(mr.predict(run, str(tmp_path / "new")).logits, want)
        assert mr.embed(run, tmp_path / "new", nodes=[3, 4]).rows.shape == (2, 4)
        with pytest.raises(InputError, match=r"no node has a label|nodes has no column 'kind'"):
            mr.predict(run, str(tmp_path / "new"), "test")
    pq.write_table(pa.table({**table, "c": table["a"]}), tmp_path / "new" / "nodes.parquet")
    assert np.array_equal(mr.predict(run, str(tmp_path / "new")).logits, want)  # which has no feature c


def test_another_dataset_takes_only_the_options_that_fit_it(data, tmp_path):
    """A run that reads an input that is not clean, and then a store that is; and the other way round."""
    edges = np.stack([np.repeat(np.arange(150), data.graph.in_degree), data.graph.indices])
    x = data.features.gather(np.arange(150))
    np.savez(tmp_path / "raw.npz", edge_index=edges, x=x, y=data.labels)
    mr.run(tmp_path / "raw.npz", out=tmp_path / "a", read={"direction": "directed"}, **SAMPLED)
    mr.write_dataset(tmp_path / "store", data, features_format="npy")
    mr.run(tmp_path / "store", out=tmp_path / "b", features="mapped", **SAMPLED)
    assert len(mr.predict(tmp_path / "a", tmp_path / "store")) == 150
    assert len(mr.predict(tmp_path / "b", "sbm:nodes=60,classes=3,features=5")) == 60


def test_a_model_alone(run, data):
    model = mr.load(run).model
    assert np.array_equal(mr.predict(model, data).logits, mr.infer(model, data).numpy())
    assert len(mr.predict(model, SOURCE, "val")) == len(data.split.val)
    with pytest.raises(mr.InputError, match="dataset is missing"):
        mr.predict(model)
    with pytest.raises(mr.InputError, match="run is a Dataset; expected a finished run's folder"):
        mr.predict(data)


def test_names_are_given_back(data, tmp_path):
    """Names of nodes come from the dataset that is predicted, those of classes from the training dataset."""
    named = replace(data, name="named", node_names=[f"n{v}" for v in range(150)], class_names=("red", "green", "blue"))
    result = mr.run(named, out=tmp_path / "run", **SAMPLED)
    assert mr.load(result).result.class_names == ["red", "green", "blue"]
    seen = mr.predict(result, nodes=["n7", "n3"])
    assert (seen.nodes.tolist(), seen.node_names, seen.class_names) == ([7, 3], ["n7", "n3"], ["red", "green", "blue"])
    code, _, err = command("predict", tmp_path / "run", "--out", tmp_path / "p.csv", "--nodes", "n7,n3")
    assert code == 0, err
    rows = pyarrow.csv.read_csv(tmp_path / "p.csv").to_pylist()
    assert [row["node"] for row in rows] == ["n7", "n3"]
    assert [row["class"] for row in rows] == [("red", "green", "blue")[c] for c in seen.classes]
    other = replace(named, node_names=[str(v + 1) for v in range(150)], class_names=("x", "y", "z"))
    mr.write_dataset(tmp_path / "other", other)
    command(
        "predict",
        tmp_path / "run",
        "--out",
        tmp_path / "q.csv",
        "--nodes",
        "8",
        "--dataset",
        tmp_path / "other",
        "--json",
    )
    assert pyarrow.csv.read_csv(tmp_path / "q.csv").to_pylist() == [{**rows[0], "node": 8}]


def test_a_column_of_names_and_one_of_numbers(tmp_path):
    seen = Predictions(
        np.array([4, 2]), np.array([[0.0, 2.0], [1.0, 0.0]]), "multiclass", ["dora", "bob"], ["cat", "dog"]
    )
    assert repr(seen) == "Predictions(2 nodes, 2 classes, multiclass)"
    seen.to_csv(tmp_path / "p.csv", all_probabilities=True)
    rows = pyarrow.csv.read_csv(tmp_path / "p.csv").to_pylist()
    assert [(r["node"], r["class"]) for r in rows] == [("dora", "dog"), ("bob", "cat")]
    assert [list(r) for r in rows] == [["node", "class", "probability", "probability_cat", "probability_dog"]] * 2
    assert rows[1]["probability"] == rows[1]["probability_cat"] == pytest.approx(np.e / (1 + np.e))


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    seen = Predictions(np.array([0]), np.zeros((1, 2)))
    seen.to_parquet(tmp_path / "p.parquet")
    before = (tmp_path / "p.parquet").read_bytes()

    def full(writer, table):
        raise OSError(28, "")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(mr.InputError, match=r"p.parquet cannot be written: No space left"):
        seen.to_parquet(tmp_path / "p.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]
    assert (tmp_path / "p.parquet").read_bytes() == before


def test_the_command_writes_a_file(run, data, tmp_path):
    code, out, err = command("predict", run, "--out", tmp_path / "p.parquet", "--all-probabilities", "--json")
    assert code == 0, err
    assert json.loads(out)["nodes"] == 150
    table = pq.read_table(tmp_path / "p.parquet")
    want = mr.predict(run, nodes="all")
    assert table.column_names == ["node", "class", "probability", "probability_0", "probability_1", "probability_2"]
    assert np.array_equal(table["class"].to_numpy(), want.classes)
    np.testing.assert_array_equal(table["probability"].to_numpy(), want.probabilities.max(1))
    code, out, err = command(
        "predict", run, "--out", tmp_path / "p.csv", "--nodes", "9,3", "--dataset", "sbm:nodes=60,classes=5,features=5"
    )
    assert code == 0, err
    assert out.startswith("2 nodes of sbm:nodes=60")
    assert pyarrow.csv.read_csv(tmp_path / "p.csv")["node"].to_pylist() == [9, 3]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".zarr"])
def test_given_labels_and_sets_stand_beside_predictions(run, tmp_path, suffix):
    code, _, err = command("predict", run, "--out", tmp_path / f"p{suffix}", "--labels")
    assert code == 0, err
    own = mr.load(run).open_dataset()
    if suffix == ".zarr":
        group = zarr.open_group(str(tmp_path / "p.zarr"), mode="r")
        label, split = group["label"][:].tolist(), group["split"][:].tolist()
    else:
        read = {".csv": pyarrow.csv.read_csv, ".parquet": pq.read_table}[suffix]
        table = read(tmp_path / f"p{suffix}")
        label, split = table["label"].to_pylist(), table["split"].to_pylist()
    assert label == own.labels.tolist()
    assert [v for v, s in enumerate(split) if s == "test"] == own.split.test.tolist()
    assert [v for v, s in enumerate(split) if s == "train"] == own.split.train.tolist()


@pytest.mark.parametrize(
    ("task", "labels", "names", "want"),
    [
        ("multiclass", np.array([1, -1, 0]), ["a", "b"], {"label": ["b", None, "a"]}),
        ("multilabel", np.array([[1, 1], [np.nan, np.nan], [0, 0]], np.float32), None, {"labels": ["0;1", None, ""]}),
        ("regression", np.array([[0.5], [np.nan], [2.0]], np.float32), None, {"label": [0.5, None, 2.0]}),
        ("regression", np.ones((3, 2), np.float32), ["u", "v"], {"label_u": [1.0] * 3, "label_v": [1.0] * 3}),
    ],
)
def test_what_a_dataset_has_for_predicted_nodes(tmp_path, task, labels, names, want):
    split = SimpleNamespace(train=np.array([0]), val=np.array([2]), test=np.array([], np.int64))
    data = SimpleNamespace(
        labels=labels,
        class_names=names,
        split=split,
        num_targets=3,
        task=task,
        of_pairs=False,
        num_classes=2 if labels.ndim == 1 else labels.shape[1],
    )
    found = Predictions(np.arange(3), np.ones((3, 2), np.float32), task).beside(data)
    found.to_parquet(tmp_path / "p.parquet")
    found.to_csv(tmp_path / "p.csv")
    table = pyarrow.csv.read_csv(tmp_path / "p.csv", convert_options=CONVERT)
    for name, values in want.items():
        assert table[name].to_pylist() == values and name in pq.read_table(tmp_path / "p.parquet").column_names
    assert table["split"].to_pylist() == ["train", None, "val"]
    data.of_pairs, data.name = True, "pairs"
    with pytest.raises(mr.InputError, match="no labels of nodes"):
        found.beside(data)


def test_an_array_of_what_is_returned(run, data):
    preds, rows = mr.predict(run, nodes=[3, 1]), mr.embed(run, nodes=[3, 1])
    assert np.array_equal(np.asarray(preds), preds.probabilities) and np.asarray(preds, np.float64).dtype == np.float64
    assert np.array_equal(np.asarray(rows), rows.rows)
    best = Recommendations(np.arange(2), np.array([[1, 2], [0, -1]]), np.zeros((2, 2)))
    assert np.array_equal(np.asarray(best), best.destinations) and np.asarray(best).dtype == np.int64
    assert np.array_equal(np.asarray(LinkScores(np.zeros((2, 2), np.int64), np.array([1.0, 2.0]))), [1.0, 2.0])


BAD = {
    "labels of no table": ("RUN --out P.npy --labels", "columns of a table, with .npy"),
    "labels of embeddings": ("RUN --out P.zarr --embeddings --labels", "columns of a table, with --embeddings"),
    "labels of pairs": ("RUN --out P --labels --top 3", "no nodes are predicted"),
    "no run": ("NONE --out P", "holds no run"),
    "unfinished": ("UNFINISHED --out P", "has not finished (no result.json); resume it with `millrace run --resume"),
    "another version": ("OLD --out P", "result.json is of another version"),
    "damaged": (
        "DAMAGED --out P",
        "model.pt does not match its digest in result.json: it is damaged; copy it again, or write it again by",
    ),
    "there already": ("RUN --out THERE", "already exists; choose another --out"),
    "no suffix": ("RUN --out P.txt", "expected a file that ends in .parquet, .csv, .npy or .zarr"),
    "embeddings as text": ("RUN --out P --embeddings", "expected a file that ends in .parquet, .npy or .zarr"),
    "probabilities of embeddings": ("RUN --out P.npy --embeddings --all-probabilities", "expected one of them"),
    "no folder": ("RUN --out NONE/p.csv", "is not a folder; choose another --out"),
    "width": ("RUN --out P --dataset sbm:nodes=60,features=4", "has 4 features, but sage of"),
    "node": ("RUN --out P --nodes 150", "expected [0, 150)"),
    "split": ("RUN --out P --nodes tests", "did you mean 'test'"),
    "not a number": ("RUN --out P --nodes 1,x", "nodes are '1', 'x'; expected ids"),
    "dataset": ("RUN --out P --dataset nothing", "neither a file nor a known dataset"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_mistake_is_a_sentence_and_writes_nothing(run, tmp_path, kind):
    words, phrase = BAD[kind]
    (tmp_path / "there.csv").write_text("mine")
    for name in ("unfinished", "old", "damaged"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "unfinished" / "result.json").unlink()
    (tmp_path / "damaged" / "model.pt").write_bytes(b"no model")
    result = json.loads((tmp_path / "old" / "result.json").read_text())
    (tmp_path / "old" / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k != "num_classes"}))
    paths = {
        "RUN": run, "NONE": tmp_path / "none", "UNFINISHED": tmp_path / "unfinished", "OLD": tmp_path / "old",
        "DAMAGED": tmp_path / "damaged",
        "THERE": tmp_path / "there.csv", "P": tmp_path / "p.csv", "P.txt": tmp_path / "p.txt",
        "P.npy": tmp_path / "p.npy", "P.zarr": tmp_path / "p.zarr",
        "NONE/p.csv": tmp_path / "none" / "p.csv",
    }  # fmt: skip
    before = sorted(tmp_path.iterdir())
    code, out, err = command("predict", *[paths.get(word, word) for word in words.split()])
    assert (code, out) == (2, "")
    assert phrase in err.splitlines()[-1], err
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('"Meier, Eve",dan', ["Meier, Eve", "dan"]),
        ('ann, "Meier, Eve"', ["ann", "Meier, Eve"]),
        ('5" nail , x', ['5" nail', "x"]),
        ("", [""]),
        ("a,,b", ["a", "", "b"]),
        ("1,-2", [1, -2]),
    ],
)
def test_names_with_commas_are_in_quotation_marks(data, text, parts):
    assert nodes_of_text(text, data, of_pairs=False) == parts


def test_data_that_have_changed_since_are_told(tmp_path):
    rng = np.random.default_rng(0)
    y, edges, path = rng.integers(0, 3, 90), rng.integers(0, 90, (2, 400)), tmp_path / "d.npz"

    def save(y, train):
        np.savez(
            path, edge_index=edges, x=np.eye(90, dtype=np.float32), y=y, train_idx=train, val_idx=[80], test_idx=[81]
        )

    save(y, np.arange(40))
    options = {"fanout": [3], "layers": 1, "hidden": 8, "epochs": 1, "threads": 1, "read": {"direction": "directed"}}
    mr.run(path, out=tmp_path / "run", verbose=False, **options)
    told = "of d are not those that"
    assert told not in command("evaluate", tmp_path / "run")[2]
    save(y, np.arange(41))
    assert f"train nodes {told}" in command("evaluate", tmp_path / "run")[2]
    save((y + 1) % 3, np.arange(41))
    assert f"labels and train nodes {told}" in command("predict", tmp_path / "run", "--out", tmp_path / "p.csv")[2]
    assert told not in command("evaluate", tmp_path / "run", "--dataset", path)[2]


def test_nodes_without_a_label_and_the_report_of_a_result(tmp_path, monkeypatch):
    labels = np.arange(40) % 3
    labels[::4] = -1
    chain = sp.coo_array((np.ones(39), (np.arange(39), np.arange(1, 40))), (40, 40))
    options, small = mr.ReadOptions(direction="directed"), {"fanout": [2], "hidden": 4, "epochs": 1, "verbose": False}
    data = mr.from_scipy(chain, np.eye(40), labels, options=options, split="fraction:0.5,0.2")
    run = mr.run(data, out=tmp_path / "run", **small)
    assert mr.predict(run, nodes="unlabelled").nodes.tolist() == list(range(0, 40, 4))
    out = tmp_path / "bare.csv"
    assert command("predict", run.out, "--nodes", "unlabelled", "--out", out)[0] == 0
    assert len(out.read_text().splitlines()) == 11
    links = mr.run(mr.link_dataset(data), out=tmp_path / "links", **small)
    with pytest.raises(InputError, match=r"nodes is 'unlabelled', but .* has no labels of nodes"):
        mr.embed(links, nodes="unlabelled")
    pytest.importorskip("matplotlib")
    draw_only(monkeypatch)
    assert mr.report(run, tmp_path / "page").path.is_file()
    assert mr.report([mr.load(run)], tmp_path / "again").path.is_file()
    with pytest.raises(InputError, match="runs is of type int; expected the folder of a run, its result"):
        mr.report(3)


def test_gaps_of_new_data_have_the_columns_of_the_runs_own(tmp_path):
    """Under nan_features=indicator new data have as many columns, whichever of their values are missing."""
    rng, ends = np.random.default_rng(0), {"src": range(40), "dst": [*range(1, 40), 0]}
    rows = {"id": range(40), "a": rng.random(40), "b": rng.random(40), "label": rng.integers(0, 2, 40)}

    def write(name, **missing):
        (folder := tmp_path / name).mkdir()
        own = {k: [None if i in missing.get(k, ()) else v for i, v in enumerate(of)] for k, of in rows.items()}
        pq.write_table(pa.table(own), folder / "nodes.parquet")
        pq.write_table(pa.table(ends), folder / "edges.parquet")
        return str(folder)

    read = {"direction": "directed", "feature_columns": "a,b", "nan_features": "indicator"}
    given = {"config": {"read": read}, "split": "fraction:0.5,0.2", "epochs": 1, "hidden": 4, "verbose": False}
    run = mr.run(write("own", a=(3,)), out=tmp_path / "run", **given)
    assert run.num_features == 3
    for name, missing in {"none": {}, "both": {"a": (1,), "b": (2, 5)}, "same": {"a": (3,)}}.items():
        folder = write(name, **missing)
        data = mr.load(tmp_path / "run").open_dataset(folder)
        flags = data.features.gather(np.arange(40))[:, 2]
        assert np.flatnonzero(flags).tolist() == list(missing.get("a", ()))
        assert len(mr.predict(run, folder).logits) == 40
        mr.convert(folder, tmp_path / f"{name}-store", options=mr.load(tmp_path / "run").reading(), verbose=False)
        assert np.array_equal(mr.open_dataset(tmp_path / f"{name}-store").features.gather(np.arange(40))[:, 2], flags)
    assert np.array_equal(mr.predict(run, str(tmp_path / "same")).logits, mr.predict(run).logits)
    given["config"]["read"]["indicators"] = []
    without = mr.run(str(tmp_path / "own"), out=tmp_path / "without", **given)
    assert without.num_features == 2
    assert len(mr.predict(without, str(tmp_path / "both")).logits) == 40
