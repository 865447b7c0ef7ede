"""Edges in ``.npy`` files, as PyG's ``edge_index`` or a row for each edge."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets.readers.npy_edges import ends_table, is_npy, open_ends, read_ends
from millrace.storage.errors import InputError

DIRECTED = mr.ReadOptions(direction="directed")
EDGES = np.array([[0, 1, 2, 2, 0], [1, 2, 0, 1, 2]])


@pytest.mark.parametrize("dtype", ["<i4", ">i8", "u2"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_edges_are_read(tmp_path, dtype, rows, order):
    path = tmp_path / "edges.NPY"
    with path.open("wb") as file:
        np.save(file, np.asarray(EDGES.T if rows else EDGES, dtype, order=order))
    assert is_npy(path) and open_ends(path).shape == (2, 5)
    assert read_ends(path).to_pydict() == {"src": EDGES[0].tolist(), "dst": EDGES[1].tolist()}
    assert ends_table(open_ends(path), 1, 3).to_pydict() == {"src": [1, 2], "dst": [2, 0]}


def test_two_edges_are_sources_and_destinations(tmp_path):
    np.save(tmp_path / "e.npy", [[0, 1], [5, 6]])
    assert read_ends(tmp_path / "e.npy").to_pydict() == {"src": [0, 1], "dst": [5, 6]}


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros((2, 3)), r"holds float64\[2, 3\]; expected edges as integers \[2, E\], or \[E, 2\]"),
        (np.zeros((3, 3), int), r"holds int64\[3, 3\]"),
        (np.arange(4), r"holds int64\[4\]"),
        (np.array([{}, {}]), "cannot be read"),
    ],
)
def test_other_arrays_are_refused(tmp_path, array, told):
    np.save(tmp_path / "edges.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=told):
        open_ends(tmp_path / "edges.npy")
    (tmp_path / "edges.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(InputError, match="cannot be read"):
        open_ends(tmp_path / "edges.npy")


def test_a_folder_and_a_file(tmp_path):
    np.save(tmp_path / "edges-0.npy", EDGES[:, :2])
    np.save(tmp_path / "edges-1.npy", EDGES[:, 2:])
    pq.write_table(pa.table({"label": [0, 1, 0]}), tmp_path / "nodes.parquet")
    data = mr.open_dataset(tmp_path, options=DIRECTED, split="fraction:0.5,0")
    assert data.graph.indptr.tolist() == [0, 1, 3, 5]
    assert data.graph.indices.tolist() == [2, 0, 2, 0, 1]
    alone = mr.open_dataset(tmp_path / "edges-0.npy", options=DIRECTED, split="fraction:0.5,0")
    assert alone.graph.num_edges == 2
