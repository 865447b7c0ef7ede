"""Features packed beside samples: what is trained on them, what they take, and what stops in their midst."""

import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline import packing
from millrace.pipeline.commands.describe import describe
from millrace.pipeline.config.load import resolve
from millrace.pipeline.packing import checked_form, own_form
from millrace.pipeline.precompute import precompute
from millrace.pipeline.telemetry.events import Note, StageAdvanced, silent
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, Interrupted, RunError, StoreError
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.tests.contracts.command import command

JOB: dict[str, Any] = {
    "dataset": "sbm:nodes=300,classes=3,train=0.4,features=8",
    "epochs": 2,
    "threads": 1,
    "sampler": {"fanout": [4, 3]},
    "model": {"hidden": 8},
    "train": {"batch_size": 16},
    "queue": {"bulk_size": 3},
}


def made(out: Path, form: str | None = "own", job: Any = JOB, emit: Any = silent, stop: Any = lambda: False) -> Any:
    return precompute(resolve(job), out, emit=emit, stop=stop, features=form or "")


def trained(out: Path, job: Any = JOB, **more: Any) -> str:
    return mr.run(config=job, out=out, verbose=False, **more).parameters_sha256


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "data"
    write_dataset(path, mr.open_dataset(JOB["dataset"]), features_format="npy", graph_format="npy")
    return path


