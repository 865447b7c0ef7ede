"""Programs of `torch.export`: the outputs of the model, in a process that has never heard of Millrace."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.tests.contracts.command import command

SOURCE = "sbm:nodes=90,classes=3,degree=6,features=5,train=0.3"
JOB = {"epochs": 1, "hidden": 8, "layers": 2, "threads": 1, "fanout": [3, 3], "batch_size": 30}
MODELS = {
    "sage": mr.GraphSAGE(8, 2, norm="batch"),
    "sage, max": mr.GraphSAGE(8, 3, aggregator="max"),
    "gcn": mr.GCN(8, 2, norm="layer"),
    "gat": mr.GAT(8, 2, heads=2),
    "gat, wide": mr.GAT(64, 2, heads=2),
    "gin": mr.GIN(8, 2),
}


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset(SOURCE)


def arguments(data):
    """Arguments of an exported program."""
    graph = data.graph
    ends = np.stack([graph.indices, np.repeat(np.arange(graph.num_nodes), graph.in_degree)]).astype(np.int64)
    x = torch.from_numpy(data.features.gather(np.arange(graph.num_nodes)))
    weight = [] if graph.edge_weight is None else [torch.from_numpy(graph.edge_weight)]
    return (x, torch.from_numpy(ends), *weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name, weighted, data):
    """Also for graphs without edges, and of one node."""
    torch.manual_seed(0)
    model = MODELS[name].build(5, 3)
    if weighted:
        weight = np.random.default_rng(0).random(data.graph.num_edges, np.float32)
        data = replace(data, graph=replace(data.graph, edge_weight=weight))
    module = mr.export_program(model, num_features=5, weighted=weighted).module()
    torch.testing.assert_close(module(*arguments(data)), mr.infer(model, data), rtol=1e-4, atol=1e-5)
    none = (torch.rand(1, 5), torch.empty(2, 0, dtype=torch.int64), *([torch.empty(0)] if weighted else []))
    alone = mr.infer(model, mr.Graph(np.zeros(2, np.int64), np.empty(0, np.int32)), none[0])
    torch.testing.assert_close(module(*none), alone, rtol=1e-4, atol=1e-5)
    assert model.training, "the model is as it was"


def test_a_file_runs_without_millrace(data, tmp_path):
    result = mr.run(data, out=tmp_path / "run", **JOB)
    code, out, err = command("export", result.out, "--out", tmp_path / "model.pt2", "--json")
    assert code == 0, err
    assert json.loads(out)["inputs"] == ["x", "edge_index"]
    torch.save(arguments(data), tmp_path / "in.pt")
    script = (
        "import sys\n"
        "sys.modules['millrace'] = None  # an import of it would fail\n"
        "import torch\n"
        "program = torch.export.load('model.pt2').module()\n"
        "torch.save(program(*torch.load('in.pt')), 'out.pt')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    got = torch.load(tmp_path / "out.pt").detach().numpy()
    np.testing.assert_allclose(got, mr.predict(result).logits, rtol=1e-4, atol=1e-5)
    code, _, err = command("export", result.out, "--out", tmp_path / "model.pt2")
    assert code == 2 and "already exists; choose another --out" in err
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
    try:  # a disk that is full: torch itself would end the process
        code, _, err = command("export", result.out, "--out", tmp_path / "other.pt2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and "other.pt2 cannot be written: File too large; choose another place" in err


def test_the_command_says_how_rows_are_made_of_tables(tmp_path):
    (tables := tmp_path / "tables").mkdir()
    rows = [f"{v},{20 + v},{'red' if v % 2 else 'blue'},{v % 2}" for v in range(20)]
    (tables / "nodes.csv").write_text("\n".join(["id,age,colour,label", *rows]) + "\n")
    (tables / "edges.csv").write_text("src,dst\n" + "".join(f"{v},{(v + 1) % 20}\n" for v in range(20)))
    read = {"direction": "directed", "feature_columns": "age", "one_hot": "colour", "normalize_features": "standard"}
    for name, given in {"scaled": read, "bare": {"direction": "directed", "feature_columns": "age"}}.items():
        job = JOB | {"out": tmp_path / name, "split": "fraction:0.6,0.2"}
        result = mr.run(tables, **job, read=given)
        code, out, err = command("export", result.out, "--out", tmp_path / f"{name}.pt2")
        assert code == 0, err
        assert ("age, colour=blue, colour=red; --json prints the numbers" in out) == (name == "scaled")
        assert ("x takes rows as the run read them" in out) == (name == "scaled")
    code, out, _ = command("export", tmp_path / "scaled", "--out", tmp_path / "third.pt2", "--json")
    rows = json.loads(out)["rows"]
    age, blue, _ = rows["treatment"]["nodes"]
    assert age["mean"] == pytest.approx(29.5) and (blue["value"], blue["mean"]) == ("blue", 0.5)
    module = torch.export.load(tmp_path / "third.pt2").module()
    raw = np.array([[20 + v, v % 2 == 0, v % 2] for v in range(20)], np.float64)
    x = (raw - [c["mean"] for c in rows["treatment"]["nodes"]]) / [c["deviation"] for c in rows["treatment"]["nodes"]]
    ends = torch.tensor([[*range(20)], [*range(1, 20), 0]])
    got = module(torch.from_numpy(x.astype(np.float32)), ends).detach().numpy()
    np.testing.assert_allclose(got, mr.predict(tmp_path / "scaled").logits, rtol=1e-4, atol=1e-5)


def test_a_run_with_learnt_rows_and_weights(data, tmp_path):
    """The model reads both; the dataset of the run has them side by side."""
    weight = np.random.default_rng(0).random(data.graph.num_edges, np.float32)
    weighted = replace(data, graph=replace(data.graph, edge_weight=weight))
    result = mr.run(weighted, learned=4, model="gcn", out=tmp_path / "run", **JOB)
    module = mr.export_program(result).module()
    read = mr.load(result).open_dataset()
    got = module(*arguments(read)).detach().numpy()
    np.testing.assert_allclose(got, mr.predict(result).logits, rtol=1e-4, atol=1e-5)


class Own(nn.Module):
    """A module of a user's own, in double precision, with a message function."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleList([nn.Linear(10, 8), nn.Linear(16, 3)])

    def layer(self, i, neighbourhood, h):
        near = neighbourhood.apply(lambda h, to, weight: h * to.sigmoid(), h, reduce="mean")
        h = self.linear[i](torch.cat([mr.destinations(neighbourhood, h), near], dim=1))
        return h.relu() if i == 0 else h


