"""Learnt features in whole runs: against plain torch, on several ranks, after a resume, in prediction; and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import millrace as mr
from millrace.pipeline.cli import app
from millrace.pipeline.training import evaluation
from millrace.stages.learned.table import initial_rows
from millrace.storage.errors import InputError, StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.typed.features import TypedFeatures
from millrace.tests.contracts.bulk_ranks import last_parameters, train_bulk

SPEC = "sbm:nodes=300,classes=3,degree=8,features=5,train=0.3"
JOB = {"epochs": 4, "seed": 3, "lr": 0.05, "threads": 1, "dtype": "float64", "fanout": [4, 3], "batch_size": 16}
OWN = {"hidden": 8, "layers": 2, "dropout": 0.1}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset(SPEC)


class Mean(nn.Module):
    """One layer over the mean of in-neighbours, which plain torch can compute from a matrix."""

    num_layers = 1

    def __init__(self, width, out=3):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2 * width, out)

    def layer(self, i, neighbourhood, h):
        return self.linear(torch.cat([mr.destinations(neighbourhood, h), neighbourhood.mean(h)], 1))


def rows_of(folder):
    return np.load(folder / "learned.npy")


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "sgd"])
def test_a_run_is_that_of_plain_torch(sbm, tmp_path, optimizer, beside):
    schedule = {"schedule": {"name": "cosine"}, "evaluate_every": 0}
    learned = {"width": 4, "beside": beside, "optimizer": optimizer, "lr": 0.2}
    width = 9 if beside else 4
    out = tmp_path / "run"
    options = {**JOB, "fanout": [-1], "batch_size": 300, "learned": learned, "train": schedule}
    result = mr.run(sbm, model=Mean(width), out=out, verbose=False, **options)
    model = Mean(width).double()
    table = nn.Embedding.from_pretrained(initial_rows(np.arange(300), 4, torch.float64, 3), freeze=False, sparse=True)
    make = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam, "sgd": torch.optim.SGD}[optimizer]
    dense, sparse = torch.optim.Adam(model.parameters(), lr=0.05), make(table.parameters(), lr=0.2)
    falling = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 4) for o in (dense, sparse)]
    graph, train = sbm.graph, torch.from_numpy(sbm.split.train)
    matrix = torch.zeros(300, 300, dtype=torch.float64)
    for node in range(300):
        sources = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        if len(sources):
            matrix[node, torch.from_numpy(sources.astype(np.int64))] = 1 / len(sources)
    features = torch.from_numpy(sbm.features.gather(np.arange(300))).double()
    # Only the nodes that a minibatch reads.
    read = torch.unique(torch.cat([train, matrix[train].nonzero()[:, 1]]))
    for _ in range(4):
        rows = torch.zeros(300, 4, dtype=torch.float64).index_put((read,), table(read))
        h = torch.cat([features, rows], 1) if beside else rows
        out_rows = model.linear(torch.cat([h, matrix @ h], 1))[train]
        loss = F.cross_entropy(out_rows, torch.from_numpy(sbm.labels)[train])
        for o in (dense, sparse):
            o.zero_grad()
        loss.backward()
        for o in (dense, sparse):
            o.step()
        for s in falling:
            s.step()
    assert result.train_loss == pytest.approx(loss.item(), abs=1e-12)
    np.testing.assert_allclose(rows_of(out), table.weight.detach().numpy(), rtol=0, atol=1e-12)
    trained = torch.load(out / "model.pt", weights_only=True)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-12)


class TableAndMean(nn.Module):
    """A dense table of rows, which features of one column for each node select, and a layer over their mean."""

    num_layers = 1

    def __init__(self, rows, out, mean=Mean):
        super().__init__()
        self.rows = nn.Parameter(rows)
        self.mean = mean(rows.shape[1], out)

    def layer(self, i, neighbourhood, h):
        return self.mean.layer(i, neighbourhood, h @ self.rows)


class MeansOfRelations(Mean):
    """The same over the in-neighbours of each relation, added up."""

    def layer(self, i, neighbourhood, h):
        out = self.linear(torch.cat([h[: neighbourhood.num_dst]] * 2, 1))
        for relation in neighbourhood.relations():
            out = out.index_add(0, relation.targets, self.linear(torch.cat([relation.mean(h)] * 2, 1)))
        return out


TEMPORAL, NEIGHBOR = {"name": "temporal", "fanout": [3]}, {"name": "neighbor", "fanout": [3]}
SAMPLED = {"links": NEIGHBOR, "links by time": TEMPORAL, "nodes by time": TEMPORAL, "nodes of several types": NEIGHBOR}


def sampled_data(kind):
    """A dataset of `SAMPLED` whose features select a node's row."""
    typed = kind == "nodes of several types"
    data = mr.open_dataset("hsbm:nodes=30,classes=3" if typed else "tsbm:nodes=60,degree=6", seed=1)
    rows = np.eye(data.num_nodes)
    data = replace(data, features=ArrayFeatures(rows))
    if typed:
        offsets = data.graph.types.offsets
        parts = tuple(ArrayFeatures(rows[a:b]) for a, b in zip(offsets, offsets[1:]))
        return replace(data, features=TypedFeatures(parts, offsets))
    if kind == "nodes by time":
        return data
    return mr.link_dataset(data, split="time:0.7,0.15" if "time" in kind else "fraction:0.7,0.15", seed=1)


