"""Rows of a graph are read once a pass, in bounded stretches, from memory and from disk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.partition import rows
from millrace.stages.partition.rows import Passes, in_degrees, stretches
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_stored, write_dataset
from millrace.storage.errors import StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.stored.graph import StoredGraph
from millrace.tests.contracts.graphs import graphs, sbm


def stored(graph: Graph, folder) -> StoredGraph:
    """The graph as a store on disk."""
    n, none = graph.num_nodes, np.empty(0, np.int64)
    labels, features = np.zeros(n, np.int64), ArrayFeatures(np.zeros((n, 1), np.float32))
    write_dataset(folder, Dataset("toy", graph, features, labels, Split(np.arange(n), none, none), 1))
    return open_stored(folder).graph


@settings(deadline=None, max_examples=25)
@given(graph=graphs(), most_rows=st.integers(1, 9), most_edges=st.integers(1, 9))
def test_every_row_comes_once_and_few_edges_at_a_time(graph: Graph, most_rows: int, most_edges: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "ROWS", most_rows)
        patch.setattr(rows, "EDGES", most_edges)
        came, indices = [], []
        for first, piece in stretches(graph):
            count = len(piece.first_edge)
            assert 1 <= count <= most_rows
            assert count == 1 or len(piece.indices) <= most_edges
            came.extend(range(first, first + count))
            indices.extend(piece.indices.tolist())
        degrees = np.zeros(graph.num_nodes, np.int32)
        in_degrees(graph, degrees)
    assert came == list(range(graph.num_nodes))
    assert indices == graph.indices.tolist()
    assert degrees.tolist() == graph.in_degree.tolist()


def test_a_store_gives_the_rows_of_its_graph(tmp_path, monkeypatch) -> None:
    graph = sbm()
    on_disk = stored(graph, tmp_path / "store")
    monkeypatch.setattr(rows, "ROWS", 250)
    monkeypatch.setattr(rows, "EDGES", 1000)
    pairs = list(zip(stretches(graph), stretches(on_disk), strict=True))
    assert len(pairs) > graph.num_edges // 1000
    for (first, here), (also_first, there) in pairs:
        assert first == also_first
        for name in ("indptr", "first_edge", "indices"):
            assert np.array_equal(getattr(here, name), getattr(there, name))
    assert on_disk.part_offsets is None
    halves = Graph(graph.indptr, graph.indices, part_offsets=np.array([0, 250, 600]))
    assert stored(halves, tmp_path / "halves").part_offsets.tolist() == [0, 250, 600]


def test_weights_of_edges_are_left_on_disk_where_a_graph_is_only_cut(tmp_path) -> None:
    graph = from_edges([0, 1, 2], [1, 2, 0], 3, edge_weight=[1.0, 2.0, 3.0])
    whole = stored(graph, tmp_path / "store")
    cut = open_lazily(tmp_path / "store", "zarr").graph.on_disk
    assert whole.rows(0, 3).edge_weight.tolist() == [3.0, 1.0, 2.0]
    assert cut.rows(0, 3).edge_weight is None
    assert cut.rows(0, 3).indices.tolist() == whole.rows(0, 3).indices.tolist()


def test_a_damaged_store_is_told_by_whoever_reads_on(tmp_path, monkeypatch) -> None:
    on_disk = stored(sbm(), tmp_path / "store")
    chunk = next(p for p in (tmp_path / "store" / "arrays" / "indices").rglob("0") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreError, match="'indices' is damaged"):
        list(stretches(on_disk))


def test_progress_counts_rows_over_all_passes(monkeypatch) -> None:
    monkeypatch.setattr(rows, "ROWS", 4)
    told: list[tuple[int, int]] = []
    passes = Passes(from_edges([0, 1], [1, 2], 10), 2, lambda *seen: told.append(seen))
    while passes.left:
        list(passes.read())
    assert told == [(4, 20), (8, 20), (10, 20), (14, 20), (18, 20), (20, 20)]