class Random(Own):
    def layer(self, i, neighbourhood, h):
        return super().layer(i, neighbourhood, h + torch.rand_like(h))


class ByValue(Own):
    def layer(self, i, neighbourhood, h):
        return super().layer(i, neighbourhood, h if h.sum() > 0 else -h)


def test_a_module_of_ones_own(data):
    model = Own().double()
    got = mr.export_program(model, num_features=5).module()(
        *(a.double() if i == 0 else a for i, a in enumerate(arguments(data)))
    )
    torch.testing.assert_close(got, mr.infer(model, data), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Random, "Random cannot be exported, as its trace gives other outputs than the model"),
        (ByValue, "ByValue cannot be exported, as torch cannot trace it for graphs of any size"),
    ],
)
def test_what_a_trace_does_not_see_is_refused(model, match, tmp_path):
    with pytest.raises(mr.InputError, match=match):
        mr.export_program(model(), tmp_path / "m.pt2", num_features=5)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_sentences(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    model = mr.GCN(8, 2).build(5, 3)
    for call, match in (
        (lambda: mr.export_program(model), "num_features is missing"),
        (lambda: mr.export_program(model, tmp_path / "m.pt", num_features=5), "expected a file that ends in .pt2"),
        (
            lambda: mr.export_program(model, tmp_path / "no" / "m.pt2", num_features=5),
            "cannot be written: .* is not a folder",
        ),
        (lambda: mr.export_program(mr.PyGModel([pyg.SAGEConv(5, 3)]), num_features=5), "convolutions of PyG"),
        (lambda: mr.export_program(tmp_path), "holds no run"),
        (lambda: mr.export_program(model, num_features=4), "cannot be exported|a node has 4 features"),
    ):
        with pytest.raises(mr.InputError, match=match):
            call()


def test_a_run_on_types_is_refused(tmp_path):
    job = {"epochs": 1, "hidden": 4, "layers": 1, "threads": 1, "fanout": [3], "verbose": False}
    run = mr.run("hsbm:nodes=60", model="rgcn", out=tmp_path / "run", **job)
    with pytest.raises(mr.InputError, match="rgcn reads types or features of edges, which a program of x and"):
        mr.export_program(run)
