"""Features of edges: entry, order, stores, digests, renumbering, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError, StoreError
from millrace.storage.features import ArrayFeatures, MappedFeatures, ZarrFeatures
from millrace.storage.fingerprint import dataset_fingerprint, graph_fingerprint
from millrace.storage.graph import Graph, from_edges
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.partition.book import TableBook
from millrace.storage.partition.reorder import reorder

V, E, D = 30, 200, 3


def edges(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends, and features that say them."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, V, E), rng.integers(0, V, E)
    return src, dst, np.stack([src, dst, np.arange(E)], 1).astype(np.float32)


def dataset() -> Dataset:
    src, dst, rows = edges()
    graph, y = from_edges(src, dst, V, edge_features=rows), np.arange(V) % 3
    x = ArrayFeatures(np.arange(V, dtype=np.float32)[:, None])
    return Dataset("d", graph, x, y, Split(*np.array_split(np.arange(V), 3)), 3).check()


def assert_rows_are_of_their_edges(graph: Graph, old: np.ndarray | None = None) -> None:
    assert graph.edge_features is not None
    rows = graph.edge_features.gather(np.arange(graph.num_edges))
    src, dst = graph.indices, np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    names = np.arange(graph.num_nodes) if old is None else old
    assert np.array_equal(rows[:, :2], np.stack([names[src], names[dst]], 1))
    assert len(np.unique(rows[:, 2])) == graph.num_edges


def test_rows_go_with_their_edges():
    src, dst, rows = edges()
    graph = from_edges(src, dst, V, edge_features=rows)
    assert_rows_are_of_their_edges(graph)
    assert (graph.num_edge_features, repr(graph)) == (3, "Graph(30 nodes, 200 edges, 3 edge features)")
    assert graph.edge_features is not None and graph.edge_features.dtype == np.float32
    assert graph_fingerprint(graph) == graph_fingerprint(from_edges(src, dst, V)), "samples do not depend on them"
    double = from_edges(src, dst, V, edge_features=np.arange(E)[::-1] / 7).edge_features
    assert double is not None and (double.dtype, double.num_features) == (np.float64, 1)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (np.ones((E - 1, 2)), r"edge features have shape \[199, 2\]; expected \[200, D\]"),
        (np.ones((E, 0)), r"edge features have shape \[200, 0\]"),
        (np.full((E, 2), "a"), "edge features are <U1; expected numbers"),
        (np.where(np.arange(E)[:, None] == 7, np.nan, 1.0), r"1 edge feature value is NaN or infinite \(first: edge 7"),
        (np.full((E, 2), -np.inf), "400 edge feature values are NaN or infinite"),
    ],
    ids=["length", "width", "text", "nan", "infinite"],
)
def test_bad_rows_are_refused(rows: Any, told: str):
    src, dst, _ = edges()
    with np.errstate(over="ignore"), pytest.raises(InputError, match=told):
        from_edges(src, dst, V, edge_features=rows)


def test_a_graph_with_rows_of_other_edges_is_refused():
    bad = Graph(np.array([0, 1]), np.zeros(1, np.int32), edge_features=ArrayFeatures(np.ones((2, 2))))
    with pytest.raises(InputError, match="edge_features have 2 rows; the graph has 1 edges"):
        bad.check()


@pytest.mark.parametrize("form", ["zarr", "npy"])
def test_a_store_keeps_them_in_every_place(tmp_path: Path, form: Any):
    data, path = dataset(), tmp_path / "store"
    store = write_dataset(path, data, features_format=form)
    assert dict(store.fingerprint) == dataset_fingerprint(data) and "edge_features" in store.fingerprint
    kind = {"zarr": ZarrFeatures, "npy": MappedFeatures}[form]
    places: Any = (("memory", ArrayFeatures), ("zarr" if form == "zarr" else "mapped", kind))
    for place, expected in places:
        for opened in (open_dataset_store(path, place), open_lazily(path, place), open_lazily(path, place).as_read()):
            assert opened.num_edge_features == D
            assert type(opened.graph.edge_features) is expected
            assert_rows_are_of_their_edges(opened.graph)
    assert open_lazily(path).as_read(edge_features=False).num_edge_features == 0
    # Copied from disk, the same store.
    again = write_dataset(tmp_path / "again", open_lazily(path), features_format=form)
    assert dict(again.fingerprint) == dict(store.fingerprint) and again.meta == store.meta


def test_a_damaged_file_is_noticed(tmp_path: Path):
    write_dataset(tmp_path / "s", dataset(), features_format="npy")
    file = tmp_path / "s" / "edge_features.npy"
    text = bytearray(file.read_bytes())
    text[-1] ^= 1
    file.write_bytes(text)
    with pytest.raises(StoreError, match="'edge_features' does not match its digest"):
        open_dataset_store(tmp_path / "s")
    file.write_bytes(text[:-4])
    with pytest.raises(StoreError, match=r"edge_features\.npy has \d+ bytes"):
        _ = open_lazily(tmp_path / "s", "mapped").graph.edge_features


def test_renumbered_nodes_take_their_edges_along():
    data, rng = dataset(), np.random.default_rng(1)
    order = rng.permutation(V)
    assert_rows_are_of_their_edges(reorder(data, order).graph, order)
    book = TableBook(rng.integers(0, 3, V).astype(np.int32), 3)
    parted = reorder(data, book)
    assert_rows_are_of_their_edges(parted.graph, np.concatenate([book.owned(p) for p in range(3)]))


def test_pyg_gets_them_and_gives_them_back():
    pytest.importorskip("torch_geometric")
    data = dataset()
    there = data.to_pyg()
    assert there.edge_attr.shape == (E, D)
    back = mr.from_pyg(there, options=mr.ReadOptions(direction="directed", duplicates="keep"))
    assert_rows_are_of_their_edges(back.graph)
