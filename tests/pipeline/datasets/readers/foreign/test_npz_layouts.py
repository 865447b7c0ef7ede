"""`.npz` files of gnn-benchmark, heterophilous-graphs and SciPy, beside what SciPy and NumPy say of the same arrays."""

import numpy as np
import pytest
import scipy.sparse as sp

import millrace as mr
from millrace.tests.contracts.matrices import V, small_graph, weights_of

ANY = mr.ReadOptions(direction="directed", missing_features="degree")


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_scipy(tmp_path, layout):
    a, _, _ = small_graph()
    sp.save_npz(tmp_path / "a.npz", a.asformat(layout))
    dataset = mr.open_dataset(
        tmp_path / "a.npz", options=mr.ReadOptions(direction="directed", task="link"), split="fraction:1,0"
    )
    assert dataset.num_nodes == V
    np.testing.assert_allclose(weights_of(dataset), a.toarray())


@pytest.mark.parametrize("dense", [False, True])
def test_gnn_benchmark(tmp_path, dense):
    a, x, y = small_graph()
    parts = {f"adj_{k}": getattr(a, k) for k in ("indptr", "indices", "data")} | {"adj_shape": np.array(a.shape)}
    if dense:
        parts["attr_matrix"] = x.toarray()
    else:
        parts |= {f"attr_{k}": getattr(x, k) for k in ("indptr", "indices", "data")} | {"attr_shape": np.array(x.shape)}
    names, classes = np.array([f"paper {i}" for i in range(V)]), np.array(["ai", "db", "ir"])
    np.savez(tmp_path / "g.npz", **parts, labels=y, node_names=names, class_names=classes)
    dataset = mr.open_dataset(tmp_path / "g.npz", options=ANY)
    np.testing.assert_allclose(weights_of(dataset), a.toarray())
    np.testing.assert_allclose(dataset.features.gather(np.arange(V)), x.toarray(), rtol=1e-6)
    assert list(dataset.node_names) == names.tolist() and dataset.class_names == ("ai", "db", "ir")
    both = mr.open_dataset(tmp_path / "g.npz")  # as its own library reads it
    assert ((weights_of(both) > 0) == ((a + a.T).toarray() > 0)).all()


@pytest.mark.parametrize(("stem", "direction"), [("texas_directed", "directed"), ("texas", "undirected")])
def test_heterophilous(tmp_path, stem, direction):
    a, x, y = small_graph()
    edges = np.stack(a.nonzero(), 1)
    sets = np.arange(V) % 4
    masks = {
        f"{part}_masks": np.stack([sets == k, np.roll(sets == k, 1)]) for k, part in enumerate(("train", "val", "test"))
    }
    np.savez(tmp_path / f"{stem}.npz", edges=edges, node_features=x.toarray(), node_labels=y, **masks)
    dataset = mr.open_dataset(tmp_path / f"{stem}.npz")
    want = a.toarray() > 0
    assert ((weights_of(dataset) > 0) == (want if direction == "directed" else want | want.T)).all()
    np.testing.assert_array_equal(dataset.split.train, np.flatnonzero(sets == 0))
    assert any("Of 2 splits that are stored, number 0 is read" in note for note in dataset.notes)


REFUSED = {
    "rectangle": (lambda a: a[:, :5], "12 rows and 5 columns; expected an adjacency"),
    "blocks": (lambda a: a.tobsr((2, 2)), "its format is 'bsr'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_matrix(tmp_path, kind):
    change, words = REFUSED[kind]
    sp.save_npz(tmp_path / "a.npz", change(small_graph()[0]))
    with pytest.raises(mr.InputError, match=words):
        mr.open_dataset(tmp_path / "a.npz", options=mr.ReadOptions(task="link"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("indices", np.array([99]), "a.npz are not a CSR matrix"),
        ("indptr", np.zeros(V + 1), "indptr holds float64, not integers"),
        ("data", np.array(["a"]), "data holds <U1, not numbers"),
    ],
)
def test_damaged_matrix(tmp_path, key, value, words):
    a, _, _ = small_graph()
    arrays = {"indices": a.indices, "indptr": a.indptr, "data": a.data, "shape": a.shape, "format": b"csr"}
    np.savez(tmp_path / "a.npz", **{**arrays, key: value})
    with pytest.raises(mr.InputError, match=words):
        mr.open_dataset(tmp_path / "a.npz", options=mr.ReadOptions(task="link"))


def test_labels_are_missing(tmp_path):
    sp.save_npz(tmp_path / "a.npz", small_graph()[0])
    with pytest.raises(mr.InputError, match="has no labels of nodes; set task=link"):
        mr.open_dataset(tmp_path / "a.npz")


def test_names_are_not_distinct(tmp_path):
    a, _, y = small_graph()
    parts = {f"adj_{k}": getattr(a, k) for k in ("indptr", "indices", "data")} | {"adj_shape": np.array(a.shape)}
    np.savez(tmp_path / "g.npz", **parts, labels=y, node_names=np.array(["a"] * V))
    with pytest.raises(mr.InputError, match="two nodes are called 'a'"):
        mr.open_dataset(tmp_path / "g.npz")
