"""Regression, binary and multi-label runs: on every system, on two ranks, after a resume, and in everything that shows
a run."""

import json

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import metrics
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS
from millrace.tests.contracts.command import command
from millrace.tests.contracts.pictures import draw_only

SPEC = "sbm:nodes=300,classes=2,degree=8,features=5,train=0.3"
JOB = {"seed": 3, "threads": 1, "dtype": "float64", "hidden": 8, "layers": 2, "epochs": 4, "verbose": False}


def labelled(task: str) -> mr.Dataset:
    """A dataset of the task; some of its matrix is not known, in the splits and outside."""
    if task in ("multiclass", "binary"):
        return mr.open_dataset(SPEC, options=mr.ReadOptions(task=task))
    data = mr.open_dataset(f"{SPEC},targets=3")
    y = data.labels.copy()
    if task == "multilabel":
        y = (y > 0.3).astype(np.float32)
    y[::3, 1] = np.nan
    return mr.Dataset("some", data.graph, data.features, y, data.split, 3, task).check()


@pytest.fixture(scope="module")
def data() -> dict[str, mr.Dataset]:
    return {task: labelled(task) for task in ("regression", "binary", "multilabel")}


def job_of(name: str) -> dict:
    return {**JOB, "system": name} | ({"fanout": [4, 3], "batch_size": 30} if SYSTEMS[name].samples else {})


CASES = dict(zip(SYSTEMS, ("regression", "binary", "multilabel", "regression"), strict=True))
OF_TASK = {
    "regression": {"loss": {"name": "huber", "delta": 0.5}, "metrics": ["loss"], "monitor": "mae"},
    "binary": {"loss": {"name": "bce", "class_weights": "balanced"}, "metrics": ["auc", "micro_f1"], "monitor": "auc"},
    "multilabel": {"loss": {"name": "focal", "pos_weight": "balanced"}, "metrics": ["average_precision", "auc"]},
}


@pytest.mark.parametrize(("name", "task"), CASES.items())
def test_a_run_stopped_goes_on_to_the_same_bits(data, tmp_path, name, task):
    options = {**job_of(name), **OF_TASK[task], "checkpoint": {"every_steps": 1}}
    whole = mr.run(data[task], out=tmp_path / "whole", **options)
    asked, lives = iter(range(1000)), 0
    stop = {"stop": lambda: next(asked) % 3 == 2}
    while mr.run(data[task], out=tmp_path / "parts", resume=lives > 0, **stop, **options).status == "stopped":
        lives += 1
    resumed = mr.run(data[task], out=tmp_path / "parts", resume=True, **options)
    assert lives and resumed.parameters_sha256 == whole.parameters_sha256
    for key in ("best_epoch", "val_accuracy", "test_accuracy", "val_metrics", "test_metrics", "per_class"):
        assert getattr(resumed, key) == getattr(whole, key), key
    assert (whole.task, whole.test_accuracy is None) == (task, task == "regression")
    other = "mse" if task == "regression" else "bce" if task == "multilabel" else "focal"
    with pytest.raises(mr.StoreError, match=r"train\.loss"):
        mr.run(data[task], out=tmp_path / "parts", resume=True, **{**options, "loss": other})


@pytest.mark.parametrize(("name", "task"), {**dict.fromkeys(SYSTEMS, "regression"), "sar": "multilabel"}.items())
def test_two_ranks_do_as_one_does(data, scheduler, tmp_path, name, task):
    """All seeds in a step: the systems differ in what a rank sees."""
    sampled = {"fanout": [-1, -1], "batch_size": 300} if SYSTEMS[name].samples else {}
    options = {**JOB, **OF_TASK[task], "epochs": 2, "system": name, **sampled}
    one = mr.run(data[task], out=tmp_path / "one", **options)
    two = mr.run(data[task], out=tmp_path / "two", ranks=2, cluster={"scheduler": scheduler}, **options)
    if name == "grappa":
        # Two ranks see other parts of the graph; what they measure together is what all outputs give.
        y, predicted = data[task].labels[data[task].split.test], mr.predict(two, nodes="test").values
        known = ~np.isnan(y)
        of_target = [metrics.root_mean_squared_error(y[k, c], predicted[k, c]) for c, k in enumerate(known.T)]
        assert two.test_metrics["rmse"] == pytest.approx(np.mean(of_target), rel=1e-9)
        return
    close = 1e-9 if name != "retexo" else 1e-6
    assert two.train_loss == pytest.approx(one.train_loss, rel=close)
    assert two.val_metrics == pytest.approx(one.val_metrics, rel=close)
    assert two.test_metrics == pytest.approx(one.test_metrics, rel=close)
    assert (two.test_accuracy, two.per_class) == (one.test_accuracy, one.per_class)


