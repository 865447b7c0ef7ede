"""Whole runs: the result's contract, and that nothing but the job decides the parameters."""

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import millrace as mr
from millrace.pipeline.config.load import read_toml, resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup import checks
from millrace.pipeline.telemetry.events import EpochDone, Note, StepDone
from millrace.pipeline.training import evaluation
from millrace.pipeline.training import step as training_step
from millrace.stages.kernels.runtime import threads as kernel_threads
from millrace.stages.neighbourhood.base import destinations
from millrace.stages.reduce import seed_weighted
from millrace.storage.checkpoint import CheckpointStore
from millrace.storage.features import ArrayFeatures
from millrace.storage.store.narrow import narrow, widen
from millrace.tests.contracts.killed_run import check_goes_on_after_a_kill

SMALL = {
    "epochs": 4,
    "fanout": [4, 3],
    "batch_size": 16,
    "hidden": 8,
    "seed": 3,
    "lr": 0.02,
    "dropout": 0.1,
    "threads": 1,
}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=600,classes=3,degree=8,features=5,train=0.2")


def test_result_follows_the_contract(sbm, tmp_path):
    events = []
    result = mr.run(sbm, out=tmp_path / "run", emit=events.append, check=True, **SMALL)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record == json.loads(json.dumps(result.to_record()))
    assert (
        repr(result).startswith(f"Result(sage on {sbm.name} by bulk: 4 epochs, validation accuracy 0.")
        and len(repr(result)) < 400
    )
    assert set(record) >= {
        "schema_version", "status", "system", "model", "dataset", "num_nodes", "num_edges", "device", "dtype", "ranks",
        "epochs",
        "seed", "minibatches_per_step", "train_loss", "val_accuracy", "test_accuracy", "best_epoch", "seconds", "bytes",
        "peak_rss_bytes", "memory_bytes", "peak_device_bytes", "minibatches", "sampled_edges", "fingerprint",
        "parameters_sha256",
        "versions",
    }  # fmt: skip
    assert set(record["seconds"]) == {
        "partition", "sample", "queue_wait", "fetch", "fetch_wait", "exchange", "forward_backward", "reduce",
        "evaluate", "total",
        "per_epoch",
    }  # fmt: skip
    assert set(record["bytes"]) >= {"network", "store", "evaluation", "per_rank"}
    assert record["status"] == "done"
    assert record["epochs"] == 4 == len(record["seconds"]["per_epoch"])
    assert record["minibatches"] == 4 * -(-len(sbm.split.train) // 16)
    assert record["test_accuracy"] > 0.5
    assert sum(isinstance(e, EpochDone) for e in events) == 4
    assert sum(isinstance(e, StepDone) for e in events) == record["minibatches"]
    assert resolve(read_toml(tmp_path / "run" / "job.toml")).epochs == 4
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] != "Pulse"] == [type(e).__name__ for e in events]
    assert lines[-1]["event"] == "Pulse"


def digest(sbm, folder, **options):
    return mr.run(sbm, out=folder, **{**SMALL, **options}).parameters_sha256


def test_layout_of_the_work_does_not_show(sbm, tmp_path):
    """Bulk size, queue and kernel change nothing at all."""
    seen = {
        digest(sbm, tmp_path / "a"),
        digest(sbm, tmp_path / "b", queue={"bulk_size": 1}),
        digest(sbm, tmp_path / "c", queue={"kind": "zarr", "keep": "all", "bulk_size": 3}),
        digest(sbm, tmp_path / "d", queue={"kind": "zarr", "keep": "none", "max_bytes": 1}),
    }
    assert len(seen) == 1
    assert digest(sbm, tmp_path / "f", seed=4) not in seen


def test_products_in_scipy_draw_what_compiled_ones_do(sbm, tmp_path):
    given = {k: v for k, v in SMALL.items() if k != "fanout"} | {"sampler": {"name": "saint", "walks": 2, "length": 2}}
    seen = {mr.run(sbm, out=tmp_path / k, kernel=k, **given).parameters_sha256 for k in ("cpu", "matrix")}
    assert len(seen) == 1


