"""Rows of a file, read in order: equal to NumPy's for any ids, gaps, lengths of reads and windows."""

import ctypes
import errno
import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.storage.errors import RunError
from millrace.storage.store import row_file, row_reads
from millrace.storage.store.row_file import RowFile

FIRST, ROWS = 40, 300


def made(folder, row_bytes):
    rows = np.random.default_rng(row_bytes).integers(0, 256, (ROWS, row_bytes), np.uint8)
    path = folder / f"rows-{row_bytes}"
    path.write_bytes(b"\1" * FIRST + rows.tobytes())
    return rows, RowFile(path, FIRST, row_bytes, ROWS)


@given(
    ids=st.lists(st.integers(0, ROWS - 1), max_size=200),
    row=st.sampled_from([1, 3, 64, 1000, 9001]),
    gap=st.sampled_from([0, 1, 70, 10**6]),
    read=st.sampled_from([1, 64, 5000, 1 << 20]),
    window=st.sampled_from([1, 4000, 1 << 30]),
    depth=st.integers(1, 3),
    scattered=st.booleans(),
    past_cache=st.booleans(),
)
def test_rows_are_those_of_numpy(tmp_path_factory, ids, row, gap, read, window, depth, scattered, past_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_file, "LARGE_BYTES", 0 if past_cache else 1 << 30)
        patch.setattr(row_file, "bytes_left", lambda: 0)
        patch.setattr(row_reads, "SLOT_BYTES", read)
        patch.setattr(row_file, "CALL_BYTES", window if gap else 1 << 30)
        patch.setattr(row_reads, "DEPTH", depth)
        for name, value in (
            ("GAP_BYTES", gap),
            ("READ_BYTES", read),
            ("WINDOW_BYTES", window),
        ):
            patch.setattr(row_file, name, value)
        rows, file = made(tmp_path_factory.mktemp("rows"), row)
        ids = np.array(ids, np.int32)
        order = np.argsort(ids, kind="stable")
        out = np.full((len(ids), row), 9, np.uint8)
        file.read(ids[order], out, order if scattered else None)
        np.testing.assert_array_equal(out, rows[ids if scattered else ids[order]])
        if past_cache and len(ids):
            assert type(file._own.ring) is row_reads.Ring, "the file system has reads past the cache"
        elif gap == 0 and len(ids):
            assert file.reads.bytes == len(np.unique(ids)) * row, "nothing else is read"
            if read == 1:
                assert file.reads.count == len(np.unique(ids)), "rows are read whole"


def test_reads_are_merged_and_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(row_file, "GAP_BYTES", 200)
    monkeypatch.setattr(row_file, "READ_BYTES", 500)
    _, file = made(tmp_path, 100)
    ids = np.array([0, 1, 4, 8, 9, 20, 21, 22, 23, 24, 25, 26])
    file.read(ids, np.empty((12, 100), np.uint8), None)
    # 0 to 4; 8 and 9, behind a gap of three; 20 to 24, and 25 and 26, behind the longest read.
    assert (file.reads.count, file.reads.bytes) == (4, 500 + 200 + 500 + 200)
    assert file.reads.under_way == 4 + 3 + 2 + 1, "all were announced before the first"


def test_ranges_that_are_read_soon_are_announced_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(row_file, "GAP_BYTES", 200)
    monkeypatch.setattr(RowFile, "is_cached", lambda self, ids: not len(ids))
    _, file = made(tmp_path, 100)
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, at, size, how: told.append((at - FIRST, size)))
    file.announce(np.array([0, 2, 3, 9, 40]), np.array([2, 2, 5, 12, 41]))
    assert told == [(0, 500), (900, 300), (4000, 100)]
    file.announce(np.array([7]), np.array([7]))
    assert len(told) == 3, "an empty range is none"


def test_a_file_in_the_cache_is_known(tmp_path, monkeypatch):
    rows, file = made(tmp_path, 1000)
    every, read = np.arange(ROWS), os.preadv
    file.read(every, np.empty_like(rows), None)
    assert file.is_cached(every)
    assert file.is_cached(every[:0])

    def waits(handle, buffers, at, flags):
        # The system has all pages but those of row 150.
        if at // 1000 == (FIRST + 150 * 1000) // 1000:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return read(handle, buffers, at, flags)

    monkeypatch.setattr(os, "preadv", waits)
    assert file.is_cached(every[:140])
    assert not file.is_cached(every[100:200])