@pytest.mark.parametrize("kind", SAMPLED)
def test_rows_of_links_times_and_types_train_as_a_dense_table(tmp_path, kind):
    data = sampled_data(kind)
    rows = initial_rows(np.arange(data.num_nodes), 4, torch.float64, 3)
    mean = MeansOfRelations if "types" in kind else Mean
    out = {"links": 6, "links by time": 6}.get(kind, data.num_classes)
    link = {"link": {"width": 6, "num_negatives": 2, "decoder": "mlp"}} if "links" in kind else {}
    job = {
        "epochs": 2, "seed": 3, "threads": 1, "dtype": "float64", "sampler": SAMPLED[kind], **link, "check": True,
        "train": {"batch_size": 16, "lr": 0.1, "optimizer": "sgd", "minibatches_per_step": 2, "clip_norm": 0.3},
    }  # fmt: skip
    dense = mr.run(data, model=TableAndMean(rows.clone(), out, mean), config=job, out=tmp_path / "dense", verbose=False)
    learned = {"width": 4, "beside": False, "optimizer": "sgd"}
    result = mr.run(data, model=mean(4, out), config={**job, "learned": learned}, out=tmp_path / "run", verbose=False)
    state = torch.load(tmp_path / "dense" / "model.pt", weights_only=True)
    assert (rows.numpy() != state["rows"].numpy()).any(1).mean() > 0.5
    np.testing.assert_allclose(rows_of(tmp_path / "run"), state["rows"].numpy(), rtol=0, atol=1e-12)
    assert result.train_loss == pytest.approx(dense.train_loss, abs=1e-12)
    assert result.test_accuracy == dense.test_accuracy
    assert result.test_metrics == pytest.approx(dense.test_metrics, abs=1e-9)
    if "links" in kind:
        pairs = data.labels[data.split.test, :2]
        models = {"run": Mean(4, out), "dense": TableAndMean(rows, out)}
        runs = [mr.load(tmp_path / name, model=model) for name, model in models.items()]
        found, there = (mr.predict_links(run, pairs, data) for run in runs)
        np.testing.assert_allclose(found.scores, there.scores, rtol=1e-9)