def test_the_kernel_reference_is_refused_and_runs_that_name_it_still_open(sbm, tmp_path):
    with pytest.raises(mr.InputError, match="'kernel' is 'reference': which is no longer part of the package; leave"):
        digest(sbm, tmp_path / "a", kernel="reference")
    kept = digest(sbm, tmp_path / "a", epochs=2)
    table = tmp_path / "a" / "job.toml"
    table.write_text(table.read_text().replace('kernel = "cpu"', 'kernel = "reference"'))
    assert 'kernel = "reference"' in table.read_text()
    assert len(mr.predict(tmp_path / "a", sbm)) == sbm.graph.num_nodes
    assert digest(sbm, tmp_path / "a", epochs=2, resume=True) == kept


def test_objects_of_other_packages_are_opened(tmp_path):
    from torch_geometric.data import Data

    rng, events = np.random.default_rng(0), []
    edges, y = rng.integers(0, 60, (2, 300)), rng.integers(0, 3, 60)
    data = Data(x=torch.eye(3)[y], y=torch.tensor(y), edge_index=torch.tensor(edges))
    read = {"direction": "directed"}
    result = mr.run(data, out=tmp_path / "a", read=read, split="fraction:0.5,0.2", emit=events.append, **SMALL)
    opened = mr.from_pyg(data, options=mr.ReadOptions(direction="directed"), split="fraction:0.5,0.2", seed=3)
    assert result.parameters_sha256 == digest(opened, tmp_path / "b")
    assert "opening a Data" in [getattr(e, "text", None) for e in events]
    with pytest.raises(
        mr.InputError, match=r"a SciPy matrix has no labels; use from_scipy\(adjacency, features, labels\)"
    ):
        mr.run(sp.eye_array(3), out=tmp_path / "c")
    with pytest.raises(mr.InputError, match="the dataset is the class Data; expected an object of that class"):
        mr.plan(Data)
    with pytest.raises(mr.InputError, match="features is 'mapped', but a Data is not a Millrace store"):
        mr.run(data, features="mapped", out=tmp_path / "c")


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
def test_resume_is_bitwise_the_same(sbm, tmp_path, model):
    options = {**SMALL, "model": {"name": model, "norm": "batch"}}
    whole = mr.run(sbm, out=tmp_path / "whole", **{**options, "epochs": 6})
    mr.run(sbm, out=tmp_path / "parts", **{**options, "epochs": 3})
    resumed = mr.run(sbm, out=tmp_path / "parts", resume=True, **{**options, "epochs": 6})
    assert resumed.parameters_sha256 == whole.parameters_sha256
    assert resumed.best_epoch == whole.best_epoch
    assert resumed.test_accuracy == whole.test_accuracy
    assert (resumed.epochs, resumed.minibatches, resumed.sampled_edges) == (
        whole.epochs,
        whole.minibatches,
        whole.sampled_edges,
    )
    assert resumed.train_loss == whole.train_loss


def test_a_run_that_was_asked_to_stop_has_a_result_and_goes_on(sbm, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "STOP_S", float("inf"))
    whole = mr.run(sbm, out=tmp_path / "whole", **SMALL)
    out, asked = tmp_path / "parts", iter(range(1000))
    result = mr.run(sbm, out=out, stop=lambda: next(asked) == 10, **SMALL)
    assert (result.status, result.test_accuracy) == ("stopped", None)
    record = json.loads((out / "result.json").read_text())
    assert record == result.to_record()
    epochs, steps = divmod(11, whole.minibatches // whole.epochs)
    assert steps, "not in mid-epoch"
    assert (result.epochs, result.minibatches) == (epochs, 11)
    assert result.seconds["per_epoch"] == [h for h in result.seconds["per_epoch"] if h > 0]
    found = CheckpointStore(out / "checkpoints", result.fingerprint, read_only=True).latest()
    kept = torch.load(out / "model.pt", weights_only=True)
    best = found[1]["progress"]["best_state"]
    assert kept.keys() == best.keys()
    assert all(torch.equal(kept[k], best[k]) for k in kept), "the best parameters so far"
    notes = []
    resumed = mr.run(
        sbm, out=out, resume=True, emit=lambda e: notes.append(e) if isinstance(e, Note) else None, **SMALL
    )
    assert f"resumed at epoch {epochs + 1}, step {steps + 1}" in [n.text for n in notes]
    assert (resumed.status, resumed.parameters_sha256) == ("done", whole.parameters_sha256)
    assert resumed.train_loss == whole.train_loss
    assert 0 < result.seconds["sample"] < resumed.seconds["sample"], "seconds of both"


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [False, True])
def test_a_damaged_queue_is_sampled_again(sbm, tmp_path, manifest):
    """Bulks that were sampled ahead, or the queue as a whole."""
    options, asked, notes = SMALL | {"queue": {"kind": "zarr", "keep": "all", "bulk_size": 2}}, iter(range(1000)), []
    mr.run(sbm, out=tmp_path / "run", stop=lambda: next(asked) == 10, **options)
    queue = tmp_path / "run" / "queue"
    damaged = [queue / "manifest.json"] if manifest else sorted(queue.glob("epoch-*/bulk-*/manifest.json"))
    assert damaged
    for file in damaged:
        file.write_bytes(file.read_bytes()[:50])
    result = mr.run(
        sbm,
        out=tmp_path / "run",
        resume=True,
        emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
        **options,
    )
    assert any("damaged" in text and "sampled again" in text for text in notes)
    assert (result.status, result.parameters_sha256) == ("done", digest(sbm, tmp_path / "whole"))