def test_a_queue_on_disk_and_samples_give_the_same_bits(data, tmp_path):
    options = {**job_of("bulk"), **OF_TASK["regression"], "epochs": 2}
    memory = mr.run(data["regression"], out=tmp_path / "memory", **options)
    queue = {"kind": "zarr", "keep": "all", "location": str(tmp_path / "samples")}
    disk = mr.run(data["regression"], out=tmp_path / "disk", queue=queue, **options)
    assert disk.parameters_sha256 == memory.parameters_sha256
    again = mr.run(data["regression"], out=tmp_path / "again", samples=tmp_path / "samples", **options)
    assert again.parameters_sha256 == memory.parameters_sha256


def test_metrics_are_those_of_sklearn_on_the_predictions(data, tmp_path):
    """Metrics that a run reports of its test split are those of its predictions."""
    for task, dataset in data.items():
        result = mr.run(dataset, out=tmp_path / task, **job_of("bulk"), **OF_TASK[task])
        predicted = mr.predict(result, nodes="test")
        y = dataset.labels[dataset.split.test]
        found = result.test_metrics
        if task == "binary":
            assert predicted.probabilities.shape == (len(y), 2) and predicted.logits.shape == (len(y), 1)
            np.testing.assert_allclose(predicted.probabilities.sum(1), 1)
            assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, predicted.logits[:, 0]), rel=1e-12)
            assert result.test_accuracy == metrics.accuracy_score(y, predicted.classes)
            assert len(result.per_class["f1"]) == len(result.confusion) == 2
            continue
        known = ~np.isnan(y)
        rows = predicted.values if task == "regression" else predicted.probabilities
        pairs = [(y[k, c], rows[k, c]) for c, k in enumerate(known.T)]
        names = {
            "regression": {
                "rmse": metrics.root_mean_squared_error,
                "mae": metrics.mean_absolute_error,
                "r2": metrics.r2_score,
            },
            "multilabel": {"auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score},
        }[task]
        for name, function in names.items():
            assert found[name] == pytest.approx(np.mean([function(*pair) for pair in pairs]), rel=1e-9), name


def test_a_regression_comes_near_the_best_there_is(tmp_path):
    """Targets are a linear function of the mean of the neighbours' features, and noise of a known deviation."""
    spec = "sbm:nodes=3000,classes=4,degree=10,features=8,targets=1,target_noise=0.2,train=0.6,val=0.1"
    job = {"fanout": [20], "layers": 1, "epochs": 12, "lr": 0.02, "dropout": 0.0, "threads": 1, "verbose": False}
    result = mr.run(spec, out=tmp_path / "run", batch_size=100, **job)
    assert 0.19 < result.test_metrics["rmse"] < 0.225
    assert result.test_metrics["r2"] > 0.94
    assert list(result.val_metrics) == ["rmse", "mae", "r2"]
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    errors = [e["metrics"]["rmse"] for e in history if e["event"] == "EpochDone"]
    assert result.best_epoch == errors.index(min(errors)) and result.val_metrics["rmse"] == min(errors)


WEIGHTS = [0.5, 1.0, 4.0]


def weighted_cross_entropy(out, y):
    losses = F.cross_entropy(out, y, torch.tensor(WEIGHTS).double(), label_smoothing=0.1, reduction="none")
    return losses.mean()  # over the seeds


def weighted_focal(out, y):
    p = out.softmax(1)[torch.arange(len(y)), y]
    return (torch.tensor(WEIGHTS)[y] * -((1 - p) ** 1.5) * p.log()).mean()


@pytest.mark.parametrize(
    ("spec", "loss", "plain"),
    [
        ("targets=2", {"name": "huber", "delta": 0.3}, lambda out, y: F.huber_loss(out, y.double(), delta=0.3)),
        (
            "classes=3",
            {"name": "cross_entropy", "class_weights": WEIGHTS, "label_smoothing": 0.1},
            weighted_cross_entropy,
        ),
        ("classes=3", {"name": "focal", "gamma": 1.5, "class_weights": WEIGHTS}, weighted_focal),
    ],
    ids=["regression", "weighted classes", "focal"],
)
def test_a_run_takes_the_steps_of_a_loop_of_pyg(tmp_path, spec, loss, plain):
    nn = pytest.importorskip("torch_geometric.nn")
    dataset = mr.open_dataset(f"{SPEC.replace('classes=2,', '')},{spec}")

    def conv():
        torch.manual_seed(0)
        return nn.SAGEConv(5, dataset.num_classes)

    job = {"dtype": "float64", "threads": 1, "epochs": 3, "fanout": [3], "batch_size": 40}
    options = {"loss": loss, "optimizer": "sgd", "lr": 0.2, "train": {"evaluate_every": 0}, "verbose": False}
    mr.run(dataset, model=[conv()], out=tmp_path / "run", **options, **job)
    model, seeds = conv().double(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for batch in mr.minibatches(dataset, **job):
        data = mr.to_pyg(batch.minibatch, dataset.features, dataset.labels)
        optimizer.zero_grad()
        plain(model(data.x.double(), data.edge_index)[: data.batch_size], data.y[: data.batch_size]).backward()
        optimizer.step()
        seeds += data.batch_size
    assert seeds == 3 * len(dataset.split.train)
    saved = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    for (name, value), kept in zip(model.state_dict().items(), saved.values(), strict=True):
        torch.testing.assert_close(kept, value, rtol=0, atol=1e-12, msg=name)


def test_data_of_pyg_with_floats_is_a_regression(tmp_path):
    pytest.importorskip("torch_geometric")
    data = mr.open_dataset(f"{SPEC},targets=1").to_pyg()
    data.y = (data.y[:, 0] * 10).round()
    result = mr.run(data, out=tmp_path / "run", **job_of("bulk"))
    assert (result.task, result.num_classes) == ("regression", 1)
    mr.run(data, out=tmp_path / "classes", task="regression", **job_of("bulk"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder of a regression of two named targets, from a folder of CSV; the dataset."""
    folder = tmp_path_factory.mktemp("tasks")
    data = mr.open_dataset(f"{SPEC},targets=2")
    dst = np.repeat(np.arange(300), data.graph.in_degree)
    (folder / "g").mkdir()
    lines = ["src,dst", *(f"{u},{v}" for u, v in zip(data.graph.indices, dst))]
    (folder / "g" / "edges.csv").write_text("\n".join(lines))
    split = np.array(["test"] * 300, object)
    split[data.split.train], split[data.split.val] = "train", "val"
    rows = data.features.gather(np.arange(300))
    lines = [f"id,height,weight,split,{','.join(f'x{i}' for i in range(5))}"]
    for v in range(300):
        height = "" if v == 7 else repr(float(data.labels[v, 0]))
        lines.append(f"{v},{height},{float(data.labels[v, 1])!r},{split[v]},{','.join(map(str, rows[v]))}")
    (folder / "g" / "nodes.csv").write_text("\n".join(lines))
    words = ("--fanout", "4,4", "--hidden", "8", "--epochs", "4", "--set", "threads=1")
    read = ("--set", "read.label_columns=height,weight")
    status, _, error = command("run", "--dataset", folder / "g", "--out", folder / "run", *words, *read)
    assert status == 0, error
    return folder


def test_label_columns_are_read_alike_in_memory_and_in_pieces(ran):
    options = mr.ReadOptions(label_columns="height,weight")
    mr.convert(ran / "g", ran / "store", options=options, verbose=False)
    read, stored = mr.open_dataset(ran / "g", options=options), mr.open_dataset(ran / "store")
    np.testing.assert_array_equal(read.labels, stored.labels)
    assert np.isnan(read.labels[7, 0]) and not np.isnan(np.delete(read.labels[:, 0], 7)).any()
    assert read.class_names == stored.class_names == ("height", "weight")
    assert (stored.task, stored.num_features) == ("regression", 5)
    assert any("1 target of other nodes is NaN" in note for note in read.notes)
    status, said, _ = command("inspect", ran / "store")
    assert status == 0 and "2 (regression)" in said and "targets" in said


def test_predictions_are_values_by_the_names_of_their_columns(ran, tmp_path):
    predicted = mr.predict(ran / "run", nodes=[3, 1])
    assert predicted.values.shape == (2, 2) and repr(predicted) == "Predictions(2 nodes, 2 targets, regression)"
    for what in ("probabilities", "classes"):
        with pytest.raises(mr.InputError, match="regression, which has no classes and probabilities; use values"):
            getattr(predicted, what)
    predicted.write(tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["node", "value_height", "value_weight"]
    np.testing.assert_array_equal(table["value_weight"], predicted.values[:, 1])
    predicted.write(tmp_path / "p.csv")
    assert pyarrow.csv.read_csv(tmp_path / "p.csv").column_names == table.column_names
    predicted.write(tmp_path / "p.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), predicted.values)
    predicted.write(tmp_path / "p.zarr")
    import zarr

    np.testing.assert_array_equal(zarr.open_group(str(tmp_path / "p.zarr"), mode="r")["value"][:], predicted.values)
    status, _, error = command("predict", ran / "run", "--out", tmp_path / "all.csv", "--all-probabilities")
    assert status == 2 and "predicts values" in error and not (tmp_path / "all.csv").exists()
    with pytest.raises(mr.InputError, match="the task is binary, which has no values"):
        mr.Predictions(np.arange(1), np.zeros((1, 1)), "binary").values  # noqa: B018


def test_what_shows_a_run_names_its_metric(ran, tmp_path, monkeypatch):
    result = json.loads((ran / "run" / "result.json").read_text())
    rmse = result["test_metrics"]["rmse"]
    assert result["val_accuracy"] is result["test_accuracy"] is result["per_class"] is None
    status, said, _ = command("evaluate", ran / "run", "--json")
    report = json.loads(said)
    assert status == 0 and "accuracy" not in report
    assert report["metrics"]["test"] == pytest.approx(result["test_metrics"], rel=1e-5)
    status, said, _ = command("evaluate", ran / "run")
    assert f"test   rmse {rmse:.4f}, mae" in said
    status, said, _ = command("inspect", ran / "run")
    assert "test_rmse" in said and "test_accuracy" not in said
    draw_only(monkeypatch, "curves")
    status, _, error = command("report", ran / "run", "--out", tmp_path / "report")
    assert status == 0, error
    page = next((tmp_path / "report").rglob("*.html")).read_text()
    assert "test rmse" in page and f"{rmse:.4f}" in page and "Loss and rmse" in page
    assert f"test rmse {rmse:.4f}" in repr(mr.load(ran / "run"))


def test_a_sweep_puts_the_smallest_error_first(tmp_path):
    grid = {"loss": ["mse", "mae"], "lr": [0.01, 1e-6]}
    job = {"fanout": [3], "hidden": 4, "layers": 1, "epochs": 2, "threads": 1, "verbose": False, "jobs": 1}
    found = mr.sweep(f"{SPEC},targets=1", grid=grid, out=tmp_path / "sweep", **job)
    errors = [row["val_rmse"][0] for row in found.rows]
    assert errors == sorted(errors) and len(errors) == 4 and found.rows[0]["setting"]["lr"] == 0.01
    assert "validation rmse" in repr(found)


def test_a_store_of_classes_is_trained_for_another_task_on_ranks(scheduler, tmp_path):
    """Ranks see the labels that the driver sees, not those of the store."""
    mr.write_dataset(tmp_path / "store", mr.open_dataset(SPEC))
    options = {**job_of("bulk"), "epochs": 2, "task": "binary", "metrics": ["auc"]}
    one = mr.run(tmp_path / "store", out=tmp_path / "one", **options, minibatches_per_step=2)
    two = mr.run(tmp_path / "store", out=tmp_path / "two", ranks=2, cluster={"scheduler": scheduler}, **options)
    assert (one.task, two.task) == ("binary", "binary")
    assert two.test_metrics == pytest.approx(one.test_metrics, rel=1e-9)
    assert mr.load(tmp_path / "one").open_dataset().task == "binary"
