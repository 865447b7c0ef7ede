"""Labels of edges in whole runs: against plain torch, over ranks, distributions, queues and stores of samples, after a
kill, in prediction and on the command line; and refusals."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.prepare import prepare
from millrace.stages.links.edge_head import EdgeHead
from millrace.stages.models.base import as_model
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.storage.minibatch import Block
from millrace.tests.contracts.accuracies import accuracy
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_cluster import forked_cluster
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.whole_runs.test_partitioned_links import train

SPEC = "payments:accounts=150,degree=5,features=6"
JOB = {
    "epochs": 3, "seed": 3, "lr": 0.02, "threads": 1, "fanout": [4, 3], "batch_size": 64, "link": {"width": 8},
    "hidden": 8, "dropout": 0.1,
}  # fmt: skip
HIDDEN = mr.ReadOptions(labelled_edges="hidden")


def nasty(hidden=False, task="multiclass", loops=True):
    """Labelled pairs among which are edges, several of the same ends, loops, pairs that are no edges, and some without
    a label."""
    data, rng = mr.open_dataset("sbm:nodes=90,classes=3,degree=6,features=5"), np.random.default_rng(0)
    graph = data.graph
    edges = np.stack([graph.indices.astype(np.int64), np.repeat(np.arange(90), graph.in_degree)], 1)
    pairs = np.concatenate([edges[::2], edges[:60], rng.integers(0, 90, (50, 2)), np.arange(9).repeat(2).reshape(9, 2)])
    labels = {
        "multiclass": rng.integers(-1, 3, len(pairs)),
        "multilabel": rng.integers(0, 2, (len(pairs), 4)),
        "binary": rng.integers(0, 2, len(pairs)),
        "regression": np.where(rng.random((len(pairs), 2)) < 0.1, np.nan, rng.standard_normal((len(pairs), 2))),
    }[task]
    features = rng.standard_normal((len(pairs), 2)).astype(np.float32)
    options = replace(HIDDEN if hidden else mr.ReadOptions(), task=task)
    return mr.edge_dataset(data, pairs, labels, features=features, seed=1, options=options)


class Mean(torch.nn.Module):
    """One layer over the mean of in-neighbours."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(10, 8)
        self.decoder = EdgeHead(8, 2, self.outputs)

    def layer(self, i, neighbourhood, h):
        return self.linear(torch.cat([mr.destinations(neighbourhood, h), neighbourhood.mean(h)], 1))


def loss_of(task, out, y):
    if task == "multiclass":
        return torch.nn.functional.cross_entropy(out, y)
    if task == "regression":
        known = ~y.isnan()
        return torch.where(known, (out - torch.nan_to_num(y)) ** 2, 0).mean(1).mean()
    y = y.double() if task == "multilabel" else y.double()[:, None]
    return torch.nn.functional.binary_cross_entropy_with_logits(out, y)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("task", ["multiclass", "multilabel", "binary", "regression"])