@pytest.mark.parametrize("queue", ["memory", "zarr"])
def test_killed_in_mid_epoch_and_resumed(sbm, tmp_path, queue):
    """In the second of epochs with four steps."""
    options = {**SMALL, "batch_size": 30, "queue": {"kind": queue, "bulk_size": 3}}
    whole = mr.run(sbm, out=tmp_path / "whole", **options)
    mr.write_dataset(tmp_path / "store", sbm)
    notes = check_goes_on_after_a_kill(tmp_path / "store", tmp_path / "killed", whole, options)
    assert "resumed at epoch 2, step 3" in notes


def test_precomputed_samples_train_the_same_model(sbm, tmp_path):
    job = resolve(
        {"dataset": "sbm:nodes=600,classes=3,degree=8,features=5,train=0.2", "epochs": 4, "seed": 3,
        "sampler": {"fanout": [4, 3]},
         "train": {"batch_size": 16}, "model": {"hidden": 8}, "queue": {"bulk_size": 3}}
    )  # fmt: skip
    live = mr.run(config=job, out=tmp_path / "live")
    report = precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    assert report["minibatches"] == live.minibatches
    again = precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    assert again["edges"] == 0, "bulks that are there are not sampled again"
    for i in range(2):
        stored = mr.run(config=job, samples=tmp_path / "samples", out=tmp_path / f"stored{i}")
        assert stored.parameters_sha256 == live.parameters_sha256
        assert stored.seconds["sample"] == 0
    with pytest.raises(mr.StoreError, match="seed"):
        mr.run(config=job.model_copy(update={"seed": 4}), samples=tmp_path / "samples", out=tmp_path / "other")
    with pytest.raises(mr.InputError, match="holds 4 epochs, but epochs is 5"):
        mr.run(config=job.model_copy(update={"epochs": 5}), samples=tmp_path / "samples", out=tmp_path / "more")
    batches = list(mr.open_queue(tmp_path / "samples"))
    assert len(batches) == live.minibatches
    assert sum(b.num_edges for b in batches) == live.sampled_edges


