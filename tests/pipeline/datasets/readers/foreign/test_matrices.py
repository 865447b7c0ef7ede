"""Matrix Market, MATLAB and GraphSAINT, written by SciPy."""

import gzip
import json

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import millrace as mr
from millrace.pipeline.datasets.readers.foreign.matrices import read_mtx
from millrace.tests.contracts.matrices import V, small_graph, weights_of

LINK = mr.ReadOptions(direction="directed", task="link")
DIRECTED = mr.ReadOptions(direction="directed")


def _opened(path, options=LINK):
    return mr.open_dataset(path, options=options, split="fraction:1,0" if options.task == "link" else None)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_matrix_market(tmp_path, symmetric, weighted):
    a = small_graph()[0]
    a = (a + a.T) if symmetric else a
    a = a if weighted else (a > 0).astype(np.int8)
    scipy.io.mmwrite(
        tmp_path / "a.mtx", a, field=None if weighted else "pattern", symmetry="symmetric" if symmetric else "general"
    )
    options = mr.ReadOptions(task="link") if symmetric else LINK
    dataset = _opened(tmp_path / "a.mtx", options)
    np.testing.assert_allclose(weights_of(dataset), a.toarray())
    assert (dataset.graph.edge_weight is not None) == weighted


BEGIN = "%%MatrixMarket matrix coordinate"
MARKET = {
    "text": ("hello\n", "Missing banner"),
    "complex": (f"{BEGIN} complex general\n2 2 1\n1 2 1.0 2.0\n", "is no matrix of coordinates"),
    "dense": ("%%MatrixMarket matrix array real general\n1 2\n1\n2\n", "is no matrix of coordinates"),
    "cut off": (f"{BEGIN} pattern general\n9 9 1000000000000\n1 2\n", "cannot be read"),
    "huge": (f"{BEGIN} pattern general\n900000000 900000000 1\n1 2\n", "900,000,000 nodes for 1 edges"),
    "beyond": (f"{BEGIN} pattern general\n3 3 1\n1 7\n", "Column index out of bounds"),
    "below": (f"{BEGIN} pattern general\n3 3 1\n0 1\n", "Row index out of bounds"),
    "ragged": (f"{BEGIN} real general\n3 3 2\n1 2 0.5\n1 2\n", "cannot be read"),
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_skew_symmetric_and_blank_lines(tmp_path, suffix):
    text = f"{BEGIN} real skew-symmetric\n% made by hand\n\n  3  3   2\n 2\t1   5\n3 1 -2 \n".encode()
    (tmp_path / f"a.mtx{suffix}").write_bytes(gzip.compress(text) if suffix else text)
    found = read_mtx(tmp_path / f"a.mtx{suffix}").arrays
    entries = sorted(zip(*found["edge_index"].tolist(), found["edge_weight"].tolist()))
    assert entries == [(0, 1, -5), (0, 2, 2), (1, 0, 5), (2, 0, -2)] and found["num_nodes"] == 3


ZEROS = {
    "general": "1 entry of the matrix is 0, and no edge.",
    "symmetric": "2 entries of the matrix are 0, and no edges.",
}


@pytest.mark.parametrize("symmetry", ZEROS)
def test_entries_that_are_zero_are_told(tmp_path, symmetry):
    (tmp_path / "a.mtx").write_text(f"{BEGIN} real {symmetry}\n3 3 2\n2 1 0\n3 1 0.5\n")
    found = read_mtx(tmp_path / "a.mtx")
    assert found.arrays["edge_index"].shape == (2, len(found.arrays["edge_weight"]))
    assert found.notes == (ZEROS[symmetry],) and 0 not in found.arrays["edge_weight"]


@pytest.mark.parametrize("kind", MARKET)
def test_refused_matrix_market(tmp_path, kind):
    text, words = MARKET[kind]
    (tmp_path / "a.mtx").write_text(text)
    with pytest.raises(mr.InputError, match=words):
        _opened(tmp_path / "a.mtx")


@pytest.mark.parametrize("names", [("network", "group", "Attributes"), ("A", "y", "X")])
def test_matlab(tmp_path, names):
    a, x, y = small_graph()
    adjacency, label, features = names
    many = sp.csc_matrix(np.eye(3)[y] + np.eye(3)[(y + 1) % 3])
    given = {adjacency: a.tocsc(), label: many if label == "group" else y, features: x.toarray(), "other": "unused"}
    scipy.io.savemat(tmp_path / "a.mat", given)
    dataset = _opened(tmp_path / "a.mat", DIRECTED)
    np.testing.assert_allclose(weights_of(dataset), a.toarray())
    np.testing.assert_allclose(dataset.features.gather(np.arange(V)), x.toarray(), rtol=1e-6)
    np.testing.assert_array_equal(dataset.labels, many.toarray() if label == "group" else y)
    assert any("Variables that were not read: other" in note for note in dataset.notes)


def test_struct_of_suitesparse(tmp_path):
    a = small_graph()[0]
    scipy.io.savemat(tmp_path / "p.mat", {"Problem": {"A": a.tocsc(), "name": "HB/a"}})
    np.testing.assert_allclose(weights_of(_opened(tmp_path / "p.mat")), a.toarray())


def test_matlab_without_an_adjacency(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"x": np.ones((3, 2))})
    with pytest.raises(
        mr.InputError, match=r"holds no sparse square matrices; expected one, the adjacency \(found: x \[3, 2\]"
    ):
        _opened(tmp_path / "a.mat")
    a = small_graph()[0]
    scipy.io.savemat(tmp_path / "b.mat", {"a": a, "b": a})
    with pytest.raises(mr.InputError, match="holds 2 sparse square matrices"):
        _opened(tmp_path / "b.mat")


