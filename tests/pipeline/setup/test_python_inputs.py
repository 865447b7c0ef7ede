"""Inputs of a run from Python are found again through its folder, or named in a message."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.setup import python_inputs
from millrace.stages.neighbourhood.base import destinations
from millrace.storage.dataset_store import open_dataset_store
from millrace.tests.contracts.command import command

SMALL = {"epochs": 2, "fanout": [3, 3], "batch_size": 30, "hidden": 8, "threads": 1, "layers": 2}
OWN = {k: v for k, v in SMALL.items() if k not in ("hidden", "layers")}
SOURCE = "sbm:nodes=120,classes=3,degree=6,features=5,train=0.3"


class Own(torch.nn.Module):
    """A user's own layers."""

    num_layers = 2

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(10, 8), torch.nn.Linear(8, 3)

    def layer(self, i, neighbourhood, h):
        h = torch.relu(self.a(torch.cat([destinations(neighbourhood, h), neighbourhood.mean(h)], 1))) if i == 0 else h
        return h if i == 0 else self.b(destinations(neighbourhood, h) + neighbourhood.mean(h))


@pytest.fixture(scope="module")
def data():
    return replace(mr.open_dataset(SOURCE), name="mine")


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """The folder of a run on a dataset given from Python."""
    out = tmp_path_factory.mktemp("plain") / "run"
    mr.run(data, out=out, **SMALL)
    return out


@pytest.fixture(scope="module")
def own(data, tmp_path_factory):
    """The same with a module of one's own."""
    out = tmp_path_factory.mktemp("own") / "run"
    mr.run(data, model=Own(), out=out, **OWN)
    return out


def copied(run, to):
    shutil.copytree(run, to)
    return to


def result(run):
    return json.loads((run / "result.json").read_text())


def accuracy(*words):
    code, out, err = command("evaluate", *words, "--json")
    assert code == 0, err
    return json.loads(out)["accuracy"]["test"]


def refused(*words):
    code, _, err = command(*words)
    last = err.splitlines()[-1]
    assert (code, last.startswith("millrace: ")) == (2, True), err
    return last


def test_a_dataset_given_from_python_is_kept(plain, tmp_path):
    record = result(plain)
    assert accuracy(plain) == record["test_accuracy"]
    assert (record["dataset"], record["num_features"], record["num_classes"], record["task"]) == (
        "mine",
        5,
        3,
        "multiclass",
    )
    moved = copied(plain, tmp_path / "moved")
    job = (moved / "job.toml").read_text()
    (moved / "job.toml").write_text(job.replace(str(plain.resolve()), "/nowhere"))
    assert accuracy(moved) == record["test_accuracy"]
    code, out, err = command("run", "--resume", "--out", moved, "--epochs", 3, "--json")
    assert code == 0, err
    assert json.loads(out)["epochs"] == 3
    assert not (moved / "given.json").exists()


def test_what_was_found_in_a_dataset_is_told_when_it_is_trained_on(data, tmp_path, capsys):
    mr.run(replace(data, notes=("3 nodes are unlabelled (-1).",)), out=tmp_path / "run", **SMALL)
    assert "note: 3 nodes are unlabelled (-1)." in capsys.readouterr().err


def test_a_run_goes_on_as_it_was_started(plain, tmp_path):
    moved = copied(plain, tmp_path / "moved")
    assert mr.run(out=moved, resume=True, epochs=3).epochs == 3
    with pytest.raises(
        mr.InputError, match=r"resume needs the folder of the run to go on with: mr\.run\(\.\.\., out=FOLDER"
    ):
        mr.run(resume=True)


def test_a_run_goes_on_with_its_dataset_given_again(data, plain, tmp_path):
    moved = copied(plain, tmp_path / "moved")
    other = replace(data, split=mr.Split(data.split.train, data.split.val, data.split.test[:7]))
    assert mr.run(other, out=moved, resume=True, **{**SMALL, "epochs": 3}).epochs == 3
    assert np.array_equal(open_dataset_store(moved / "dataset").split.test, other.split.test)


def test_a_dataset_that_lies_in_a_store_is_not_written_again(data, tmp_path):
    mr.write_dataset(tmp_path / "store", data, features_format="npy")
    opened = mr.open_dataset(tmp_path / "store", features="mapped")
    ran = mr.run(opened, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "dataset").exists()
    job = resolve(read_toml(tmp_path / "run" / "job.toml"))
    assert (job.dataset, job.features) == (str(tmp_path / "store"), "mapped")
    assert accuracy(tmp_path / "run") == ran.test_accuracy
    others = (
        {"split": mr.Split(data.split.val, data.split.train, data.split.test)},
        {"class_names": ("a", "b", "c")},
        {"node_names": [str(v) for v in range(120)]},
    )
    for change in others:
        seen = python_inputs.job_for_dataset(resolve({}), replace(opened, **change), tmp_path / "run")
        assert seen.dataset == str(tmp_path / "run" / "dataset")


