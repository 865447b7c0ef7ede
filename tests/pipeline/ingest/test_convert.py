"""`millrace convert` on bad input: one sentence, an exit code, and nothing half-written."""

import errno
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline import cli
from millrace.pipeline.ingest import arrays, convert

V, E = 50, 300


@pytest.fixture
def folder(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "graph"
    path.mkdir()
    for n in range(3):
        ends = rng.integers(0, V, (2, E // 3))
        pq.write_table(pa.table({"src": ends[0] * 10, "dst": ends[1] * 10}), path / f"edges-{n}.parquet")
    nodes = {"id": np.arange(V) * 10, "label": rng.integers(0, 3, V), "features": rng.random((V, 2)).tolist()}
    pq.write_table(pa.table(nodes), path / "nodes.parquet")
    return path


def millrace(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["millrace", *map(str, arguments)])
    code = cli._run_app()
    return code, capsys.readouterr().err


def converted(folder, capsys, monkeypatch):
    flags = ("--set", "read.direction=directed", "--set", "read.missing_ids=compact", "--split", "fraction:0.5,0.2")
    return millrace(capsys, monkeypatch, "convert", folder, "--out", folder.parent / "store", *flags)


def no_parquet(folder):
    (folder / "edges-1.parquet").write_bytes(b"src,dst\n1,2\n")


def cut_short(folder):
    path = folder / "edges-1.parquet"
    path.write_bytes(path.read_bytes()[:-40])


def other_schema(folder):
    pq.write_table(pa.table({"src": ["a"], "dst": ["b"]}), folder / "edges-1.parquet")


def null_id(folder):
    pq.write_table(pa.table({"src": pa.array([0, None]), "dst": [10, 20]}), folder / "edges-1.parquet")


def null_node(folder):
    nodes = pq.read_table(folder / "nodes.parquet")
    ids = pa.array([None, *nodes["id"].to_pylist()[1:]], pa.int64())
    pq.write_table(nodes.set_column(0, "id", ids), folder / "nodes.parquet")


def unknown_node(folder):
    pq.write_table(pa.table({"src": [0, 7], "dst": [10, 20]}), folder / "edges-1.parquet")


def no_nodes(folder):
    (folder / "nodes.parquet").unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (no_parquet, "edges-1.parquet cannot be read"),
        (cut_short, "edges-1.parquet cannot be read"),
        (other_schema, "edges-1.parquet and edges-0.parquet are no one table"),
        (null_id, "column edges.src holds 1 nulls"),
        (null_node, "column nodes.id holds 1 nulls"),
        (unknown_node, "1 values of edges.src (first: 7) are not the id of any node"),
        (no_nodes, "holds no nodes*.parquet"),
    ],
)
def test_input_that_is_refused(folder, capsys, monkeypatch, spoil, told):
    spoil(folder)
    code, said = converted(folder, capsys, monkeypatch)
    assert code == 2
    assert told in said and said.count("millrace: ") == 1
    assert [p.name for p in folder.parent.iterdir()] == ["graph"]


def test_a_disk_that_fills_up_and_a_file_that_is_lost(folder, capsys, monkeypatch):
    """Finished work stays, out of sight; the same command completes it."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    lost = folder / "edges-2.parquet"
    inline, text = convert.inline, lost.read_bytes()

    def losing(stage, calls):
        if stage == "spill":
            lost.unlink()
        return inline(stage, calls)

    for (module, name, stand_in), told in (
        ((arrays, "write_slice", full), f"no space is left for {folder.parent}"),
        ((convert, "inline", losing), "edges-2.parquet is gone, or has changed, since the ingest began"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stand_in)
            code, said = converted(folder, capsys, patch)
        assert code == 3
        assert told in said and said.count("millrace: ") == 1
        assert sorted(p.name for p in folder.parent.iterdir() if p.suffix != ".jsonl") == [".ingest-store", "graph"]
        if stand_in is losing:
            lost.write_bytes(text)
        else:
            shutil.rmtree(folder.parent / ".ingest-store")
    code, said = converted(folder, capsys, monkeypatch)
    assert code == 0, said
    assert sorted(p.name for p in folder.parent.iterdir() if p.suffix != ".jsonl") == ["graph", "store"]
    # As a kill leaves it between the renaming of the store and the end.
    (folder.parent / ".ingest-store" / "done").mkdir(parents=True)
    code, said = converted(folder, capsys, monkeypatch)
    assert code == 2 and "already exists" in said
    assert sorted(p.name for p in folder.parent.iterdir() if p.suffix != ".jsonl") == ["graph", "store"]


def test_a_store_that_lacks_a_slice(folder, capsys, monkeypatch):
    assert converted(folder, capsys, monkeypatch)[0] == 0
    store = folder.parent / "store"
    next(p for p in (store / "arrays" / "indices" / "c").rglob("*") if p.is_file()).unlink()
    out = folder.parent / "out"
    for words in (("run", "--dataset", store), ("partition", store, "--parts", 2, "--method", "hash")):
        code, said = millrace(capsys, monkeypatch, *words, "--out", out)
        assert code == 2
        assert "array 'indices' lacks 1 of its 1 files; make the store again" in said
        assert not out.exists()


@pytest.mark.parametrize("name", ["tables", "arrays.npz"])
def test_a_graph_to_predict_for_is_not_converted_and_it_is_said_what_to_do(tmp_path, name):
    if name == "tables":
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text("id,x0\na,1\nb,2\n")
        (tmp_path / name / "edges.csv").write_text("src,dst\na,b\nb,a\n")
    else:
        np.savez(tmp_path / name, edge_index=[[0, 1], [1, 0]], x=np.ones((2, 1), np.float32))
    with pytest.raises(mr.InputError, match=r"label.* A graph that a run only predicts for .* give its source"):
        mr.convert(tmp_path / name, tmp_path / "store", options=mr.ReadOptions(direction="directed"))
    assert not (tmp_path / "store").exists()


def test_memory_that_is_not_there_is_said(folder, capsys, monkeypatch):
    monkeypatch.setattr(convert, "bytes_left", lambda: 900 << 20)
    code, said = converted(folder, capsys, monkeypatch)
    assert code == 0 and "note: memory is 2,048 MiB, but 900 MiB are left; set memory=900MiB" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--workers", 2), "memory, workers or a scheduler are given, which concern tables only; leave them out"),
        (("--scheduler", "tcp://127.0.0.1:1"), "workers or a scheduler are given"),
        (("--memory", "1GiB"), "memory, workers or a scheduler are given"),
        (("--set", "train.lr=3"), "--set train.lr is a key of runs; expected read.KEY=VALUE or cluster.KEY=VALUE"),
    ],
)
def test_what_convert_does_not_use_is_refused(tmp_path, capsys, monkeypatch, flags, said):
    code, err = millrace(capsys, monkeypatch, "convert", "digits", "--out", tmp_path / "store", *flags)
    assert code == 2 and said in err and not (tmp_path / "store").exists()
