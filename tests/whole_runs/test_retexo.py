"""Runs of system `retexo`: what they leave behind, what they send, and that going on with one does not show."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.result import Result
from millrace.pipeline.training import evaluation
from millrace.stages.models.phased import Phases
from millrace.stages.partition.given import Given
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import open_part
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_command import run_forked
from millrace.tests.contracts.phase_ranks import train_phases

NODES, F, C, HIDDEN, EPOCHS = 200, 5, 3, 8, 4
JOB = {
    "epochs": EPOCHS,
    "layers": 2,
    "hidden": HIDDEN,
    "dropout": 0.3,
    "lr": 0.05,
    "seed": 3,
    "dtype": "float64",
    "threads": 1,
}


def sbm(nodes=NODES):
    return mr.open_dataset(f"sbm:nodes={nodes},classes={C},degree=6,features={F},train=0.4", seed=1)


@pytest.fixture(scope="module")
def dataset():
    """Train nodes among the first ids only: of ranks with ranges of ids, the last ones have none."""
    data = sbm()
    train, later = data.split.train[data.split.train < NODES // 2], data.split.train[data.split.train >= NODES // 2]
    split = mr.Split(train, np.sort(np.concatenate([data.split.val, later])), data.split.test)
    return mr.Dataset("sbm", data.graph, data.features, data.labels, split, C)


@pytest.fixture(scope="module")
def store(dataset, tmp_path_factory):
    """The dataset as every process can open it."""
    path = tmp_path_factory.mktemp("data") / "store"
    mr.write_dataset(path, dataset)
    return path


def parameters(run):
    return torch.load(run / "model.pt", weights_only=True)


def assert_same_parameters(run, other):
    """Bit by bit."""
    a, b = parameters(run), parameters(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def assert_close_parameters(run, other):
    a, b = parameters(run), parameters(other)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-10, atol=1e-10)


def epochs_of(run):
    """The epochs that were trained, of all lives of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [e["epoch"] for e in lines if e["event"] == "EpochDone"]


def remote_rows(graph, owner):
    """B over all parts: rows that their edges bring from elsewhere, each once for each part that reads it."""
    into = np.repeat(owner, np.diff(graph.indptr))
    away = owner[graph.indices] != into
    return len(set(zip(into[away].tolist(), graph.indices[away].tolist())))


def owners(parts, ranks):
    owner = np.full(NODES, -1)
    for rank in range(ranks):
        owner[open_part(parts, rank)[0].owned] = rank
    return owner


# --- from the command line ---


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """One rank, from the command line."""
    out = tmp_path_factory.mktemp("digits") / "run"
    code, said, err = command(
        "run", "--system", "retexo", "--dataset", "digits", "--epochs", 3, "--layers", 2, "--hidden", 16, "--dropout",
        0.2, "--seed", 3,
        "--set", "threads=1", "--out", out, "--json",
    )  # fmt: skip
    assert code == 0, err
    return SimpleNamespace(out=out, record=json.loads(said), err=err)


def test_a_run_is_complete(digits):
    record = digits.record
    assert record == json.loads((digits.out / "result.json").read_text())
    assert record.keys() == {f.name for f in dataclasses.fields(Result)}
    assert (record["status"], record["system"], record["model"], record["ranks"], record["clients"]) == (
        "done",
        "retexo",
        "sage",
        1,
        None,
    )
    assert (record["epochs"], len(record["seconds"]["per_epoch"]), record["minibatches"]) == (6, 6, 6)
    first, last = record["phases"]
    assert [(p["phase"], p["name"], p["epochs"], p["width"], p["graphs"]) for p in (first, last)] == [
        (0, "layer 1", 3, 64, 1), (1, "layer 2", 3, 16, 1)
    ]  # fmt: skip
    assert 0 <= first["best_epoch"] < 3 <= last["best_epoch"] < 6
    assert (record["best_epoch"], record["val_accuracy"]) == (last["best_epoch"], last["val_accuracy"])
    shapes = {name: v.numel() for name, v in parameters(digits.out).items()}
    for phase in (first, last):
        own = [n for name, n in shapes.items() if name.split(".")[1] == str(phase["phase"])]
        assert phase["parameters"] == sum(own)
    assert sum(shapes.values()) == first["parameters"] + last["parameters"]
    assert epochs_of(digits.out) == list(range(6))
    assert "phase 2 of 2: layer 2" in digits.err
    assert sum(sum(kinds.values()) for kinds in (record["bytes"]["network"], record["waits"]["network"])) == 0, (
        "one rank sends nothing"
    )


