"""A dataset on disk: comes back the same, features from wherever they lie, and refused when damaged."""

import resource
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage import dataset_store as module
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import features_shape, open_dataset_store, write_dataset
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.storage.features import ArrayFeatures, MappedFeatures, ZarrFeatures
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.storage.graph import Graph, from_edges
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.store import bytes_left, committed_folder, scratch
from millrace.storage.store.manifest import MANIFEST, manifest_text
from millrace.storage.store.narrow import narrow, widen
from millrace.storage.store.npy import is_map
from millrace.storage.store.store import open_store
from millrace.tests.contracts.messages import graphs
from millrace.tests.fuzz.forge import manifest_of, sign

READABLE = [("zarr", "memory"), ("zarr", "zarr"), ("npy", "memory"), ("npy", "mapped")]
GRAPHS = [("zarr", "memory"), ("npy", "memory"), ("npy", "mapped")]


def dataset(graph, *, multilabel=False, dtype=np.float32, seed=0):
    rng, n = np.random.default_rng(seed), graph.num_nodes
    split = Split(*(np.arange(i, n, 3) for i in range(3)))
    labels = (rng.random((n, 4)) < 0.5).astype(np.float32) if multilabel else rng.integers(0, 4, n)
    task = "multilabel" if multilabel else "multiclass"
    return Dataset(
        "some",
        graph,
        ArrayFeatures(rng.random((n, 5)).astype(dtype)),
        labels,
        split,
        4,
        task,
        ("One note.", "Another."),
    )


@pytest.fixture
def small():
    return dataset(from_edges([0, 1, 5, 5], [1, 1, 0, 0], 20, edge_weight=[1, 2, 3, 4], keep_edge_id=True))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr("millrace.storage.store.npy.PIECE_BYTES", 64)
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", 100)


