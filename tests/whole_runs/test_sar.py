"""Full-batch training on a cluster gives what one rank gives, whoever holds what, and counts what it sends."""

import hashlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.prepare import CutData, prepare_part
from millrace.pipeline.setup.run_folder import LOCK
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import open_part, partition_dataset
from millrace.tests.contracts.command import command

NODES, WIDTH, EPOCHS, ITEM = 300, 4, 3, 8
"""Features, hidden units and classes are all of one width, so that the bytes of a layer do not hang on what it computes
first."""
JOB = {
    "epochs": EPOCHS, "layers": 2, "hidden": WIDTH, "dropout": 0.3, "lr": 0.05, "seed": 3, "dtype": "float64",
    "threads": 1,
}  # fmt: skip
GAT = {"name": "gat", "heads": 2, "attention_dropout": 0.2}


@pytest.fixture(scope="module")
def dataset():
    """Train nodes among the first ids only: of three ranks with ranges of ids, one has all of them."""
    data = mr.open_dataset(f"sbm:nodes={NODES},classes={WIDTH},degree=6,features={WIDTH},train=0.5")
    train, later = (data.split.train[data.split.train < NODES // 3], data.split.train[data.split.train >= NODES // 3])
    split = mr.Split(train, np.sort(np.concatenate([data.split.val, later])), data.split.test)
    return mr.Dataset("sbm", data.graph, data.features, data.labels, split, data.num_classes)


@pytest.fixture(scope="module")
def store(dataset, tmp_path_factory):
    """The dataset as every process can open it."""
    path = tmp_path_factory.mktemp("data") / "store"
    mr.write_dataset(path, dataset)
    return path


def epochs_of(run):
    """(train loss, validation accuracy) of each epoch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(e["train_loss"], e["val_accuracy"]) for e in lines if e["event"] == "EpochDone"]


def parameters(run):
    return torch.load(run / "model.pt", weights_only=True)


def assert_trained_alike(run, other):
    seen, expected = epochs_of(run), epochs_of(other)
    assert len(seen) == len(expected) == EPOCHS
    np.testing.assert_allclose(np.array(seen, float), np.array(expected, float), rtol=1e-11)
    a, b = parameters(run), parameters(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.linalg.vector_norm(a[name] - b[name]) <= 1e-11 * torch.linalg.vector_norm(b[name]), name


@pytest.fixture(scope="module")
def gcn(store, tmp_path_factory):
    """One rank, by its name."""
    out = tmp_path_factory.mktemp("gcn") / "run"
    return SimpleNamespace(out=out, result=mr.run(store, system="sar", model="gcn", out=out, check=True, **JOB))


@pytest.fixture(scope="module")
def two(store, scheduler, tmp_path_factory):
    """Two ranks, from the command line."""
    out = tmp_path_factory.mktemp("two") / "run"
    code, said, err = command(
        "run", "--system", "sar", "--dataset", store, "--model", "gcn", "--epochs", EPOCHS, "--layers", 2, "--hidden",
        WIDTH,
        "--dropout", 0.3, "--lr", 0.05, "--seed", 3, "--dtype", "float64", "--set", "threads=1", "--set", "check=true",
        "--ranks", 2, "--scheduler", scheduler, "--out", out, "--json",
    )  # fmt: skip
    assert code == 0, err
    return SimpleNamespace(out=out, record=json.loads(said), err=err)


def test_one_rank_trains_a_full_batch_as_bulk_does(gcn, store, tmp_path):
    """All train nodes in one minibatch over full neighbourhoods, without dropout, which the two draw differently."""
    job = {**JOB, "dropout": 0.0}
    whole = mr.run(store, system=mr.sar(), model="gcn", out=tmp_path / "sar", **job)
    bulk = mr.run(store, system="bulk", model="gcn", fanout=[-1, -1], batch_size=NODES, out=tmp_path / "bulk", **job)
    assert_trained_alike(tmp_path / "sar", tmp_path / "bulk")
    assert (whole.system, bulk.system) == ("sar", "bulk")
    assert whole.parameters_sha256 != gcn.result.parameters_sha256


def test_two_ranks_train_as_one(two, gcn):
    assert_trained_alike(two.out, gcn.out)
    record, alone = two.record, gcn.result
    assert record == json.loads((two.out / "result.json").read_text())
    assert (record["status"], record["system"], record["model"], record["ranks"], record["epochs"]) == (
        "done",
        "sar",
        "gcn",
        2,
        EPOCHS,
    )
    assert (record["test_accuracy"], record["best_epoch"]) == (pytest.approx(alone.test_accuracy), alone.best_epoch)
    assert {k for k, v in record["fingerprint"].items() if v != alone.fingerprint[k]} == {"parts"}
    assert record["seconds"]["partition"] > 0
    assert len(record["seconds"]["per_epoch"]) == EPOCHS
    assert len(record["peak_rss_bytes"]) == 2
    assert all(m["graph"] > 0 and m["step"] > 0 for m in record["memory_bytes"])
    assert sum(m["features"] for m in record["memory_bytes"]) == NODES * WIDTH * ITEM
    assert "system sar" in two.err


def test_ledger_counts_what_travels(two, dataset):
    """Against counts made here, from who owns what."""
    owner = np.empty(NODES, np.int64)
    for rank in range(2):
        owner[open_part(two.out / "parts", rank)[0].owned] = rank
    into = np.repeat(owner, np.diff(dataset.graph.indptr))
    away = owner[dataset.graph.indices] != into
    halo = len(np.unique(np.stack([into[away], dataset.graph.indices[away]]), axis=1).T)
    sent, rows = two.record["bytes"], halo * WIDTH * ITEM
    trained = sum(v.numel() for v in parameters(two.out).values())
    assert sent["network"]["gradients"] == EPOCHS * 2 * (2 - 1) * ITEM * (trained + 2)
    assert sent["evaluation"]["activations"] == (EPOCHS + 1) * 2 * rows, "every halo row once for each of two layers"
    assert sent["network"]["features"] == 0
    assert 0 < sent["network"]["activations"] <= EPOCHS * 2 * 2 * rows, "there and back, less what no seed needs"
    assert sent["store"]["features"] == NODES * WIDTH * ITEM, "each row is read once, by its owner"
    for channel in ("network", "store", "evaluation"):
        assert sent[channel] == {kind: sum(r[channel][kind] for r in sent["per_rank"]) for kind in sent[channel]}


def digests(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_parts_are_those_of_the_partition_command(two, store, tmp_path):
    code, _, err = command(
        "partition", store, "--parts", 2, "--method", "metis-work", "--seed", 3, "--out", tmp_path / "parts"
    )
    assert code == 0, err
    assert len(digests(two.out / "parts")) > 10
    made = digests(tmp_path / "parts")
    # The command locks the folder that it writes, as a run locks its own.
    del made[LOCK]
    assert digests(two.out / "parts") == made


def test_evaluate_and_inspect(two, gcn):
    for run in (two.out, gcn.out):
        code, said, err = command("evaluate", run, "--json")
        assert code == 0, err
        accuracy, result = json.loads(said)["accuracy"], json.loads((run / "result.json").read_text())
        assert (accuracy["val"], accuracy["test"]) == (result["val_accuracy"], result["test_accuracy"])
        code, said, err = command("inspect", run, "--json")
        assert (code, json.loads(said)["system"]) == (0, "sar"), err
    code, said, err = command("inspect", two.out / "parts", "--json")
    assert (code, json.loads(said)["parts"]) == (0, 2), err
    code, said, err = command("inspect", two.out / "parts" / "part-0001" / "shards", "--json")
    assert (code, json.loads(said)["holds"]) == (0, "a store of kind edge_shards"), err


@pytest.mark.parametrize(
    ("ranks", "method", "model", "mode"),
    [
        (3, "contiguous", "gcn", "keep"),  # two of the ranks have no train nodes
        (3, "metis", GAT, ["rematerialize", "keep"]),
        (2, "hash", GAT, "rematerialize"),
    ],
)
def test_ranks_parts_and_modes_do_not_show(gcn, store, scheduler, tmp_path, ranks, method, model, mode):
    out = tmp_path / "many"
    options = {**JOB, "model": model, "partition": {"method": method}, "sar": {"mode": mode}, "check": True}
    if model == "gcn":
        alone = gcn.out
    else:
        alone = tmp_path / "one"
        mr.run(store, system="sar", out=alone, **options)
    result = mr.run(store, system="sar", ranks=ranks, scheduler=scheduler, out=out, **options)
    assert_trained_alike(out, alone)
    assert (result.ranks, result.minibatches) == (ranks, ranks * EPOCHS)
    job = resolve(read_toml(out / "job.toml"))
    assert (job.system, job.partition.method, job.sar.mode, job.sampler) == ("sar", method, mode, {})
    train = [len(open_part(out / "parts", r)[1].split.train) for r in range(ranks)]
    assert (min(train) == 0) == (method == "contiguous"), train


def test_a_rank_opens_its_own_part_and_no_other(dataset, tmp_path):
    folder = tmp_path / "parts"
    partition_dataset(dataset, Hash(), 2, folder, 3)
    shutil.rmtree(folder / "part-0001")
    job = resolve({"system": "sar", "ranks": 2, "dtype": "float64", "partition": {"method": "hash"}})
    prepared = prepare_part(job, CutData(Outline.from_dataset(dataset), folder, 0, {"made": "by the driver"}))
    assert prepared.fingerprint == {"made": "by the driver"}
    assert prepared.whole is None
    owned = prepared.data.owned
    np.testing.assert_array_equal(prepared.data.features.gather(np.arange(len(owned))), dataset.features.gather(owned))
    with pytest.raises(mr.StoreError, match="part-0001"):
        prepare_part(job, CutData(Outline.from_dataset(dataset), folder, 1, {}))


def test_records_become_the_configuration():
    system = mr.sar(["halo", "keep"], partitioner=Contiguous(), memory_bytes=1 << 30, prefetch_bytes=0, prune=False)
    job = configure({}, system=system, model=mr.GCN(layers=2))
    assert (job.system, job.partition.method, job.model["name"]) == ("sar", "contiguous", "gcn")
    assert job.sar.model_dump() == {
        "mode": ["halo", "keep"],
        "memory_bytes": 1 << 30,
        "prefetch_bytes": 0,
        "prune": False,
    }
    assert configure({}, system="sar").sar.mode == configure({}, system=mr.sar()).sar.mode == "auto"
    assert configure({}, system="sar").partition == configure({}, system=mr.sar()).partition


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["--ranks", 3], "resume with --ranks 2"),
        (["--set", "partition.method=hash"], "partition.method (was metis-work, now hash)"),
        (["--set", "model.hidden=8"], "model.hidden (was 4, now 8)"),
    ],
)
def test_a_run_goes_on_with_the_parts_that_it_began_with(two, scheduler, words, phrase):
    before, words = contents(two.out), [*words, "--scheduler", scheduler]
    code, _, err = command("run", "--resume", "--out", two.out, "--epochs", EPOCHS + 1, *words)
    assert (code, phrase in err, "Traceback" in err) == (2, True, False), err
    assert contents(two.out) == before


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"fanout": [3, 2]}, "system 'sar' samples nothing"),
        ({"queue": {"bulk_size": 3}}, "no minibatches to queue"),
        ({"reuse": "cycle"}, "no minibatches to queue"),
        ({"minibatches_per_step": 1}, "'train.minibatches_per_step' is 1"),
        ({"batch_size": 16}, "'train.batch_size' is 16"),
        ({"features": "owned"}, "features is 'owned'"),
        ({"samples": "samples"}, "--samples is samples"),
        ({"partition": {"method": "metiss"}}, "did you mean 'metis'"),
        ({"sar": {"mode": ["keep", "keep", "keep"]}}, "sar has 3 modes for a model of 2 layers"),
        ({"sar": {"mode": []}}, "sar has 0 modes for a model of 2 layers"),
        ({"sar": {"mode": "hallo"}}, "'sar.mode' is 'hallo': expected rematerialize"),
        ({"system": mr.sar(["keep"] * 3)}, "sar has 3 modes"),
        ({"ranks": 2, "executor": "inline"}, "one process holds one rank"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(store, tmp_path, options, phrase):
    with pytest.raises(mr.InputError, match=phrase) as caught:
        mr.run(store, out=tmp_path / "run", **{"system": "sar", "layers": 2, "epochs": 1, **options})
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_name_beside_a_resolved_configuration(store, tmp_path):
    with pytest.raises(
        mr.InputError, match=r"options \['epochs', 'system'\] were given beside a resolved configuration"
    ):
        mr.run(store, system="sar", epochs=1, config=resolve({}), out=tmp_path / "run")


def test_no_train_nodes_anywhere(dataset, tmp_path):
    none = mr.Split(np.empty(0, np.int64), dataset.split.val, dataset.split.test)
    data = mr.Dataset("none", dataset.graph, dataset.features, dataset.labels, none, WIDTH)
    with pytest.raises(mr.InputError, match="train split is empty"):
        mr.run(data, system="sar", out=tmp_path / "run", **JOB)
    assert not (tmp_path / "run").exists()
