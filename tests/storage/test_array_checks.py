"""Stores with valid checksums that say what kernels must not follow: refused when they are opened, in one sentence."""

import hashlib
import shutil

import numpy as np
import pytest

from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import open_neighbours, open_part, open_shards, partition_dataset
from millrace.storage.checkpoint import CheckpointStore, Cursor
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_dataset_store, open_stored, write_dataset
from millrace.storage.errors import StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.partition.book import open_book
from millrace.storage.store.store import Store, open_store, write_store
from millrace.tests.fuzz.forge import forge, manifest_of, sign

V, E = 12, 40


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(0, V, E), rng.integers(0, V, E), V, edge_weight=rng.random(E), keep_edge_id=True)
    ids = np.arange(V)
    split = Split(ids[:6], ids[6:9], ids[9:])
    return Dataset("small", graph, ArrayFeatures(rng.random((V, 3), np.float32)), ids % 3, split, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory, dataset):
    """A store of the dataset, and one in two parts."""
    folder = tmp_path_factory.mktemp("written")
    write_dataset(folder / "data", dataset)
    partition_dataset(dataset, Hash(), 2, folder / "parts")
    return folder


@pytest.fixture
def data(tmp_path, written):
    """A copy of the store, to be damaged."""
    return shutil.copytree(written / "data", tmp_path / "data")


@pytest.fixture
def parts(tmp_path, written):
    """A copy of the parts, to be damaged."""
    return shutil.copytree(written / "parts", tmp_path / "parts")


def put(name, at, value):
    def change(arrays, meta):
        arrays[name][at] = value

    return change


def swap(name, made):
    def change(arrays, meta):
        arrays[name] = made(arrays[name])

    return change


def say(**values):
    return lambda arrays, meta: meta.update(values)


OF_DATASETS = [
    (put("indices", 3, V), "indices lie in"),
    (put("indices", 3, -1), "indices lie in"),
    (put("indptr", 4, E + 1), "indptr must rise"),
    (put("indptr", -1, E - 1), "indptr must rise"),
    (put("edge_weight", 0, np.nan), "edge_weight holds"),
    (put("labels", 0, 3), "labels lie in"),
    (put("labels", 0, -2), "unlabelled"),
    (put("train", 0, V), "split 'train'"),
    (swap("indices", lambda a: a.astype(np.float32)), "indices is float32"),
    (swap("labels", lambda a: a.astype(np.int32)), "labels are int32"),
    (swap("features", lambda a: a[:-1]), "features have 11 rows"),
    (swap("features", lambda a: a.astype(np.int32)), "int32"),
    (lambda arrays, meta: arrays.pop("labels"), "no array 'labels'"),
    (say(num_classes=True), "num_classes is 'True'; expected int"),
    (say(task="ranking"), "task is 'ranking'"),
    (lambda arrays, meta: meta.clear(), "features_format is 'None'; expected str"),
]


@pytest.mark.parametrize(("change", "told"), OF_DATASETS)
def test_a_forged_dataset(data, change, told, monkeypatch):
    # Whoever forges values can forge their digests, too.
    monkeypatch.setattr(Store, "require_digest", lambda *given: None)
    open_dataset_store(data).check()
    forge(data, change)
    with pytest.raises(StoreError, match=told):
        open_dataset_store(data)


@pytest.mark.parametrize("change", [put("indices", 3, V), put("indptr", 4, E + 1)])
def test_a_forged_dataset_that_is_read_by_rows(data, change):
    forge(data, change)
    with pytest.raises(StoreError, match="damaged or was changed"):
        open_stored(data).graph.rows(0, V)


OF_PARTS = [
    ("graph", put("indices", 0, 10**6), "indices lies in"),
    ("graph", put("indptr", 1, 10**6), "indptr does not rise"),
    ("graph", put("owned", 0, -5), "owned does not rise"),
    ("shards", put("indices", 0, 10**6), "indices of shard 0 lies in"),
    ("shards", put("sources", -1, 10**6), "sources that part 1 is to send lies in"),
    ("shards", put("counts", 0, 10**6), "do not add up"),
    ("shards", put("rows", 0, -1), "rows do not ascend"),
    ("shards", put("edge", 0, 10**6), "edges do not ascend"),
    ("shards", put("first_edge", 0, -1), "rows do not ascend in the whole graph"),
    ("shards", say(part=7), "part is 7"),
    ("rows", swap("labels", lambda a: a[:-1]), "labels of"),
    ("rows", put("train", 0, 10**6), "split 'train'"),
    ("rows", swap("weighted_degree", lambda a: a[:-1]), "degree"),
]


@pytest.mark.parametrize(("store", "change", "told"), OF_PARTS)
def test_a_forged_part(parts, store, change, told):
    forge(parts / "part-0000" / store, change)
    with pytest.raises(StoreError, match=told):
        open_part(parts, 0), open_shards(parts, 0), open_neighbours(parts, 0, loops=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (swap("book", lambda a: a.astype(np.float32)), "the key is float32"),
        (say(num_parts=0), "is not a partition book"),
        (say(num_parts=1 << 31), "is not a partition book"),
        (say(num_nodes="12"), "num_nodes is '12'; expected int"),
        (say(form="table"), "part_of is uint64"),
    ],
)
def test_a_forged_book(parts, change, told):
    forge(parts / "book", change)
    with pytest.raises(StoreError, match=told):
        open_book(parts / "book")


@pytest.mark.parametrize(
    "change",
    [
        {"meta": []},
        {"arrays": {"x": 3}},
        {"arrays": {"../x": {"shape": [2], "dtype": "int64", "chunks": 1}}},
        {"arrays": {"x": {"shape": [2.5], "dtype": "int64", "chunks": 1}}},
        {"arrays": {"x": {"shape": [2], "dtype": "object", "chunks": 1}}},
        {"fingerprint": {"a": 1}},
    ],
)
def test_a_manifest_of_another_layout(tmp_path, change):
    write_store(tmp_path / "s", "test", fingerprint={}, meta={}, arrays={"x": np.arange(2)})
    sign(tmp_path / "s", manifest_of(tmp_path / "s") | change)
    with pytest.raises(StoreError, match="not laid out as a manifest"):
        open_store(tmp_path / "s", "test")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"n": ' + "9" * 5000 + "}", "\udc80"])
def test_a_manifest_that_no_parser_takes(tmp_path, text):
    write_store(tmp_path / "s", "test", fingerprint={}, meta={}, arrays={"x": np.arange(2)})
    (tmp_path / "s" / "manifest.json").write_text(text, errors="surrogateescape")
    with pytest.raises(StoreError, match="is damaged"):
        open_store(tmp_path / "s", "test")


def test_a_checkpoint_that_holds_no_state_is_passed_over(tmp_path):
    """Its checksum is valid: whoever wrote it wrote something else."""
    store = CheckpointStore(tmp_path, {"job": "j"})
    store.save(Cursor(0, 1), {"n": 1})
    store.save(Cursor(0, 2), {"n": 2})
    folder = tmp_path / "step-0-2"
    (folder / "state.pt").write_bytes(b"no state")
    body = manifest_of(folder)
    body["meta"]["sha256"] = hashlib.sha256(b"no state").hexdigest()
    sign(folder, body)
    with pytest.warns(UserWarning, match="holds no training state"):
        assert store.latest() == (Cursor(0, 1), {"n": 1})
