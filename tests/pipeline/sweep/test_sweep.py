"""Sweeps: combinations and seeds, shared samples, failures, what goes on after an interruption, and the command."""

import inspect
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from distributed import LocalCluster
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.setup import open_data
from millrace.pipeline.sweep import sweep as sweeping
from millrace.pipeline.sweep.grid import grid_of, points, values_of
from millrace.pipeline.sweep.task import run_one
from millrace.stages.partition.given import Given
from millrace.tests.contracts.command import command
from millrace.tests.contracts.pictures import draw_only

SOURCE = "sbm:nodes=200,classes=3,degree=6,features=5,train=0.3"
JOB = {"epochs": 2, "hidden": 8, "layers": 2, "fanout": [3, 3], "batch_size": 20, "threads": 1}

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("train.lr=0.01,0.003", "train.lr", [0.01, 0.003]),
        ("lr=1", "train.lr", [1]),
        ("fanout=[10,5],[3, 2]", "sampler.fanout", [[10, 5], [3, 2]]),
        ("model=sage,gat", "model.name", ["sage", "gat"]),
        ('train.groups=[{match="a,b", lr=0}],[]', "train.groups", [[{"match": "a,b", "lr": 0}], []]),
    ],
)
def test_values_are_between_commas(text, key, values):
    assert values_of(text) == (key, values)


def test_a_key_without_values_is_a_sentence():
    with pytest.raises(mr.InputError, match=r"--set 'train.lr' is not of the form key=value"):
        values_of("train.lr")


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (
            ["fanout=10,5"],
            r"'fanout=10,5' may be one list or several; write fanout=\[10,5\] for one, or fanout=\[10\],\[5\]",
        ),
        (
            ["dataset=sbm:nodes=60,classes=2"],
            """may be one value or several; put quotes around each value: 'dataset="sbm:nodes=60,classes=2"'""",
        ),
        (["split=fraction:0.6,0.2"], """'split="fraction:0.6,0.2"'"""),
        (["lr=0.1", "train.lr=0.2"], "train.lr is given twice; give all its values in one --set"),
    ],
)
def test_values_that_may_mean_something_else_are_refused(texts, sentence):
    with pytest.raises(mr.InputError, match=sentence):
        grid_of(texts)
    assert grid_of(["lr=0.1,0.2", "fanout=5"]) == {"train.lr": [0.1, 0.2], "sampler.fanout": [5]}
    assert grid_of(['dataset="sbm:nodes=60,classes=2",karate', 'split="fraction:0.6,0.2"']) == {
        "dataset": ["sbm:nodes=60,classes=2", "karate"], "split": ["fraction:0.6,0.2"],
    }  # fmt: skip
    assert grid_of(['dataset="kg:a",a=b.csv'])["dataset"] == ["kg:a", "a=b.csv"]
    assert grid_of(["dataset=s3://b/x,/data/run=1/g"])["dataset"] == ["s3://b/x", "/data/run=1/g"]
    assert grid_of(["dataset=sbm:nodes=60,sbm:nodes=70"]) == {"dataset": ["sbm:nodes=60", "sbm:nodes=70"]}


@pytest.mark.parametrize(
    ("values", "plain"),
    [
        (np.array([0.1, 0.2]), [0.1, 0.2]),
        ([np.float64(0.5), np.float32(0.25)], [0.5, 0.25]),
        ((10.0**-k for k in (1, 2)), [0.1, 0.01]),
        (torch.tensor([0.5, 0.25]), [0.5, 0.25]),
    ],
)
def test_values_of_a_grid_may_be_arrays_and_iterators(values, plain):
    found = [p.setting["train.lr"] for p in points(JOB, {"train.lr": values}, 1)]
    assert found == plain and all(type(value) is float for value in found)


def test_values_of_a_grid_may_be_models_and_samplers():
    grid = {
        "model": [mr.GAT(hidden=8, layers=2, heads=2), "gcn"],
        "sampler": [mr.LaborSampler((4, 2)), {"fanout": [1, 1]}],
    }
    base = {k: v for k, v in JOB.items() if k not in ("hidden", "fanout")}
    found = [(p.job.model["name"], p.job.sampler) for p in points(base, grid, 1)]
    assert [name for name, _ in found] == ["gat", "gat", "gcn", "gcn"]
    assert found[0][1]["name"] == "labor" and found[0][1]["fanout"] == [4, 2] and found[1][1]["fanout"] == [1, 1]


