"""Arrays in files of their own: written in pieces and mapped as they are, and refused when the file is another."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from millrace.storage.errors import StoreError
from millrace.storage.features import MappedFeatures
from millrace.storage.store import npy
from millrace.storage.store.arrays import write_arrays
from millrace.storage.store.npy import (
    data_offset,
    file_of,
    is_map,
    make_npy,
    mapped_file,
    mapped_npy,
    npy_bytes,
    npy_header,
    put_npy,
    row_pieces,
)
from millrace.storage.store.store import Store


@pytest.mark.parametrize("shape", [(0,), (1,), (1001,), (0, 3), (40, 3), (5, 0)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_what_is_written_in_pieces_is_mapped(tmp_path, shape, dtype, monkeypatch):
    monkeypatch.setattr(npy, "PIECE_BYTES", 40)
    array = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    entries = write_arrays(tmp_path, {"a": array, "b": array}, npy=("a",))
    assert entries["a"] == {"shape": list(shape), "dtype": np.dtype(dtype).name, "chunks": 1, "npy": True}
    assert "npy" not in entries["b"]
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
    assert (tmp_path / "a.npy").stat().st_size == npy_bytes(dtype, shape)
    store = Store(tmp_path, "x", {}, {}, entries)
    found = store.mapped("a")
    assert (found.dtype, type(found)) == (array.dtype, np.ndarray)
    np.testing.assert_array_equal(found, array)
    for name in "ab":
        np.testing.assert_array_equal(store.read(name), array)
        np.testing.assert_array_equal(store.piece(name, slice(3, 7)), array[3:7])
    assert not is_map(store.read("a"))
    if array.size:
        assert is_map(found) and is_map(found[:1]) and found.flags.writeable
        found.reshape(-1)[0] += 1
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
        assert found.ctypes.data % 4096 == 0, "rows of a power of two lie in as few pages as they can"


def test_writers_share_a_file_and_go_on_with_it(tmp_path):
    array = np.arange(10_000).reshape(-1, 4)
    entry = make_npy(tmp_path, "a", array.shape, array.dtype)
    pieces = list(row_pieces((len(array),), 1 << 15))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda s: put_npy(tmp_path, "a", array.shape, s.start, array[s]), pieces[:3]))
        assert make_npy(tmp_path, "a", array.shape, array.dtype) == entry
        list(pool.map(lambda s: put_npy(tmp_path, "a", array.shape, s.start, array[s]), pieces[3:]))
    np.testing.assert_array_equal(mapped_npy(tmp_path, "a", entry), array)


def test_files_of_older_writers_have_short_headers(tmp_path):
    array = np.arange(10_000).reshape(-1, 4)
    np.save(tmp_path / "a.npy", array)
    entry = make_npy(tmp_path, "a", array.shape, array.dtype)
    assert data_offset(tmp_path / "a.npy") == 128, "it is kept: a killed writer goes on with it"
    put_npy(tmp_path, "a", array.shape, 40, -array[40:80])
    array[40:80] *= -1
    np.testing.assert_array_equal(mapped_npy(tmp_path, "a", entry), array)


def test_another_file_is_refused(tmp_path, monkeypatch):
    array = np.arange(50)
    entry = write_arrays(tmp_path, {"a": array}, npy=("a",))["a"]
    file = tmp_path / "a.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=r"a\.npy has 4495 bytes; expected 4496 bytes: make the store again"):
        mapped_npy(tmp_path, "a", entry)
    np.save(file, array.view(np.uint64))
    with pytest.raises(StoreError, match=r"does not begin as an \.npy file of int64\[50\]"):
        mapped_npy(tmp_path, "a", entry)
    file.unlink()
    with pytest.raises(StoreError, match=r"a\.npy cannot be read \(No such file or directory\)"):
        mapped_npy(tmp_path, "a", entry)
    file.write_bytes(whole)

    def full(*args):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(npy, "mapped", full)
    with pytest.raises(StoreError, match=r"cannot be mapped \(Cannot allocate memory\): .* \(ulimit -v\)"):
        mapped_npy(tmp_path, "a", entry)


def test_the_file_of_a_map_reads_its_rows(tmp_path):
    array = np.arange(60, dtype=np.int64).reshape(20, 3)
    entries = write_arrays(tmp_path, {"a": array}, npy=("a",))
    mapped = Store(tmp_path, "x", {}, {}, entries).mapped("a")
    for part, first in ((mapped, 0), (mapped[4:], 4)):
        file = file_of(part)
        assert file is not None and (file.num_rows, file.row_bytes) == (len(part), 24)
        out = np.empty((2, 24), np.uint8)
        file.read(np.array([0, 5]), out, None)
        np.testing.assert_array_equal(out.view(np.int64), array[[first, first + 5]])
    assert file_of(array) is None
    (tmp_path / "a.npy").unlink()
    assert file_of(mapped) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads the machine's memory")
def test_a_file_larger_than_the_machines_memory_is_mapped(tmp_path):
    """Where it may be written to, the system otherwise takes it for a claim to that much memory."""
    rows = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (8 << 20)
    with open(tmp_path / "a.npy", "wb") as file:
        file.write(npy_header(np.int64, (rows, 1 << 20)))
        file.truncate(npy_bytes(np.int64, (rows, 1 << 20)))  # without blocks on the disk
    found = mapped_file(tmp_path / "a.npy")
    found[-1, -1] = 1
    assert found.shape == (rows, 1 << 20) and mapped_file(tmp_path / "a.npy")[-1, -1] == 0
    assert file_of(np.asarray(found)[1:]).first == found.offset + (8 << 20)


def test_objects_are_not_mapped(tmp_path):
    """The file would say where in memory they lie."""
    header = npy_header(np.uint64, (2,)).replace(b"'<u8'", b"'|O' ")
    (tmp_path / "a.npy").write_bytes(header + bytes(16))
    with pytest.raises(ValueError, match="it holds Python objects; expected numbers"):
        mapped_file(tmp_path / "a.npy")
    with pytest.raises(StoreError, match=r"does not begin as an \.npy file of object\[2\]"):
        mapped_npy(tmp_path, "a", {"shape": [2], "dtype": "object"})
    with pytest.raises(StoreError, match="it holds Python objects"):
        MappedFeatures(tmp_path / "a.npy", narrow=True)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_of_other_writers_are_mapped(tmp_path, version, order):
    array = np.arange(12, dtype=np.float32).reshape(4, 3, order=order)
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, array, version)
    np.testing.assert_array_equal(mapped_file(tmp_path / "a.npy"), array)
    np.testing.assert_array_equal(MappedFeatures(tmp_path / "a.npy").gather(np.array([3, 0])), array[[3, 0]])