def test_a_fresh_process_evaluates_what_was_saved(digits):
    code, said, err = run_forked("evaluate", digits.out, "--json")
    assert code == 0, err
    accuracy = json.loads(said)["accuracy"]
    assert (accuracy["val"], accuracy["test"]) == (digits.record["val_accuracy"], digits.record["test_accuracy"])
    code, said, err = command("inspect", digits.out, "--json")
    assert (code, json.loads(said)["system"]) == (0, "retexo"), err


@pytest.mark.parametrize("retexo", [{}, {"mode": "v1", "rounding": "int8"}])
def test_nodes_that_were_never_seen_are_evaluated(dataset, tmp_path, retexo):
    """The graph twice over, in another order: each node has a twin in the graph that was trained on."""
    mr.run(dataset, system=mr.retexo(**retexo), out=tmp_path / "run", **JOB)
    seen = json.loads((tmp_path / "run" / "result.json").read_text())
    name = np.random.default_rng(0).permutation(2 * NODES)  # of copy c, node v: name[c * NODES + v]
    dst = np.repeat(np.arange(NODES), np.diff(dataset.graph.indptr))
    src = dataset.graph.indices
    graph = from_edges(np.r_[name[src], name[NODES + src]], np.r_[name[dst], name[NODES + dst]], 2 * NODES)
    features, labels = np.empty((2 * NODES, F), np.float32), np.empty(2 * NODES, np.int64)
    for c in range(2):
        features[name[c * NODES + np.arange(NODES)]] = dataset.features.gather(np.arange(NODES))
        labels[name[c * NODES + np.arange(NODES)]] = dataset.labels
    split = mr.Split(*(np.sort(np.r_[name[ids], name[NODES + ids]]) for ids in vars(dataset.split).values()))
    mr.write_dataset(tmp_path / "twice", mr.Dataset("twice", graph, ArrayFeatures(features), labels, split, C))
    _, said, err = command("evaluate", tmp_path / "run", "--dataset", tmp_path / "twice", "--json")
    assert json.loads(said)["accuracy"]["test"] == pytest.approx(seen["test_accuracy"], abs=1e-12), err
    assert json.loads(said)["accuracy"]["val"] == pytest.approx(seen["val_accuracy"], abs=1e-12)


# --- on a cluster ---


@pytest.fixture(scope="module")
def two(store, scheduler, tmp_path_factory):
    """Two ranks, from the command line."""
    out = tmp_path_factory.mktemp("two") / "run"
    code, said, err = command(
        "run", "--system", "retexo", "--dataset", store, "--epochs", EPOCHS, "--layers", 2, "--hidden", HIDDEN,
        "--dropout", 0.3,
        "--lr", 0.05, "--seed", 3, "--dtype", "float64", "--set", "threads=1", "--set", "check=true", "--ranks", 2,
        "--scheduler", scheduler, "--out", out, "--json",
    )  # fmt: skip
    assert code == 0, err
    return SimpleNamespace(out=out, record=json.loads(said), err=err)


def test_two_ranks_train_as_one(two, dataset, tmp_path):
    alone = mr.run(dataset, system="retexo", out=tmp_path / "run", **JOB)
    assert_close_parameters(two.out, tmp_path / "run")
    record = two.record
    assert record["ranks"] == 2
    assert record["train_loss"] == pytest.approx(alone.train_loss, rel=1e-10)
    assert (record["test_accuracy"], record["best_epoch"]) == (pytest.approx(alone.test_accuracy), alone.best_epoch)
    assert {k for k, v in record["fingerprint"].items() if v != alone.fingerprint[k]} == {"parts"}
    told = ("phase", "name", "parameters", "width", "row_bytes", "epochs", "best_epoch", "val_accuracy")
    assert [[p[k] for k in told] for p in record["phases"]] == [[p[k] for k in told] for p in alone.phases]
    assert [p["remote_rows"] for p in record["phases"]] == [
        remote_rows(dataset.graph, owners(two.out / "parts", 2))
    ] * 2
    _, said, err = command("evaluate", two.out, "--json")
    assert json.loads(said)["accuracy"]["test"] == record["test_accuracy"], err
    rows = sorted(p.relative_to(two.out / "phases").as_posix() for p in (two.out / "phases").glob("*/*"))
    assert rows == [f"phase-{k}/rank-000{r}" for k in (0, 1) for r in (0, 1)]