def test_a_sweep_takes_a_system_as_a_run_does(tmp_path):
    job = {k: v for k, v in JOB.items() if k != "fanout"}
    system = mr.bulk(mr.LaborSampler((3, 3)))
    found = mr.sweep(SOURCE, grid={"lr": [0.1, 0.2]}, system=system, out=tmp_path / "sweep", jobs=1, **job)
    run = mr.run(SOURCE, lr=0.1, sampler=mr.LaborSampler((3, 3)), out=tmp_path / "run", **job)
    assert mr.load(run).config.sampler["name"] == "labor"
    assert result_of(found.out / "000")["parameters_sha256"] == run.parameters_sha256
    with pytest.raises(mr.InputError, match="a grid has a system by its name"):
        points(job, {"system": [mr.sar(), "retexo"]}, 1)
    owned = mr.sar(partitioner=Given(np.zeros(200, np.int64)))
    with pytest.raises(mr.InputError, match=r"set partition\.owners"):
        mr.sweep(SOURCE, grid={"lr": [0.1, 0.2]}, system=owned, out=tmp_path / "owned", **job)


def test_all_combinations_have_all_seeds():
    found = points({"seed": 7, **JOB}, {"train.lr": [0.1, 0.2], "model.dropout": [0.0, 0.5]}, 2)
    assert [p.name for p in found] == [f"{n:03}-seed{s}" for n in range(4) for s in (7, 8)]
    assert {(p.job.train.lr, p.job.model["dropout"]) for p in found} == {(a, b) for a in (0.1, 0.2) for b in (0.0, 0.5)}
    assert all(p.job.seed_of("initial") == p.seed and p.job.seed_of("minibatches") == 7 for p in found)
    assert found[0].setting == {"train.lr": 0.1, "model.dropout": 0.0}


@pytest.mark.parametrize(
    ("grid", "seeds", "sentence"),
    [
        ({}, 1, "nothing is varied"),
        ({"train.lr": [0.1]}, 1, "nothing is varied"),
        ({"train.lr": [0.1, 0.1]}, 1, "two runs of the sweep are the same: train.lr has the value 0.1 twice"),
        (
            {"sampler.fanout": [[3, 3], [3, 3]]},
            1,
            r"sampler.fanout has the value \[3, 3\] twice; .* as in sampler.fanout=\[10,5\]",
        ),
        ({"train.lr": []}, 2, "'train.lr' has no values"),
        ({"train.lr": [0.1, "much"]}, 1, "with train.lr = much: .*train.lr"),
        ({"sampler.fanout": [[3, 3], 4]}, 1, r"with sampler.fanout = 4: model.layers is 2 but sampler.fanout \[4\]"),
        ({"train.rate": [1, 2]}, 1, "unknown configuration key"),
        ({"seeds.initial": [1, 2]}, 2, "seeds.initial is varied beside seeds"),
        ({}, 0, "seeds is 0"),
        ({"train.lr": {0.1, 0.2}}, 1, "the values of 'train.lr' are a set, which has no order"),
    ],
)
def test_sweeps_of_nothing_or_of_the_wrong_thing_are_refused(grid, seeds, sentence, tmp_path):
    with pytest.raises(mr.InputError, match=sentence):
        mr.sweep(SOURCE, grid=grid, seeds=seeds, out=tmp_path / "sweep", **JOB)
    assert not (tmp_path / "sweep").exists()


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_runs_are_those_of_run_and_share_their_samples(tmp_path):
    grid = {"lr": [0.05, 0.01], "batch_size": [20, 30]}
    options = {k: v for k, v in JOB.items() if k != "batch_size"}
    found = mr.sweep(SOURCE, grid=grid, seeds=2, out=tmp_path / "sweep", jobs=1, **options)
    assert sorted(p.name for p in (tmp_path / "sweep" / "samples").iterdir() if p.suffix != ".jsonl") == ["0", "1"], (
        "one for each batch size"
    )
    assert len(found.rows) == 4 and found.failures == {} and all(row["runs"] == 2 for row in found.rows)
    accuracies = [row["val_accuracy"][0] for row in found.rows]
    assert accuracies == sorted(accuracies, reverse=True)
    for row in found.rows:
        results = [result_of(tmp_path / "sweep" / name) for name in row["folders"]]
        tests = torch.tensor([r["test_accuracy"] for r in results], dtype=torch.float64)
        assert row["test_accuracy"] == pytest.approx([float(tests.mean()), float(tests.std())])
        assert results[0]["parameters_sha256"] != results[1]["parameters_sha256"]
    row = found.rows[0]
    alone = mr.run(
        SOURCE, out=tmp_path / "alone", seeds={"initial": 1}, lr=row["setting"]["lr"],
        batch_size=row["setting"]["batch_size"], **options,
    )  # fmt: skip
    assert alone.parameters_sha256 == result_of(tmp_path / "sweep" / row["folders"][1])["parameters_sha256"]
    assert "lr" in repr(found) and "±" in repr(found)
    apart = mr.sweep(SOURCE, grid=grid, seeds=2, out=tmp_path / "apart", jobs=1, share=False, **options)
    assert not (tmp_path / "apart" / "samples").exists()
    assert [r["test_accuracy"] for r in apart.rows] == [r["test_accuracy"] for r in found.rows]