def test_two_ranks_train_the_rows_of_links_that_one_trains(tmp_path):
    mr.write_dataset(tmp_path / "store", sampled_data("links by time"))
    table = {
        **{k: v for k, v in JOB.items() if k != "fanout"}, "system": "bulk", "sampler": TEMPORAL, "learned": 4,
        "model": {"name": "sage", "hidden": 4, "layers": 1}, "minibatches_per_step": 2, "epochs": 1,
    }  # fmt: skip
    for ranks in (1, 2):
        train_bulk(str(tmp_path / "store"), tmp_path / str(ranks), {**table, "ranks": ranks})
    np.testing.assert_allclose(rows_of(tmp_path / "2"), rows_of(tmp_path / "1"), rtol=0, atol=1e-9)


def test_any_number_of_ranks_trains_the_same_rows_and_goes_on_for_another(tmp_path):
    table = {
        **{k: v for k, v in JOB.items() if k not in ("lr", "batch_size")}, "system": "bulk", "learned": 4,
        "model": {"name": "sage", **OWN},
        "train": {"lr": 0.05, "batch_size": 16, "minibatches_per_step": 4, "clip_norm": 0.5},
    }  # fmt: skip
    found = {}
    for ranks in (1, 2, 4):
        reports = train_bulk(SPEC, tmp_path / str(ranks), {**table, "ranks": ranks})
        found[ranks] = reports[0], rows_of(tmp_path / str(ranks)), last_parameters(tmp_path / str(ranks))
        moved = [r["bytes"]["network"] for r in reports]
        assert ranks == 1 or all(m["features"] and m["gradients"] for m in moved)
    begun = train_bulk(SPEC, tmp_path / "changed", {**table, "ranks": 2, "checkpoint": {"every_steps": 1}}, steps=5)
    assert "test_accuracy" not in begun[0]
    reports = train_bulk(SPEC, tmp_path / "changed", {**table, "ranks": 1})
    found["changed"] = reports[0], rows_of(tmp_path / "changed"), last_parameters(tmp_path / "changed")
    report, rows, model = found[1]
    for other, other_rows, other_model in found.values():
        np.testing.assert_allclose(other_rows, rows, rtol=0, atol=1e-9)
        assert other["test_accuracy"] == report["test_accuracy"] and other["best_epoch"] == report["best_epoch"]
        for name, value in model.items():
            torch.testing.assert_close(other_model[name], value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "within", "period"), [("adagrad", False, 4), ("adam", False, 4), ("adam", True, 19)]
)
def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(sbm, tmp_path, monkeypatch, optimizer, within, period):
    """By steps alone, or by evaluations too, which ask three times more."""
    real = evaluation.split_rows

    def slow(*args):
        for i in range(3):
            args[-1].on_progress(i, 100)
        return real(*args)

    monkeypatch.setattr(evaluation, "STOP_S", -1.0 if within else float("inf"))
    monkeypatch.setattr(evaluation, "split_rows", slow)
    options = {**JOB, **OWN, "learned": {"width": 4, "optimizer": optimizer}, "checkpoint": {"every_steps": 1}}
    whole = mr.run(sbm, out=tmp_path / "whole", verbose=False, **options)
    asked, lives = iter(range(1000)), 0
    while mr.run(
        sbm,
        out=tmp_path / "parts",
        resume=lives > 0,
        verbose=False,
        stop=lambda: next(asked) % period == period - 2,
        **options,
    ).status == ("stopped"):
        lives += 1
        # A stopped run can be used too.
        assert rows_of(tmp_path / "parts").shape == (300, 4)
        assert len(mr.predict(tmp_path / "parts", nodes="test")) == len(sbm.split.test)
    resumed = mr.run(sbm, out=tmp_path / "parts", resume=True, verbose=False, **options)
    assert lives and resumed.parameters_sha256 == whole.parameters_sha256
    assert (resumed.test_accuracy, resumed.best_epoch) == (whole.test_accuracy, whole.best_epoch)
    assert np.array_equal(rows_of(tmp_path / "parts"), rows_of(tmp_path / "whole"))


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
def test_a_saved_run_predicts_what_it_was_tested_on(sbm, tmp_path, model):
    result = mr.run(sbm, out=tmp_path / "run", model=model, learned=4, verbose=False, **JOB, **OWN)
    assert result.num_features == 5
    predictions = mr.predict(result, nodes="test")
    assert (predictions.classes == sbm.labels[sbm.split.test]).mean() == pytest.approx(result.test_accuracy)
    run = mr.load(tmp_path / "run")
    data = run.open_dataset()
    assert data.features.num_features == 9
    logits = mr.infer(run.model, data, nodes="test")
    assert np.array_equal(logits.numpy(), predictions.logits)
    assert mr.embed(run).rows.shape == (300, 8)
    assert np.array_equal(mr.predict(run, data, nodes="test").logits, predictions.logits)
    # The same nodes with other edges.
    assert len(mr.predict(run, "sbm:nodes=300,classes=3,degree=3,features=5")) == 300
    with pytest.raises(InputError, match="learnt features of 300 nodes and of no others"):
        mr.predict(run, "sbm:nodes=299,classes=3,features=5")
    (tmp_path / "run" / "learned.npy").unlink()
    with pytest.raises(StoreError, match=r"has no learned\.npy"):
        mr.predict(run)


