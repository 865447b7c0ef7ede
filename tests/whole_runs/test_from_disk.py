"""Features on disk: the bits of features in memory, whatever is read together, and sentences where a disk fails."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.training import evaluation
from millrace.pipeline.training.phases import PhaseTraining
from millrace.stages.evaluate import direct
from millrace.stages.fetch import exchange
from millrace.storage.dataset import Dataset
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import RunError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.storage.store import row_file
from millrace.storage.store.row_file import RowFile
from millrace.tests.contracts.graphs import sbm
from millrace.tests.contracts.typed import typed_dataset

JOB: dict[str, Any] = {"epochs": 2, "batch_size": 48, "seed": 3, "threads": 1, "train": {"evaluate_every": 2}}
SAGE = {"model": {"name": "sage", "hidden": 8, "layers": 2}, "fanout": [4, 3]}
CELLS: dict[str, dict[str, Any]] = {
    "sage": SAGE,
    "gat": {"model": {"name": "gatv2", "hidden": 4, "layers": 2, "heads": 2}, "fanout": [4, 3]},
    "layer-wise": {**SAGE, "sampler": {"name": "ladies", "sizes": [40, 40]}, "fanout": None},
    "links": {**SAGE, "task": "link"},
    "learned": {**SAGE, "learned": {"width": 4, "beside": True}},
    "several in a step": {**SAGE, "train": {"minibatches_per_step": 3, "evaluate_every": 2}},
    "one at a time": {**SAGE, "bulk": {"prefetch_bytes": 0}},
    "a few together": {**SAGE, "bulk": {"prefetch_bytes": 100_000}},
    "a queue on disk": {**SAGE, "queue": {"kind": "zarr", "bulk_size": 2, "max_bytes": 1}},
}


def dataset(**more: Any) -> Dataset:
    graph = sbm(600, 4, 10)
    rng = np.random.default_rng(0)
    of_edges = ArrayFeatures(rng.normal(size=(graph.num_edges, 3)).astype(np.float32))
    labels = np.arange(600) * 4 // 600
    rows = rng.normal(size=(600, 16)).astype(np.float32) + labels[:, None].astype(np.float32)
    graph = Graph(graph.indptr, graph.indices, **({"edge_features": of_edges} if more.get("edges") else {}))
    order = rng.permutation(600)
    split = mr.Split(np.sort(order[:400]), np.sort(order[400:500]), np.sort(order[500:]))
    return Dataset("blocks", graph, ArrayFeatures(rows), labels, split, 4)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[RowFile]:
    """No row is ever in the cache of pages. The files that were read."""
    read: list[RowFile] = []
    reads = RowFile.read

    def noting(self: RowFile, *args: Any) -> None:
        read.append(self)
        reads(self, *args)

    monkeypatch.setattr(RowFile, "is_cached", lambda self, ids: self.require_whole() or not len(ids))
    monkeypatch.setattr(RowFile, "read", noting)
    monkeypatch.setattr(row_file, "WINDOW_BYTES", 8192)
    return read


def parameters(folder: Path, store: Path, **job: Any) -> tuple[str, Any]:
    result = mr.run(store, out=folder, verbose=False, **{**JOB, **{k: v for k, v in job.items() if v is not None}})
    return result.parameters_sha256, result.bytes


@pytest.mark.parametrize("cell", CELLS)
def test_parameters_are_those_of_features_in_memory(tmp_path, cold, cell):
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    job = CELLS[cell]
    expected = parameters(tmp_path / "memory", tmp_path / "store", features="memory", **job)
    cold.clear()
    assert parameters(tmp_path / "disk", tmp_path / "store", features="mapped", **job) == expected
    assert len({id(file) for file in cold}) >= 1, "rows came from the disk"


@pytest.mark.parametrize("form", ["float16", "bfloat16", "int8"])
def test_narrow_rows_are_widened(tmp_path, cold, form):
    write_dataset(tmp_path / "store", dataset(), features_format="npy", feature_dtype=form)
    found = [parameters(tmp_path / how, tmp_path / "store", features=how, **SAGE) for how in ("memory", "mapped")]
    assert found[0] == found[1]


def test_rows_of_zarr_chunks_are_read_ahead(tmp_path):
    write_dataset(tmp_path / "store", dataset())
    found = [parameters(tmp_path / how, tmp_path / "store", features=how, **SAGE) for how in ("memory", "zarr")]
    assert found[0] == found[1]


@pytest.mark.parametrize("room", ["auto", 0, 60_000])
def test_rows_of_edges_come_with_those_of_nodes(tmp_path, cold, room):
    write_dataset(tmp_path / "store", dataset(edges=True), features_format="npy")
    job = {"model": {"name": "gine", "hidden": 8, "layers": 2}, "fanout": [4, 3], "bulk": {"prefetch_bytes": room}}
    expected = parameters(tmp_path / "memory", tmp_path / "store", features="memory", **job)
    assert parameters(tmp_path / "disk", tmp_path / "store", features="mapped", **job) == expected


@pytest.mark.parametrize("edges", [False, True])
def test_several_types_of_nodes(tmp_path, cold, edges):
    write_dataset(tmp_path / "store", typed_dataset(edge_features=edges), features_format="npy")
    job = {"model": {"name": "rgcn", "hidden": 8, "layers": 2}, "fanout": [4, 3]}
    found = [parameters(tmp_path / how, tmp_path / "store", features=how, **job) for how in ("memory", "mapped")]
    assert found[0] == found[1]


def test_owned_rows_that_do_not_fit_stay_on_disk(tmp_path, cold, monkeypatch):
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    expected = parameters(tmp_path / "memory", tmp_path / "store", features="memory", **SAGE)
    cold.clear()
    monkeypatch.setattr(exchange, "bytes_left", lambda: 1000)
    said = []
    mr.run(tmp_path / "store", out=tmp_path / "disk", emit=said.append, verbose=False, **JOB, **SAGE, features="owned")
    assert json.loads((tmp_path / "disk" / "result.json").read_text())["parameters_sha256"] == expected[0]
    assert len(cold) > 2 and any("they stay on disk" in getattr(e, "text", "") for e in said)


def test_lists_of_a_mapped_graph_are_announced(tmp_path, cold, monkeypatch):
    write_dataset(tmp_path / "store", dataset(), features_format="npy", graph_format="npy")
    told, announce = [], RowFile.announce

    def noting(self: RowFile, starts: Any, stops: Any) -> None:
        told.append((self.path.name, starts, stops))
        announce(self, starts, stops)

    monkeypatch.setattr(RowFile, "announce", noting)
    found = [parameters(tmp_path / how, tmp_path / "store", graph=how, **SAGE) for how in ("memory", "mapped")]
    assert found[0] == found[1]
    assert {name for name, _, _ in told} == {"indptr.npy", "indices.npy"}
    graph = dataset().graph
    for name, starts, stops in told:
        assert (starts[1:] > starts[:-1]).all() or name == "indices.npy"
        if name == "indices.npy":
            assert set(starts.tolist()) <= set(graph.indptr.tolist()) and (stops >= starts).all()


def test_sampling_by_time_names_nodes_twice(tmp_path, cold):
    data = mr.open_dataset("tsbm:nodes=600,degree=6,days=20,features=6")
    write_dataset(tmp_path / "store", data, features_format="npy")
    job = {"model": SAGE["model"], "sampler": {"name": "temporal", "fanout": [4, 3]}}
    found = [parameters(tmp_path / how, tmp_path / "store", features=how, **job) for how in ("memory", "mapped")]
    assert found[0] == found[1]


def test_stored_samples_are_trained_on_from_disk(tmp_path, cold):
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    job = resolve({**JOB, **SAGE, "dataset": str(tmp_path / "store")})
    precompute(job, tmp_path / "samples", emit=lambda event: None, stop=lambda: False)
    job = {**SAGE, "samples": str(tmp_path / "samples")}
    found = [parameters(tmp_path / how, tmp_path / "store", features=how, **job) for how in ("memory", "mapped")]
    assert found[0] == found[1]


def test_a_feature_file_cut_short_ends_the_run_with_a_sentence(tmp_path, monkeypatch, cold):
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    file = tmp_path / "store" / "features.npy"
    reads = RowFile.read

    def cutting(self: RowFile, *args: Any) -> None:
        reads(self, *args)
        if len(cold) == 2:
            os.truncate(file, file.stat().st_size // 2)

    monkeypatch.setattr(RowFile, "read", cutting)
    with pytest.raises(RunError, match=r"features\.npy cannot be read at row \d+ of 600 .* cut the file short"):
        parameters(tmp_path / "run", tmp_path / "store", features="mapped", bulk={"prefetch_bytes": 0}, **SAGE)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_budget_below_a_minibatch_is_told(tmp_path, cold):
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    notes: list[Any] = []
    job = {**JOB, **SAGE, "features": "mapped", "bulk": {"prefetch_bytes": 2000}}
    mr.run(tmp_path / "store", out=tmp_path / "run", emit=notes.append, **job)
    said = [n.text for n in notes if hasattr(n, "text")]
    (turns,) = (text for text in said if "prefetch_bytes" in text)
    assert "reading and training take turns" in turns
    # 400 seeds in minibatches of 48, each read by itself.
    (read,) = (text for text in said if text.startswith("features from disk: "))
    assert "of up to 1 minibatches together; training waited" in read
    assert re.search(r"in [\d,]+ reads of [\d.]+ GB \([\d,]+% of them needed\), [\d,]+ under way at a time, in ", read)


def test_a_run_stopped_within_an_epoch_goes_on_to_the_same_bits(tmp_path, cold):
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    expected = parameters(tmp_path / "memory", tmp_path / "store", features="memory", **SAGE)[0]
    asked = iter([False, False, False, True])
    job = {**JOB, **SAGE, "features": "mapped", "verbose": False}
    stopped = mr.run(tmp_path / "store", out=tmp_path / "run", stop=lambda: next(asked, False), **job)
    assert (stopped.status, stopped.epochs) == ("stopped", 0)
    cold.clear()
    found = mr.run(tmp_path / "store", out=tmp_path / "run", resume=True, **job)
    assert found.parameters_sha256 == expected
    assert cold, "rows came from the disk"


@pytest.mark.parametrize("epoch", [1, JOB["epochs"]])
def test_stopping_while_validating_goes_on_to_the_same_bits(tmp_path, monkeypatch, epoch):
    """The epoch has its checkpoint, and is validated by the run that goes on; the last one too, if it is asked once."""
    write_dataset(tmp_path / "store", dataset(), features_format="npy")
    job = {**JOB, **SAGE, "train": {"evaluate_every": 1, "patience": 5}, "features": "mapped", "verbose": False}
    whole = mr.run(tmp_path / "store", out=tmp_path / "whole", **job)
    # Blocks of a few rows, so that a stop finds more to come.
    monkeypatch.setattr(direct, "BLOCK_ROWS", 16)
    monkeypatch.setattr(direct, "WAVE_BLOCKS", 1)
    monkeypatch.setattr(evaluation, "STOP_S", float("inf"))
    blocks = mr.run(tmp_path / "store", out=tmp_path / "blocks", **job)
    assert blocks.parameters_sha256 == whole.parameters_sha256
    validating: list[bool] = []
    validate = PhaseTraining._validate

    def noting(self: PhaseTraining, *args: Any) -> Any:
        validating.append(True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "STOP_S", 0.0)
            return validate(self, *args)

    monkeypatch.setattr(PhaseTraining, "_validate", noting)
    asked = iter([True])
    stopped = mr.run(
        tmp_path / "store", out=tmp_path / "run", stop=lambda: len(validating) == epoch and next(asked, False), **job
    )
    assert (stopped.status, stopped.epochs, len(validating)) == ("stopped", epoch, epoch)
    found = mr.run(tmp_path / "store", out=tmp_path / "run", resume=True, **job)
    assert found.parameters_sha256 == whole.parameters_sha256
    assert (found.val_accuracy, found.best_epoch) == (blocks.val_accuracy, blocks.best_epoch)
    assert found.test_accuracy == blocks.test_accuracy
