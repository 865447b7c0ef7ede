"""The dataset message: every way in which its parts may not fit is a sentence."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError, MissingExtraError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges


def ids(*values):
    return np.array(values, np.int64)


SPLIT = Split(ids(0, 2), ids(3), ids())
GOOD = Dataset(
    "small",
    from_edges([0, 1], [1, 2], 5),
    ArrayFeatures(np.zeros((5, 2), np.float32)),
    ids(0, -1, 1, 2, -1),
    SPLIT,
    num_classes=3,
)
MULTI = replace(GOOD, labels=np.zeros((5, 3), np.float32), task="multilabel")


def test_good_ones_pass():
    assert GOOD.check() is GOOD
    assert MULTI.check() is MULTI
    assert GOOD.num_nodes == 5
    replace(GOOD, split=Split(ids(), ids(), ids())).check()


def test_what_it_says_of_itself_is_short():
    assert repr(GOOD) == "Dataset('small': 5 nodes, 2 edges, 2 features, 3 classes, Split(train=2, val=1, test=0))"
    assert repr(GOOD.graph) == "Graph(5 nodes, 2 edges)"
    assert repr(from_edges([0], [1], edge_weight=[2.0])) == "Graph(2 nodes, 1 edge, weighted)"
    assert (len(GOOD), GOOD.num_features) == (5, 2)


@pytest.mark.parametrize("weight", [None, [0.5, 2.0]])
def test_to_pyg_is_the_dataset(weight):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    d = replace(GOOD, graph=from_edges([0, 1], [2, 1], 5, edge_weight=weight), features=ArrayFeatures(rows))
    data = d.to_pyg()
    assert data.edge_index.tolist() == [[1, 0], [1, 2]]
    assert (data.x.tolist(), data.y.tolist(), data.num_nodes) == (rows.tolist(), d.labels.tolist(), 5)
    assert data.train_mask.tolist() == [True, False, True, False, False]
    assert (data.val_mask.sum(), data.test_mask.sum()) == (1, 0)
    assert ("edge_weight" in data) == (weight is not None)
    if weight is not None:
        assert data.edge_weight.tolist() == [2.0, 0.5]
    data.x[0] = data.y[0] = 9
    assert d.labels[0] == 0 and rows[0, 0] == 0


def test_to_pyg_without_pyg(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingExtraError, match=r"\.\[pyg\]"):
        GOOD.to_pyg()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split(np.array([0], np.int32), ids(), ids()), "split 'train' is int32"),
        (Split(ids(), np.zeros((1, 1), np.int64), ids()), "split 'val' is int64"),
        (Split(ids(), ids(), ids(5)), r"split 'test' holds ids outside \[0, 5\)"),
        (Split(ids(-1), ids(), ids()), "outside"),
        (Split(ids(0, 0), ids(), ids()), "strictly ascending"),
        (Split(ids(2, 0), ids(), ids()), "strictly ascending"),
        (Split(ids(0), ids(0, 1), ids()), r"first: 0\) is in the train and the val split"),
        (Split(ids(0), ids(), ids(0)), "the train and the test"),
        (Split(ids(), ids(3), ids(2, 3)), "the val and the test"),
        (Split(ids(0, 1), ids(), ids()), r"1 node of the train split \(first: 1\) is unlabelled"),
        (Split(ids(), ids(1), ids()), "of the val split"),
        (Split(ids(), ids(), ids(4)), "of the test split"),
    ],
)
def test_bad_splits(split, message):
    with pytest.raises(InputError, match=message):
        replace(GOOD, split=split).check()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (replace(GOOD, graph=replace(GOOD.graph, indptr=np.array([1]))), "indptr"),
        (replace(GOOD, features=ArrayFeatures(np.zeros((4, 2)))), "features have 4 rows; the graph has 5"),
        (replace(GOOD, labels=GOOD.labels[:4]), r"labels have shape \[4\]"),
        (replace(GOOD, labels=MULTI.labels), r"expected 1 dimension"),
        (replace(GOOD, num_classes=2), r"labels lie in \[-1, 2\]; expected at least -1 and below num_classes=2"),
        (replace(MULTI, labels=GOOD.labels), r"expected 2 dimension"),
        (replace(MULTI, num_classes=4), "has 3 columns; expected 4"),
    ],
)
def test_parts_that_do_not_fit(dataset, message):
    with pytest.raises(InputError, match=message):
        dataset.check()