def test_damaged_matlab(tmp_path):
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 MAT-file" + bytes(105) + b"\x00\x02IM" + bytes(400))
    with pytest.raises(mr.InputError, match=r"is a MATLAB 7.3 file, which is HDF5; save it with"):
        _opened(tmp_path / "a.mat")
    (tmp_path / "b.mat").write_bytes(b"no matrix")
    with pytest.raises(mr.InputError, match="cannot be read"):
        _opened(tmp_path / "b.mat")


@pytest.mark.parametrize("several", [False, True])
def test_saint(tmp_path, several):
    a, x, y = small_graph()
    sp.save_npz(tmp_path / "adj_full.npz", a)
    sp.save_npz(tmp_path / "adj_train.npz", a[:, :0])
    role = {"tr": [5, 0, 1, 2, 3], "va": [4, 6], "te": [7, 8, 9]}
    (tmp_path / "role.json").write_text(json.dumps(role))
    labels = np.eye(3, dtype=int)[y] + np.eye(3, dtype=int)[(y + 1) % 3] if several else y
    (tmp_path / "class_map.json").write_text(json.dumps({str(v): labels[v].tolist() for v in range(V)}))
    np.save(tmp_path / "feats.npy", x.toarray())
    dataset = _opened(tmp_path, DIRECTED)
    np.testing.assert_allclose(weights_of(dataset), a.toarray())
    np.testing.assert_array_equal(dataset.labels, labels)
    assert [sorted(np.asarray(getattr(dataset.split, part)).tolist()) for part in ("train", "val", "test")] == [
        sorted(role[key]) for key in ("tr", "va", "te")
    ]
    (tmp_path / "class_map.json").write_text(json.dumps({"0": 1}))
    with pytest.raises(mr.InputError, match=r"class_map\.json with a class for each node"):
        _opened(tmp_path, DIRECTED)


def test_arrays_in_a_mat_file_are_read_by_their_names(tmp_path):
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0])
    held = {"edge_index": np.array([[0, 1, 2], [1, 2, 3]]), "node_feat": x, "label": y, "city": "Ulm", "z": np.ones(2)}
    scipy.io.savemat(tmp_path / "g.mat", held)
    d = mr.open_dataset(tmp_path / "g.mat", options=mr.ReadOptions(direction="directed"))
    assert (d.graph.num_edges, d.num_nodes, np.asarray(d.labels).tolist()) == (3, 4, y.tolist())
    np.testing.assert_array_equal(d.features.gather(np.arange(4)), x)
    assert any("Variables that were not read: z" in note for note in d.notes)
