"""Files of predictions: written piece by piece, they hold what the whole holds."""

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr

from millrace.pipeline.inference import files
from millrace.pipeline.inference import predictions as module
from millrace.pipeline.inference.predictions import Predictions

N = 23


def arrays(path):
    group = zarr.open_group(str(path), mode="r")
    return {name: group[name][:] for name in group}


READ = {".parquet": pyarrow.parquet.read_table, ".csv": pyarrow.csv.read_csv, ".npy": np.load, ".zarr": arrays}
"""Reader of each kind of file."""


def made(task, named):
    logits = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    nodes = np.arange(N) * 2
    names = ([f"n{v}" for v in nodes], ["red", "green", "blue"]) if named else (None, None)
    return Predictions(nodes, logits, task, *names)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_a_file_of_pieces_is_the_file_of_the_whole(task, named, tmp_path, monkeypatch):
    """16 rows are whole vectors of a processor: in others, torch's sigmoid rounds differently."""
    found = {}
    for rows in (1000, 16):
        for each in (module, files):
            monkeypatch.setattr(each, "PIECE_ROWS", rows)
        preds = made(task, named)
        for suffix, read in READ.items():
            path = tmp_path / f"{rows}{suffix}"
            preds.write(path, all_probabilities=suffix not in (".npy", ".zarr"))
            found.setdefault(suffix, []).append(read(path))
    whole, pieces = found[".npy"]
    assert np.array_equal(whole, pieces) and np.array_equal(whole, made(task, named).probabilities)
    whole, pieces = found[".zarr"]
    assert whole.keys() == pieces.keys() == {"node", "class", "probability"}
    assert all(np.array_equal(whole[name], pieces[name]) for name in whole)
    assert np.array_equal(whole["probability"], made(task, named).probabilities)
    for suffix in (".parquet", ".csv"):
        whole, pieces = found[suffix]
        assert whole.equals(pieces) and whole.num_rows == N
    assert {p.name for p in tmp_path.iterdir()} == {f"{r}{s}" for r in (1000, 16) for s in found}


def test_no_nodes_are_an_empty_file(tmp_path):
    preds = Predictions(np.empty(0, np.int64), np.empty((0, 3), np.float32))
    for suffix in READ:
        preds.write(tmp_path / f"none{suffix}")
    assert pyarrow.parquet.read_table(tmp_path / "none.parquet").num_rows == 0
    assert np.load(tmp_path / "none.npy").shape == arrays(tmp_path / "none.zarr")["probability"].shape == (0, 3)


def test_the_table_is_that_of_a_file(tmp_path):
    predictions = Predictions(np.arange(3), np.eye(3, dtype=np.float32))
    predictions.write(tmp_path / "p.parquet")
    assert predictions.table().equals(pyarrow.parquet.read_table(tmp_path / "p.parquet"))