def test_a_run_is_that_of_plain_torch(tmp_path, task, hidden):
    """With all neighbours, and where edges are hidden without those of the minibatch, and their reverses."""
    data = nasty(hidden, task)
    kind = type("Own", (Mean,), {"outputs": data.num_outputs})
    options = {**{k: v for k, v in JOB.items() if k not in ("hidden", "dropout")}, "fanout": [-1], "dtype": "float64"}
    out = mr.run(data, model=kind(), out=tmp_path / "run", verbose=False, **options, train={"evaluate_every": 0})
    model = as_model(kind()).double()
    n, graph = data.num_nodes, data.graph
    destination = np.repeat(np.arange(n), graph.in_degree)
    features = torch.from_numpy(data.features.gather(np.arange(n))).double()
    y, own = torch.from_numpy(data.labels), torch.from_numpy(data.pair_features).double()
    y = y.double() if task == "regression" else y

    def outputs(chosen, left):
        block = Block(n, np.arange(n), left.indptr, left.indices.astype(np.int32))
        rows = model.layer(0, BlockNeighbourhood(block, torch.from_numpy(left.degree)), features)
        source, to = torch.from_numpy(data.pairs[chosen]).T
        return model.decoder(rows[source], rows[to], own[chosen])

    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    prepared = mr.minibatches(data, **options)
    for batch in prepared:
        ends = batch.seeds[batch.pairs.numpy()]
        chosen = numbers_of(data, prepared, batch)
        assert np.array_equal(ends, data.pairs[chosen]) and torch.equal(batch.pair_features, own[chosen])
        torch.testing.assert_close(batch.y, y[chosen].to(batch.y.dtype), equal_nan=True)
        left = graph
        if hidden:
            gone = {p for u, v in ends.tolist() for p in ((u, v), (v, u))}
            keep = np.array([e not in gone for e in zip(graph.indices.tolist(), destination.tolist())])
            left = mr.from_edges(graph.indices[keep], destination[keep], n)
        value = loss_of(task, outputs(chosen, left), y[chosen])
        adam.zero_grad()
        value.backward()
        adam.step()
    start = mr.load(tmp_path / "run", model=kind())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(start.model.state_dict()[name], value, rtol=1e-8, atol=1e-9)
    with torch.no_grad():
        logits = outputs(data.split.test, graph)
    found = mr.predict_edges(start, "test")
    assert np.array_equal(found.pairs, data.pairs[data.split.test])
    np.testing.assert_allclose(found.logits, logits.numpy(), rtol=1e-6, atol=1e-6)
    if task == "regression":
        assert out.test_accuracy is None and out.test_metrics["rmse"] > 0
    elif task == "binary":
        assert out.test_accuracy == ((logits[:, 0] > 0) == y[data.split.test]).double().mean()
    else:
        assert out.test_accuracy == pytest.approx(accuracy(logits, y[data.split.test]))
    if hidden:  # held-out edges are not there
        kept = set(zip(graph.indices.tolist(), destination.tolist()))
        held = data.pairs[np.concatenate([data.split.val, data.split.test])].tolist()
        assert not any((u, v) in kept or (v, u) in kept for u, v in held)
        assert graph.num_edges < nasty(False, task).graph.num_edges


def numbers_of(data, minibatches, batch):
    """Numbers of the pairs of a minibatch, by the run's own plan."""
    from millrace.tests.contracts.seed_plan import seed_plan

    return seed_plan(minibatches._sampling.job, data).numbers(batch.index, batch.epoch)


