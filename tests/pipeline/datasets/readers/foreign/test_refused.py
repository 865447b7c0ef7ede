"""Files and folders that are not read are refused by a sentence of their own, and never loaded."""

import pickle
import sqlite3

import pytest

import millrace as mr
from millrace.pipeline.datasets.readers.foreign.refused import KINDS


class Fatal:
    """Fails a test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("suffix", [suffix for suffixes in KINDS for suffix in suffixes])
def test_known_suffix(tmp_path, suffix):
    path = tmp_path / f"graph{suffix}"
    path.write_bytes(pickle.dumps(Fatal()))
    with pytest.raises(mr.InputError, match=r"graph\S* is ") as seen:
        mr.open_dataset(path)
    assert "npz" not in str(seen.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pickle.dumps(Fatal()), "is a pickle, which may run code"),
        (b"\x89HDF\r\n\x1a\n", "is HDF5"),
        (b"PAR1" + bytes(9), r"is a Parquet file: rename it to \.parquet"),
        (b"\x1f\x8b\x08" + bytes(9), "is compressed by gzip"),
    ],
)
def test_unknown_suffix(tmp_path, data, words):
    (tmp_path / "graph.something").write_bytes(data)
    with pytest.raises(mr.InputError, match=words):
        mr.open_dataset(tmp_path / "graph.something")


def test_text_of_no_kind(tmp_path):
    (tmp_path / "graph.cites").write_text("1\t2\n")
    with pytest.raises(mr.InputError, match=r"names no kind of file that is read: call a list of edges \.txt"):
        mr.open_dataset(tmp_path / "graph.cites")


def test_database(tmp_path):
    with sqlite3.connect(tmp_path / "graph") as db:
        db.execute("create table edges (a, b)")
    with pytest.raises(mr.InputError, match="is a database: read it with pandas"):
        mr.open_dataset(tmp_path / "graph")


def test_folders(tmp_path):
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    (tmp_path / "Cora" / "processed").mkdir()
    for name in ("raw/ind.cora.x", "processed/data.pt"):
        (tmp_path / "Cora" / name).write_bytes(pickle.dumps(Fatal()))
    with pytest.raises(mr.InputError, match=r"data\.pt cannot be read without running code in it"):
        mr.open_dataset(tmp_path / "Cora")
    with pytest.raises(mr.InputError, match=r"ind\.cora\.x is one of Planetoid's files: give ind\.NAME\.graph"):
        mr.open_dataset(tmp_path / "Cora" / "raw" / "ind.cora.x")