def test_owners_of_the_users_own(scheduler, tmp_path, monkeypatch):
    """By a path that ranks could not follow; one rank owns nodes but no train nodes, one owns nothing; nothing is
    validated on."""
    graph = from_edges([0, 1, 2, 3, 4, 0, 3], [1, 2, 0, 4, 3, 4, 0], 6)
    features = np.random.default_rng(0).normal(size=(6, F))
    split = mr.Split(np.array([0, 1, 5]), np.empty(0, np.int64), np.array([2, 3, 4]))
    data = mr.Dataset("six", graph, ArrayFeatures(features), np.array([0, 1, 2, 0, 1, 2]), split, C)
    mr.write_dataset(tmp_path / "store", data)
    owner = np.array([0, 0, 1, 1, 1, 0])
    np.save(tmp_path / "owners.npy", owner)
    monkeypatch.chdir(tmp_path)
    options = {**JOB, "system": "retexo", "partition": {"owners": "owners.npy"}, "dropout": 0.0}
    result = mr.run("store", ranks=3, scheduler=scheduler, out="run", **options)
    alone = mr.run("store", out="alone", **{**options, "partition": {}})
    assert_close_parameters(tmp_path / "run", tmp_path / "alone")
    assert (result.val_accuracy, result.best_epoch, "best_epoch" in result.phases[0]) == (None, -1, False)
    assert result.test_accuracy == alone.test_accuracy
    assert [open_part(tmp_path / "run" / "parts", r)[0].owned.tolist() for r in range(3)] == [[0, 1, 5], [2, 3, 4], []]
    assert [p["remote_rows"] for p in result.phases] == [remote_rows(graph, owner)] * 2
    (tmp_path / "owners.npy").unlink()
    code, said, err = command("evaluate", tmp_path / "run", "--json")
    assert (code, json.loads(said)["accuracy"]["test"]) == (0, result.test_accuracy), err


# --- what is sent, and by whom ---

SPELT = {
    "gcn": {"name": "gcn", "layers": 3, "hidden": HIDDEN, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 2, "hidden": HIDDEN},
}


@pytest.mark.parametrize(
    ("ranks", "model", "dtype", "retexo"),
    [
        (2, "gcn", "float64", {}),
        (3, "sage", "float32", {"rounding": "fp16"}),
        (2, "sage", "float64", {"rounding": "int8", "inductive": True}),
        (2, "gcn", "float32", {"mode": "v1", "local_steps": 3}),
        (2, "sage", "float64", {"mode": "v1"}),
        (2, "gcn", "float64", {"distill": 0.5}),
    ],
)
def test_the_ledger_is_the_formula(dataset, tmp_path, ranks, model, dtype, retexo):
    """Against counts made here, from who owns what."""
    model, item = SPELT[model], np.dtype(dtype).itemsize
    reports = train_phases(
        dataset,
        tmp_path,
        {"ranks": ranks, "epochs": EPOCHS, "seed": 3, "dtype": dtype, "model": model, "retexo": retexo},
    )
    layers, phases = model["layers"], reports[0]["phases"]
    boundary = remote_rows(dataset.graph, owners(tmp_path / "parts", ranks))
    assert boundary > 20
    size = {"fp16": lambda width: 2 * width, "int8": lambda width: width + 4}.get(
        retexo.get("rounding"), lambda width: item * width
    )
    v1, graphs = retexo.get("mode") == "v1", 2 if retexo.get("inductive") else 1
    widths = [C] * layers if v1 else [F] + [HIDDEN] * (layers - 1)

    messages = [p for p in phases if p["row_bytes"]]
    assert len(messages) == layers, "one exchange for each layer"
    assert [(p["remote_rows"], p["width"], p["row_bytes"]) for p in messages] == [
        (boundary, w, size(w)) for w in widths
    ]
    sent = {
        channel: {kind: sum(r["bytes"][channel][kind] for r in reports) for kind in reports[0]["bytes"][channel]}
        for channel in reports[0]["bytes"]
    }
    network, waits = sent["network"], reports[0]["waits"]["network"]
    features, activations = (0, layers) if v1 else (1, layers - 1)
    assert network["features"] == features * boundary * size(F)
    assert network["activations"] == sum(graphs * boundary * size(w) for w in widths[features:])
    if not v1 and graphs == 1 and "rounding" not in retexo:
        assert network["features"] + network["activations"] == boundary * item * (F + (layers - 1) * HIDDEN), (
            "section 2 of the specification"
        )
    assert (waits["features"], waits["activations"]) == (features, graphs * activations), "rounds"
    assert [p["epochs"] for p in phases] == [EPOCHS] * len(phases)
    assert len(phases) == layers + v1
    assert network["gradients"] == sum(2 * (ranks - 1) * item * (p["parameters"] + 2) * EPOCHS for p in phases)
    assert sent["store"]["features"] == NODES * F * item, "each row is read once, by its owner"
    trained = sum(v.numel() for v in mr_model(reports, model, retexo).values())
    assert sum(p["parameters"] for p in phases) == trained