@pytest.fixture(scope="module", params=[False, True], ids=["seen", "hidden"])
def store(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "edges"
    write_dataset(path, nasty(request.param))
    return str(path)


CUT = {"topology": "partitioned"}


def test_any_number_of_ranks_distribution_queue_and_store_of_samples_train_the_same(store, tmp_path):
    table = {**JOB, "epochs": 2, "system": "bulk", "minibatches_per_step": 4, "dtype": "float64", "batch_size": 40}
    ways = {
        "1": {}, "2": {"ranks": 2},
        "owned": {"ranks": 2, "features": "owned", "bulk": {"cache_fraction": 0.2}},
        "zarr": {"queue": {"kind": "zarr", "bulk_size": 3}},
    }  # fmt: skip
    found = {}
    for name, more in ways.items():
        if name == "zarr":
            found[name] = vars(mr.run(store, out=tmp_path / name, verbose=False, **table, **more))
            continue
        found[name] = train_bulk(store, tmp_path / name, {**table, **more})[0]
    job = resolve({**table, "dataset": store})
    precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    more = {"ranks": 2}
    found["stored"] = train_bulk(store, tmp_path / "stored", {**table, **more}, samples=str(tmp_path / "samples"))[0]
    model, accuracy_of = last_parameters(tmp_path / "1"), found["1"]["test_accuracy"]
    for name, report in found.items():
        assert report["test_accuracy"] == pytest.approx(accuracy_of, abs=1e-12)
        for key, value in last_parameters(tmp_path / name).items():
            torch.testing.assert_close(value, model[key], rtol=1e-8, atol=1e-9)
    stored, live = (list(mr.minibatches(store, samples=s, **table)) for s in (tmp_path / "samples", None))
    for a, b in zip(stored, live, strict=True):
        assert torch.equal(a.pairs, b.pairs) and torch.equal(a.h, b.h) and torch.equal(a.y, b.y)
    graph = mr.to_pyg(stored[0].minibatch, pairs=stored[0].pairs)
    assert graph.edge_label_index.shape == (2, 40) and "edge_label" not in graph


@pytest.mark.parametrize("hidden", [False, True])
def test_blocks_train_what_whole_graphs_train(tmp_path, hidden):
    """In ranges and by a cut that renumbers nodes; each run is stopped and goes on."""
    data = nasty(hidden)
    table = {**JOB, "epochs": 2, "system": "bulk", "minibatches_per_step": 2, "dtype": "float64", "fanout": [-1, -1]}
    table |= {"dropout": 0.0, "batch_size": 40}
    whole = mr.run(data, out=tmp_path / "whole", verbose=False, **table)
    np.save(tmp_path / "owners.npy", np.random.default_rng(1).integers(2, size=data.num_nodes))
    runs = []
    for name, more in {"ranges": {}, "owners": {"partition": {"owners": str(tmp_path / "owners.npy")}}}.items():
        job, out = resolve({**table, "bulk": CUT, "ranks": 2, **more}), tmp_path / name
        prepared = prepare(job, data)
        out.mkdir()
        partitioner, parts = prepared.system.partition.partitioner, prepared.system.parts_before(2)
        cut_dataset(data, Cut(partitioner, parts, job.seed), out / "parts")
        runs.append((job, out, prepared.fingerprint))
    reports = run_ranks(train, 2, data, runs)
    for number, (_, out, _) in enumerate(runs):
        assert [r[number]["test_accuracy"] for r in reports] == [pytest.approx(whole.test_accuracy)] * 2
        assert reports[0][number]["confusion"] == whole.confusion
        for key, value in last_parameters(out).items():
            torch.testing.assert_close(value, last_parameters(tmp_path / "whole")[key], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["seen", "hidden", "in time"])
def test_a_renumbered_store_trains_what_the_original_trains(tmp_path, kind):
    """Over all in-edges, so that no draw depends on the numbers of nodes; metrics up to rounding."""
    data = mr.open_dataset(SPEC, split="time:0.6,0.2") if kind == "in time" else nasty(kind == "hidden")
    write_dataset(tmp_path / "store", data)
    words = ["--parts", 3, "--method", "hash", "--into", tmp_path / "moved"]
    code, _, error = command("partition", tmp_path / "store", *words)
    assert code == 0, error
    moved = mr.open_dataset(tmp_path / "moved")
    names = np.array(list(moved.node_names), int)
    assert not np.array_equal(moved.pairs, data.pairs) and np.array_equal(names[moved.pairs], data.pairs)
    assert np.array_equal(moved.labels, data.labels) and np.array_equal(moved.split.test, data.split.test)
    options = {**JOB, "fanout": [-1, -1], "dropout": 0.0, "dtype": "float64", "verbose": False}
    options |= {"sampler": {"name": "temporal", "fanout": [-1, -1]}} if kind == "in time" else {}
    if kind == "in time":
        del options["fanout"]
    a, b = (mr.run(tmp_path / store, out=tmp_path / f"run-{store}", **options) for store in ("store", "moved"))
    assert a.test_accuracy == b.test_accuracy and a.train_loss == pytest.approx(b.train_loss, rel=1e-9)
    assert a.test_metrics == pytest.approx(b.test_metrics, rel=1e-9)
    of_original, of_moved = (mr.predict_edges(run, "test") for run in (a, b))
    assert np.allclose(of_original.logits, of_moved.logits, rtol=1e-8, atol=1e-10)


def test_one_rank_of_grappa_is_bulk_and_several_train(scheduler, tmp_path):
    """A rank of several trains on the edges whose ends it sees; all of them by turns."""
    table = {"epochs": 2, "seed": 3, "threads": 1, "dtype": "float64", "batch_size": 32, "fanout": [-1, -1]}
    table |= {"hidden": 8, "dropout": 0.0, "link": {"width": 8}, "lr": 0.02, "verbose": False}
    data = mr.open_dataset(SPEC)
    one = {s: mr.run(data, system=s, out=tmp_path / s, **table) for s in ("bulk", "grappa")}
    assert one["bulk"].parameters_sha256 == one["grappa"].parameters_sha256
    assert one["bulk"].test_accuracy == one["grappa"].test_accuracy
    path = tmp_path / "store"
    write_dataset(path, data)
    table |= {"ranks": 2, "scheduler": scheduler, "grappa": {"repartition_every": 1}}
    two = mr.run(str(path), system="grappa", out=tmp_path / "two", **table)
    assert abs(two.test_accuracy - one["bulk"].test_accuracy) < 0.1 and two.bytes["network"]["features"] == 0
    assert mr.predict_edges(two, "test").classes.shape == (len(data.split.test),)
    score = (mr.predict_edges(two, "test").classes == data.labels[data.split.test]).mean()
    assert score == pytest.approx(two.test_accuracy)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    data = mr.open_dataset(SPEC)
    write_dataset(tmp_path / "store", data)
    result = mr.run(data, out=tmp_path / "whole", verbose=False, **JOB)
    check_goes_on_after_a_kill(str(tmp_path / "store"), tmp_path / "run", result, JOB)


def test_payments_are_learnt_to_the_best_accuracy(tmp_path):
    """The graph alone does not say which: without amounts no model comes near."""
    options = {"epochs": 8, "fanout": [10, 5], "batch_size": 512, "lr": 0.01, "verbose": False, "seed": 1}
    data = mr.open_dataset("payments:accounts=1500")
    result = mr.run(data, out=tmp_path / "run", metrics=["auc"], **options)
    assert 0.92 < result.test_accuracy < 0.97 and result.test_metrics["auc"] > 0.9
    assert (result.labels_of, result.num_pair_features, result.num_classes) == ("edges", 1, 2)
    bare = replace(data, pair_features=None)
    assert mr.run(bare, out=tmp_path / "bare", **options).test_accuracy < 0.85


def test_samples_by_time_see_nothing_later(tmp_path):
    """Labels that say whether there was an edge between the two before: those of a time tell, later ones must not."""
    table = {"sampler": {"name": "temporal", "fanout": [-1, -1]}, "split": "time:0.6,0.2", "epochs": 2, "seed": 1}
    table |= {"threads": 1, "hidden": 8, "link": {"width": 8}, "dtype": "float64", "verbose": False, "dropout": 0.0}
    data = mr.open_dataset(SPEC, split="time:0.6,0.2")
    one = mr.run(data, out=tmp_path / "a", **table)
    found = mr.predict_edges(one, "test")
    assert one.test_accuracy == pytest.approx((found.classes == data.labels[data.split.test]).mean())
    # Later edges do not count: rows before the last time stay as they are without the edges of that time.
    late = data.graph.edge_time == data.graph.edge_time.max()
    dst = np.repeat(np.arange(data.num_nodes), data.graph.in_degree)
    rows = data.graph.edge_features.gather(np.arange(data.graph.num_edges))
    of = {"edge_time": data.graph.edge_time[~late], "edge_features": rows[~late]}
    earlier = mr.from_edges(data.graph.indices[~late].astype(np.int64), dst[~late], data.num_nodes, **of)
    again = mr.predict_edges(one, "test", replace(data, graph=earlier))
    np.testing.assert_allclose(again.logits, found.logits, rtol=1e-9)
    assert not np.allclose(
        mr.predict_edges(one, data.pairs[:9], features=data.pair_features[:9]).logits, found.logits[:9]
    )
    times = data.pair_time[data.split.test]
    own = {"features": data.pair_features[data.split.test], "times": times}
    np.testing.assert_allclose(mr.predict_edges(one, data.pairs[data.split.test], **own).logits, found.logits)


@forked_cluster()
def test_learnt_rows_and_workers_serve_edges(tmp_path):
    table = {**{k: v for k, v in JOB.items() if k != "dropout"}, "learned": 4, "verbose": False}
    data = mr.open_dataset(SPEC)
    result = mr.run(data, out=tmp_path / "run", **table)
    found = mr.predict_edges(result, "test")
    assert result.test_accuracy == pytest.approx((found.classes == data.labels[data.split.test]).mean())
    shared = mr.predict_edges(result, "test", workers=2)
    np.testing.assert_allclose(shared.logits, found.logits, rtol=1e-5, atol=1e-6)
    assert mr.embed(result, nodes=[3, 5]).rows.shape == (2, 8)


def test_the_command_line_reads_tables_and_writes_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, kind = np.random.default_rng(0), np.random.default_rng(1).integers(0, 2, 60)
    names = [f"a{i}" for i in range(60)]
    (tmp_path / "bank").mkdir()
    rows = ["src,dst,label,amount,time,memo"]
    for i in range(600):
        u, v, a = rng.integers(60), rng.integers(60), rng.standard_normal()
        label = ["fine", "fraud"][int(kind[v] and a > 0)] if i % 10 else ""
        rows.append(f"{names[u]},{names[v]},{label},{a:.3f},{i // 7},x")
    (tmp_path / "bank" / "edges.csv").write_text("\n".join(rows) + "\n")
    nodes = ["id,age", *(f"{name},{k + 0.1 * rng.standard_normal():.3f}" for name, k in zip(names, kind))]
    (tmp_path / "bank" / "nodes.csv").write_text("\n".join(nodes) + "\n")
    read = ["--set", "labels_of=edges", "--set", "read.direction=directed", "--set", "read.edge_feature_columns=amount"]
    read += ["--set", "read.feature_columns=age"]
    shape = ["--hidden", "16", "--layers", "1", "--fanout", "8", "--batch-size", "64", "--epochs", "30", "--lr", "0.02"]
    code, out, err = command("run", "--dataset", "bank", *read, *shape, "--out", "run")
    assert code == 0, err
    assert "2 classes of edges" in err and "60 edges are unlabelled" in err and "stored split" not in err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["class_names"] == ["fine", "fraud"] and result["test_accuracy"] > 0.8
    assert result["labels_of"] == "edges" and result["num_pair_features"] == 1
    code, out, err = command("predict", "run", "--out", "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert code == 0 and table.column_names == ["src", "dst", "class", "probability"]
    assert table.num_rows == 600 and set(table["class"].to_pylist()) == {"fine", "fraud"}
    assert table["src"].to_pylist()[:2] == [r.split(",")[0] for r in rows[1:3]]
    code, out, err = command("predict", "run", "--pairs", "test", "--all-probabilities", "--out", "test.csv")
    assert code == 0 and (tmp_path / "test.csv").read_text().startswith('"src","dst","class","probability"')
    (tmp_path / "new.csv").write_text("src,dst,amount\na1,a2,0.5\na2,a1,-3\n")
    code, out, err = command("predict", "run", "--pairs", "new.csv", "--out", "new.parquet", "--json")
    assert code == 0 and json.loads(out)["edges"] == 2
    assert pq.read_table(tmp_path / "new.parquet")["dst"].to_pylist() == ["a2", "a1"]
    (tmp_path / "bare.csv").write_text("src,dst\na1,a2\n")
    code, out, err = command("predict", "run", "--pairs", "bare.csv", "--out", "bare.parquet")
    assert code == 2 and "amount" in err
    (tmp_path / "empty.csv").write_text("src,dst,amount\n")
    code, out, err = command("predict", "run", "--pairs", "empty.csv", "--out", "bare.parquet")
    assert code == 2 and "empty.csv has a header and no rows" in err
    code, out, err = command("predict", "run", "--pairs", "tset", "--out", "bare.parquet")
    assert code == 2 and "expected a file of pairs, or train, val, test or all; did you mean 'test'?" in err
    assert not (tmp_path / "bare.parquet").exists()
    code, out, err = command("evaluate", "run", "--json")
    assert json.loads(out)["accuracy"]["test"] == pytest.approx(result["test_accuracy"])
    code, out, err = command("convert", "bank", *read, "--out", "bank.store")
    assert code == 0, err
    code, out, err = command("run", "--dataset", "bank.store", *shape, "--out", "again")
    assert json.loads((tmp_path / "again" / "result.json").read_text())["test_accuracy"] == result["test_accuracy"]
    code, out, err = command("report", "run")
    assert code == 0, err
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert '<th class="n">edges</th>' in page and "Rows are true classes" in page
    card = (tmp_path / "run" / "model_card.md").read_text()
    assert "| multiclass, 2 classes of edges |" in card and "| class | test edges |" in card
    assert "| 1 features of a node, 1 of a labelled edge |" in card
    for source, options in (("bank", read), ("bank.store", [])):
        code, out, err = command("inspect", source, *options)
        assert re.search(r"labels of +edges: 600, 60 in no set\n", out), out
    code, out, err = command("run", "--dataset", "bank.store", *shape, "--dry-run")
    assert "train 324, val 108, test 108 edges\n" in out
    code, out, err = command("export", "run", "--out", "run.pt2")
    assert "-> rows of nodes, without the decoder of pairs" in out
    code, out, err = command("run", "--dataset", "bank")
    assert code == 2 and "Edges have one: set read.labels_of=edges to predict it" in err


@pytest.mark.parametrize("typed", [False, True])
def test_new_data_without_labels_are_predicted(tmp_path, typed):
    """All rows of another table, whatever their labels, in its order."""
    rng = np.random.default_rng(0)
    table = {"src": rng.integers(0, 30, 200), "dst": rng.integers(0, 30, 200), "feature_0": rng.standard_normal(200)}
    names = ("edges-user-pays-shop", "nodes-user", "nodes-shop") if typed else ("edges", "nodes")
    for folder, labels in (("old", rng.integers(0, 3, 200)), ("bare", None), ("none", [-1] * 200)):
        (tmp_path / folder).mkdir()
        more = {} if labels is None else {"label": labels}
        pq.write_table(pa.table({**table, **more}), tmp_path / folder / f"{names[0]}.parquet")
        for name in names[1:]:
            pq.write_table(
                pa.table({"id": range(30), "x_0": np.arange(30) / 30}), tmp_path / folder / f"{name}.parquet"
            )
    way = {"direction": "undirected", "relation": "pays"} if typed else {"direction": "directed"}
    model = {"name": "rgcn" if typed else "sage", "hidden": 4, "layers": 2}
    config = {"read": {**way, "labels_of": "edges"}, "model": model, "epochs": 1, "link": {"width": 4}}
    run = mr.run(str(tmp_path / "old"), config=config, out=tmp_path / "run", verbose=False)
    want = mr.predict_edges(run)
    assert want.pairs[:, 0].tolist() == table["src"].tolist()
    for folder in ("bare", "none", "old"):
        found = mr.predict_edges(run, dataset=str(tmp_path / folder))
        assert np.array_equal(found.logits, want.logits) and np.array_equal(found.pairs, want.pairs)
    with pytest.raises(InputError, match="no edge has a label"):
        mr.predict_edges(run, "test", str(tmp_path / "none"))


REFUSED = {
    "retexo": ({"system": "retexo"}, "system 'retexo' trains each node on the rank that has it"),
    "decoder": ({"link": {"decoder": "mlp"}}, r"link.decoder is set, but the task is multiclass of edges"),
    "local seeds": ({"bulk": {**CUT, "local_seeds": True}}, "whose two ends have owners of their own"),
    "times": ({"sampler": {"name": "temporal", "fanout": [2, 2]}}, "the future trains the past"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, name):
    more, said = REFUSED[name]
    with pytest.raises(InputError, match=said) as refused:
        mr.run(SPEC, out=tmp_path / "run", verbose=False, **more)
    assert not (tmp_path / "run").exists() and len(str(refused.value)) < 400


def test_hidden_edges_and_times_do_not_go_together(tmp_path):
    data = mr.open_dataset(SPEC, split="time:0.6,0.2")
    plain = replace(data, labels=np.zeros(150, np.int64), pairs=None, pair_features=None, pair_time=None)
    given = {"features": data.pair_features, "times": data.pair_time, "split": "time:0.6,0.2", "options": HIDDEN}
    plain = replace(plain, split=mr.Split(np.arange(9), np.empty(0, np.int64), np.empty(0, np.int64)))
    hidden = mr.edge_dataset(plain, data.pairs, data.labels, **given)
    with pytest.raises(InputError, match=r"labelled_edges=hidden.*leave it out"):
        mr.run(hidden, sampler="temporal", out=tmp_path / "run", verbose=False)
    with pytest.raises(InputError, match=r"left out of the graph of .* already"):
        mr.open_dataset(hidden, split="fraction:0.5,0.2")


def test_a_decoder_of_another_shape_is_refused(tmp_path):
    class Own(Mean):
        outputs = 3

    module = Own()
    del module.decoder
    module.decoder = lambda source, destination, own: (source * destination).sum(1)
    with pytest.raises(InputError, match=r"the decoder gives \[3\] for 3 edges; expected \[3, C\]"):
        mr.run(nasty(), model=module, fanout=[2], batch_size=64, epochs=1, verbose=False, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("task", "width", "said"),
    [
        ("multiclass", 2, "2 columns, but the dataset has 3 classes; make its last layer 3 wide"),
        ("multilabel", 3, "3 columns, but the dataset has 4 classes; make its last layer 4 wide"),
        ("binary", 2, "2 columns, but the dataset has two classes, which take one; make its last layer 1 wide"),
        ("regression", 1, "1 column, but the dataset has 2 targets; make its last layer 2 wide"),
    ],
)
def test_a_decoder_with_other_columns_is_refused_before_anything_is_written(tmp_path, task, width, said):
    class Own(Mean):
        outputs = width

    options = {"fanout": [2], "batch_size": 64, "epochs": 1, "verbose": False, "link": {"width": 8}}
    with pytest.raises(InputError, match=f"the decoder of Own gives edges {said}"):
        mr.run(nasty(task=task), model=Own(), out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_decoder_may_have_more_columns_than_classes_and_any_with_a_loss_of_its_own(tmp_path):
    class Wide(Mean):
        outputs = 5

    options = {"fanout": [2], "batch_size": 64, "epochs": 1, "verbose": False, "link": {"width": 8}}
    assert mr.run(nasty(), model=Wide(), out=tmp_path / "wide", **options).epochs == 1

    class Narrow(Mean):
        outputs = 1

    own = {"loss": lambda out, y: (out - y[:, None]).square().mean(1)}
    assert mr.run(nasty(), model=Narrow(), out=tmp_path / "own", **options, **own).epochs == 1


def test_another_dataset_is_read_as_what_the_run_predicts(tmp_path):
    """Of a run on data from Python, whose options for reading do not say it."""
    rng, pairs = np.random.default_rng(0), np.random.default_rng(1).integers(0, 60, (300, 2))
    base = mr.open_dataset("sbm:nodes=60,features=3,degree=4")
    ends = {"edge_index": np.concatenate([pairs, pairs[:, ::-1]]).T, "x": rng.standard_normal((60, 3))}
    np.savez(tmp_path / "other.npz", **ends, edge_label_index=pairs[:50].T, edge_label=rng.integers(0, 2, 50))
    small = {"epochs": 1, "verbose": False, "hidden": 4, "fanout": [2], "link": {"width": 4}}
    edges = mr.run(mr.edge_dataset(base, pairs, rng.integers(0, 2, 300)), out=tmp_path / "edges", **small)
    assert np.array_equal(mr.predict_edges(edges, dataset=tmp_path / "other.npz").pairs, pairs[:50])
    links = mr.run(mr.link_dataset(base), out=tmp_path / "links", **small)
    assert mr.recommend(links, 3, dataset=tmp_path / "other.npz").destinations.shape == (60, 3)


def test_a_run_of_nodes_predicts_no_edges_nor_the_other_way_round(tmp_path):
    small = {"epochs": 1, "verbose": False, "hidden": 4, "link": {"width": 4}}
    edges = mr.run(SPEC, out=tmp_path / "edges", **small)
    nodes = mr.run("sbm:nodes=60", out=tmp_path / "nodes", **{k: v for k, v in small.items() if k != "link"})
    with pytest.raises(InputError, match="predicts no labels of edges"):
        mr.predict_edges(nodes, [[0, 1]])
    with pytest.raises(InputError, match=r"use mr.predict_edges\(run\)"):
        mr.predict(edges)
    with pytest.raises(InputError, match=r"the sets of .* are of pairs"):
        mr.embed(edges, nodes="test")
    with pytest.raises(InputError, match="have no features; expected 1"):
        mr.predict_edges(edges, [[0, 1]])
    with pytest.raises(InputError, match="end that is no node"):
        mr.predict_edges(edges, [[0, 150]], features=[[1.0]])
    with pytest.raises(InputError, match=r"features have shape \[1, 2\]; expected \[1, 1\]"):
        mr.predict_edges(edges, [[0, 1]], features=[[1.0, 2.0]])
    with pytest.raises(InputError, match=r"features are no numbers; expected \[1, 1\]"):
        mr.predict_edges(edges, [[0, 1]], features=["much"])
    with pytest.raises(InputError, match=r"predicts labels of edges; use mr\.predict_edges"):
        mr.predict_links(edges, [[0, 1]])
    with pytest.raises(InputError, match="has no labelled edges"):
        mr.predict_edges(edges, "test", "sbm:nodes=60,features=6")