@settings(deadline=None, max_examples=12)
@given(
    graphs(),
    st.sampled_from(READABLE),
    st.sampled_from(GRAPHS),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_round_trip(tmp_path_factory, graph, how, of_graph, multilabel, dtype):
    written, opened = how
    if graph.num_nodes == 0 and written == "npy":
        return
    path, data = tmp_path_factory.mktemp("d") / "d", dataset(graph, multilabel=multilabel, dtype=dtype)
    store = write_dataset(path, data, features_format=written, graph_format=of_graph[0])
    again = open_dataset_store(path, opened, graph=of_graph[1]).check()
    for name in ("indptr", "indices", "edge_weight", "edge_id"):
        array = getattr(again.graph, name)
        np.testing.assert_equal(array, getattr(graph, name))
        assert array is None or is_map(array) == (of_graph[1] == "mapped" and array.size > 0)
    assert store.fingerprint == dataset_fingerprint(data) == dataset_fingerprint(again)
    assert (again.name, again.num_classes, again.task, again.notes) == (
        data.name,
        data.num_classes,
        data.task,
        data.notes,
    )
    assert again.labels.dtype == data.labels.dtype
    assert again.graph.indices.dtype == data.graph.indices.dtype
    assert np.array_equal(again.features.gather(np.arange(data.num_nodes)), data.features.rows)


@pytest.mark.parametrize(
    ("written", "opened", "kind"),
    [(w, o, {"memory": ArrayFeatures, "mapped": MappedFeatures, "zarr": ZarrFeatures}[o]) for w, o in READABLE],
)
def test_features_lie_where_asked(tmp_path, small, written, opened, kind):
    write_dataset(tmp_path / "d", small, features_format=written)
    assert type(open_dataset_store(tmp_path / "d", opened).features) is kind


class OncePerRow:
    """A feature store that counts how often each row is read, and how many at a time."""

    def __init__(self, rows):
        self.inner, self.reads, self.most = ArrayFeatures(rows), np.zeros(len(rows), int), 0
        self.num_rows, self.num_features, self.dtype = self.inner.num_rows, self.inner.num_features, self.inner.dtype

    def gather(self, ids, out=None):
        np.add.at(self.reads, ids, 1)
        self.most = max(self.most, len(ids))
        return self.inner.gather(ids, out)


@pytest.mark.parametrize("written", ["zarr", "npy"])
def test_rows_stream_through_once(tmp_path, written, monkeypatch):
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNKS_PER_WRITE", 1)
    data = dataset(from_edges([], [], 50))
    features = OncePerRow(data.features.rows)
    write_dataset(tmp_path / "d", replace(data, features=features), features_format=written)
    assert (features.reads == 1).all()
    assert features.most <= 5
    assert np.array_equal(open_dataset_store(tmp_path / "d").features.rows, data.features.rows)


def test_a_store_can_be_written_from_a_store(tmp_path, small):
    first = write_dataset(tmp_path / "a", small)
    second = write_dataset(tmp_path / "b", open_dataset_store(tmp_path / "a", "zarr"), features_format="npy")
    third = write_dataset(tmp_path / "c", open_dataset_store(tmp_path / "b", "mapped"))
    assert first.fingerprint == second.fingerprint == third.fingerprint


@pytest.mark.parametrize(
    ("written", "opened", "message"),
    [
        ("zarr", "mapped", "features_format='zarr'; open it with features='memory' or 'zarr'"),
        ("npy", "zarr", "features_format='npy'; open it with features='memory' or 'mapped'"),
        ("npy", "maped", "expected 'memory', 'mapped' or 'zarr'; did you mean 'mapped'"),
    ],
)
def test_features_that_cannot_be_opened_so(tmp_path, small, written, opened, message):
    write_dataset(tmp_path / "d", small, features_format=written)
    with pytest.raises(InputError, match=message):
        open_dataset_store(tmp_path / "d", opened)


def test_unknown_format_and_bad_dataset_write_nothing(tmp_path, small):
    with pytest.raises(InputError, match="features_format is 'parquet'; expected 'zarr' or 'npy'"):
        write_dataset(tmp_path / "d", small, features_format="parquet")
    with pytest.raises(InputError, match="num_classes"):
        write_dataset(tmp_path / "d", replace(small, num_classes=1))
    assert not (tmp_path / "d").exists()


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, small):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with pytest.raises(RunError, match=f"no space is left for {tmp_path / 'd'}; free some and give the same"):
            write_dataset(tmp_path / "d", small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_made_meanwhile_stays(tmp_path, small, monkeypatch):
    monkeypatch.setattr(committed_folder, "fsync_tree", lambda aside: (tmp_path / "d" / "there").mkdir(parents=True))
    with pytest.raises(StoreError, match="was made by another process meanwhile"):
        write_dataset(tmp_path / "d", small)
    assert [p.name for p in tmp_path.iterdir()] == ["d"] and (tmp_path / "d" / "there").exists()


def test_overwrite_must_be_asked_for(tmp_path, small):
    write_dataset(tmp_path / "d", small)
    with pytest.raises(StoreError, match="exists already"):
        write_dataset(tmp_path / "d", small)
    write_dataset(tmp_path / "d", replace(small, name="new"), overwrite=True)
    assert open_dataset_store(tmp_path / "d").name == "new"


@pytest.mark.parametrize("opened", ["memory", "mapped"])
def test_a_short_or_missing_file_is_refused(tmp_path, small, opened):
    write_dataset(tmp_path / "d", small, features_format="npy")
    file = tmp_path / "d/features.npy"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(StoreError, match=r"features\.npy has \d+ bytes; expected \d+"):
        open_dataset_store(tmp_path / "d", opened)
    file.unlink()
    with pytest.raises(StoreError, match="is missing"):
        open_dataset_store(tmp_path / "d", opened)


def test_a_changed_file_is_refused_when_it_is_loaded(tmp_path, small):
    write_dataset(tmp_path / "d", small, features_format="npy")
    file = tmp_path / "d/features.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match="does not match its digest"):
        open_dataset_store(tmp_path / "d")


@pytest.mark.parametrize("name", ["indptr", "indices", "edge_weight", "edge_id"])
def test_a_changed_graph_is_refused_when_it_is_loaded(tmp_path, small, name):
    write_dataset(tmp_path / "d", small, graph_format="npy")
    file = tmp_path / "d" / f"{name}.npy"
    data = bytearray(file.read_bytes())
    data[-itemsize(small, name)] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match="'graph' does not match its digest; it is damaged"):
        open_dataset_store(tmp_path / "d")


@pytest.mark.parametrize(
    ("name", "part"), [("features", "features"), ("indices", "graph"), ("labels", "labels"), ("train", "split")]
)
def test_a_zarr_chunk_in_place_of_another_is_refused_when_it_is_loaded(tmp_path, small, monkeypatch, name, part):
    """Both have the right checksum, and values within bounds."""
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", 100 if name == "train" else 8)
    write_dataset(tmp_path / "d", small)
    arrays = tmp_path / "d" / "arrays"
    both = ("train", "val") if name == "train" else (name,)
    files = [f for array in both for f in sorted((arrays / array / "c").rglob("*")) if f.is_file()]
    first, other = files[:2]
    a, b = first.read_bytes(), other.read_bytes()
    assert a != b
    first.write_bytes(b), other.write_bytes(a)
    for opened in (open_dataset_store, lambda path: open_lazily(path).as_read()):
        with pytest.raises(StoreError, match=f"'{part}' does not match its digest"):
            opened(tmp_path / "d")


