"""A store's dataset by its manifest: sizes and digests without an array, and arrays as they are used, checked."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage import fingerprint
from millrace.storage.dataset import SPLITS, Dataset, Split
from millrace.storage.dataset_store import KIND, MANIFEST_DIGESTS, open_dataset_store, write_dataset
from millrace.storage.errors import InputError, StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.fingerprint import DatasetDigests, dataset_fingerprint, digest_arrays, graph_fingerprint
from millrace.storage.graph import from_edges
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.node_names import NodeNames
from millrace.storage.store.manifest import MANIFEST, manifest_text
from millrace.storage.store.npy import is_map
from millrace.storage.store.store import Store, open_store
from millrace.tests.contracts.messages import graphs

V = 40
READABLE = [("zarr", "memory"), ("zarr", "zarr"), ("npy", "memory"), ("npy", "mapped")]


def make(graph, *, multilabel=False, names=False, width=3, dtype=np.float32):
    rng, n = np.random.default_rng(0), graph.num_nodes
    return Dataset(
        "some",
        graph,
        ArrayFeatures(rng.random((n, width)).astype(dtype)),
        (rng.random((n, 3)) < 0.5).astype(np.float32) if multilabel else rng.integers(0, 3, n),
        Split(*(np.arange(i, n, 3 + i) if i < 1 else np.arange(i, n, 3)[: i * 4] for i in range(3))),
        3,
        "multilabel" if multilabel else "multiclass",
        ("A note.",),
        NodeNames.from_values([f"n{v}" for v in range(n)]) if names else None,
        ("a", "b", "c"),
    )


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    src, dst, weight = rng.integers(0, V, 200), rng.integers(0, V, 200), rng.random(200)
    graph = from_edges(src, dst, V, edge_weight=weight, keep_edge_id=True)
    return replace(
        make(replace(graph, part_offsets=np.array([0, 7, V])), names=True),
        split=Split(np.arange(0, 20), np.arange(20, 25), np.arange(25, 40)),
    )


class ArrayReadError(AssertionError):
    """An array was read that nobody should need."""


@pytest.fixture
def sealed(monkeypatch):
    def read(self, name, rows):
        raise ArrayReadError(name)

    def seal():
        monkeypatch.setattr(Store, "piece", read)

    return seal


def same(a: Dataset, b: Dataset) -> None:
    for field in fields(Dataset):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name == "graph":
            for name in ("indptr", "indices", "edge_weight", "edge_id", "part_offsets"):
                np.testing.assert_equal(getattr(x, name), getattr(y, name))
        elif field.name == "features":
            np.testing.assert_array_equal(x.gather(np.arange(a.num_nodes)), y.gather(np.arange(a.num_nodes)))
        elif field.name == "split":
            for name in SPLITS:
                np.testing.assert_array_equal(getattr(x, name), getattr(y, name))
        elif field.name == "labels":
            np.testing.assert_array_equal(x, y)
        elif field.name == "node_names":
            assert list(x or ()) == list(y or ())
        else:
            assert x == y, field.name


@pytest.mark.parametrize(("written", "opened"), READABLE)
@pytest.mark.parametrize("place", ["memory", "mapped"])
def test_sizes_need_no_array_and_arrays_come_when_used(tmp_path, data, written, opened, place, sealed):
    write_dataset(tmp_path / "d", data, features_format=written, graph_format="npy" if place == "mapped" else written)
    lazy = open_lazily(tmp_path / "d", opened, graph=place)
    same(lazy.read(), data)
    graph = lazy.as_read().graph
    maps = [is_map(a) for a in (graph.indptr, graph.indices, graph.edge_weight, graph.edge_id)]
    assert maps == [place == "mapped"] * 4
    same(replace(lazy.as_read(), name="some"), data)
    sealed()
    lazy = open_lazily(tmp_path / "d", opened, name="other")
    assert (lazy.name, lazy.path, lazy.check()) == ("other", tmp_path / "d", lazy)
    assert (lazy.num_nodes, lazy.num_features, len(lazy)) == (V, 3, V)
    assert (lazy.graph.num_nodes, lazy.graph.num_edges, lazy.graph.is_weighted) == (V, 200, True)
    assert "weighted" in repr(lazy.graph)
    assert lazy.split_sizes == data.split_sizes == {"train": 20, "val": 5, "test": 15}
    for use in (lambda: lazy.graph.indices, lambda: lazy.labels, lambda: lazy.split, lambda: lazy.node_names):
        with pytest.raises(ArrayReadError):
            use()
    assert open_lazily(tmp_path / "d", opened, names=False).node_names is None


@settings(deadline=None, max_examples=15)
@given(graphs(), st.booleans(), st.integers(0, 3), st.sampled_from([np.float32, np.float64]), st.integers(1, 9))
def test_digests_of_the_manifest_are_those_of_the_arrays(tmp_path_factory, graph, multilabel, width, dtype, sampled):
    path, data = tmp_path_factory.mktemp("d") / "d", make(graph, multilabel=multilabel, width=width, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "SAMPLED_ROWS", sampled)
        store = write_dataset(path, data)
        known, made = open_lazily(path).known_digests, DatasetDigests(data)
        assert set(known) == {"graph", "features", *MANIFEST_DIGESTS}
        assert known == {name: made[name] for name in known}
    assert made["graph"] == graph_fingerprint(graph)
    assert made.combined("labels", "val") == digest_arrays(labels=data.labels, val=data.split.val)
    assert dict(store.fingerprint) == made.fingerprint() == dataset_fingerprint(data)


def test_digests_are_known_and_those_of_older_stores_are_made(tmp_path, data, sealed):
    store = write_dataset(tmp_path / "d", data)
    meta = {key: value for key, value in store.meta.items() if key != "digests"}
    wanted = {name: DatasetDigests(data)[name] for name in ("graph", "features", *MANIFEST_DIGESTS)}
    (tmp_path / "old").symlink_to(tmp_path / "d")
    text = (tmp_path / "d" / MANIFEST).read_text()
    (tmp_path / "d" / MANIFEST).write_text(manifest_text(KIND, store.fingerprint, meta, store.entries))
    old = open_lazily(tmp_path / "old", "zarr")
    assert set(old.known_digests) == {"graph", "features"}
    assert {name: DatasetDigests(old)[name] for name in wanted} == wanted
    (tmp_path / "d" / MANIFEST).write_text(text)
    sealed()
    lazy = open_lazily(tmp_path / "d")
    assert {name: DatasetDigests(lazy)[name] for name in wanted} == wanted
    assert dataset_fingerprint(lazy) == dict(store.fingerprint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("indices", V),
        ("indptr", -1),
        ("edge_weight", np.nan),
        ("part_offsets", 3),
        ("train", 21),
        ("node_name_starts", 7),
    ],
)
def test_damage_is_noticed_by_whoever_uses_it(tmp_path, data, name, value):
    """A checksum covers the bytes, not their meaning."""
    write_dataset(tmp_path / "d", data)
    zarr.open_array(tmp_path / "d" / "arrays" / name, mode="r+")[0] = value
    lazy = open_lazily(tmp_path / "d")
    where = lazy.graph if name in ("indices", "indptr", "edge_weight", "part_offsets") else lazy
    attribute = {"train": "split", "node_name_starts": "node_names"}.get(name, name)
    with pytest.raises(StoreError, match=str(tmp_path / "d")):
        getattr(where, attribute)
    with pytest.raises(StoreError, match=str(tmp_path / "d")):
        open_lazily(tmp_path / "d").read()


@pytest.mark.parametrize(("name", "value"), [("indices", V), ("indptr", -1), ("edge_weight", np.nan)])
def test_damage_of_a_mapped_graph_is_noticed_by_whoever_uses_it(tmp_path, data, name, value):
    write_dataset(tmp_path / "d", data, graph_format="npy")
    np.load(tmp_path / "d" / f"{name}.npy", mmap_mode="r+")[-1] = value
    with pytest.raises(StoreError, match=str(tmp_path / "d")):
        getattr(open_lazily(tmp_path / "d", graph="mapped").graph, name)


def test_damage_within_the_bounds_is_noticed_by_whoever_loads_it_all(tmp_path, data):
    write_dataset(tmp_path / "d", data, graph_format="npy")
    ids = np.load(tmp_path / "d" / "indices.npy", mmap_mode="r+")
    ids[0] = (ids[0] + 1) % V
    with pytest.raises(StoreError, match="'graph' does not match its digest"):
        open_lazily(tmp_path / "d").read()


def test_labels_must_be_classes_of_the_manifest(tmp_path, data):
    write_dataset(tmp_path / "d", data)
    zarr.open_array(tmp_path / "d" / "arrays" / "labels", mode="r+")[3] = 9
    with pytest.raises(StoreError, match="labels lie in"):
        open_lazily(tmp_path / "d").read()


def test_what_the_manifest_shows_is_refused_at_once(tmp_path, data):
    store = write_dataset(tmp_path / "d", data)
    with pytest.raises(InputError, match="features_format='zarr'; open it with features='memory' or 'zarr'"):
        open_lazily(tmp_path / "d", "mapped")
    with pytest.raises(InputError, match=r"graph_format='zarr', compressed.*--graph npy$") as refused:
        open_lazily(tmp_path / "d", graph="mapped")
    assert refused.type is InputError, "the store is sound"
    path, body = tmp_path / "d" / MANIFEST, json.loads((tmp_path / "d" / MANIFEST).read_text())
    assert body["meta"]["digests"]
    short = {**store.entries, "labels": {**store.entries["labels"], "shape": [V - 1]}}
    path.write_text(manifest_text(KIND, store.fingerprint, store.meta, short))
    with pytest.raises(StoreError, match=f"{V - 1} labels and {V} feature rows of {V} nodes"):
        open_lazily(tmp_path / "d")
    entries = {name: entry for name, entry in store.entries.items() if name != "val"}
    path.write_text(manifest_text(KIND, store.fingerprint, store.meta, entries))
    with pytest.raises(StoreError, match="no array 'val'"):
        open_lazily(tmp_path / "d")
    path.write_text(manifest_text(KIND, store.fingerprint, {**store.meta, "digests": 3}, store.entries))
    with pytest.raises(StoreError, match="digests is '3'; expected dict"):
        _ = open_lazily(tmp_path / "d").known_digests
    assert open_store(tmp_path / "d", KIND).meta["digests"] == 3
    path.write_text(manifest_text(KIND, store.fingerprint, store.meta, store.entries))
    same(open_lazily(tmp_path / "d").read(), open_dataset_store(tmp_path / "d"))