def test_ranks_map_the_graph_that_is_mapped_here(data, tmp_path):
    mr.write_dataset(tmp_path / "store", data, features_format="npy", graph_format="npy")
    opened = mr.open_dataset(tmp_path / "store", features="mapped", graph="mapped")
    assert python_inputs.job_for_dataset(resolve({}), opened, tmp_path).graph == "mapped"
    mr.write_dataset(tmp_path / "zarr", data, features_format="npy")
    opened = mr.open_dataset(tmp_path / "zarr", features="mapped")
    assert python_inputs.job_for_dataset(resolve({}), opened, tmp_path).graph == "memory"
    with pytest.raises(mr.InputError, match="graph_format='zarr', compressed"):
        python_inputs.job_for_dataset(resolve({"graph": "mapped"}), opened, tmp_path)


def test_a_kept_dataset_is_written_so_that_its_graph_can_be_mapped(data, tmp_path):
    mr.run(data, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "dataset" / "indices.npy").exists()
    mr.run(data, out=tmp_path / "run", resume=True, **{**SMALL, "epochs": 3, "graph": "mapped"})
    assert (tmp_path / "run" / "dataset" / "indices.npy").exists()
    assert mr.run(out=tmp_path / "run", resume=True, epochs=4).epochs == 4
    assert 'graph = "mapped"' in (tmp_path / "run" / "job.toml").read_text()


def test_ranks_map_a_dataset_that_is_kept(data, tmp_path, monkeypatch):
    monkeypatch.setattr(python_inputs, "KEPT_BYTES", 0)
    job = resolve(
        {
            "executor": "dask",
            "ranks": 2,
            "split": "public",
            "sampler": {"fanout": [3, 3]},
            "read": {"direction": "directed"},
        }
    )
    seen = python_inputs.job_for_dataset(job, data, tmp_path)
    assert (seen.dataset, seen.features, seen.split, seen.read) == (
        str(tmp_path / "dataset"),
        "mapped",
        "public",
        mr.ReadOptions(),
    )
    assert (
        python_inputs.job_for_dataset(job.model_copy(update={"features": "owned"}), data, tmp_path).features == "owned"
    )


@pytest.mark.parametrize("name", ["mine", "sbm:nodes=60,classes=3,features=5"])
def test_a_large_dataset_is_asked_for(data, tmp_path, monkeypatch, name):
    """Under its name there is nothing, or another dataset."""
    monkeypatch.setattr(python_inputs, "KEPT_BYTES", 0)
    run = tmp_path / "run"
    mr.run(replace(data, name=name), out=run, **SMALL)
    assert not (run / "dataset").exists()
    assert f"was trained on a dataset given from Python, '{name}'" in refused("evaluate", run)
    if name == "mine":
        assert "was trained on a dataset given from Python, 'mine'" in refused("run", "--resume", "--out", run)
    mr.write_dataset(tmp_path / "store", data)
    assert accuracy(run, "--dataset", tmp_path / "store") == result(run)["test_accuracy"]


def test_a_large_dataset_that_its_name_finds_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(python_inputs, "KEPT_BYTES", 0)
    run = tmp_path / "run"
    mr.run(mr.open_dataset(SOURCE), out=run, **SMALL)
    assert accuracy(run) == result(run)["test_accuracy"]
    assert command("run", "--resume", "--out", run, "--epochs", 3)[0] == 0
    assert accuracy(run) == result(run)["test_accuracy"]
    (run / "given.json").write_text('{"dataset": 3}')
    assert "given.json is damaged" in refused("evaluate", run)


def test_a_module_of_ones_own_is_asked_for_by_name(own):
    name = f"--model {__name__}:Own"
    for words in (
        ("evaluate", own),
        ("run", "--resume", "--out", own),
        ("predict", own, "--out", own.parent / "p.csv"),
    ):
        err = refused(*words)
        assert f"is a module of your own, Own of {__name__}" in err
        assert name in err
    with pytest.raises(mr.InputError, match=r"pass it: mr.load\(.*, model=...\)"):
        mr.load(own)


def test_a_module_of_ones_own_is_made_by_a_command(own, data, tmp_path, monkeypatch):
    assert accuracy(own, "--model", f"{__name__}:Own") == result(own)["test_accuracy"]
    mr.write_dataset(tmp_path / "store", data)
    words = ("--fanout", "3,3", "--batch-size", 30, "--set", "threads=1", "--json", "--model", f"{__name__}:Own")
    code, out, err = command("run", "--dataset", tmp_path / "store", "--epochs", 2, *words, "--out", tmp_path / "run")
    assert code == 0, err
    assert json.loads(out)["parameters_sha256"] == result(own)["parameters_sha256"]
    code, out, err = command(
        "run", "--resume", "--epochs", 3, "--out", tmp_path / "run", "--json", "--model", f"{__name__}:Own"
    )
    assert code == 0, err
    assert json.loads(out)["epochs"] == 3


