"""Committed folders of checked arrays: whole or not at all, and never trusted blindly."""

import json
import os
import shutil

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.storage.errors import InputError, StoreError
from millrace.storage.store.arrays import write_arrays
from millrace.storage.store.committed_folder import committed_folder, remove_tree, sweep_leftovers
from millrace.storage.store.manifest import MANIFEST, read_manifest, write_manifest
from millrace.storage.store.store import open_store, write_store

KINDS = [np.int16, np.int32, np.int64, np.float32, np.float64, np.uint8, np.bool_]


def write(path, arrays, **options):
    return write_store(path, "test", fingerprint={"a": "1", "b": "2"}, meta={"n": 3}, arrays=arrays, **options)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A store of one array in five Zarr chunks."""
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", 80)
    write(tmp_path / "s", {"x": np.arange(50)})
    return tmp_path / "s"


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@settings(deadline=None, max_examples=25)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.sampled_from(KINDS).flatmap(
            lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9))
        ),
        max_size=2,
    ),
    st.sampled_from([1, 40, 1 << 20]),
)
def test_round_trip(tmp_path_factory, arrays, chunk_bytes):
    path = tmp_path_factory.mktemp("store") / "deep" / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", chunk_bytes)
        patch.setattr("millrace.storage.store.arrays.CHUNKS_PER_WRITE", 2)
        write(path, arrays)
    store = open_store(path, "test", fingerprint={"a": "1", "b": "2"})
    assert (store.meta, set(store.entries)) == ({"n": 3}, set(arrays))
    for name, value in arrays.items():
        read = store.read(name)
        assert name in store
        assert (read.dtype, read.shape) == (value.dtype, value.shape)
        assert read.tobytes() == value.tobytes()
    assert store.nbytes == sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)


class Streamed:
    """Rows that are never there as a whole."""

    def __init__(self, rows):
        self.shape, self.dtype, self._rows, self.asked = rows.shape, rows.dtype, rows, []

    def __getitem__(self, rows):
        self.asked.append((rows.start, rows.stop))
        return self._rows[rows]


def test_rows_are_read_once_in_order_and_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNK_BYTES", 80)
    monkeypatch.setattr("millrace.storage.store.arrays.CHUNKS_PER_WRITE", 2)
    rows = Streamed(np.arange(50))
    store = write(tmp_path / "s", {"x": rows})
    assert rows.asked == [(0, 20), (20, 40), (40, 50)]
    assert np.array_equal(store.read("x"), np.arange(50))
    assert store.array("x").chunks == (10,)


def test_one_shard_reads_a_row_alone(tmp_path):
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    with committed_folder(tmp_path / "s") as folder:
        write_manifest(folder, "test", {}, {}, write_arrays(folder, {"x": rows}, one_shard=True))
    z = open_store(tmp_path / "s", "test").array("x")
    assert (z.chunks, z.shards) == ((1, 4), (3, 4))
    assert np.array_equal(z[1], rows[1])
    assert len([p for p in (tmp_path / "s/arrays/x/c").rglob("*") if p.is_file()]) == 1


def test_an_existing_store_is_left_alone(written):
    with pytest.raises(StoreError, match="exists already"):
        write(written, {"y": np.zeros(1)})
    assert "x" in open_store(written, "test")


def test_overwrite_replaces_and_leaves_nothing_behind(written):
    write(written, {"y": np.zeros(1)}, overwrite=True)
    assert set(open_store(written, "test").entries) == {"y"}
    assert names(written.parent) == ["s"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_is_never_visible(tmp_path, overwrite, error):
    if overwrite:
        write(tmp_path / "s", {"x": np.arange(3)})

    def fail():
        with committed_folder(tmp_path / "s", overwrite=overwrite) as folder:
            (folder / "half").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == (["s"] if overwrite else [])
    if overwrite:
        assert np.array_equal(open_store(tmp_path / "s", "test").read("x"), np.arange(3))


def test_nothing_is_visible_before_the_end(tmp_path):
    with committed_folder(tmp_path / "s", durable=False) as folder:
        assert not (tmp_path / "s").exists()
        assert folder.name.startswith(".writing-s-")
    assert names(tmp_path) == ["s"]


def test_a_parent_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"), committed_folder(tmp_path / "file" / "s"):
        pytest.fail("entered")


def test_sweep_removes_leftovers_only(tmp_path):
    for name in (".writing-s-1", ".removed-s-2", ".git", "s"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("")
    assert sweep_leftovers(tmp_path) == 2
    assert names(tmp_path) == [".git", "s"]
    assert sweep_leftovers(tmp_path / "absent") == 0


def test_a_writer_that_is_swept_commits_all_or_nothing(tmp_path, monkeypatch):
    """Sampling tasks of a generation that has ended may still write when the next one opens the queue. A file system
    without locks."""
    monkeypatch.setattr("millrace.storage.store.committed_folder._is_held", lambda folder: False)
    remove = shutil.rmtree
    committed = []

    def rename_in_the_middle(path, ignore_errors):
        if not committed:
            committed.append(False)
            (path / "rows").unlink()
            try:
                writer.__exit__(None, None, None)
                committed[0] = True
            except OSError:
                pass
        remove(path, ignore_errors=ignore_errors)

    writer = committed_folder(tmp_path / "s")
    aside = writer.__enter__()
    for name in ("rows", MANIFEST):
        (aside / name).write_text("")
    monkeypatch.setattr(shutil, "rmtree", rename_in_the_middle)
    sweep_leftovers(tmp_path)
    assert committed == [False]
    assert names(tmp_path) == []


def test_a_writer_that_lives_is_left_alone(tmp_path):
    with committed_folder(tmp_path / "s") as aside:
        (aside / MANIFEST).write_text("")
        assert sweep_leftovers(tmp_path) == 0
    assert names(tmp_path) == ["s"]


def test_sweep_of_one_store_leaves_those_of_others(tmp_path):
    for name in (".writing-s-0123abcd", ".writing-s-2-0123abcd", ".writing-other-0123abcd"):
        (tmp_path / name).mkdir()
    assert sweep_leftovers(tmp_path, of="s") == 1
    assert names(tmp_path) == [".writing-other-0123abcd", ".writing-s-2-0123abcd"]


def test_remove_tree(written):
    remove_tree(written)
    remove_tree(written)
    assert names(written.parent) == []


def test_refuses_what_is_no_store(tmp_path, written):
    with pytest.raises(StoreError, match=r"holds no manifest\.json"):
        open_store(tmp_path / "absent", "test")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file; expected the folder"):
        open_store(tmp_path / "file", "test")
    with pytest.raises(StoreError, match="holds 'millrace-test'; expected 'millrace-other'"):
        open_store(written, "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[]", "holds 'list'"),
        (b"{}", "holds 'None'"),
        (b'{"format": "millrace-test", "schema_version": 99}', "schema version 99; this Millrace reads version 2"),
        (b'{"format": "millrace-test", "schema_version": 2}', "does not match its checksum"),
    ],
)
def test_refuses_a_bad_manifest(written, text, message):
    (written / "manifest.json").write_bytes(text)
    with pytest.raises(StoreError, match=message):
        read_manifest(written, "test")


@pytest.mark.parametrize("key", ["fingerprint", "meta", "arrays"])
def test_a_changed_manifest_is_seen(written, key):
    file = written / "manifest.json"
    body = json.loads(file.read_text())
    body[key]["more"] = "1"
    file.write_text(json.dumps(body))
    with pytest.raises(StoreError, match="checksum"):
        open_store(written, "test")


def test_another_fingerprint_is_refused_by_its_keys(written):
    with pytest.raises(StoreError, match=r"differ: b \(store 2, wanted 3\), c \(store absent, wanted 4\):"):
        open_store(written, "test", fingerprint={"a": "1", "b": "3", "c": "4"})
    with pytest.raises(StoreError, match=r"differ: b \(store 2, wanted absent\): set them"):
        open_store(written, "test", fingerprint={"a": "1"})


def test_an_array_that_is_not_there(written):
    with pytest.raises(StoreError, match="no array 'y', but x; make the store again"):
        open_store(written, "test").read("y")


def test_a_missing_chunk_is_never_zeros(written):
    (written / "arrays/x/c/2").unlink()
    with pytest.raises(StoreError, match="array 'x' lacks 1 of its"):
        open_store(written, "test").read("x")


def test_a_damaged_chunk_is_refused(written):
    chunk = written / "arrays/x/c/2"
    good = chunk.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 4
        chunk.write_bytes(bad)
        with pytest.raises(StoreError, match="'x' is damaged"):
            open_store(written, "test").read("x")
    chunk.write_bytes(good[:-1])
    with pytest.raises(StoreError, match="'x' is damaged"):
        open_store(written, "test").read("x")


def test_an_array_in_place_of_another_is_refused(written):
    zarr.open_group(str(written / "arrays"), mode="a").create_array("x", shape=(4,), dtype="int64", overwrite=True)
    with pytest.raises(StoreError, match="the manifest says"):
        open_store(written, "test").read("x")
    (written / "arrays/x/zarr.json").write_text("{")
    with pytest.raises(StoreError, match="'x' cannot be opened"):
        open_store(written, "test").read("x")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compressors": [zarr.codecs.GzipCodec()]}, "GzipCodec"),
        ({"filters": [zarr.codecs.TransposeCodec(order=(0,))]}, "TransposeCodec"),
        ({"shards": (50,), "compressors": [zarr.codecs.ZstdCodec()]}, "ZstdCodec"),
        ({"shards": (50,), "serializer": zarr.codecs.ShardingCodec(chunk_shape=(5,))}, "ShardingCodec"),
    ],
)
def test_only_codecs_that_we_write_are_opened(written, options, named):
    """Those of another package run its code on what somebody has put into a store."""
    at = written / "arrays" / "x"
    zarr.create_array(str(at), data=np.arange(50), chunks=(10,), overwrite=True, **options)
    with pytest.raises(StoreError, match=f"its {named} is none that Millrace writes"):
        open_store(written, "test").array("x")
