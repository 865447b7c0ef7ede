"""Partitions: together they are the graph again, apart each knows its halo, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage.errors import InputError, StoreError
from millrace.storage.graph import from_edges
from millrace.storage.partition import partition as module
from millrace.storage.partition.book import RangeBook, TableBook
from millrace.storage.partition.partition import extract_partition, open_partition, write_partition
from millrace.tests.contracts.messages import graphs


@st.composite
def parted(draw):
    graph = draw(graphs())
    parts = draw(st.integers(1, 5))
    part_of = draw(st.lists(st.integers(0, parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes))
    return graph, TableBook(np.array(part_of, np.int32), parts)


@given(parted())
def test_rows_are_the_graphs_rows_in_order(case):
    graph, book = case
    owned = []
    for p in range(book.num_parts):
        part = extract_partition(graph, book, p).check()
        assert part.rank == p
        assert (part.num_owned, part.num_halo, part.num_edges) == (len(part.owned), len(part.halo), len(part.indices))
        owned += part.owned.tolist()
        remote = set()
        for row, v in enumerate(part.owned):
            mine, its = slice(*part.indptr[row : row + 2]), slice(*graph.indptr[v : v + 2])
            assert part.nodes[part.indices[mine]].tolist() == graph.indices[its].tolist()
            remote |= {u for u in graph.indices[its].tolist() if book.part_of[u] != p}
            for name in ("edge_weight", "edge_id"):
                of_part, of_graph = getattr(part, name), getattr(graph, name)
                assert (of_part is None) == (of_graph is None)
                assert of_graph is None or np.array_equal(of_part[mine], of_graph[its])
        assert part.halo.tolist() == sorted(remote)
        assert part.in_degree.tolist() == graph.in_degree[part.owned].tolist()
    assert sorted(owned) == list(range(graph.num_nodes))


@settings(deadline=None, max_examples=10)
@given(parted())
def test_store_round_trip(tmp_path_factory, case):
    graph, book = case
    part, path = extract_partition(graph, book, 0), tmp_path_factory.mktemp("p") / "p"
    write_partition(path, part, fingerprint={"graph": "g"})
    again = open_partition(path, fingerprint={"graph": "g"}).check()
    assert again.rank == 0
    assert again.nbytes == part.nbytes
    for name, value in vars(part).items():
        assert (
            name == "rank"
            or (value is None and getattr(again, name) is None)
            or np.array_equal(value, getattr(again, name))
        )
    with pytest.raises(StoreError, match="graph"):
        open_partition(path, fingerprint={"graph": "other"})


GRAPH = from_edges([0, 1, 2, 3, 3], [1, 0, 0, 0, 2], 4, edge_weight=[1, 2, 3, 4, 5], keep_edge_id=True)
BOOK = RangeBook(np.array([0, 2, 4]))


def test_a_book_for_another_graph_is_refused():
    with pytest.raises(InputError, match="has 4 nodes; expected the graph's 5"):
        extract_partition(from_edges([], [], 5), BOOK, 0)
    with pytest.raises(IndexError):
        extract_partition(GRAPH, BOOK, 2)


def test_too_many_positions_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_POSITIONS", 3)
    with pytest.raises(InputError, match="2 nodes and a halo of 2; at most 3 fit"):
        extract_partition(GRAPH, BOOK, 0)
    extract_partition(GRAPH, BOOK, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"owned": np.array([1, 0])},
        {"owned": np.array([0, 1], np.int32)},
        {"owned": np.array([-1, 1])},
        {"owned": np.array([[0, 1]])},
        {"halo": np.array([2, 2])},
        {"halo": np.array([1, 3])},
        {"indptr": np.array([0, 3, 4], np.int32)},
        {"indptr": np.array([0, 4])},
        {"indptr": np.array([1, 3, 4])},
        {"indptr": np.array([0, 5, 4])},
        {"indptr": np.array([0, 3, 3])},
        {"in_degree": np.array([3, 1], np.int32)},
        {"in_degree": np.array([3])},
        {"in_degree": np.array([2, 1])},
        {"indices": np.array([1, 2, 3, 0])},
        {"indices": np.array([[1, 2, 3, 0]], np.int32)},
        {"indices": np.array([1, 2, 4, 0], np.int32)},
        {"indices": np.array([1, 2, -1, 0], np.int32)},
        {"edge_weight": np.ones(4)},
        {"edge_weight": np.ones(3, np.float32)},
        {"edge_id": np.ones(4, np.int32)},
    ],
)
def test_check_sees_a_bad_partition(change):
    good = extract_partition(GRAPH, BOOK, 0).check()
    with pytest.raises(InputError):
        replace(good, **change).check()


def test_rows_may_leave_edges_out():
    """Local training drops the halo; the true in-degree stays."""
    good = extract_partition(GRAPH, BOOK, 0)
    none = np.empty(0, np.int64)
    replace(
        good, halo=none, indptr=np.array([0, 1, 1]), indices=np.array([1], np.int32), edge_weight=None, edge_id=None
    ).check()