KINDS: dict[str, dict[str, Any]] = {
    "nodes": {},
    "float64": {"dtype": "float64"},
    "self loops in GCN": {"model": {"name": "gcn", "hidden": 8}},
    "types": {"dataset": "hsbm:nodes=200,classes=2", "model": {"name": "rgcn", "hidden": 8}},
    "links": {"read": {"task": "link"}, "dataset": "sbm:nodes=200,classes=2,degree=6,features=8"},
    "times": {"dataset": "tsbm:nodes=200,classes=2", "sampler": {"name": "temporal", "fanout": [4, 3]}},
    "learnt rows beside": {"learned": {"width": 4, "beside": True}},
    "learnt rows alone": {"learned": {"width": 4, "beside": False}},
    "layers of nodes": {"sampler": {"name": "ladies", "sizes": [32, 16]}},
    "cycles": {"queue": {"bulk_size": 3, "reuse": "cycle"}},
    "a budget below a minibatch": {"bulk": {"prefetch_bytes": 1}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_train_what_rows_in_memory_train(kind: str, tmp_path: Path) -> None:
    job = {**JOB, **KINDS[kind]}
    made(tmp_path / "plain", None, job)
    report = made(tmp_path / "packed", "own", job)
    assert report["features"] in ("float32", "float64") and report["packed_bytes"] > 0
    if kind == "cycles":
        job = {**job, "epochs": 3}
    shas = {trained(tmp_path / f"run-{name}", job, samples=tmp_path / name) for name in ("plain", "packed")}
    assert len(shas) == 1


def test_training_reads_no_features_of_the_dataset(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**JOB, "dataset": str(store), "features": "mapped"}
    made(tmp_path / "s", "own", job)
    live = trained(tmp_path / "live", job)
    data = mr.open_dataset(store)
    rows = data.features.gather(np.arange(data.num_nodes))
    batches = iter(mr.minibatches(config=resolve(job), samples=tmp_path / "s"))
    assert next(batches).index == 0  # the store is known to be of these features
    monkeypatch.setattr(MappedFeatures, "gather", lambda *_: pytest.fail("features were read"))
    for batch in batches:
        assert np.array_equal(np.asarray(batch.h), rows[batch.nodes])
    monkeypatch.undo()
    said = list[Any]()
    assert trained(tmp_path / "run", job, samples=tmp_path / "s", emit=said.append) == live
    assert any(isinstance(e, Note) and e.text.startswith("packed features:") for e in said)


ALONE: dict[str, dict[str, Any]] = {
    "nodes": {},
    "self loops in GCN": {"model": {"name": "gcn", "hidden": 8}, "graph": "mapped"},
    "float64, learnt rows": {"dtype": "float64", "learned": {"width": 4, "beside": True}},
    "owned features, cycles": {"features": "owned", "queue": {"bulk_size": 3, "reuse": "cycle"}},
    "a balanced loss": {"loss": {"class_weights": "balanced"}},
}


@pytest.mark.parametrize("kind", ALONE)
def test_packed_samples_alone_train_what_the_dataset_trains(kind: str, store: Path, tmp_path: Path) -> None:
    job, data = {**JOB, **ALONE[kind], "dataset": str(tmp_path / "data")}, tmp_path / "data"
    shutil.copytree(store, data)
    made(tmp_path / "s", "own", job)
    whole = mr.run(config=job, samples=tmp_path / "s", out=tmp_path / "whole", verbose=False)
    shutil.rmtree(data)
    del job["dataset"]
    said = list[Any]()
    found = mr.run(config=job, samples=tmp_path / "s", out=tmp_path / "run", verbose=False, emit=said.append)
    assert found.parameters_sha256 == whole.parameters_sha256 and found.dataset == whole.dataset
    assert found.test_accuracy is None and whole.test_accuracy is not None
    assert any(isinstance(e, Note) and "nothing is validated or tested; name the dataset" in e.text for e in said)
    part = {**job, "epochs": 1}
    trained(tmp_path / "part", part, samples=tmp_path / "s")
    assert trained(tmp_path / "part", job, samples=tmp_path / "s", resume=True) == whole.parameters_sha256


@pytest.mark.parametrize(
    ("kind", "lacking"),
    [("types", "the relations of edges"), ("links", "the pairs of its seeds"), ("times", "the times of edges")],
)
def test_what_packed_samples_lack_is_named(kind: str, lacking: str, tmp_path: Path) -> None:
    job = {**JOB, **KINDS[kind]}
    made(tmp_path / "s", "own", job)
    del job["dataset"]
    with pytest.raises(InputError, match=f"does not hold {lacking}, which training reads; name the dataset beside it"):
        trained(tmp_path / "run", job, samples=tmp_path / "s")
    assert not (tmp_path / "run").exists()


def test_what_needs_the_graph_is_refused_without_it(tmp_path: Path) -> None:
    made(tmp_path / "s")
    job = {k: v for k, v in JOB.items() if k != "dataset"}
    for more, phrase in (
        ({"bulk": {"topology": "partitioned"}}, "no graph to cut between ranks; leave bulk.topology out"),
        ({"read": {"components": "largest"}}, "split and read.* say how a dataset is read"),
    ):
        with pytest.raises(InputError, match=phrase):
            trained(tmp_path / "run", {**job, **more}, samples=tmp_path / "s")
    with pytest.raises(InputError, match="but not the graph to draw others; give it as samples"):
        trained(tmp_path / "run", {**job, "dataset": str(tmp_path / "s")})
    data = mr.open_dataset(JOB["dataset"])
    rows = np.arange(2.0 * data.graph.num_edges).reshape(-1, 2).astype(np.float32)
    write_dataset(tmp_path / "data", replace(data, graph=replace(data.graph, edge_features=ArrayFeatures(rows))))
    gine = {**job, "model": {"name": "gine", "hidden": 8}, "sampler": {"fanout": [4, 3], "edge_ids": True}}
    made(tmp_path / "edges", "own", {**gine, "dataset": str(tmp_path / "data")})
    with pytest.raises(InputError, match="but not the features of edges; name the dataset"):
        trained(tmp_path / "run", gine, samples=tmp_path / "edges")
    assert not (tmp_path / "run").exists()


def test_inspect_shows_what_is_packed(tmp_path: Path) -> None:
    made(tmp_path / "s", "int8")
    made(tmp_path / "links", "own", {**JOB, **KINDS["links"]})
    code, out, _ = command("inspect", tmp_path / "s")
    assert code == 0 and "int8 [300, 8]" in out
    facts = describe(str(tmp_path / "s"), None)
    assert facts["bulks with features"] == facts["bulks"] == 6 and facts["trains without the dataset"] == "yes"
    assert (
        describe(str(tmp_path / "links"), None)["trains without the dataset"]
        == "no, it does not hold the pairs of its seeds"
    )


def test_an_object_store_holds_packed_samples(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    url: Any = f"file://{tmp_path}/objects"
    assert made(url)["packed_bytes"] > 0 and made(url)["packed_bytes"] == 0, "what is there is kept"
    alone = {k: v for k, v in JOB.items() if k != "dataset"}
    runs = (("live", JOB, None), ("beside", JOB, url), ("alone", alone, url))
    shas = {trained(tmp_path / name, job, **({"samples": at} if at else {})) for name, job, at in runs}
    assert len(shas) == 1
    with pytest.raises(StoreError, match="form"):
        made(url, "int8")


@pytest.mark.parametrize("form", ["float16", "bfloat16", "int8"])
def test_a_narrow_form_takes_less_and_is_noted(form: str, tmp_path: Path) -> None:
    wide = made(tmp_path / "wide")["packed_bytes"]
    assert made(tmp_path / "s", form)["packed_bytes"] < wide
    said = list[Any]()
    assert trained(tmp_path / "run", samples=tmp_path / "s", emit=said.append) != trained(tmp_path / "live")
    assert any(isinstance(e, Note) and f"as {form}" in e.text and "validation" in e.text for e in said)
    # Without the store the run would go on with other rows.
    with pytest.raises(StoreError, match="packed"):
        mr.run(config={**JOB, "epochs": 3}, out=tmp_path / "run", resume=True, verbose=False)


def test_a_narrow_dataset_is_packed_as_it_is(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", mr.open_dataset(JOB["dataset"]), features_format="npy", feature_dtype="int8")
    job = {**JOB, "dataset": str(tmp_path / "data")}
    assert made(tmp_path / "s", "own", job)["features"] == "int8"
    assert trained(tmp_path / "run", job, samples=tmp_path / "s") == trained(tmp_path / "live", job)


@pytest.mark.parametrize("passes", [1, 7])
def test_killed_and_given_again_the_rows_are_the_same(
    passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "whole")
    monkeypatch.setattr(packing, "MOST_BULKS", 2)
    monkeypatch.setattr(packing, "WINDOW_BYTES", 1 << 11)
    said = list[Any]()
    with pytest.raises(Interrupted, match=f"{passes} of .* parts of the features packed"):
        made(
            tmp_path / "s",
            emit=said.append,
            stop=lambda: sum(isinstance(e, StageAdvanced) and e.stage == "pack" for e in said) >= passes,
        )
    with pytest.raises(InputError, match="lack theirs; run its `millrace sample` command again"):
        trained(tmp_path / "run", samples=tmp_path / "s")
    made(tmp_path / "s")
    one, other = (
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("rows*.npy")}
        for name in ("whole", "s")
    )
    assert one == other and len(one) == 6
    assert not list((tmp_path / "s").rglob(".*writing*"))


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 0, size))


def test_a_disk_without_room_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1000)
    with pytest.raises(InputError, match=r"take .* of disk in .* as float32, where .* are free; .*--features=int8"):
        made(tmp_path / "s")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    made(tmp_path / "s", None)
    free(monkeypatch, 1000)
    with pytest.raises(InputError, match="sample fewer epochs"):
        made(tmp_path / "s")
    monkeypatch.undo()
    assert made(tmp_path / "s")["edges"] == 0