def test_the_same_call_does_what_is_left(tmp_path, monkeypatch):
    options = {"grid": {"lr": [0.05, 0.01, 0.02]}, "out": tmp_path / "sweep", "jobs": 1, **JOB}
    whole = mr.sweep(SOURCE, **{**options, "out": tmp_path / "whole"})
    calls = []

    def interrupted(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments[1])
        return run_one(*arguments)

    monkeypatch.setattr(sweeping, "run_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mr.sweep(SOURCE, **options)
    calls.clear()
    found = mr.sweep(SOURCE, **options)
    assert len(calls) == 1, "two were done"
    assert [r["test_accuracy"] for r in found.rows] == [r["test_accuracy"] for r in whole.rows]
    with pytest.raises(mr.InputError, match="holds another sweep"):
        mr.sweep(SOURCE, **{**options, "epochs": 3})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(mr.InputError, match="is not empty and holds no sweep"):
        mr.sweep(SOURCE, **{**options, "out": tmp_path / "other"})


def test_links_are_ranked_by_their_metric(tmp_path):
    found = mr.sweep(SOURCE, grid={"lr": [0.001, 0.1]}, task="link", out=tmp_path / "sweep", jobs=1, **JOB)
    assert not found.failures and {row["metric"] for row in found.rows} == {"mrr"}
    ranks = [row["val_mrr"][0] for row in found.rows]
    assert ranks == sorted(ranks, reverse=True) and "validation mrr" in repr(found)


def test_a_sweep_that_began_no_run_makes_room_for_another(tmp_path):
    options = {"grid": {"lr": [0.05, 0.01]}, "out": tmp_path / "sweep", "jobs": 1, **JOB}
    with pytest.raises(mr.InputError, match="neither a file nor a known dataset"):
        mr.sweep("nothing.npz", **options)
    assert not mr.sweep(SOURCE, **options).failures


@pytest.fixture
def opened(monkeypatch):
    """The sources that are opened, in order."""
    found, real = [], open_data.open_dataset
    monkeypatch.setattr(open_data, "open_dataset", lambda spec, **o: found.append(spec) or real(spec, **o))
    return found


@pytest.mark.parametrize("place", ["here", "worker"])
def test_a_process_opens_a_dataset_once_and_forgets_it(opened, place, tmp_path):
    other = SOURCE.replace("200", "150")
    options = {**JOB, "grid": {"dataset": [SOURCE, other]}, "seeds": 2, "share": False, "out": tmp_path / "sweep"}
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None, host="127.0.0.1"
        )
        if place == "worker"
        else nullcontext() as cluster
    ):
        if cluster is not None:
            options["cluster"] = {"scheduler": cluster.scheduler_address}
        found = mr.sweep(jobs=1 if cluster is None else 2, **options)
    assert not found.failures and sorted(opened) == sorted([SOURCE, other])
    mr.run(SOURCE, out=tmp_path / "run", **JOB)
    assert len(opened) == 3