@pytest.mark.parametrize("why", ["small", "room", "system", "ends", "refused"])
def test_rows_come_by_the_cache_where_reads_past_it_cannot_be_had(tmp_path, monkeypatch, why):
    monkeypatch.setattr(row_file, "LARGE_BYTES", 1000 if why == "small" else 1)
    monkeypatch.setattr(row_file, "bytes_left", lambda: (why == "room") << 60)
    if why == "system":
        monkeypatch.setattr(row_reads, "CALLS", {})
    rows, file = made(tmp_path, 100)
    if why == "refused":
        # As a tmpfs does, which has no such reads.
        monkeypatch.setattr(row_reads.os, "O_DIRECT", os.O_DIRECT | os.O_DIRECTORY)
    ids, out = np.array([7, 9, 299]), np.empty((3, 100), np.uint8)
    if why == "ends":
        # The ring reads another file, which ends before the rows do.
        (tmp_path / "short").write_bytes(b"\1" * 900)
        with (tmp_path / "short").open("rb") as short:
            file._own.has_tried, file._own.ring = True, row_reads.Ring(short.fileno(), FIRST, 100, 1 << 30)
    for _ in range(2):
        file.read(ids, out, None)
        np.testing.assert_array_equal(out, rows[ids])
    assert (file._own.has_tried, file._own.ring) == (why not in ("small", "room"), None)
    assert file.reads.bytes == 2 * 400, "what a ring could not read is not counted"


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("cached", [True, False])
def test_a_file_cut_short_is_a_sentence(tmp_path, monkeypatch, cached, past_cache):
    monkeypatch.setattr(row_file, "LARGE_BYTES", 1 if past_cache else 1 << 30)
    monkeypatch.setattr(row_file, "bytes_left", lambda: 0)
    _, file = made(tmp_path, 100)
    os.truncate(file.path, FIRST + 100 * 50 + 7)
    ids = np.array([3, 40, 60])
    reads = (lambda: file.is_cached(ids)) if cached else lambda: file.read(ids, np.empty((3, 100), np.uint8), None)
    with pytest.raises(RunError, match=r"rows-100 cannot be read at row 50 of 300 \(it (has|ends).* the file short"):
        reads()


@pytest.mark.parametrize("past_cache", [False, True])
def test_a_file_cut_short_between_two_reads_is_a_sentence(tmp_path, monkeypatch, past_cache):
    monkeypatch.setattr(row_file, "LARGE_BYTES", 1 if past_cache else 1 << 30)
    monkeypatch.setattr(row_file, "bytes_left", lambda: 0)
    monkeypatch.setattr(row_file, "CALL_BYTES", 1000)
    rows, file = made(tmp_path, 100)
    place, name = (row_reads.Ring, "read") if past_cache else (row_reads, "read_rows")
    once, out = getattr(place, name), np.zeros((ROWS, 100), np.uint8)

    def cuts(*args):
        done = once(*args)
        os.truncate(file.path, FIRST + 100 * 50 + 7)
        return done

    monkeypatch.setattr(place, name, cuts)
    with pytest.raises(RunError, match=r"at row 50 of 300 \(it has 50 rows now; expected 300\)"):
        file.read(np.arange(ROWS), out, None)
    np.testing.assert_array_equal(out[:50], rows[:50])


def test_ranks_of_one_host_read_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(row_file, "LARGE_BYTES", 1)
    monkeypatch.setattr(row_file, "bytes_left", lambda: 0)
    rows, one = made(tmp_path, 1000)
    ids, found = [np.arange(k, ROWS, 2) for k in range(2)], [np.zeros((ROWS // 2, 1000), np.uint8) for _ in range(2)]
    with ThreadPoolExecutor(2) as ranks:
        for file in (one, RowFile(one.path, FIRST, 1000, ROWS)):
            list(ranks.map(file.read, ids, found, (None, None)))
            assert all(np.array_equal(out, rows[i]) for i, out in zip(ids, found))


def test_a_disk_that_fails_is_a_sentence(tmp_path, monkeypatch):
    _, file = made(tmp_path, 100)

    def fails(*args):
        raise OSError(5, "Input/output error")

    kept = os.dup(file._handle)
    os.dup2(os.open(file.path, os.O_WRONLY), file._handle)
    with pytest.raises(RunError, match=r"at row 7 of 300 \(Bad file descriptor\).*--resume"):
        file.read(np.array([7, 9]), np.empty((2, 100), np.uint8), None)
    os.dup2(kept, file._handle)
    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(RunError, match=r"at row 7 of 300 \(Input/output error\)"):
        file.is_cached(np.array([7]))


def test_a_bad_sector_ends_a_row_that_spans_two_pages(tmp_path):
    # Reads of a mapping whose file was cut answer as such a sector does: short up to it, then by an error.
    with tempfile.TemporaryFile(dir=tmp_path) as backing:
        backing.truncate(2 * mmap.PAGESIZE)
        mapped = mmap.mmap(backing.fileno(), 2 * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        backing.truncate(mmap.PAGESIZE)
        file = RowFile(Path("/proc/self/mem"), base, 1000, 2 * mmap.PAGESIZE // 1000)
        file.require_whole = lambda: None
        with pytest.raises(RunError, match="cannot be read at row 4 of 8"):
            file.read(np.array([4]), np.empty((1, 1000), np.uint8), None)