def test_accumulated_minibatches_are_one_large_step(sbm, tmp_path):
    """Four minibatches a step, weighted by seeds, is the gradient of their union (full neighbourhoods, no dropout)."""
    options = {
        "epochs": 2,
        "fanout": [-1, -1],
        "hidden": 8,
        "dropout": 0.0,
        "dtype": "float64",
        "seed": 1,
        "threads": 1,
    }
    one = mr.run(sbm, out=tmp_path / "one", batch_size=48, **options)
    four = mr.run(sbm, out=tmp_path / "four", batch_size=12, minibatches_per_step=4, **options)
    assert one.train_loss == pytest.approx(four.train_loss, rel=1e-10)
    a, b = (torch.load(tmp_path / n / "model.pt", weights_only=True) for n in ("one", "four"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-12)


def test_multi_label(tmp_path):
    data = mr.open_dataset("sbm:nodes=400,classes=3,degree=8,features=5")
    onehot = np.eye(4, dtype=np.float32)[data.labels]
    onehot[:, 3] = data.labels == 0
    multi = mr.Dataset("multi", data.graph, data.features, onehot, data.split, 4, "multilabel")
    result = mr.run(multi, out=tmp_path / "run", **{**SMALL, "epochs": 10})
    assert result.test_accuracy > 0.6


class Own(torch.nn.Module):
    """A user's own layers."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(10, 8), torch.nn.Linear(8, 3)

    def layer(self, i, neighbourhood, h):
        if i == 0:
            return torch.relu(self.a(torch.cat([destinations(neighbourhood, h), neighbourhood.max(h)], 1)))
        return self.b(
            destinations(neighbourhood, h)
            + neighbourhood.apply(lambda src, dst, w: src * torch.sigmoid(dst), h, reduce="mean")
        )

    def forward(self, neighbourhoods, h):
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


@pytest.mark.parametrize("typed", [False, True])
def test_a_module_too_narrow_for_the_classes_is_refused_before_anything_is_written(sbm, tmp_path, typed):
    class Narrow(Own):
        def layer(self, i, neighbourhood, h):
            return super().layer(i, neighbourhood, h)[:, : 2 if i == self.num_layers - 1 else None]

    data, module = (mr.open_dataset("hsbm:nodes=80") if typed else sbm), Narrow()
    if typed:
        module.a, module.num_layers = torch.nn.Linear(2 * data.num_features, 8), 1
    with pytest.raises(
        mr.InputError, match=r"the model Narrow gives nodes 2 columns, but the dataset has . classes; make"
    ):
        mr.run(data, model=module, out=tmp_path / "run", fanout=[2] * module.num_layers, epochs=1, batch_size=16)
    assert not (tmp_path / "run").exists()


def test_a_module_of_ones_own(sbm, tmp_path):
    a = mr.run(sbm, model=Own(), out=tmp_path / "a", lr=0.02, epochs=3, fanout=[4, 3], batch_size=16)
    b = mr.run(
        sbm,
        model=Own(),
        out=tmp_path / "b",
        lr=0.02,
        epochs=3,
        system=mr.bulk(mr.NeighborSampler((4, 3))),
        batch_size=16,
    )
    assert a.model == "Own"
    assert a.parameters_sha256 == b.parameters_sha256
    assert a.test_accuracy > 0.5


@pytest.mark.parametrize(
    ("model", "threads"), [("sage", 1), ("gat", 1), ({"name": "sage", "norm": "layer"}, 2), ("own", 2)]
)
def test_torch_gets_threads_where_a_model_leaves_it_work(sbm, tmp_path, monkeypatch, model, threads):
    seen, before, train = [], torch.get_num_threads(), seed_weighted.forward_backward

    def watched(*args, **options):
        seen.append((torch.get_num_threads(), kernel_threads.get_num_threads()))
        return train(*args, **options)

    monkeypatch.setattr(seed_weighted, "forward_backward", watched)
    options = {k: v for k, v in SMALL.items() if model != "own" or k not in ("hidden", "dropout")}
    mr.run(
        sbm, out=tmp_path / "run", **{**options, "epochs": 1, "threads": 2, "model": Own() if model == "own" else model}
    )
    assert set(seen) == {(threads, 2)}
    assert torch.get_num_threads() == before


def test_records_from_python(sbm, tmp_path):
    result = mr.run(
        sbm,
        system=mr.bulk(mr.NeighborSampler((4, 3, 2))),
        model=mr.GraphSAGE(hidden=8, layers=3),
        epochs=1,
        out=tmp_path / "run",
    )
    job = resolve(read_toml(tmp_path / "run" / "job.toml"))
    assert (result.model, job.sampler["fanout"], job.model["hidden"]) == ("sage", [4, 3, 2], 8)


def test_early_stopping_is_kept_over_a_resume(sbm, tmp_path):
    options = {**SMALL, "epochs": 40, "train": {"patience": 2, "batch_size": 16}}
    options.pop("batch_size")
    first = mr.run(sbm, out=tmp_path / "run", **options)
    assert first.epochs < 40
    again = mr.run(sbm, out=tmp_path / "run", resume=True, **options)
    assert (again.epochs, again.parameters_sha256) == (first.epochs, first.parameters_sha256)


@pytest.mark.parametrize(
    ("options", "error", "phrase"),
    [
        ({"ranks": 2, "executor": "inline"}, mr.InputError, "one process holds one rank"),
        (
            {"model": mr.GraphSAGE(layers=3), "system": mr.bulk(mr.NeighborSampler((2,)))},
            mr.InputError,
            "one number per layer",
        ),
        ({"model": torch.nn.Linear(2, 2)}, mr.InputError, "num_layers"),
        (
            {"model": mr.GraphSAGE(layers=2), "hidden": 8},
            mr.InputError,
            "model.hidden is 8, but the model is an object",
        ),
        ({"model": mr.GraphSAGE}, mr.InputError, "is the class SAGE"),
        ({"model": print}, mr.InputError, "is a builtin_function_or_method; expected a record"),
        ({"resume": True}, mr.InputError, "no run to resume"),
        (
            {"graph": "mapped", "system": "sar"},
            mr.InputError,
            "graph is 'mapped', but system 'sar' arranges the edges of one rank in memory; leave graph out",
        ),
        ({"graph": "mapped", "system": "retexo"}, mr.InputError, "'retexo' arranges the edges of one rank in memory"),
        *(
            ({"graph": "mapped", "system": system, "ranks": 2, system: keys}, mr.InputError, phrase)
            for system, keys, phrase in (
                ("retexo", {"inductive": True}, "copies the edges without the nodes to come in memory"),
                ("retexo", {"clients": 3}, "counts the rows of simulated clients in memory"),
                ("grappa", {"chunks": 2}, "joins the chunks of a rank in memory to evaluate them"),
            )
        ),
    ],
)
def test_what_does_not_fit_is_refused(sbm, tmp_path, options, error, phrase):
    with pytest.raises(error, match=phrase):
        mr.run(sbm, out=tmp_path / "run", **{"epochs": 1, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stored", [False, True])
def test_an_opened_dataset_may_be_split_anew(sbm, tmp_path, stored):
    data, notes = sbm, []
    if stored:
        mr.write_dataset(tmp_path / "store", sbm)
        data = mr.open_dataset(tmp_path / "store")
    options = {**SMALL, "split": "fraction:0.5,0.1", "out": tmp_path / "run"}
    options |= {"features": "mapped"} if stored else {}
    result = mr.run(data, emit=notes.append, **options)
    told = [e.text for e in notes if isinstance(e, Note)]
    assert len(told) == len(set(told))
    assert result.minibatches == SMALL["epochs"] * -(-300 // SMALL["batch_size"])
    assert mr.run(data, resume=True, **{**options, "epochs": 5}).epochs == 5
    assert mr.run(data, resume=True, out=options["out"], epochs=6).epochs == 6, "as it was split when the run began"
    with pytest.raises(mr.InputError, match="read"):
        mr.run(data, **{**options, "read": {"self_loops": "drop"}, "out": tmp_path / "read"})


def test_narrow_features_train_alike_wherever_they_lie(sbm, tmp_path):
    """As the rounded rows in float32 do."""
    rows = widen(narrow(sbm.features.gather(np.arange(sbm.num_nodes)), "int8"), "int8")
    want = mr.run(replace(sbm, features=ArrayFeatures(rows)), out=tmp_path / "want", **SMALL)
    for features, form in (("memory", "npy"), ("mapped", "npy"), ("zarr", "zarr")):
        store = tmp_path / f"store-{features}"
        mr.write_dataset(store, sbm, features_format=form, feature_dtype="int8")
        got = mr.run(store, features=features, out=tmp_path / features, **SMALL)
        assert got.parameters_sha256 == want.parameters_sha256
        assert got.test_accuracy == want.test_accuracy
    opened = mr.open_dataset(store, features="zarr")
    again = mr.run(opened, out=tmp_path / "again", **SMALL)
    assert again.parameters_sha256 == want.parameters_sha256
    assert 'features = "zarr"' in (tmp_path / "again" / "job.toml").read_text()
    assert len(mr.predict(got)) == sbm.num_nodes


def test_a_run_folder_is_never_overwritten(sbm, tmp_path):
    mr.run(sbm, out=tmp_path / "run", **SMALL)
    with pytest.raises(mr.InputError, match="already holds a run"):
        mr.run(sbm, out=tmp_path / "run", **SMALL)
    with pytest.raises(mr.StoreError, match="model"):
        mr.run(sbm, out=tmp_path / "run", resume=True, **{**SMALL, "hidden": 9})


def test_an_empty_train_split_is_a_sentence(sbm, tmp_path):
    none = np.empty(0, np.int64)
    data = mr.Dataset("d", sbm.graph, sbm.features, sbm.labels, mr.Split(none, sbm.split.val, sbm.split.test), 3)
    with pytest.raises(mr.InputError, match="train split is empty"):
        mr.run(data, out=tmp_path / "run", **SMALL)


def test_without_validation_the_last_parameters_are_kept(sbm, tmp_path):
    data = mr.Dataset(
        "d", sbm.graph, sbm.features, sbm.labels, mr.Split(sbm.split.train, np.empty(0, np.int64), sbm.split.test), 3
    )
    result = mr.run(data, out=tmp_path / "run", **SMALL)
    assert result.val_accuracy is None
    assert result.best_epoch == -1
    assert result.test_accuracy is not None


def test_a_failing_producer_ends_the_run(sbm, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(mr.NeighborSampler, "sample", broken)
    start = time.monotonic()
    with pytest.raises(mr.RunError, match="no space left"):
        mr.run(sbm, out=tmp_path / "run", **SMALL)
    assert time.monotonic() - start < 240


def test_a_producer_elsewhere_that_ends_is_missed_at_once(sbm, tmp_path, monkeypatch):
    """A store that is still being written, by a process that then goes away."""
    from millrace.pipeline.setup import open_queue

    job = resolve(
        {"dataset": "sbm:nodes=600,classes=3,degree=8,features=5,train=0.2", "epochs": 2, "sampler": {"fanout": [4, 3]},
         "train": {"batch_size": 16}, "model": {"hidden": 8}, "queue": {"bulk_size": 3}, "threads": 1}
    )  # fmt: skip
    precompute(job.model_copy(update={"epochs": 1}), tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    shutil.rmtree(tmp_path / "samples" / "complete")
    asked = iter([True, True, True])
    monkeypatch.setattr(open_queue, "is_locked", lambda folder: next(asked, False))
    start = time.monotonic()
    with pytest.raises(mr.RunError, match="whoever was sampling has ended"):
        mr.run(config=job, samples=tmp_path / "samples", out=tmp_path / "run")
    assert time.monotonic() - start < 120
    precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    monkeypatch.undo()
    resumed = mr.run(config=job, samples=tmp_path / "samples", out=tmp_path / "run", resume=True)
    assert resumed.parameters_sha256 == mr.run(config=job, out=tmp_path / "live").parameters_sha256


@pytest.mark.parametrize("model", ["sage", "gat", "own"])
def test_products_in_bfloat16_train_almost_the_same(sbm, tmp_path, monkeypatch, model):
    monkeypatch.setattr(checks, "has_bfloat16", lambda: True)  # elsewhere torch imitates it

    def trained(name, products):
        made = Own() if model == "own" else model
        options = {**SMALL, "epochs": 8, "dropout": 0.0, "train": {"matmul_precision": products}}
        for key in ("hidden", "dropout") if model == "own" else ():
            del options[key]
        return mr.run(sbm, out=tmp_path / name, model=made, **options)

    exact, low, again = trained("exact", "float32"), trained("low", "bfloat16"), trained("again", "bfloat16")
    assert low.parameters_sha256 != exact.parameters_sha256
    assert low.train_loss == pytest.approx(exact.train_loss, rel=0.05)
    assert low.test_accuracy == pytest.approx(exact.test_accuracy, abs=0.05)
    assert again.parameters_sha256 == low.parameters_sha256


@pytest.mark.parametrize(
    ("has", "options", "match"),
    [(True, {"dtype": "float64"}, 'expected dtype = "float32"'), (False, {}, "does not multiply in bfloat16")],
)
def test_bfloat16_is_refused_where_it_cannot_be(sbm, tmp_path, monkeypatch, has, options, match):
    monkeypatch.setattr(checks, "has_bfloat16", lambda: has)
    with pytest.raises(mr.InputError, match=match):
        mr.run(sbm, out=tmp_path / "run", **{**SMALL, **options, "train": {"matmul_precision": "bfloat16"}})
    assert not (tmp_path / "run").exists()


def test_a_runs_memory_is_accounted_for(sbm, tmp_path, monkeypatch):
    monkeypatch.setattr(training_step, "MEMORY_NOTE_BYTES", 0)
    notes = []
    result = mr.run(
        sbm,
        out=tmp_path / "run",
        emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
        **{**SMALL, "hidden": 512, "batch_size": 120},
    )
    (memory,) = result.memory_bytes
    assert memory["graph"] == sbm.graph.nbytes
    assert memory["features"] == 600 * 5 * 4
    # At least the hidden layer's rows of a step, and not the run's minibatches together.
    assert 120 * 512 * 4 <= memory["step"] <= 40 * 600 * 512 * 4
    assert sum(n.startswith("memory: graph") for n in notes) == 1
