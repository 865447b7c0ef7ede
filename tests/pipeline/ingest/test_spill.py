"""Spilled records come back by cells, in the order in which they were written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.ingest import spill
from millrace.pipeline.ingest.spill import CELLS, Cells, Field, RunWriter, cell_sizes, cells_of, read_cells, shift_of
from millrace.storage.errors import RunError

FIELDS = (Field("int64"), Field("float32", (3,)))


@given(st.integers(1, 1 << 40))
def test_cells_cover_all_numbers(count):
    assert 1 <= cells_of(count) <= CELLS
    assert (count - 1) >> shift_of(count) == cells_of(count) - 1


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.sampled_from([16, 64]))
def test_cells_of_ranges_ascend_and_none_reaches_over_two(counts, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "CELLS", most)
        offsets = [0, *np.cumsum(counts).tolist()]
        cells = Cells(offsets)
        found = [
            cells.numbered(np.arange(a, b, dtype=np.int32), kind)
            for kind, (a, b) in enumerate(zip(offsets, offsets[1:]))
        ]
        assert not {c for a in found for c in a.tolist()} - set(range(len(cells)))
        assert all(a[-1] < b[0] for a, b in zip(found, found[1:]))
        begins = [cells.begin(cell) for cell in range(len(cells) + 1)]
        assert begins == np.searchsorted(np.concatenate(found), np.arange(len(cells) + 1)).tolist()
        assert len(cells) <= max(most, len(counts))
        if len(counts) == 1:
            assert len(cells) == cells_of(counts[0]) and begins[1] == min(1 << shift_of(counts[0]), counts[0])


@pytest.mark.parametrize("runs", [0, 1, 4])
def test_records_come_back_by_cells_in_order(tmp_path, runs):
    rng, cells, whole = np.random.default_rng(runs), 9, []
    for task in range(3):
        with RunWriter(tmp_path / "x", task, FIELDS, cells) as writer:
            for _ in range(runs):
                cell = rng.integers(0, cells, rng.integers(0, 50)).astype(np.int16)
                keys, rows = rng.integers(0, 99, len(cell)), rng.random((len(cell), 3), np.float32)
                writer.add(cell, keys, rows)
                whole.append((cell, keys, rows))
    cell, keys, rows = (
        np.concatenate([w[i] for w in whole]) if whole else np.empty((0, 3))[:, i % 3] for i in range(3)
    )
    assert cell_sizes([tmp_path / "x"], 3, cells).tolist() == np.bincount(cell.astype(int), minlength=cells).tolist()
    got = [read_cells(tmp_path / "x", 3, FIELDS, first, first + 1) for first in range(cells)]
    order = np.argsort(cell, kind="stable")
    assert np.array_equal(np.concatenate([k for k, _ in got]), keys[order])
    if runs:
        assert np.array_equal(np.concatenate([x for _, x in got]), rows[order])
    everything = read_cells(tmp_path / "x", 3, FIELDS, 0, cells)
    assert sorted(everything[0].tolist()) == sorted(keys.tolist())


def test_nothing_is_left_of_a_task_that_fails_and_a_cut_file_is_noticed(tmp_path):
    with pytest.raises(IndexError), RunWriter(tmp_path, 0, FIELDS[:1], 2) as writer:
        writer.add(np.zeros(4, np.int16), np.arange(3))
    assert not list(tmp_path.iterdir())
    with RunWriter(tmp_path, 0, FIELDS[:1], 2) as writer:
        writer.add(np.array([1, 0, 1, 0], np.int16), np.arange(4))
    file = next(tmp_path.glob("*.runs"))
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(RunError, match="is incomplete"):
        read_cells(tmp_path, 1, FIELDS[:1], 0, 2)
