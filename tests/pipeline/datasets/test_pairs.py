"""Files and arrays of pairs: their forms, and bad input."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather

import millrace as mr
from millrace.pipeline.datasets.pairs import as_pairs, read_pairs
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures


def path(names=None):
    n = 40
    ends = np.stack([np.arange(n - 1), np.arange(1, n)])
    graph = mr.from_edges(*np.hstack([ends, ends[::-1]]), n)
    split = mr.Split(np.arange(n), np.empty(0, np.int64), np.empty(0, np.int64))
    rows = ArrayFeatures(np.ones((n, 1), np.float32))
    return mr.Dataset("path", graph, rows, np.zeros(n, np.int64), split, 1, node_names=names)


def test_forms_of_pairs(tmp_path):
    wanted = [[0, 1], [7, 3]]
    np.save(tmp_path / "p.npy", np.array(wanted, np.int32))
    (tmp_path / "p.tsv").write_text("from\tto\tother\n0\t1\tx\n7\t3\ty\n")
    feather.write_feather(pa.table({"u": [0, 7], "v": [1, 3]}), tmp_path / "p.feather")
    for file in ("p.npy", "p.tsv", "p.feather"):
        assert read_pairs(tmp_path / file, path()).nodes(path()).tolist() == wanted
    for form in (wanted, torch.tensor(wanted), [["0", "1"], ["7", "3"]]):
        assert as_pairs(form, path(), "pairs").tolist() == wanted
    names = path([f"n{i}" for i in range(40)])
    assert as_pairs([["n0", "n1"], ["n7", "n3"]], names, "pairs").tolist() == wanted
    assert as_pairs([], names, "pairs").shape == (0, 2)
    np.save(tmp_path / "bad.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"expected pairs \[n, 2\]"):
        read_pairs(tmp_path / "bad.npy", path()).nodes(path())
    (tmp_path / "torn.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_pairs(tmp_path / "torn.npy", path())


BAD = [
    ({"train": [[0, 40]]}, "with an end that is no node"),
    ({"train": [[-1, 3]]}, "with an end that is no node"),
    ({"train": [[0, 1, 2]]}, "expected pairs"),
    ({"train": [[0.5, 1.5]]}, "expected whole numbers"),
    ({"train": []}, "the train set has no pairs"),
    ({}, "pairs holds no pair"),
    ([(0, 1)], r"pairs has '\(0, 1\)'; expected some of train, val, test"),
    ({"val": []}, "pairs holds no pair"),
    ({"train": [[0, 1]], "test": [[1, 0]]}, r"the pair \(1, 0\) is in the train and the test set"),
    (
        {"train": [[0, 1]], "val": [[2, 3]], "val_negatives": [[1, 0]]},
        "is among the negatives of the val set and among the positive",
    ),
    ({"train": [[0, 1]], "tset": [[2, 3]]}, "did you mean 'test'"),
    ({"train": [["a", "b"]]}, "expected numbers of nodes"),
]


@pytest.mark.parametrize(("pairs", "sentence"), BAD)
def test_bad_pairs_are_a_sentence(pairs, sentence):
    with pytest.raises(InputError, match=sentence):
        mr.link_dataset(path(), pairs=pairs)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("src,dst\n0,1\n", "no column 'split'"),
        ("src,split\n0,train\n", "no column 'dst'"),
        ("src,dst,split\n0,1,dev\n", "split is 'dev'"),
        ("src,dst,split\n0,,train\n", "expected a node in each row"),
        ("src,dst,split,label\n0,1,train,2\n", "label is 2"),
        ("src,dst,split\n0,77,train\n", r"the pair \(0, 77\)"),
        ("src,dst,split\n", "p.csv holds no pair; expected some, or leave pairs out"),
    ],
)
def test_bad_files_are_a_sentence(tmp_path, text, sentence):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        mr.link_dataset(path(), pairs=tmp_path / "p.csv")


def test_pairs_of_a_relation_that_is_not_predicted_are_refused(tmp_path):
    data = mr.open_dataset("hsbm:nodes=60")
    (tmp_path / "p.csv").write_text("src,dst,split,relation\n0,1,train,likes\n2,3,train,dislikes\n")
    with pytest.raises(InputError, match=r"p\.csv: relation is 'dislikes', whose pairs are not predicted"):
        mr.link_dataset(data, pairs=tmp_path / "p.csv", relation="likes")
    (tmp_path / "q.csv").write_text("src,dst,split,relation\n0,1,train,likes\n2,3,val,likes\n")
    found = mr.link_dataset(data, pairs=tmp_path / "q.csv", relation="likes")
    assert (len(found.split.train), len(found.split.val)) == (1, 1)


def test_other_files_are_a_sentence(tmp_path):
    with pytest.raises(InputError, match="no file of pairs"):
        mr.link_dataset(path(), pairs=tmp_path / "none.csv")
    (tmp_path / "p.txt").write_text("0 1")
    with pytest.raises(InputError, match="no file of pairs"):
        mr.link_dataset(path(), pairs=tmp_path / "p.txt")
    np.savez(tmp_path / "p.npz", other=np.zeros(3))
    with pytest.raises(InputError, match="expected sets of pairs"):
        mr.link_dataset(path(), pairs=tmp_path / "p.npz")
    np.save(tmp_path / "p.npy", np.zeros((2, 2), np.int64))
    with pytest.raises(InputError, match="holds one array"):
        mr.link_dataset(path(), pairs=tmp_path / "p.npy")


def test_times_of_pairs_are_of_the_kind_of_the_graphs(tmp_path):
    """A date among numbers, or a number among dates, would be before or after all edges."""
    ends, days = np.stack([np.arange(39), np.arange(1, 40)]), np.arange(39)
    parts = path().split, path().features
    for name, times, wrong, right in (
        ("numbers", days, "2020-01-20", "20"), ("dates", np.datetime64("2020-01-01") + days, "20", "2020-01-21"),
    ):  # fmt: skip
        graph = mr.from_edges(*ends, 40, edge_time=times)
        data = mr.Dataset(name, graph, parts[1], np.zeros(40, np.int64), parts[0], 1)
        for text in (wrong, right):
            (tmp_path / "p.csv").write_text(f"src,dst,time\n0,1,{text}\n")
            if text == right:
                assert read_pairs(tmp_path / "p.csv", data).times(graph) == graph.edge_time[19] + 1
                continue
            other = {"numbers": "dates", "dates": "numbers"}[name]
            with pytest.raises(InputError, match=rf"p\.csv: time holds {other}, but the times of the graph are {name}"):
                read_pairs(tmp_path / "p.csv", data).times(graph)