@pytest.mark.parametrize("beside", [True, False])
def test_a_saved_run_predicts_into_files(tmp_path, beside):
    learned = {"width": 4, "beside": beside}
    mr.run(SPEC, out=tmp_path / "run", learned=learned, verbose=False, **JOB, **OWN)
    run = str(tmp_path / "run")
    for options, width in ([], 3), (["--embeddings"], 8):
        out = tmp_path / f"{width}.npy"
        command = ["predict", run, "--out", str(out), "--nodes", "test", *options]
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
        assert np.load(out).shape == (len(mr.predict(run, nodes="test")), width)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda rows: rows[:, :3], "3 numbers of a node, not 4"),
        (lambda rows: rows.astype(np.int32), "no table of floating-point numbers"),
        (lambda rows: rows[:, 0], "no table of floating-point numbers"),
        (lambda rows: b"pickled", "no complete .npy file"),
    ],
)
def test_damaged_rows_are_named_and_written_again(tmp_path, damage, sentence):
    run, options = tmp_path / "run", {**JOB, **OWN, "verbose": False}
    mr.run(SPEC, out=run, learned=4, **options)
    rows = rows_of(run)
    other = damage(rows)
    (run / "learned.npy").write_bytes(other) if isinstance(other, bytes) else np.save(run / "learned.npy", other)
    with pytest.raises(StoreError, match=r"learned\.npy does not match its digest .*--resume"):
        mr.predict(run)
    record = json.loads((run / "result.json").read_text())
    digests = record.pop("files_sha256")
    (run / "result.json").write_text(json.dumps(record))  # as runs were before their files had digests
    with pytest.raises(StoreError, match=rf"learned\.npy is damaged: {sentence}; .*--resume"):
        mr.predict(run)
    with pytest.raises(StoreError, match=rf"learned\.npy is damaged: {sentence}; .*--resume"):
        mr.run(SPEC, out=tmp_path / "next", learned=4, start_from=str(run), **options)
    assert not (tmp_path / "next").exists()
    (run / "result.json").write_text(json.dumps({**record, "files_sha256": digests}))
    mr.run(SPEC, out=run, learned=4, resume=True, **options)
    assert np.array_equal(rows_of(run), rows)


@pytest.mark.parametrize("model", ["rgcn", "hgt"])
def test_a_saved_run_on_several_types_predicts_what_it_was_tested_on(tmp_path, model):
    """Features have 2, 5 and no columns."""
    data = mr.open_dataset("hsbm:nodes=60,classes=3,features=5")
    result = mr.run(data, out=tmp_path / "run", model=model, learned=4, verbose=False, **JOB, **OWN)
    predictions = mr.predict(tmp_path / "run", nodes="test")
    assert (predictions.classes == data.labels[data.split.test]).mean() == pytest.approx(result.test_accuracy)


