"""Rows collected in memory and in files."""

import numpy as np
import pytest
import torch

from millrace.stages.evaluate.far import rows as module
from millrace.stages.evaluate.far.rows import HostSink
from millrace.storage.errors import RunError

ROWS = np.random.default_rng(0).standard_normal((10, 3))


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_come_back_in_order_however_they_are_given(monkeypatch, tmp_path, on_disk):
    monkeypatch.setattr(module, "fits_in_memory", lambda num_bytes: not on_disk)
    sink = HostSink(10, tmp_path)
    sink.append(torch.from_numpy(ROWS[:2]))
    assert sink.row_bytes == 24
    for first, last in ((2, 5), (5, 5), (5, 9)):
        room = sink.reserve(last - first)
        room[:] = ROWS[first:last]
        sink.commit()
    sink.append(torch.from_numpy(ROWS[9:]))
    assert (sink.array is None) == on_disk
    assert np.array_equal(sink.finish(), ROWS)
    assert list(tmp_path.iterdir()) == []


def test_columns_that_are_summed_lie_apart(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "fits_in_memory", lambda num_bytes: False)
    sink = HostSink(10, tmp_path, lambda columns: columns - 1)
    sink.append(torch.from_numpy(ROWS[:4]))
    sink.reserve(6)[:] = ROWS[4:]
    sink.commit()
    stored, ids = sink.stored(), np.array([1, 4, 9])
    assert stored is not None
    assert stored.summed == 2
    assert np.array_equal(stored.gather(ids), ROWS[ids])
    assert np.array_equal(stored.columns(ids, 0), ROWS[ids, :2])
    assert np.array_equal(stored.gather(ids, parts=(1,))[:, 2:], ROWS[ids, 2:])
    assert HostSink(10, None).reserved == 0


def test_memory_that_others_will_take_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "fits_in_memory", lambda num_bytes: num_bytes <= 300)
    for reserved, on_disk in ((60, False), (61, True)):
        sink = HostSink(10, tmp_path)
        sink.begin(torch.from_numpy(ROWS[:0]), reserved)
        assert (sink.array is None) == on_disk
        assert sink.reserved == (0 if on_disk else 240)


def test_a_disk_that_fills_up_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "fits_in_memory", lambda num_bytes: False)
    sink = HostSink(10, tmp_path)
    sink.append(torch.from_numpy(ROWS[:2]))

    class Full:
        def seek(self, at):
            """Anywhere."""

        def write(self, data):
            raise OSError(28, "No space left on device")

    sink.file, sink._parts = Full(), [(Full(), 0, slice(0, 3))]
    sink.reserve(3)[:] = 0
    with pytest.raises(RunError, match=r"No space left.*another scratch folder"):
        sink.commit()
