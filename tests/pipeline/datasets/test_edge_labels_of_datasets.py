"""Datasets whose labels are of edges: from arrays, as `open_dataset` finds them in every source, and stores."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import millrace as mr
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.fingerprint import dataset_fingerprint
from millrace.storage.lazy_dataset import open_lazily

EDGES = mr.ReadOptions(labels_of="edges", direction="directed")
PAIRS, LABELS = np.array([[0, 1], [1, 2], [1, 2], [3, 3], [2, 0]]), np.array([0, 1, -1, 1, 0])


@pytest.fixture(scope="module")
def nodes():
    return mr.from_scipy(sp.csr_matrix(np.ones((4, 4))), np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]))


def edge_dataset(nodes, *more, **options):
    return mr.edge_dataset(nodes, *(more or (PAIRS, LABELS)), train=[0, 1], val=[3], test=[4], **options)


def same(a, b):
    """True if two datasets have the same labelled edges."""
    arrays = ("pairs", "labels", "pair_features", "pair_time")
    alike = all(np.array_equal(getattr(a, k), getattr(b, k), equal_nan=getattr(a, k) is not None) for k in arrays)
    sets = all(np.array_equal(getattr(a.split, k), getattr(b.split, k)) for k in ("train", "val", "test"))
    return alike and sets and (a.task, a.num_classes, a.class_names) == (b.task, b.num_classes, b.class_names)


def test_arrays(nodes):
    data = edge_dataset(nodes, features=torch.arange(5), times=[1, 2, 3, 4, 5])
    assert data.has_edge_labels and data.of_pairs and data.task == "multiclass" and data.num_classes == 2
    assert data.pair_features.tolist() == [[0], [1], [2], [3], [4]] and data.pair_time.tolist() == [1, 2, 3, 4, 5]
    assert "1 edge is unlabelled (-1)." in data.notes and "2 classes of edges" in repr(data)
    assert data.graph is nodes.graph and not data.hides_pairs
    values = edge_dataset(nodes, PAIRS, torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0]))
    assert values.task == "regression" and values.labels.shape == (5, 1)
    several = edge_dataset(nodes, PAIRS, np.eye(5, 3, dtype=int))
    assert several.task == "multilabel" and several.num_outputs == 3
    named = edge_dataset(nodes, PAIRS, np.array(["good", "bad", None, "bad", "good"], object))
    assert named.class_names == ("bad", "good") and named.labels.tolist() == [1, 0, -1, 0, 1]
    drawn = mr.edge_dataset(nodes, PAIRS, LABELS, split="fraction:0.5,0.25", seed=3)
    assert drawn.split_sizes == {"train": 2, "val": 1, "test": 1} and 2 not in np.concatenate(
        [*vars(drawn.split).values()]
    )
    usual = mr.edge_dataset(nodes, PAIRS, LABELS)
    assert usual.notes[-1].startswith("The input stores no split: 60 % of the labelled edges train")
    with pytest.raises(InputError, match="class 0 has 2 labelled edges"):
        mr.edge_dataset(nodes, PAIRS, LABELS, split="random:3,1")
    timed = mr.edge_dataset(nodes, PAIRS, LABELS, times=np.array([9, 1, 5, 3, 2]), split="time:0.5,0.25")
    assert [timed.pair_time[ids].tolist() for ids in vars(timed.split).values()] == [[1, 2], [3], [9]]


def test_hidden_edges_leave_the_graph_both_ways_if_it_is_symmetric(nodes):
    options = mr.ReadOptions(labelled_edges="hidden")
    data = edge_dataset(nodes, options=options)
    kept = {(s, d) for d in range(4) for s in data.graph.indices[data.graph.indptr[d] : data.graph.indptr[d + 1]]}
    assert kept == {(s, d) for s in range(4) for d in range(4)} - {(3, 3), (2, 0), (0, 2)}
    assert data.hides_pairs and "3 edges were held out" in data.notes[-1]


REFUSED = {
    "no node": ((np.array([[0, 4]]), [1]), {}, r"pairs has the pair \(0, 4\) with an end that is no node"),
    "rows": ((PAIRS, LABELS[:4]), {}, r"the shape of labels is \[4\]; expected a row for each of 5 edges"),
    "features": ((PAIRS, LABELS), {"features": np.ones(3)}, r"the shape of features is \[3\]; expected a row for each"),
    "NaN": ((PAIRS, LABELS), {"features": np.full(5, np.nan)}, r"NaN or infinite \(first: edge 0 of"),
    "times": ((PAIRS, LABELS), {"times": ["a"] * 5}, "times of labelled edges"),
    "all unlabelled": ((PAIRS, -np.ones(5, int)), {}, "no edge has a label"),
    "unlabelled": ((PAIRS, LABELS), {"train": [0, 2], "test": [4]}, "unlabelled; set unlabelled_in_split=drop"),
    "overlap": ((PAIRS, LABELS), {"train": [0, 1], "val": [1]}, "1 edge of the val split"),
    "relation": ((PAIRS, LABELS), {"relation": "buys"}, "has one type of edges; leave it out"),
    "text features": ((PAIRS, LABELS), {"features": ["a"] * 5}, "expected numbers \\[N, K\\]: encode them first"),
    "cube of features": ((PAIRS, LABELS), {"features": np.ones((5, 2, 2))}, "expected numbers \\[N, K\\]"),
    "shape": ((PAIRS.T, LABELS), {}, "transpose it"),
    "names": ((np.array([["a", "b"]]), [0]), {}, "expected numbers of nodes, which have no names here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arrays(nodes, name):
    arrays, more, said = REFUSED[name]
    with pytest.raises(InputError, match=said) as refused:
        mr.edge_dataset(nodes, *arrays, **more)
    assert str(refused.value).count("\n") < 3


def test_large_features_are_told(nodes):
    assert not any("reach" in note for note in edge_dataset(nodes, features=np.full(5, 100.0)).notes)
    notes = edge_dataset(nodes, features=np.array([0, 1, -2e6, 0, 3])).notes
    assert any(note.startswith("Features of labelled edges reach 2,000,000, and training") for note in notes)


def test_a_dataset_of_pairs_is_refused(nodes):
    with pytest.raises(InputError, match="are of pairs already"):
        edge_dataset(edge_dataset(nodes))
    links = mr.link_dataset(edge_dataset(nodes, features=np.ones(5), times=np.arange(5)), split="fraction:0.5,0.2")
    assert links.task == "link" and links.pairs is links.pair_time is links.pair_features is None


@pytest.mark.parametrize("hidden", ["seen", "hidden"])
def test_a_store_keeps_them(nodes, tmp_path, hidden):
    options = mr.ReadOptions(labelled_edges=hidden)
    data = edge_dataset(nodes, features=np.arange(10.0).reshape(5, 2), times=np.arange(5), options=options)
    write_dataset(tmp_path / "store", data)
    lazy = open_lazily(tmp_path / "store")
    assert (lazy.of_pairs, lazy.has_edge_labels, lazy.num_pair_features, lazy.split_sizes["train"]) == (
        True,
        True,
        2,
        2,
    )
    for found in (open_dataset_store(tmp_path / "store"), lazy.as_read(), mr.open_dataset(str(tmp_path / "store"))):
        assert same(found, data) and found.hides_pairs == data.hides_pairs
        assert dataset_fingerprint(found) == dataset_fingerprint(data)
    for change in ({"pairs": data.pairs[:, ::-1]}, {"pair_features": data.pair_features + 1}, {"pair_time": None}):
        other = replace(data, **{k: v if v is None else np.ascontiguousarray(v) for k, v in change.items()})
        assert dataset_fingerprint(other) != dataset_fingerprint(data)
    as_bits = mr.open_dataset(str(tmp_path / "store"), options=mr.ReadOptions(task="binary", labels_of="edges"))
    assert as_bits.task == "binary" and np.array_equal(as_bits.pairs, data.pairs)
    if hidden == "seen":
        again = mr.open_dataset(str(tmp_path / "store"), split="time:0.5,0.25")
        assert again.pair_time[again.split.train].max() < again.pair_time[again.split.test].min()