def test_rows_that_no_minibatch_reads_keep_their_bits(tmp_path):
    edges = np.stack([np.arange(20), (np.arange(20) + 1) % 20])
    graph = mr.from_edges(edges[0], edges[1], 40)
    split = mr.Split(np.arange(10), np.arange(10, 15), np.arange(15, 20))
    features = ArrayFeatures(np.ones((40, 1), np.float32))
    data = mr.Dataset("ring", graph, features, np.arange(40) % 2, split, 2)
    mr.run(data, out=tmp_path / "run", learned=3, fanout=[2], epochs=2, batch_size=4, seed=1, verbose=False)
    before, after = initial_rows(np.arange(40), 3, torch.float32, 1).numpy(), rows_of(tmp_path / "run")
    assert np.array_equal(after[20:], before[20:])
    assert (after[:10] != before[:10]).any(1).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"learned": {"lr": 0.1}}, "learned.width is 0"),
        ({"learned": {"width": 4, "beside": False}, "features": "owned"}, "no features of the dataset are read"),
        ({"learned": 4, "train": {"ema": 0.9}}, "train.ema averages"),
        ({"learned": {"width": 4, "optimizer": "adamw"}}, "learned.optimizer"),
        ({"learned": -1}, "learned.width"),
        ({"learned": "many"}, "learned"),
        ({"features": "learned:64"}, "such as learned = 64"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(sbm, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        mr.run(sbm, out=tmp_path / "run", epochs=1, fanout=[2], verbose=False, **options)
    assert len(str(caught.value).splitlines()) <= 3
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", ["retexo", "grappa"])
def test_other_systems_refuse_learnt_features(sbm, tmp_path, system):
    with pytest.raises(InputError, match=f"learned.width is 4, but system '{system}'"):
        mr.run(sbm, system=system, out=tmp_path / "run", learned=4, epochs=1, verbose=False)
    assert not (tmp_path / "run").exists()


def test_a_run_starts_from_learnt_rows(sbm, tmp_path):
    options = {**JOB, **OWN, "verbose": False}
    first = mr.run(sbm, learned=4, out=tmp_path / "first", **options)
    still = {**options, "lr": 1e-14, "epochs": 1, "start_from": str(tmp_path / "first")}
    again = mr.run(sbm, learned=4, out=tmp_path / "again", **still)
    assert again.test_accuracy == first.test_accuracy
    np.testing.assert_allclose(rows_of(tmp_path / "again"), rows_of(tmp_path / "first"), rtol=0, atol=1e-12)
    with pytest.raises(InputError, match=r"start_from: .* has 299 nodes, but .*first has learnt features of 300"):
        mr.run("sbm:nodes=299,classes=3,features=5", learned=4, out=tmp_path / "other", **still)
    for other in 5, {"width": 4, "beside": False}, 0:
        with pytest.raises(
            InputError, match=r"that run learns 4 features of a node beside the dataset's, and this one"
        ):
            mr.run(sbm, learned=other, out=tmp_path / "other", **still)
    given = np.load(tmp_path / "first" / "learned.npy")
    np.save(tmp_path / "first" / "learned.npy", given + 1)
    with pytest.raises(StoreError, match="start"):
        mr.run(sbm, learned=4, out=tmp_path / "again", resume=True, **{**still, "epochs": 2})
    (tmp_path / "first" / "learned.npy").unlink()
    with pytest.raises(InputError, match=r"there is no .*learned\.npy"):
        mr.run(sbm, learned=4, out=tmp_path / "other", **still)
    assert not (tmp_path / "other").exists()


def test_another_width_does_not_resume(sbm, tmp_path):
    options = {**JOB, **OWN, "out": tmp_path / "run", "verbose": False}
    mr.run(sbm, learned=4, **options)
    with pytest.raises(StoreError, match=r"learned\.width \(was 4, now 5\)"):
        mr.run(sbm, learned=5, resume=True, **options)