def test_a_run_that_fails_leaves_the_others_alone(tmp_path):
    found = mr.sweep(SOURCE, grid={"monitor": ["brier", "loss"]}, out=tmp_path / "sweep", jobs=1, **JOB)
    assert list(found.failures) == ["000"] and "train.monitor is 'brier'" in found.failures["000"]
    assert [(row["runs"], row["failed"]) for row in found.rows] == [(1, 0), (0, 1)]
    varied = ("--set", "sampler.fanout=[2]", "--set", "train.monitor=brier,loss", "--jobs", "1", "--epochs", "1")
    code, out, err = command("sweep", "--out", tmp_path / "sweep2", "--dataset", SOURCE, *varied)
    assert code == 3 and "1 run failed: 000" in err and "(1 failed)" in out


def smoothed(out, y):
    return F.cross_entropy(out, y, reduction="none", label_smoothing=0.2)


def test_python_gives_data_systems_and_code(tmp_path):
    data = mr.open_dataset(SOURCE)
    found = mr.sweep(
        data, grid={"system": ["sar", "retexo"]}, seeds=2, out=tmp_path / "sweep", jobs=1, loss=smoothed, epochs=2,
        layers=2, metrics=["macro_f1"],
    )  # fmt: skip
    assert {row["setting"]["system"] for row in found.rows} == {"sar", "retexo"} and not found.failures
    result = result_of(tmp_path / "sweep" / "000-seed0")
    assert "loss" in result["fingerprint"] and result["test_metrics"].keys() == {"macro_f1"}
    assert not (tmp_path / "sweep" / "samples").exists(), "nothing is sampled"


class Own(torch.nn.Module):
    num_layers = 1

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)

    def layer(self, i, neighbourhood, h):
        return self.linear(neighbourhood.mean(h))


OWN = f"import torch\n\n\n{inspect.getsource(Own)}"


def test_tasks_train_what_one_process_does(tmp_path, monkeypatch):
    """By the command, with a module of the user's own, whose initial parameters follow the seed."""
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    arguments = ("--dataset", SOURCE, "--set", "train.lr=0.05,0.01", "--set", "sampler.fanout=[3]", "--seeds", "2",
                 "--epochs", "2", "--model", "own_net:Own", "--json")  # fmt: skip
    told = []
    for jobs in ("1", "2"):
        code, out, err = command("sweep", *arguments, "--jobs", jobs, "--out", tmp_path / jobs)
        assert code == 0, err
        told.append(json.loads(out)["rows"])
    assert [(r["setting"], r["test_accuracy"]) for r in told[0]] == [
        (r["setting"], r["test_accuracy"]) for r in told[1]
    ]
    sums = [result_of(tmp_path / jobs / name)["parameters_sha256"] for jobs in "12" for name in told[0][0]["folders"]]
    assert sums[:2] == sums[2:] and len(set(sums)) == 2
    shutil.rmtree(tmp_path / "1" / "samples")
    # Pictures of several runs are drawn in test_report.py.
    draw_only(monkeypatch)
    code, _, err = command("sweep", *arguments, "--jobs", "1", "--out", tmp_path / "1", "--report")
    assert code == 0 and (tmp_path / "1" / "report" / "report.html").is_file(), err


def negated(out, y):
    return -F.cross_entropy(out, y, reduction="none")