def mr_model(reports, model, retexo):
    """State of a model as the run has it."""
    system = make_system(resolve({"system": "retexo", "retexo": retexo}))
    options = {k: v for k, v in model.items() if k != "name"}
    record = {"gcn": mr.GCN, "sage": mr.GraphSAGE}[model["name"]](**options)
    return system.schedule.build(record, F, C).state_dict()


def test_as_many_ranks_as_nodes_and_no_more(tmp_path):
    ranks, nodes = 4, 4
    graph = from_edges(np.arange(nodes), (np.arange(nodes) + 1) % nodes, nodes)
    features = np.random.default_rng(0).normal(size=(nodes, F))
    split = mr.Split(np.array([0]), np.arange(1, min(2, nodes)), np.arange(2, nodes))
    data = mr.Dataset("few", graph, ArrayFeatures(features), np.arange(nodes) % C, split, C)
    table = {"epochs": EPOCHS, "seed": 3, "dtype": "float64", "model": SPELT["gcn"], "partition": {"method": "hash"}}
    assert len(set(Hash().assign(graph, ranks, 3).part(np.arange(nodes)))) < ranks, (
        "a rank without a node is what is tried here"
    )
    train_phases(data, tmp_path / "many", {"ranks": ranks, **table})
    mr.run(data, config={"system": "retexo", "threads": 1, **table}, out=tmp_path / "one")
    with pytest.raises(
        mr.InputError, match="5 ranks make 5 parts, but the graph has 4 nodes; expected at most one per node"
    ):
        mr.run(data, config={"system": "retexo", "ranks": 5, **table}, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert_close_parameters(tmp_path / "many", tmp_path / "one")


@pytest.mark.parametrize("clients", ["nodes", 7])
def test_clients_do_not_hang_on_ranks(dataset, tmp_path, clients):
    table = {
        "epochs": 2, "seed": 3, "dtype": "float64", "model": SPELT["sage"], "threads": 1,
        "retexo": {"clients": clients, "local_steps": 2}, "partition": {"method": "hash"},
    }  # fmt: skip
    reports = train_phases(dataset, tmp_path / "two", {"ranks": 2, **table})
    alone = mr.run(dataset, config={"system": "retexo", **table}, out=tmp_path / "one")
    assert_close_parameters(tmp_path / "two", tmp_path / "one")
    assert reports[0]["history"][-1]["train_loss"] == pytest.approx(alone.train_loss, rel=1e-10)
    assert all(len(open_part(tmp_path / "two" / "parts", r)[0].owned) > NODES // 4 for r in range(2))


@pytest.mark.slow
@pytest.mark.parametrize("retexo", [{"rounding": "int8"}, {"mode": "v1"}])
def test_a_process_for_each_client_equals_the_simulation(dataset, tmp_path, retexo):
    """Eight processes over sockets, dropout included: the same parameters and bytes of rows; parameters go around a
    ring, and by the account to a server and back."""
    count, steps, epochs = 8, 2, 3
    table = {
        "epochs": epochs, "seed": 3, "dtype": "float64", "model": {**SPELT["sage"], "dropout": 0.4},
        "partition": {"method": "hash"}, "retexo": {"local_steps": steps, **retexo},
    }  # fmt: skip
    reports = train_phases(dataset, tmp_path / "processes", {"ranks": count, **table})
    table["retexo"]["clients"] = count
    simulated = mr.run(dataset, config={"system": "retexo", "threads": 1, **table}, out=tmp_path / "simulated")
    assert_close_parameters(tmp_path / "processes", tmp_path / "simulated")
    sent = np.array([[r["bytes"]["network"][kind] for kind in ("features", "activations")] for r in reports]).sum(1)
    counted = {"total": sent.sum(), "median": np.median(sent), "max": sent.max()}
    assert simulated.clients["rows_bytes_out"] == counted and sent.min() > 0
    assert simulated.clients["rows_bytes_in"]["total"] == sent.sum()
    numbers = sum(p["parameters"] + 2 for p in simulated.phases)
    ring = sum(r["bytes"]["network"]["gradients"] for r in reports)
    assert ring == 2 * (count - 1) * 8 * numbers * epochs
    with_train = simulated.clients["with_train_nodes"]
    star = sum(p["parameters"] for p in simulated.phases) * 8 * (count + 2 * epochs * with_train)
    assert simulated.clients["parameter_bytes"]["total"] == star


@pytest.mark.parametrize(
    ("clients", "retexo"),
    [
        ("nodes", {}),
        (7, {"rounding": "int8"}),
        (7, {"mode": "v1", "local_steps": 2}),
        ("nodes", {"inductive": True}),
        ("nodes", {"distill": 0.5}),
        ("nodes", {"distill": 0.5, "inductive": True}),
    ],
)
def test_clients_are_counted(dataset, tmp_path, clients, retexo):
    result = mr.run(
        dataset, system=mr.retexo(partitioner=Hash(), clients=clients, **retexo), out=tmp_path / "run", **JOB
    )
    count = NODES if clients == "nodes" else clients
    client = (
        np.arange(NODES)
        if clients == "nodes"
        else Hash().assign(dataset.graph, count, JOB["seed"]).part(np.arange(NODES))
    )
    reads, read_by = [set() for _ in range(count)], [0] * count
    for v in range(NODES):
        for u in dataset.graph.indices[dataset.graph.indptr[v] : dataset.graph.indptr[v + 1]].tolist():
            if client[u] != client[v]:
                reads[client[v]].add(u)
    for read in reads:
        for u in read:
            read_by[client[u]] += 1
    widths, item = ([C, C], 8) if retexo.get("mode") == "v1" else ([F, HIDDEN], 8)
    size = [w + 4 if "rounding" in retexo else w * item for w in widths]
    row = size[0] + size[1] * (2 if retexo.get("inductive") else 1)
    into, out = np.array([len(r) for r in reads]) * row, np.array(read_by) * row
    has_train = np.isin(np.arange(count), client[dataset.split.train])
    trained = sum(p["parameters"] for p in result.phases) * item
    told = trained + 2 * EPOCHS * trained * has_train
    if "distill" in retexo:
        # From the second phase on whoever has a node learns what the first has said of it.
        absent = [*dataset.split.val, *dataset.split.test] if "inductive" in retexo else []
        has_node = np.isin(np.arange(count), client[np.setdiff1d(np.arange(NODES), absent)])
        assert "inductive" in retexo or has_node.all()
        told = told + 2 * EPOCHS * item * result.phases[1]["parameters"] * (has_node & ~has_train)
    assert result.clients == {
        "count": count,
        "with_train_nodes": has_train.sum(),
        "rows_bytes_in": {"total": into.sum(), "median": np.median(into), "max": into.max()},
        "rows_bytes_out": {"total": out.sum(), "median": np.median(out), "max": out.max()},
        "parameter_bytes": {"total": told.sum(), "median": np.median(told), "max": told.max()},
    }
    assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"]["count"] == count


# --- going on ---


class StopAt:
    """Asks to stop from the n-th time on that it is asked: a run of one step an epoch asks once an epoch."""

    def __init__(self, number):
        self.left = number

    def __call__(self):
        self.left -= 1
        return self.left < 0


def rows_of(run):
    """Every file of rows that was written down, and when."""
    return {
        p.relative_to(run / "phases"): (p.stat().st_mtime_ns, p.stat().st_ino)
        for p in (run / "phases").rglob("*")
        if p.is_file()
    }


GOES_ON = {
    "v3": ({"layers": 3}, {}),
    "v1": ({}, {"mode": "v1"}),
    "clients": ({}, {"clients": 7, "local_steps": 2}),
    "inductive": ({}, {"inductive": True, "rounding": "fp16"}),
    "distilled": ({}, {"distill": 0.5}),
    "patience": ({"epochs": 8, "train": {"patience": 1, "lr": 0.3}}, {}),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_a_run_goes_on_bit_for_bit(dataset, tmp_path, monkeypatch, name):
    """Stopped after each of its epochs in turn, and gone on with by as many lives."""
    monkeypatch.setattr(evaluation, "STOP_S", float("inf"))
    options, retexo = GOES_ON[name]
    options = {**JOB, "checkpoint": {"every_steps": 1}, "system": mr.retexo(partitioner=Hash(), **retexo), **options}
    whole = mr.run(dataset, out=tmp_path / "whole", **options)
    assert len(whole.phases) == {"v3": 3, "v1": 3}.get(name, 2)
    if name == "patience":
        assert whole.phases[0]["epochs"] < 8
    trained, lives, kept = 0, 0, {}
    run = tmp_path / "run"
    while True:
        result = mr.run(dataset, out=run, resume=lives > 0, stop=StopAt(0 if lives % 2 else 1), **options)
        if result.status == "done":
            break
        lives += 1
        assert len(epochs_of(run)) > trained, "each life gets somewhere"
        trained = len(epochs_of(run))
        now = rows_of(run)
        assert {path: now.get(path) for path in kept} == kept, "what a finished phase has left is not written again"
        kept = now
    assert lives >= len(whole.phases)
    assert epochs_of(run) == epochs_of(tmp_path / "whole"), "no epoch is trained twice"
    assert result.parameters_sha256 == whole.parameters_sha256
    assert_same_parameters(run, tmp_path / "whole")
    assert (result.phases, result.test_accuracy, result.best_epoch, result.clients) == (
        whole.phases, whole.test_accuracy, whole.best_epoch, whole.clients
    )  # fmt: skip
    assert len(result.seconds["per_epoch"]) == len(whole.seconds["per_epoch"])


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    """A run that nothing stops, and its folder."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return mr.run(dataset, out=out, system=mr.retexo(partitioner=Hash()), **JOB), out


@pytest.mark.parametrize("at", [1, EPOCHS - 2, EPOCHS - 1, EPOCHS, 2 * EPOCHS - 2])
def test_one_stop_wherever_it_comes(undisturbed, dataset, tmp_path, at):
    """In the middle of a phase, before and in its last epoch, in the first and the last but one of the next."""
    options, (whole, folder) = {**JOB, "system": mr.retexo(partitioner=Hash())}, undisturbed
    assert mr.run(dataset, out=tmp_path / "run", stop=StopAt(at), **options).status == "stopped"
    before = rows_of(tmp_path / "run")
    stopped = len(epochs_of(tmp_path / "run"))
    assert stopped == (at + 1 if at != EPOCHS - 1 else EPOCHS + 1), "a phase that is over leaves its rows first"
    assert any("phase-1" in str(path) for path in before) == (stopped > EPOCHS)
    result = mr.run(dataset, out=tmp_path / "run", resume=True, **options)
    after = rows_of(tmp_path / "run")
    assert {path: after[path] for path in before} == before
    assert epochs_of(tmp_path / "run") == list(range(2 * EPOCHS))
    assert result.parameters_sha256 == whole.parameters_sha256
    assert_same_parameters(tmp_path / "run", folder)
    again = mr.run(dataset, out=tmp_path / "run", resume=True, **options)
    assert (again.parameters_sha256, again.phases) == (whole.parameters_sha256, whole.phases), (
        "a finished run is told again"
    )


@pytest.fixture(scope="module")
def stopped(store, tmp_path_factory):
    """Three layers, stopped in the second; of this seed and of another."""
    folder = tmp_path_factory.mktemp("stopped")
    for seed in (3, 4):
        options = {**JOB, "system": "retexo", "layers": 3, "seed": seed}
        assert mr.run(store, out=folder / f"seed-{seed}", stop=StopAt(EPOCHS + 1), **options).status == "stopped"
        shutil.copytree(folder / f"seed-{seed}", folder / f"whole-{seed}")
        mr.run(store, out=folder / f"whole-{seed}", resume=True, **options)
    return folder


def rows(run, phase):
    return run / "phases" / f"phase-{phase}" / "rank-0000"


def replaced(run, phase, other):
    shutil.rmtree(rows(run, phase))
    shutil.copytree(other, rows(run, phase))


@pytest.mark.parametrize(
    ("spoil", "phrase"),
    [
        (lambda run, by: replaced(run, 1, rows(by / "seed-4", 1)), "was made from something else; these "
            "differ: parameters (store"),
        (lambda run, by: replaced(run, 1, rows(by / "whole-3", 2)), "wanted 1)"),
        (lambda run, by: shutil.rmtree(rows(run, 1)), "is missing"),
        (lambda run, by: (rows(run, 1) / "manifest.json").write_text("{}"), "stale or damaged rows"),
        (lambda run, by: shutil.rmtree(rows(run, 1) / "arrays" / "whole" / "c"), "make the store again"),
    ],
)  # fmt: skip
def test_rows_of_anything_else_are_refused_by_name(stopped, tmp_path, spoil, phrase):
    run = tmp_path / "run"
    shutil.copytree(stopped / "seed-3", run)
    spoil(run, stopped)
    code, said, err = command("run", "--resume", "--out", run)
    assert (code, said, "Traceback" in err) == (2, "", False), err
    told = err[err.index("millrace: ") :].strip()
    assert str(rows(run, 1)) in told
    assert phrase in told
    assert len(told.splitlines()) <= 3
    shutil.rmtree(run / "phases")
    shutil.copytree(stopped / "seed-3" / "phases", run / "phases")
    code, _, err = command("run", "--resume", "--out", run)
    assert code == 0, err
    assert_same_parameters(run, stopped / "whole-3")


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["--set", "retexo.rounding=int8"], "retexo.rounding (was full, now int8)"),
        (["--set", "retexo.local_steps=2"], "retexo.local_steps (was None, now 2)"),
        (["--set", "retexo.clients=9"], "retexo.clients (was ranks, now 9)"),
        (["--set", "retexo.inductive=true"], "retexo.inductive (was False, now True)"),
        (["--set", "partition.method=hash"], "partition.method (was metis-work, now hash)"),
        (["--epochs", 9], f"epochs (was {EPOCHS}, now 9)"),
    ],
)
def test_a_run_goes_on_as_it_began(stopped, words, phrase):
    run = stopped / "seed-3"
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    code, _, err = command("run", "--resume", "--out", run, *words)
    assert (code, phrase in " ".join(err.split()), "Traceback" in err) == (2, True, False), err
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


# --- what does not fit ---


class Own(torch.nn.Module):
    """A user's model."""

    num_layers = 2

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(F, C)

    def layer(self, i, neighbourhood, h):
        return neighbourhood.mean(h) if i == 0 else self.a(neighbourhood.mean(h))


def saved(path, owners):
    np.save(path, owners)
    return {"owners": str(path)}


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (lambda p: {"retexo": {"head": "none"}}, 'use retexo.propagate = "logits" with it'),
        (lambda p: {"retexo": {"folds": 3}}, "unknown configuration key 'retexo.folds'; it was "
            "removed: it raised no accuracy"),
        (lambda p: {"model": Own()}, "Own, and system 'retexo' must give each layer a head"),
        (lambda p: {"retexo": {"clients": 0}}, "'retexo.clients' is 0: expected a whole number of at "
            "least 1, ranks, or nodes"),
        (lambda p: {"retexo": {"clients": True}}, "'retexo.clients' is True"),
        (lambda p: {"retexo": {"clients": "node"}}, "'retexo.clients' is 'node'"),
        (lambda p: {"retexo": {"clients": NODES + 1}}, f"retexo.clients is {NODES + 1}, but there are {NODES} nodes"),
        (lambda p: {"system": mr.retexo(clients=NODES + 1)}, f"retexo.clients is {NODES + 1}"),
        (lambda p: {"retexo": {"local_steps": 0}}, "'retexo.local_steps' is 0"),
        (lambda p: {"retexo": {"local_steps": 2, "distill": 0.5}}, "retexo.distill is 0.5, and "
            "retexo.local_steps is 2, .*leave one"),
        (lambda p: {"retexo": {"distill": 1.0}}, "'retexo.distill' is 1.0"),
        (lambda p: {"retexo": {"local_steps": 2}, "model": mr.GCN(norm="batch")}, "do not share batch normalisation"),
        (lambda p: {"retexo": {"mode": "v2"}}, "'retexo.mode' is 'v2'"),
        (lambda p: {"retexo": {"rouding": "int8"}}, "rouding"),
        (lambda p: {"partition": {"owners": str(p / "none.npy")}}, "none.npy cannot be read"),
        (lambda p: {"partition": saved(p / "a.npy", np.zeros(NODES))}, r"owners are float64\[200\]; expected a "
            r"vector of whole numbers"),
        (lambda p: {"partition": saved(p / "a.npy", np.zeros((NODES, 1), int))}, r"owners are int64\[200, 1\]"),
        (lambda p: {"partition": saved(p / "a.npy", np.zeros(NODES - 1, int))}, f"{NODES - 1} owners are given for "
            f"{NODES} nodes"),
        (lambda p: {"partition": saved(p / "a.npy", np.full(NODES, 2)), "ranks": 2}, r"owners lie in \[2, 2\], but "
            r"there "
            r"are 2 parts"),
        (lambda p: {"partition": saved(p / "a.npy", np.full(NODES, -1))}, r"owners lie in \[-1, -1\]"),
        (lambda p: {"system": mr.retexo(clients=3, partitioner=Given(np.arange(NODES) % 4))}, r"owners lie in \[0, "
            r"3\], "
            r"but "
            r"there "
            r"are 3"),
        (lambda p: {"partition": saved(p / "a.npy", np.zeros(NODES, int)), "retexo": {"clients": "nodes"}}, "leave one "
            "of "
            "them "
            "out"),
        (lambda p: {"partition": {"method": "metiss"}}, "did you mean 'metis'"),
        (lambda p: {"fanout": [3, 2]}, "system 'retexo' samples nothing"),
        (lambda p: {"queue": {"bulk_size": 3}}, "no minibatches to queue"),
        (lambda p: {"batch_size": 16}, "'train.batch_size' is 16"),
        (lambda p: {"minibatches_per_step": 1}, "'train.minibatches_per_step' is 1"),
        (lambda p: {"features": "owned"}, "features is 'owned'"),
        (lambda p: {"samples": "samples"}, "--samples is samples"),
        (lambda p: {"ranks": 2, "executor": "inline"}, "one process holds one rank"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_written(store, tmp_path, options, phrase):
    options = {"system": "retexo", "epochs": 1, **options(tmp_path)}
    with pytest.raises(mr.InputError, match=phrase) as caught:
        mr.run(store, out=tmp_path / "run", **options)
    assert (caught.value.exit_code, len(str(caught.value).splitlines())) == (2, 1)
    assert not (tmp_path / "run").exists()


def test_the_command_says_it_in_few_lines(store, tmp_path):
    code, said, err = command(
        "run", "--system", "retexo", "--dataset", store, "--set", "retexo.head=none", "--out", tmp_path / "run"
    )
    assert (code, said) == (2, ""), err
    assert len(err[err.index("millrace: ") :].strip().splitlines()) <= 3, err
    assert not (tmp_path / "run").exists()


def test_records_become_the_configuration():
    system = mr.retexo(
        "v1", partitioner=Hash(), base="none", head="none", local_steps=3, rounding="int8", inductive=True,
        clients=5,
    )  # fmt: skip
    for distilled in (mr.retexo(distill=0.25), mr.retexo("v1", distill=0.5)):
        assert make_system(configure({}, system=distilled)) == distilled
    with pytest.raises(mr.InputError, match=r"retexo.distill is 1; expected a share of the loss"):
        mr.retexo(distill=1)
    job = configure({}, system=system, model=mr.GCN(layers=2))
    assert (job.system, job.partition.method, job.model["name"], job.sampler) == ("retexo", "hash", "gcn", {})
    assert make_system(job) == system
    assert make_system(resolve(json.loads(json.dumps(job.model_dump(mode="json"))))) == system
    for mode in ("v3", "v1"):
        assert make_system(configure({"retexo": {"mode": mode}}, system="retexo")) == mr.retexo(mode)
        assert make_system(configure({}, system=mr.retexo(mode))) == mr.retexo(mode)
    assert mr.retexo("v1").schedule.cut == Phases(base="mlp", propagate="logits", head="linear")


def test_the_job_is_written_as_it_can_be_run_again(two):
    job = resolve(read_toml(two.out / "job.toml"))
    assert make_system(job) == mr.retexo()
    assert Path(job.dataset).is_absolute()
