"""Files and folders that are not read are refused by a sentence of their own, and never loaded."""

import json
import os
import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
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


EDGES = [(0, 1), (1, 2), (2, 0), (2, 3)]
FORMAT = {
    "graph.col": "c of colours\np edge 4 4\n" + "".join(f"e {a + 1} {b + 1}\n" for a, b in EDGES),
    "graph.txt": "p edge 4 4\n" + "".join(f"e {a + 1} {b + 1}\n" for a, b in EDGES),
    "road.gr": "c of roads\np sp 4 4\n" + "".join(f"a {a + 1} {b + 1} 7\n" for a, b in EDGES),
    "my graph.graph": "% of METIS\n4 4\n2 3\n1 3\n1 2 4\n3\n",
    "weighted.metis": "4 4 011 2\n9 8 2 7 3 7\n9 8 1 7 3 7\n9 8 1 7 2 7 4 7\n9 8 3 7\n",
    "sizes.graph": "5 4 101\n1 2 7 3 7\n1 1 7 3 7\n1 1 7 2 7 4 7\n1 3 7\n1\n",
    "dense.npy": None,
    "dense.csv": "\n".join(",".join(str(int((a, b) in EDGES)) for b in range(4)) for a in range(4)) + "\n",
    "weights.csv": "\n".join(",".join(str(7 * ((a, b) in EDGES)) for b in range(9)) for a in range(9)) + "\n",
    "marked.csv": "\ufeff" + "\n".join(",".join(str(int((a, b) in EDGES)) for b in range(4)) for a in range(4)) + "\n",
    "width.gr": "c of treewidth\np tw 4 4\n" + "".join(f"{a + 1} {b + 1}\n" for a, b in EDGES),
    "index.tsv": "\t0\t1\t2\t3\n0\t0\t1\t0\t0\n1\t0\t0\t1\t0\n2\t1\t0\t0\t1\n3\t0\t0\t0\t0\n",
}
"""A graph in formats that are not read."""


@pytest.mark.parametrize("name", FORMAT)
def test_the_command_makes_a_file_that_opens(tmp_path, name):
    if FORMAT[name] is None:
        np.save(tmp_path / name, np.array([[float((a, b) in EDGES) for b in range(4)] for a in range(4)]))
    else:
        (tmp_path / name).write_text(FORMAT[name])
    options = mr.ReadOptions(task="link", direction="undirected", duplicates="merge")
    with pytest.raises(mr.InputError) as error:
        mr.open_dataset(tmp_path / name, options=options)
    assert len(str(error.value)) < 3 * 180
    paste(str(error.value), tmp_path)
    (made,) = tmp_path.glob(f"{name}.*")
    data = mr.open_dataset(made, options=options, split="fraction:1,0")
    names = data.node_names or range(data.num_nodes)
    first = int(min(map(int, names)))
    ends = {(int(names[a]) - first, int(names[b]) - first) for a, b in ends_of(data.graph)}
    assert ends == {*EDGES, *((b, a) for a, b in EDGES)}
    has_weights = name in ("road.gr", "weighted.metis", "sizes.graph", "weights.csv")
    assert (data.graph.edge_weight is not None) == has_weights
    assert not has_weights or set(data.graph.edge_weight.tolist()) == {7}


def ends_of(graph):
    return zip(graph.indices.tolist(), np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist())


def paste(text, folder):
    """Run the command at the end of a message, with this Python."""
    begins = [text.index(word) for word in ("awk ", "cd ", "mkdir ", "python -c") if word in text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(text[min(begins) :], shell=True, check=True, cwd=folder, env={**os.environ, "PATH": path})


def test_many_graphs(tmp_path):
    (folder := tmp_path / "TOY").mkdir()
    ends = "".join(f"{a + 1}, {b + 1}\n{b + 1}, {a + 1}\n" for a, b in EDGES)
    parts = {"A": ends, "graph_indicator": "1\n1\n1\n2\n", "graph_labels": "0\n1\n", "node_labels": "0\n1\n1\n0\n"}
    for part, text in parts.items():
        (folder / f"TOY_{part}.txt").write_text(text)
    with pytest.raises(mr.InputError, match="holds a TU dataset, graphs to classify, which Millrace does not") as error:
        mr.open_dataset(folder)
    paste(str(error.value), tmp_path)
    data = mr.open_dataset(folder, split="fraction:0.5,0.2")
    assert data.labels.tolist() == [0, 1, 1, 0]
    assert sorted(ends_of(data.graph)) == sorted(EDGES + [(b, a) for a, b in EDGES])


@pytest.mark.slow
def test_folders_of_hgb(tmp_path):
    pytest.importorskip("torch_geometric")
    (folder := tmp_path / "ACM").mkdir()
    kinds = {"0": {"start": 0, "end": 1, "meaning": "paper-author"}}
    info = {
        "node.dat": {"node type": {"0": "paper", "1": "author"}},
        "link.dat": {"link type": kinds},
        "label.dat": {"node type": {"0": {"0": "a", "1": "b"}}},
    }
    (folder / "info.dat").write_text(json.dumps(info))
    (folder / "node.dat").write_text("0\tp\t0\t1,2\n1\tq\t0\t3,4\n2\tann\t1\t5\n")
    (folder / "link.dat").write_text("0\t2\t0\t1.0\n1\t2\t0\t1.0\n")
    (folder / "label.dat").write_text("0\tp\t0\t1\n")
    (folder / "label.dat.test").write_text("1\tq\t0\t0\n")
    with pytest.raises(mr.InputError, match="is a folder of HGB, of which PyG reads ACM, DBLP, Freebase") as error:
        mr.open_dataset(folder)
    paste(str(error.value), tmp_path)
    data = mr.open_dataset(tmp_path / "acm-store")
    assert data.labels.tolist() == [1, 0, -1] and data.split.train.tolist() == [0] and data.split.test.tolist() == [1]
