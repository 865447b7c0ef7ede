"""The driver of a run on a store works by the manifest: it reads no array of the store or of the parts."""

import uuid
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from distributed import get_worker
from typer.testing import CliRunner

import millrace as mr
from millrace.pipeline.cli import app
from millrace.pipeline.cluster.dask_cluster import opened
from millrace.pipeline.config.load import resolve
from millrace.pipeline.planning import inputs
from millrace.pipeline.planning.inputs import Cluster
from millrace.pipeline.planning.trial_setup import Trials
from millrace.pipeline.precompute import precompute
from millrace.pipeline.ready import RunCall, ready_to_run
from millrace.pipeline.relabel.run import Cut, relabel
from millrace.pipeline.supervision.cluster_run import ClusterRun
from millrace.pipeline.supervision.rank_work import Training
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.events import silent
from millrace.stages.partition.metis import Metis
from millrace.stages.partition.stage import open_part
from millrace.storage import lazy_dataset
from millrace.storage.dataset_store import KIND, write_dataset
from millrace.storage.errors import Interrupted
from millrace.storage.features import ArrayFeatures, ZarrFeatures
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.partition.book import open_book
from millrace.storage.store.store import Store
from millrace.tests.contracts import rapids
from millrace.tests.contracts.digests import minibatch_digest

SBM = "sbm:nodes=600,classes=4,train=0.3"
SYSTEMS = {
    "bulk": {},
    "bulk-partitioned": {"bulk": {"topology": "partitioned"}, "partition": {"method": "contiguous"}},
    "sar": {"partition": {"method": "metis"}},
    "retexo": {"partition": {"method": "hash"}},
    "grappa": {},
}


class DriverReadError(AssertionError):
    """The driver has read an array."""


def in_task() -> bool:
    """True in a worker's thread. Of workers, only those that stand in for dask-cuda's have threads of this process."""
    try:
        return get_worker() is not None
    except ValueError:
        return False


@pytest.fixture
def sealed(monkeypatch):
    """No array of a dataset or a part can be read in this process."""
    piece = Store.piece

    def read(self, name, rows):
        if not in_task() and self.kind in (KIND, "partition", "partition_book", "edge_shards", "partition-rows"):
            raise DriverReadError(f"{self.path}: {name}")
        return piece(self, name, rows)

    def gather(self, ids, out=None):
        raise DriverReadError("features")

    def features(store, place):
        if place == "memory":
            raise DriverReadError("features")
        return opened_features(store, place)

    opened_features = lazy_dataset.open_features
    monkeypatch.setattr(lazy_dataset, "open_features", features)
    monkeypatch.setattr(Store, "piece", read)
    for kind in (ArrayFeatures, ZarrFeatures):
        monkeypatch.setattr(kind, "gather", gather)