def test_a_repeated_sweep_of_other_data_or_code_is_refused(tmp_path):
    data, plain = mr.open_dataset(SOURCE), {**JOB, "epochs": 1, "jobs": 1, "verbose": False}
    first = mr.sweep(data, grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", **plain)
    assert mr.sweep(data, grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", **plain).rows == first.rows
    for other in (mr.open_dataset(SOURCE, split="fraction:0.2,0.2"), mr.open_dataset(SOURCE.replace("0.3", "0.4"))):
        with pytest.raises(mr.InputError, match="kept holds a sweep over other data; give the same data to go on"):
            mr.sweep(other, grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", **plain)
    with pytest.raises(mr.InputError, match=r"kept holds runs that are done, and cannot go on: .*loss"):
        mr.sweep(data, grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", loss=negated, **plain)


def test_tables_that_change_between_two_sweeps_are_refused(tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "edges.csv").write_text("src,dst\n" + "".join(f"{i},{(i + 1) % 40}\n" for i in range(40)))
    rows = "id,x,label\n" + "".join(f"{i},{i % 2}.5,{i % 2}\n" for i in range(40))
    (tables / "nodes.csv").write_text(rows)
    given = {**JOB, "epochs": 1, "jobs": 1, "verbose": False, "read": {"feature_columns": "x", "direction": "directed"}}
    mr.sweep(str(tables), grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", **given)
    (tables / "nodes.csv").write_text(rows.replace("1.5", "2.5"))
    with pytest.raises(mr.InputError, match=r"kept holds runs that are done, and cannot go on: .*features"):
        mr.sweep(str(tables), grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", **given)


def test_models_that_read_the_edges_own_weights_share_no_samples(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    plain = mr.open_dataset(SOURCE)
    weight = np.linspace(0.5, 2.0, plain.graph.num_edges, dtype=np.float32)
    data = replace(plain, graph=replace(plain.graph, edge_weight=weight))
    model = mr.PyGModel([pyg.GraphConv(5, 8, aggr="mean"), pyg.GraphConv(8, 3, aggr="mean")])
    given = {k: v for k, v in JOB.items() if k not in ("hidden", "layers")} | {"jobs": 1, "verbose": False, "epochs": 1}
    found = mr.sweep(data, grid={"lr": [0.02, 0.01]}, out=tmp_path / "kept", model=model, **given)
    assert not found.failures and [row["runs"] for row in found.rows] == [1, 1]


def test_each_run_of_a_module_begins_with_its_parameters(tmp_path):
    model, given = Own(), {"epochs": 2, "fanout": [3], "batch_size": 20, "threads": 1, "verbose": False}
    state = {k: v.clone() for k, v in model.state_dict().items()}
    found = mr.sweep(SOURCE, grid={"lr": [0.05, 0.01]}, out=tmp_path / "all", model=model, jobs=1, **given)
    assert not found.failures and all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    for name, lr in (("000", 0.05), ("001", 0.01)):
        (alone := Own()).load_state_dict(state)
        wanted = mr.run(SOURCE, model=alone, lr=lr, out=tmp_path / name, **given).parameters_sha256
        assert result_of(tmp_path / "all" / name)["parameters_sha256"] == wanted
    with pytest.raises(mr.InputError, match=r"seeds is 2, but the model, a Own, has its initial parameters.*MODULE:N"):
        mr.sweep(SOURCE, seeds=2, out=tmp_path / "seeds", model=model, jobs=1, **given)
    assert not (tmp_path / "seeds").exists()


def test_a_sweep_of_a_named_model_that_starts_from_a_run_is_repeated(tmp_path, monkeypatch):
    (tmp_path / "own_start.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    given = {"fanout": [3], "batch_size": 20, "threads": 1, "verbose": False, "epochs": 1}
    first, other = (mr.run(SOURCE, out=tmp_path / name, model=Own(), **given) for name in ("first", "other"))
    again = {**given, "model": "own_start:Own", "grid": {"lr": [0.05, 0.01]}, "jobs": 1, "out": tmp_path / "all"}
    found = mr.sweep(SOURCE, start_from=str(first.out), **again)
    shutil.rmtree(tmp_path / "all" / "001")
    assert [{**row, "seconds": 0} for row in mr.sweep(SOURCE, start_from=str(first.out), **again).rows] == [
        {**row, "seconds": 0} for row in found.rows
    ]
    with pytest.raises(mr.InputError, match="all holds another sweep"):
        mr.sweep(SOURCE, start_from=str(other.out), **again)