def itemsize(data, name):
    return getattr(data.graph, name).itemsize


@pytest.mark.parametrize(("name", "value"), [("indptr", 9), ("indices", 20), ("indices", -1), ("edge_weight", -1.0)])
def test_values_of_a_mapped_graph_are_checked(tmp_path, small, name, value, monkeypatch):
    monkeypatch.setattr("millrace.storage.graph.AT_ONCE", 3)
    write_dataset(tmp_path / "d", small, graph_format="npy")
    np.load(tmp_path / "d" / f"{name}.npy", mmap_mode="r+")[-1] = value
    with pytest.raises(StoreError, match=name):
        open_dataset_store(tmp_path / "d", graph="mapped")


def test_a_graph_and_labels_that_memory_has_no_room_for_are_mapped_and_verified(tmp_path, small, monkeypatch):
    """Where its arrays lie in files; compressed ones in an unnamed one, or they are refused before they are read, as
    features are."""
    for form in ("npy", "zarr"):
        write_dataset(tmp_path / form, small, graph_format=form, features_format=form)
    monkeypatch.setattr(module, "fits_in_memory", lambda num_bytes: False)
    opened = open_dataset_store(tmp_path / "npy", "mapped").graph
    for name in ("indptr", "indices", "edge_weight", "edge_id"):
        assert is_map(getattr(opened, name)) and not is_map(getattr(small.graph, name))
        np.testing.assert_equal(getattr(opened, name), getattr(small.graph, name))
    monkeypatch.setattr(scratch, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "takes_memory", lambda folder: False)
    found = open_dataset_store(tmp_path / "zarr")
    unpacked = found.graph
    for labels in (found.labels, open_lazily(tmp_path / "zarr").labels):
        assert is_map(labels) and labels.tolist() == small.labels.tolist()
    for name in ("indptr", "indices", "edge_weight", "edge_id"):
        assert is_map(getattr(unpacked, name))
        np.testing.assert_equal(getattr(unpacked, name), getattr(small.graph, name))
    np.load(tmp_path / "npy" / "indices.npy", mmap_mode="r+")[0] = 1 - small.graph.indices[0]
    with pytest.raises(StoreError, match="'graph' does not match its digest"):
        open_dataset_store(tmp_path / "npy", "mapped")
    for taken, free in ((True, 1 << 40), (False, 10)):
        monkeypatch.setattr(module, "takes_memory", lambda folder, taken=taken: taken)
        monkeypatch.setattr(module, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        monkeypatch.setattr(bytes_left, "bytes_left", lambda: 1 << 40)
        assert not is_map(open_dataset_store(tmp_path / "zarr").graph.indices)
        monkeypatch.setattr(bytes_left, "bytes_left", lambda: 10)
        told = r"'indptr' takes 0 MiB .* 0 MiB are left; convert it with --graph npy, or give"
        with pytest.raises(StoreError, match=told):
            open_dataset_store(tmp_path / "zarr", "zarr")
    for form, other in (("npy", "mapped"), ("zarr", "zarr")):
        with pytest.raises(StoreError, match=f"features takes .* open them with features={other}, or give it more mem"):
            open_dataset_store(tmp_path / form)


def test_a_store_that_names_no_features_is_refused(tmp_path, small):
    write_dataset(tmp_path / "d", small)
    body = manifest_of(tmp_path / "d")
    del body["arrays"]["features"]
    sign(tmp_path / "d", body)
    with pytest.raises(StoreError, match="features_bytes is 'None'; expected int: make the store again"):
        open_dataset_store(tmp_path / "d")


def test_a_graph_that_cannot_be_mapped(tmp_path, small):
    write_dataset(tmp_path / "d", small)
    with pytest.raises(InputError, match=r"graph_format='zarr', compressed; open it with graph='memory', or write it"):
        open_dataset_store(tmp_path / "d", graph="mapped")
    with pytest.raises(InputError, match="graph='maped'; expected 'memory' or 'mapped'; did you mean 'mapped'"):
        open_dataset_store(tmp_path / "d", graph="maped")
    with pytest.raises(InputError, match="graph_format is 'np'; expected 'zarr' or 'npy'"):
        write_dataset(tmp_path / "e", small, graph_format="np")


@pytest.mark.parametrize("formats", [("npy", "zarr"), ("zarr", "npy"), ("npy", "npy")])
def test_a_store_is_copied_slice_by_slice(tmp_path, small, formats, monkeypatch):
    """In other formats, with the same digests and the same bits as from memory; damage does not go unnoticed."""
    before, after = formats
    write_dataset(tmp_path / "a", small, features_format=before, graph_format=before)
    lazy = open_lazily(tmp_path / "a", "mapped" if before == "npy" else "zarr")
    want = write_dataset(tmp_path / "want", small, features_format=after, graph_format=after)
    with monkeypatch.context() as patch:
        patch.setattr(Graph, "check", lambda self: pytest.fail("the graph was read as a whole"))
        got = write_dataset(tmp_path / "got", lazy, features_format=after, graph_format=after)
    assert (got.fingerprint, got.meta, got.entries) == (want.fingerprint, want.meta, want.entries)
    for file in (tmp_path / "want").rglob("*"):
        if file.is_file():
            assert (tmp_path / "got" / file.relative_to(tmp_path / "want")).read_bytes() == file.read_bytes(), file
    if before == "npy":
        for name in ("indices", "features"):
            np.load(tmp_path / "a" / f"{name}.npy", mmap_mode="r+")[0] += 1
            with pytest.raises(StoreError, match="does not match the digest of its store; it is damaged"):
                write_dataset(tmp_path / "bad", open_lazily(tmp_path / "a", "mapped"))
            assert not (tmp_path / "bad").exists()
            np.load(tmp_path / "a" / f"{name}.npy", mmap_mode="r+")[0] -= 1


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("float32", np.float32),
        ("float32", np.float64),
        ("float16", np.float64),
        ("bfloat16", np.float32),
        ("int8", np.float64),
    ],
)
def test_features_are_kept_narrow_and_read_as_float32(tmp_path, small, kind, dtype, monkeypatch):
    monkeypatch.setattr("millrace.storage.features.WIDENED_BYTES", 20)
    data = replace(small, features=ArrayFeatures((small.features.rows * 300 - 50).astype(dtype)))
    want = widen(narrow(data.features.rows, kind), kind)
    plain = write_dataset(tmp_path / "plain", replace(data, features=ArrayFeatures(want)))
    for written, opened in READABLE:
        path = tmp_path / f"{written}-{opened}"
        store = write_dataset(path, data, features_format=written, feature_dtype=kind)
        assert dict(store.fingerprint) == dict(plain.fingerprint), "that of the rounded rows"
        assert store.meta["digests"] == plain.meta["digests"]
        features = open_dataset_store(path, opened).features
        assert (features.num_rows, features.num_features, features.dtype) == (20, 5, np.float32)
        ids = np.array([3, 3, 19, 0, 7, 1, 2])
        np.testing.assert_array_equal(features.gather(ids), want[ids])
        out = np.empty((7, 5), np.float32)
        assert features.gather(ids, out) is out
        np.testing.assert_array_equal(out, want[ids])
        assert features.gather(ids[:0]).shape == (0, 5)
        assert features_shape(store) == (20, 5)
        with pytest.raises(IndexError):
            features.gather(np.array([20]))
        # Copies keep the form, and have the same digests in any other.
        lazy = open_lazily(path, "mapped" if written == "npy" else "zarr")
        assert lazy.num_features == 5
        again = write_dataset(tmp_path / f"again-{opened}-{written}", lazy, features_format=written)
        assert (again.fingerprint, again.meta, again.entries) == (store.fingerprint, store.meta, store.entries)
        wide = write_dataset(tmp_path / f"wide-{opened}-{written}", lazy, feature_dtype="float32")
        assert dict(wide.fingerprint) == dict(plain.fingerprint) and "features_dtype" not in wide.meta
    if kind != "float32":
        size = (tmp_path / "npy-mapped" / "features.npy").stat().st_size
        assert size == 4096 + 20 * {"float16": 10, "bfloat16": 10, "int8": 9}[kind]
        rows = np.load(tmp_path / "npy-mapped" / "features.npy", mmap_mode="r+")
        rows[0, 0] += 1
        with pytest.raises(StoreError, match="does not match its digest"):
            open_dataset_store(tmp_path / "npy-mapped")