@pytest.mark.parametrize(("kind", "degree_bytes"), [("nodes", 8), ("times", 0)])
def test_a_disk_with_just_enough_room_is_enough(
    kind: str, degree_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**JOB, **KINDS[kind]}
    made(tmp_path / "s", None, job)
    rows = sum(len(np.unique(m.nodes)) for m in mr.open_queue(tmp_path / "s"))
    need = rows * (4 * mr.open_dataset(job["dataset"]).num_features + degree_bytes)
    free(monkeypatch, need - 1)
    with pytest.raises(InputError, match="sample fewer epochs"):
        made(tmp_path / "s", "own", job)
    free(monkeypatch, need)
    assert made(tmp_path / "s", "own", job)["packed_bytes"] == need


def test_a_disk_that_fills_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "s", None)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(RunError, match="no space is left for"):
            made(tmp_path / "s")
    assert not list((tmp_path / "s").glob("epoch-*/*rows*"))
    assert made(tmp_path / "s")["packed_bytes"]


def test_other_forms_and_features_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "s", "float16")
    with pytest.raises(StoreError, match="form"):
        made(tmp_path / "s", "int8")
    code, _, err = command("sample", "--set", "epochs=1", "--features=int4", "--out", tmp_path / "t")
    assert code == 2 and "features is 'int4'; expected one of" in err and not (tmp_path / "t").exists()
    data = mr.open_dataset(JOB["dataset"])
    x = data.features.gather(np.arange(data.num_nodes)) + np.float32(1)
    with pytest.raises(StoreError, match="features"):
        mr.run(replace(data, features=ArrayFeatures(x)), config=JOB, samples=tmp_path / "s", out=tmp_path / "run")


