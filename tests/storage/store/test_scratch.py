"""Arrays in unnamed files: writable as in memory, nothing left, and a full disk is said."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from millrace.storage.errors import RunError, StoreError
from millrace.storage.store import npy, scratch
from millrace.storage.store.npy import is_map
from millrace.storage.store.scratch import Arrays, InFiles, in_memory
from millrace.storage.store.store import write_store


def test_large_arrays_are_maps_of_files_without_a_name(tmp_path, monkeypatch):
    empty = InFiles(tmp_path)
    assert not is_map(empty(scratch.LEAST_BYTES // 4 - 1, np.int32))
    monkeypatch.setattr(scratch, "LEAST_BYTES", 1)
    for shape, dtype in ((1000, np.int32), ((20, 3), np.float64), (1, np.int64)):
        array = empty(shape, dtype)
        assert is_map(array) and array.flags.writeable and array.flags.c_contiguous and type(array) is np.ndarray
        assert (array.shape, array.dtype) == (np.empty(shape).shape, dtype)
        array[...] = 7
        assert (array == 7).all()
    assert empty((0, 3), np.float32).shape == (0, 3)
    assert not list(tmp_path.iterdir())
    assert not is_map(Arrays().graph(1000, np.int32))


def test_files_in_memory_are_told_by_the_file_system_around_them(tmp_path, monkeypatch):
    def mounted(**kinds):
        found = [SimpleNamespace(mountpoint=str(tmp_path / name), fstype=kind) for name, kind in kinds.items()]
        monkeypatch.setattr(
            psutil, "disk_partitions", lambda all: [*found, SimpleNamespace(mountpoint="/", fstype="ext4")]
        )

    mounted(a="tmpfs")
    assert scratch.takes_memory(tmp_path / "a" / "b") and not scratch.takes_memory(tmp_path)
    mounted(a="ext4")
    assert not scratch.takes_memory(tmp_path / "a")


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, RunError), (errno.EACCES, PermissionError)])
def test_a_full_disk_is_said(tmp_path, monkeypatch, number, error):
    def full(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(error, match="no room for 4 MiB of a graph .*leave graph" if error is RunError else None):
        InFiles(tmp_path)(1 << 20, np.int32)


def test_an_array_of_a_store_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(npy, "PIECE_BYTES", 64)
    monkeypatch.setattr(scratch, "LEAST_BYTES", 1)
    rows, none = np.arange(60, dtype=np.int64).reshape(20, 3), np.empty(0, np.int32)
    store = write_store(tmp_path / "s", "x", fingerprint={}, meta={}, arrays={"rows": rows, "none": none})
    for empty in (in_memory, InFiles(tmp_path)):
        for name, array in (("rows", rows), ("none", none)):
            found = store.read_into(name, empty)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
    (chunk,) = (p for p in (tmp_path / "s" / "arrays" / "rows" / "c").rglob("*") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match=r"array 'rows' is damaged .*make the store again"):
        store.read_into("rows", InFiles(tmp_path))