def test_an_unknown_form_of_features_is_refused(tmp_path, small):
    with pytest.raises(InputError, match="feature_dtype is 'float8'; expected float32, float16, bfloat16, int8; did"):
        write_dataset(tmp_path / "d", small, feature_dtype="float8")
    store = write_dataset(tmp_path / "d", small, feature_dtype="int8")
    for meta, said in (
        ({**store.meta, "features_dtype": "int4"}, "features_dtype is 'int4'; expected float16, bfloat16, int8"),
        ({**store.meta, "features_dtype": "float16"}, r"features kept as float16 are uint8\[20, 9\]"),
    ):
        (tmp_path / "d" / MANIFEST).write_text(manifest_text("dataset", store.fingerprint, meta, store.entries))
        with pytest.raises(StoreError, match=said):
            open_dataset_store(tmp_path / "d", "zarr")


def test_a_missing_chunk_is_refused(tmp_path, small):
    write_dataset(tmp_path / "d", small)
    (tmp_path / "d/arrays/features/c/1/0").unlink()
    for opened in ("memory", "zarr"):
        with pytest.raises(StoreError, match="'features'"):
            open_dataset_store(tmp_path / "d", opened)


def test_absent_arrays_stay_absent(tmp_path):
    write_dataset(tmp_path / "d", dataset(from_edges([0], [1], 3)))
    graph = open_dataset_store(tmp_path / "d").graph
    assert graph.edge_weight is None
    assert graph.edge_id is None
    assert "edge_weight" not in open_store(tmp_path / "d", "dataset")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("written", ["zarr", "npy"])