@pytest.fixture(scope="module", params=["zarr", "npy"])
def store(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / request.param
    write_dataset(path, mr.open_dataset(SBM), features_format=request.param)
    return path


def table(name: str, store: Path, scheduler: str) -> dict:
    given = {"system": name.partition("-")[0], "dataset": str(store), "ranks": 2, "epochs": 1, **SYSTEMS[name]}
    return {**given, "model": {"hidden": 8, "layers": 2}, "cluster": {"scheduler": scheduler}}


@pytest.mark.parametrize("name", SYSTEMS)
def test_everything_before_ranks_start(store, scheduler, tmp_path, name, sealed):
    """Checks, fingerprints and the cut, which come before ranks; and the same again, as a resumed run does."""
    if store.name == "npy" and name in ("retexo", "grappa"):
        pytest.skip("they are cut as sar is")
    job = resolve(table(name, store, scheduler))
    ready = ready_to_run(RunCall(out=tmp_path / "run", config=job), silent)
    seen = []
    with opened(job, silent, 2) as client:
        for _ in range(2):
            work = Training(ready.prepared)
            run = ClusterRun(client, uuid.uuid4().hex[:8], work, tmp_path / "run", Control(seen.append))
            run.close()
    assert (run.parts is not None) == (name != "bulk")
    assert run.data.store == str(store)
    assert ready.prepared.outline.splits["train"] == 180


def test_the_fingerprint_is_that_of_the_data_in_memory(store, scheduler, tmp_path):
    for name in SYSTEMS:
        job = resolve(table(name, store, scheduler))
        lazy = ready_to_run(RunCall(out=tmp_path / "a", config=job), silent)
        data = mr.open_dataset(store)
        eager = ready_to_run(RunCall(data, out=tmp_path / "b", config=job), silent)
        assert lazy.prepared.fingerprint == eager.prepared.fingerprint


def test_a_damaged_part_is_found_by_tasks_and_made_again(store, scheduler, tmp_path, sealed):
    job = resolve(table("sar", store, scheduler))
    ready = ready_to_run(RunCall(out=tmp_path / "run", config=job), silent)
    notes = []
    with opened(job, silent, 2) as client:
        for damage in (False, True):
            if damage:
                chunk = tmp_path / "run" / "parts" / "part-0001" / "rows" / "arrays" / "labels" / "c" / "0"
                chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
            work = Training(ready.prepared)
            run = ClusterRun(client, uuid.uuid4().hex[:8], work, tmp_path / "run", Control(notes.append))
            run.close()
    told = [note.text for note in notes if "damaged part" in getattr(note, "text", "")]
    assert len(told) == 1 and "part-0001" in told[0]
    assert run.parts == tmp_path / "run" / "parts"


def test_a_run_and_its_resumption(store, scheduler, tmp_path, sealed):
    """Sampling tasks and ranks read; their driver does not, and the parameters are those of one that has."""
    if store.name == "npy":
        pytest.skip("one format is enough here")
    config = {**table("bulk", store, scheduler), "queue": {"kind": "zarr"}}
    first = mr.run(config=config, out=tmp_path / "run", verbose=False)
    again = mr.run(config={**config, "epochs": 2}, out=tmp_path / "run", resume=True, verbose=False)
    assert (first.epochs, again.epochs) == (1, 2)
    assert again.num_edges == first.num_edges > 0


@pytest.mark.parametrize("name", ["bulk-partitioned", "sar", "retexo", "grappa"])
def test_parts_by_cugraph_feed_every_system(store, scheduler, tmp_path, monkeypatch, sealed, name):
    """From communities that stand-ins find of edges that their processes read, to a trained model on two ranks, which
    know no GPU."""
    if store.name == "npy":
        pytest.skip("one format is enough here")
    rapids.install(monkeypatch, gpus=1 + (name == "sar"))
    config = {**table(name, store, scheduler), "partition": {"method": "leiden"}}
    result = mr.run(config=config, out=tmp_path / "run", verbose=False)
    assert result.epochs and result.test_accuracy is not None
    monkeypatch.undo()
    rapids.install(monkeypatch)
    book = open_book(tmp_path / "run" / "parts" / "book")
    assert book.num_parts > 1
    found = mr.partitioner("leiden").assign(mr.open_dataset(store).graph, book.num_parts, 0)
    assert np.array_equal(book.part(np.arange(600)), found.part(np.arange(600)))


def test_plans_of_large_stores(store, tmp_path, monkeypatch, sealed):
    """A generated graph stands in for them."""
    monkeypatch.setattr(inputs, "MOST_EDGES", 100)
    job = resolve({"dataset": str(store), "ranks": 2})
    at = Trials(job, None, None, Cluster(), tmp_path, silent, ExitStack()).at
    assert at.stands_in and at.numbers.nodes == 600


def test_parts_in_this_process_from_a_store_and_from_memory(store, tmp_path, monkeypatch):
    """The same files, by owners that were given, and no array is held as a whole."""
    owners = np.random.default_rng(0).integers(0, 2, 600)
    np.save(tmp_path / "owners.npy", owners)
    given = ["--parts", "2", "--set", f"partition.owners={tmp_path / 'owners.npy'}"]
    whole = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda self, name: whole.append((self.kind, name)) or read(self, name))
    done = CliRunner().invoke(app, ["partition", str(store), *given, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert KIND not in {kind for kind, _ in whole}
    done = CliRunner().invoke(app, ["partition", str(store), *given, "--split", "public", "--out", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    files = sorted(f.relative_to(tmp_path / "a") for f in (tmp_path / "a").rglob("*") if f.is_file())
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    assert np.array_equal(open_part(tmp_path / "a", 1)[0].owned, np.flatnonzero(owners))


def test_sampling_leaves_features_and_labels_alone(store, tmp_path, monkeypatch):
    names, piece = set(), Store.piece
    monkeypatch.setattr(Store, "piece", lambda self, name, rows: names.add(name) or piece(self, name, rows))
    job = resolve({"dataset": str(store), "epochs": 1, "train": {"batch_size": 32}})
    precompute(job, tmp_path / "samples", emit=silent, stop=lambda: False)
    assert {"indptr", "indices"} <= names <= {"indptr", "indices", "train", "val", "test"}


def test_a_store_is_renumbered_by_the_workers_of_a_cluster(store, scheduler, tmp_path, sealed, monkeypatch):
    job = resolve({"executor": "dask", "cluster": {"scheduler": scheduler}})
    relabel(job, open_lazily(store), Cut(Metis(), 3, 0), tmp_path / "got", 2 << 30, silent)
    monkeypatch.undo()
    data = mr.open_dataset(store)
    book = Metis().assign(data.graph, 3, 0)
    write_dataset(tmp_path / "want", mr.reorder(data, book), features_format="npy")
    files = sorted(f.relative_to(tmp_path / "want") for f in (tmp_path / "want").rglob("*") if f.is_file())
    assert files == sorted(f.relative_to(tmp_path / "got") for f in (tmp_path / "got").rglob("*") if f.is_file())
    assert all((tmp_path / "got" / f).read_bytes() == (tmp_path / "want" / f).read_bytes() for f in files)


def test_samples_by_the_workers_of_a_cluster(store, scheduler, tmp_path, sealed, monkeypatch):
    """The same minibatches as in this process, and only the workers read the store."""
    if store.name == "npy":
        pytest.skip("one format is enough here")
    table = {"dataset": str(store), "epochs": 2, "train": {"batch_size": 16}, "queue": {"bulk_size": 3}}
    job = resolve({**table, "cluster": {"scheduler": scheduler}})
    found = precompute(job, tmp_path / "there", emit=silent, stop=lambda: False)
    again = precompute(job, tmp_path / "there", emit=silent, stop=lambda: False)
    monkeypatch.undo()
    wanted = precompute(resolve(table), tmp_path / "here", emit=silent, stop=lambda: False)
    assert found["edges"] == wanted["edges"] > 0 and again["edges"] == 0
    pairs = zip(mr.open_queue(tmp_path / "there"), mr.open_queue(tmp_path / "here"), strict=True)
    assert all(minibatch_digest(a) == minibatch_digest(b) for a, b in pairs)
    with pytest.raises(Interrupted, match="the same command goes on from there"):
        precompute(job, tmp_path / "stopped", emit=silent, stop=lambda: True)


def test_samples_by_owners_of_parts(store, scheduler, tmp_path, sealed, monkeypatch):
    """Two ranks with half of the rows each leave the files that one process does, also if one is killed on the way, or
    the whole is stopped."""
    if store.name == "npy":
        pytest.skip("one format is enough here")
    dying = tmp_path / "dying"
    sampler = {"name": "millrace.tests.contracts.dying_sampler:DyingSampler", "file": str(dying)}
    table = {"dataset": str(store), "epochs": 3, "train": {"batch_size": 16}, "queue": {"bulk_size": 3}}
    table |= {"sampler": sampler, "bulk": {"topology": "partitioned"}, "partition": {"method": "contiguous"}}
    job, told = resolve({**table, "ranks": 2, "cluster": {"scheduler": scheduler}}), []
    dying.touch()
    found = precompute(job, tmp_path / "killed", emit=told.append, stop=lambda: False)
    assert any("restart 1 of" in getattr(event, "text", "") for event in told)
    assert found["minibatches"] == 36
    # Ranks may be done before they hear of it.
    with pytest.raises(Interrupted, match="the same command goes on from there"):
        precompute(job, tmp_path / "stopped", emit=silent, stop=lambda: True)
    again = precompute(job, tmp_path / "stopped", emit=silent, stop=lambda: False)
    monkeypatch.undo()
    whole = precompute(resolve({**table, "bulk": {}, "ranks": 1}), tmp_path / "here", emit=silent, stop=lambda: False)
    # What was there before is not sampled again.
    assert 0 < found["edges"] < whole["edges"] and again["edges"] < whole["edges"]
    files = sorted(f.relative_to(tmp_path / "here") for f in (tmp_path / "here").rglob("*") if f.is_file())
    for there in (tmp_path / "killed", tmp_path / "stopped"):
        assert files == sorted(f.relative_to(there) for f in there.rglob("*") if f.is_file())
        assert all((there / f).read_bytes() == (tmp_path / "here" / f).read_bytes() for f in files)
    assert sorted(f.name for f in tmp_path.iterdir() if f.suffix != ".jsonl") == ["here", "killed", "stopped"]