def test_more_epochs_without_their_rows_are_noted_and_not_trained_on(tmp_path: Path) -> None:
    made(tmp_path / "s")
    said, more = list[Any](), {**JOB, "epochs": 3}
    made(tmp_path / "s", None, more, said.append)
    assert any(isinstance(e, Note) and "sample --features=float32 packs them" in e.text for e in said)
    with pytest.raises(InputError, match="3 bulks of the epochs lack theirs"):
        trained(tmp_path / "run", more, samples=tmp_path / "s")


def test_a_resumed_run_goes_on_from_the_same_rows(tmp_path: Path) -> None:
    made(tmp_path / "s", "int8")
    whole = trained(tmp_path / "whole", samples=tmp_path / "s")
    trained(tmp_path / "run", {**JOB, "epochs": 1}, samples=tmp_path / "s")
    assert trained(tmp_path / "run", samples=tmp_path / "s", resume=True) == whole


def test_a_store_is_opened_once_to_be_packed_here(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, job = list[Path](), {**JOB, "dataset": str(store), "graph": "mapped"}
    monkeypatch.setattr(packing.DataPart, "open", lambda part: opened.append(part.store))
    made(tmp_path / "s", "own", job)
    assert not opened
    monkeypatch.undo()
    assert trained(tmp_path / "run", job, samples=tmp_path / "s") == trained(tmp_path / "live", job)


def test_hot_rows_and_edges_of_owners_are_refused(store: Path, tmp_path: Path) -> None:
    made(tmp_path / "s")
    owned = {**JOB, "features": "owned"}
    with pytest.raises(InputError, match=r"bulk.cache_fraction is 0.2, but .* leave it out"):
        trained(tmp_path / "run", {**owned, "bulk": {"cache_fraction": 0.2}}, samples=tmp_path / "s")
    assert trained(tmp_path / "run", owned, samples=tmp_path / "s") == trained(tmp_path / "live")
    paid = {**JOB, "dataset": "payments:accounts=200", "model": {"name": "gine", "hidden": 8}, "read": {}}
    paid["sampler"] = {"fanout": [4, 3], "edge_ids": True}
    made(tmp_path / "edges", "own", paid)
    live = trained(tmp_path / "edges-live", paid)
    assert trained(tmp_path / "edges-run", paid, samples=tmp_path / "edges") == live
    with pytest.raises(InputError, match=r"features of edges.*no rank reads those of all edges"):
        trained(tmp_path / "no", {**paid, "features": "owned"}, samples=tmp_path / "edges")


def test_forms() -> None:
    rows = ArrayFeatures(np.zeros((2, 3)))
    assert own_form(rows) == checked_form("own", rows) == "float64" and checked_form("int8", rows) == "int8"
    with pytest.raises(InputError, match="float64"):
        checked_form("float64", ArrayFeatures(np.zeros((2, 3), np.float32)))