def test_rows_are_taken_from_a_stored_graph_as_from_one_in_memory(tmp_path, weighted, written):
    rng = np.random.default_rng(3)
    v, e = 300, 4000
    weight = rng.random(e).astype(np.float32) if weighted else None
    graph = from_edges(rng.integers(0, v // 2, e), rng.integers(0, v, e), v, edge_weight=weight, keep_edge_id=weighted)
    everything = np.arange(v)
    write_dataset(tmp_path / "store", dataset(graph), graph_format=written)
    stored = module.open_stored(tmp_path / "store").graph
    assert (stored.num_nodes, stored.num_edges) == (v, graph.num_edges)
    assert np.array_equal(stored.first_edge(40, 90), graph.indptr[40:90])
    assert [*stored.of_edges] == (["indices", "edge_weight", "edge_id"] if weighted else ["indices"])
    for first, stop in ((0, v), (40, 90), (7, 7), (299, 300)):
        expected = graph.take(everything[first:stop])
        for got in (stored.rows(first, stop), graph.rows(first, stop)):
            for name in ("indptr", "first_edge", "indices", "edge_weight", "edge_id"):
                a, b = getattr(got, name), getattr(expected, name)
                assert (a is None) == (b is None), name
                if a is not None:
                    assert a.dtype == b.dtype and np.array_equal(a, b), name
    for rows in (
        everything,
        everything[40:90],
        everything[:0],
        everything[::7],
        np.array([0, 299]),
        everything[everything % 5 < 2],
    ):
        expected = graph.take(rows)
        of = [slice(int(graph.indptr[r]), int(graph.indptr[r + 1])) for r in rows]
        assert np.array_equal(expected.indices, np.concatenate([graph.indices[:0], *(graph.indices[s] for s in of)]))
        assert np.array_equal(expected.first_edge, graph.indptr[:-1][rows])


def test_what_is_no_dataset_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"dataset is a str; expected a Dataset: pass open_dataset\(...\) of it"):
        write_dataset(tmp_path / "d", "digits")


def test_names_come_back_and_leave_the_rest_as_it_was(tmp_path, small):
    nodes, classes = [f"nœud {v}" for v in range(19)] + [""], ("a", "b", "ç", "a, b")
    named = replace(small, node_names=nodes, class_names=classes)
    assert write_dataset(tmp_path / "named", named).fingerprint == write_dataset(tmp_path / "plain", small).fingerprint
    again, plain = open_dataset_store(tmp_path / "named").check(), open_dataset_store(tmp_path / "plain")
    assert (list(again.node_names), again.class_names) == (nodes, classes)
    assert (plain.node_names, plain.class_names) == (None, None)
    assert not any(
        "name_" in key or key == "class_names"
        for key in [*open_store(tmp_path / "plain", "dataset").entries, *plain.notes]
    )
    assert open_dataset_store(tmp_path / "named", names=False).node_names is None
    for short in ({"node_names": nodes[1:]}, {"class_names": classes[1:]}):
        with pytest.raises(InputError, match=r"names for .* expected one for each"):
            write_dataset(tmp_path / "short", replace(small, **short))
    group = tmp_path / "named" / "arrays" / "node_name_starts"
    zarr.open_array(str(group))[5] = 10**6
    with pytest.raises(StoreError, match="node names are no ascending offsets into one text; write the dataset again"):
        open_dataset_store(tmp_path / "named")
