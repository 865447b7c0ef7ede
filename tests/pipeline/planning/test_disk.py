"""Reads of features from disk: as many bytes as a run reads, in the seconds that tried reads take."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.planning import disk, trial_setup
from millrace.pipeline.planning.disk import disk_forecast, tried
from millrace.stages.fetch.ahead.disk_rows import RowsFromDisk
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.store.row_file import GAP_BYTES
from millrace.tests.whole_runs.test_plan import only

V, F = 4000, 8


def candidate(prefetch: Any = "auto", minibatches: float = 10.0, **at: Any) -> Any:
    numbers = SimpleNamespace(features=F, nodes=V)
    setting = SimpleNamespace(**{"numbers": numbers, "gpus": 0, "per_host": 1, "growth": 1.0, **at})
    options = {} if prefetch is None else {"prefetch_bytes": prefetch}
    job, system = SimpleNamespace(features="mapped"), SimpleNamespace(options=options)
    of = {"job": job, "system": system, "is_sampled": True, "is_cut": False, "minibatches": minibatches, "ranks": 1}
    return SimpleNamespace(at=setting, **of)


SEEN: Any = SimpleNamespace(nodes=[400.0, 760.0], minibatch_bytes=1000.0)
"""Each minibatch draws a tenth of all nodes."""


@pytest.fixture
def features(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((V, F), np.float32))
    monkeypatch.setattr(MappedFeatures, "is_cached", lambda self, ids: False)
    return MappedFeatures(tmp_path / "x.npy")


def test_minibatches_that_memory_allows_share_rows(features, monkeypatch):
    asked: list[float] = []
    monkeypatch.setattr(disk, "tried", lambda features, share: asked.append(share) or (2 * 4 * F, 0.25))
    row = 4 * F
    for together in (1, 3):
        # The rows of so many minibatches, and their lists, with half of what "auto" takes for what is being read.
        rows = V * (1 - 0.9**together)
        unit = rows * row + together * (1000 + 4 * 400)
        found = disk_forecast(candidate(), SEEN, features, int(16 * unit) + 16)
        assert found is not None and found.together == together
        total = 400 + 9 / together * rows
        assert found.bytes_per_epoch == pytest.approx(total * row * 2) and found.packed_seconds == 400 * 0.25
        assert found.seconds_per_epoch == pytest.approx(total * 0.25) and asked[-2] == pytest.approx(rows / V)
    assert disk_forecast(candidate(prefetch=0), SEEN, features, 1 << 40).bytes_per_epoch == V * row * 2, "then cached"
    # A system of an installed package need not have the option.
    assert disk_forecast(candidate(prefetch=None), SEEN, features, 1 << 40) is not None
    assert disk_forecast(candidate(growth=1e9), SEEN, features, 0).together == 1
    s = candidate()
    for other in ({"is_cut": True}, {"is_sampled": False}, {"job": SimpleNamespace(features="memory")}):
        assert disk_forecast(SimpleNamespace(**{**vars(s), **other}), SEEN, features, 1) is None


def test_reads_are_tried_where_the_rows_lie(features, monkeypatch):
    bytes_each, seconds = tried(features, 1.0)
    assert bytes_each == 4 * F and seconds > 0
    many = ArrayFeatures(np.zeros((10, F), np.float32))
    assert tried(many, 0.5)[0] == 4 * F, "of rows that lie in no file"
    # Gaps are read too, where they are short.
    assert GAP_BYTES > 100 * 4 * F
    assert tried(features, 0.1)[0] == pytest.approx(10 * 4 * F, rel=0.2)


def test_rows_far_apart_take_no_memory_of_those_between():
    most, asked, numbers = 1 << 40, list[Any](), {"num_features": F, "dtype": np.dtype(np.float32)}
    far: Any = SimpleNamespace(num_rows=most, gather=lambda ids, out: asked.append(ids), **numbers)
    assert tried(far, 1e-9)[0] == 4 * F and 900 < max(map(len, asked)) < 1200
    assert all((np.diff(ids) > 0).all() and 0 <= ids[0] <= ids[-1] < most for ids in asked)


def test_a_plan_forecasts_what_a_run_reads(tmp_path, monkeypatch):
    """An epoch's bytes, without room for two minibatches together, and rows that are too far apart to share a read."""
    data = mr.open_dataset("sbm:nodes=900,classes=3,degree=6,features=4,train=0.4")
    data = replace(data, features=ArrayFeatures(np.zeros((900, 2200), np.float32)))
    mr.write_dataset(tmp_path / "store", data, features_format="npy")
    monkeypatch.setattr(MappedFeatures, "is_cached", lambda self, ids: False)
    only(monkeypatch, "bulk")
    monkeypatch.setattr(trial_setup, "disk_forecast", lambda *of: disk_forecast(*of[:3], 0))
    job = {"fanout": [2, 2], "batch_size": 90, "hidden": 4, "features": "mapped", "bulk": {"prefetch_bytes": 0}}
    made, read = mr.plan(tmp_path / "store", verbose=False, **job).systems[0].disk, list[int]()
    close = RowsFromDisk.close
    monkeypatch.setattr(RowsFromDisk, "close", lambda self: close(self) or read.append(self._rows.read.bytes))
    mr.run(tmp_path / "store", out=tmp_path / "run", epochs=2, verbose=False, **job)
    assert made is not None and made.together == 1
    assert made.bytes_per_epoch == pytest.approx(read[0] / 2, rel=0.1)