def test_a_run_goes_on_with_a_module_given_again(own, data, tmp_path):
    moved = copied(own, tmp_path / "moved")
    seen = mr.run(data, model=Own(), out=moved, resume=True, **{**OWN, "epochs": 3})
    assert (seen.epochs, seen.model) == (3, "Own")


@pytest.mark.parametrize("where", ["__main__", "function"])
def test_a_module_that_cannot_be_imported_is_asked_for_where_it_is(own, tmp_path, where):
    moved = copied(own, tmp_path / "moved")
    record = (
        {"module": "__main__", "class": "Own"} if where == "__main__" else {"module": "a", "class": "make.<locals>.Own"}
    )
    (moved / "given.json").write_text(json.dumps(record))
    assert "cannot be imported; pass it from the code that defines it: mr.load(" in refused("evaluate", moved)


def test_a_module_of_other_shapes_is_refused(own):
    class Other(Own):
        def __init__(self):
            super().__init__()
            self.b = torch.nn.Linear(8, 4)

    with pytest.raises(mr.StoreError, match="does not fit Other on mine"):
        mr.load(own, model=Other())


@pytest.mark.parametrize(
    ("spec", "phrase"),
    [
        ("Own", "--model is 'Own'; expected MODULE:NAME"),
        ("no_such_module:Own", "ModuleNotFoundError"),
        (f"{__name__}:Nobody", "AttributeError"),
        ("torch.nn:Linear", "TypeError"),
        ("torch.nn:Identity", "num_layers"),
        ("millrace:GraphSAGE", "makes a SAGE, one of Millrace's models; give its name"),
    ],
)
def test_what_makes_no_model_is_a_sentence(own, spec, phrase):
    before = list(sys.path)
    assert phrase in refused("evaluate", own, "--model", spec)
    assert sys.path == before


def test_the_record_is_never_run(own, tmp_path):
    """It names a module; only `--model` imports one."""
    moved = copied(own, tmp_path / "moved")
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    (moved / "given.json").write_text('{"module": "trap", "class": "Own"}')
    sys.path.insert(0, str(tmp_path))
    try:
        assert "Own of trap" in refused("evaluate", moved)
    finally:
        sys.path.remove(str(tmp_path))


def test_a_run_that_was_killed_before_its_data_were_kept_goes_on(data, tmp_path, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(python_inputs.dataset_store, "write_dataset", killed)
    with pytest.raises(KeyboardInterrupt):
        mr.run(data, out=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    assert mr.run(data, out=tmp_path / "run", resume=True, **SMALL).epochs == 2
    assert (tmp_path / "run" / "dataset").is_dir()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "[" * 100_000,
        '{"module": "\\u001b[2J", "class": "x"}',
        '{"module": "m"}',
        '{"module": 3, "class": "x"}',
        '{"dataset": {"graph": 3}}',
    ],
)
def test_a_damaged_record_is_a_sentence(own, tmp_path, text):
    moved = copied(own, tmp_path / "moved")
    (moved / "given.json").write_text(text)
    assert "given.json is damaged" in refused("evaluate", moved)


def test_a_dataset_that_has_been_moved_is_asked_for(data, tmp_path):
    before, after, run = tmp_path / "store", tmp_path / "elsewhere", tmp_path / "run"
    mr.write_dataset(before, data)
    mr.run(before, out=run, **SMALL)
    before.rename(after)
    for words in (
        ("evaluate", run),
        ("predict", run, "--out", tmp_path / "p.csv"),
        ("run", "--resume", "--epochs", "3", "--out", run),
    ):
        code, _, err = command(*words)
        assert code == 2 and f"{before}, the dataset of {run}, is not there any more; give its new place" in err, err
    assert command("evaluate", run, "--dataset", after)[0] == 0
    assert command("run", "--resume", "--epochs", "3", "--dataset", after, "--out", run)[0] == 0
    assert command("evaluate", run)[0] == 0


def test_resuming_with_the_object_reads_it_as_before(tmp_path):
    """The reading options of a run stay, as its other keys do: the folder's job names the clean copy."""
    edges = torch.tensor([[0, 0, 1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5, 0, 2]])
    data = Data(x=torch.randn(6, 3), edge_index=edges, y=torch.tensor([0, 1, 0, 1, 0, 1]))
    more = {"split": "random:2,1", "fanout": [2], "hidden": 4, "layers": 1, "batch_size": 2, "verbose": False}
    read = {"direction": "directed", "self_loops": "drop"}
    mr.run(data, epochs=1, read=read, out=tmp_path / "run", **more)
    again = mr.run(data, epochs=2, resume=True, out=tmp_path / "run", verbose=False)
    whole = mr.run(data, epochs=2, read=read, out=tmp_path / "whole", **more)
    assert again.parameters_sha256 == whole.parameters_sha256
