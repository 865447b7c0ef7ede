"""Rows beside the bulks of a store of samples: written once in order, read by the minibatch, damage noticed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.storage.errors import RunError, StoreError
from millrace.storage.queue.location import FolderLocation
from millrace.storage.queue.packed_rows import FORMS, PackedRows, RowForm
from millrace.storage.queue.zarr import ZarrQueue
from millrace.storage.store.narrow import narrow, widen
from millrace.tests.fuzz.forge import manifest_of, sign

WIDTH, V = 5, 40
COUNTS = [3, 0, 7]


def rows_of(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, WIDTH)).astype(np.float32)


def begun(path: Path, form: str = "float32", columns: int = 1, mend: Any = None, **made: str) -> PackedRows:
    queue = ZarrQueue.create(
        path, fingerprint={"graph": "g"}, bulk_size=3, max_bytes=1 << 30, keep="all", meta={"minibatches_per_epoch": 9}
    )
    meta = {"form": form, "width": WIDTH, "num_nodes": V, "exact": True}
    (path / "epoch-0").mkdir(exist_ok=True)
    return queue.pack({"features": "f", "form": form, **made}, mend, **meta)


def filled(path: Path, form: str = "float32", columns: int = 1) -> PackedRows:
    packed = begun(path, form, columns)
    with packed.writing(0, 1, COUNTS, columns) as writer:
        for at, count in enumerate(COUNTS):
            kept, degrees = packed.form.kept(rows_of(count)), np.arange(count * columns, dtype=float)
            for piece in np.array_split(np.arange(count), 3):
                of_piece = degrees.reshape(count, columns)[piece]
                writer.add(at, kept[piece], of_piece)
    return packed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_each_minibatch_gets_its_rows_and_degrees(form: str, columns: int, tmp_path: Path) -> None:
    packed = filled(tmp_path / "s", form, columns)
    again = ZarrQueue.open(tmp_path / "s").packed
    assert again is not None and again.committed(0) == {1} and again.is_exact
    for at, count in enumerate(COUNTS):
        for read in (packed, again, again.cycled(1)):
            epoch = 4 if read._epochs == 1 else 0
            assert read.count(epoch, 3 + at) == count
            found = read.rows(epoch, 3 + at, np.float64)
            wanted = rows_of(count) if form in ("float32", "float64") else widen(narrow(rows_of(count), form), form)
            assert found.dtype == np.float64 and np.array_equal(found, wanted)
            if columns:
                wanted = np.arange(count * columns, dtype=float).reshape(count, columns)
                assert np.array_equal(read.degrees(epoch, 3 + at).reshape(count, columns), wanted)


@given(st.integers(0, 6), st.integers(0, 9), st.sampled_from(FORMS))
def test_the_size_of_a_row_is_that_of_what_is_kept(count: int, width: int, form: Any) -> None:
    kept = RowForm(form, width).kept(np.ones((count, width)))
    assert kept.shape == (count, RowForm(form, width).columns) and kept.dtype == RowForm(form, width).dtype
    assert kept.nbytes == count * RowForm(form, width).row_bytes


def test_what_is_not_written_to_its_end_is_not_there(tmp_path: Path) -> None:
    packed = begun(tmp_path / "s")
    with pytest.raises(KeyError), packed.writing(0, 0, COUNTS, 1):
        raise KeyError
    assert packed.committed(0) == set() and not list((tmp_path / "s" / "epoch-0").iterdir())
    with pytest.raises(StoreError, match=r"rows-0.*give the `millrace sample --features` command again"):
        packed.rows(0, 0, np.float32)


@pytest.mark.parametrize(
    ("other", "phrase"), [({"features": "h"}, r"features \(store f, wanted h\)"), ({"form": "int8"}, "form")]
)
def test_rows_of_other_features_or_in_another_form_are_refused(
    other: dict[str, str], phrase: str, tmp_path: Path
) -> None:
    filled(tmp_path / "s")
    with pytest.raises(StoreError, match=phrase):
        begun(tmp_path / "s", **other)


def cut(folder: Path) -> None:
    os.truncate(folder / "rows.npy", 4096 + 5 * 4 * WIDTH)


def flip(folder: Path) -> None:
    with open(folder / "rows.npy", "r+b") as file:
        file.seek(4096 + 5 * 4 * WIDTH)
        file.write(b"\xff")


def lose(folder: Path) -> None:
    (folder / "rows.npy").unlink()


def test_damaged_degrees_are_told_and_mended(tmp_path: Path) -> None:
    packed, told = filled(tmp_path / "s"), list[str]()
    with open(tmp_path / "s" / "epoch-0" / "rows-1" / "degree.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x11")
    with pytest.raises(StoreError, match="the degrees of minibatch 5 do not match their checksum"):
        packed.degrees(0, 5)
    assert begun(tmp_path / "s", mend=told.append).committed(0) == set() and len(told) == 1


@pytest.mark.parametrize(
    ("damage", "error", "phrase"),
    [
        (cut, RunError, r"rows-1/rows.npy cannot be read at byte \d+ \(it ends there\)"),
        (flip, StoreError, "the rows of minibatch 5 do not match their checksum"),
        (lose, RunError, "No such file"),
    ],
)
def test_damage_is_told_and_mended(damage: Any, error: type[Exception], phrase: str, tmp_path: Path) -> None:
    packed, told = filled(tmp_path / "s"), list[str]()
    damage(tmp_path / "s" / "epoch-0" / "rows-1")
    with pytest.raises(error, match=phrase):
        packed.rows(0, 5, np.float32)
    again = begun(tmp_path / "s", mend=told.append)
    assert again.committed(0) == set() and len(told) == 1 and "packed again" in told[0]


def test_a_manifest_that_says_nothing_is_refused(tmp_path: Path) -> None:
    packed = filled(tmp_path / "s")
    with packed._location.making("epoch-0/rows-2", "packed-rows", {"offsets": [3, 1], "sums": [0]}):
        pass
    with pytest.raises(StoreError, match="does not say where its rows are"):
        packed.count(0, 6)
    with packed.writing(0, 0, [1], 1) as writer:
        writer.add(0, packed.form.kept(rows_of(1)), np.ones(1))
    with pytest.raises(StoreError, match="no rows of minibatch"):
        packed.count(0, 1)
    with pytest.raises(StoreError, match="says form float12"):
        begun(tmp_path / "t", "float12")


@pytest.mark.parametrize("key", ["offsets", "sums", "degree_sums", "degree_columns"])
@pytest.mark.parametrize("value", ["x", None, -1, 2, [0, "1", 2, 3], [0.5, 1, 2, 3], [-3, 1, 2, 3], [0, 1, 2, 1 << 55]])
def test_a_forged_manifest_is_refused(tmp_path: Path, key: str, value: object) -> None:
    packed, of_bulk = filled(tmp_path / "s"), tmp_path / "s" / "epoch-0" / "rows-1"
    body = manifest_of(of_bulk)
    body["meta"][key] = value
    sign(of_bulk, body)
    with pytest.raises(StoreError, match="does not say where its rows are"):
        packed.count(0, 3)


@pytest.mark.parametrize("key", ["width", "offsets"])
def test_no_memory_is_taken_for_rows_that_the_file_does_not_hold(tmp_path: Path, key: str) -> None:
    filled(tmp_path / "s")
    store = tmp_path / "s" / ("features" if key == "width" else "epoch-0/rows-1")
    body = manifest_of(store)
    body["meta"][key] = 1 << 40 if key == "width" else [0, *(1 << 40 for _ in body["meta"]["sums"])]
    sign(store, body)
    packed = PackedRows.opened_at(FolderLocation(tmp_path / "s"), 3)
    assert packed is not None
    with pytest.raises(RunError, match="it ends there"):
        packed.rows(0, 3, np.float32)


def test_a_pipe_in_place_of_rows_is_refused(tmp_path: Path) -> None:
    packed, rows = filled(tmp_path / "s"), tmp_path / "s" / "epoch-0" / "rows-1" / "rows.npy"
    rows.unlink()
    os.mkfifo(rows)
    with pytest.raises(StoreError, match=r"rows\.npy is a pipe; expected a file"):
        packed.rows(0, 3, np.float32)
