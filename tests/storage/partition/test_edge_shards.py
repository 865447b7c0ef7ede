"""Edge shards: put together again they are the partition, and what a shard names at its owner is the right node."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.storage.errors import InputError, StoreError
from millrace.storage.graph import from_edges
from millrace.storage.partition.book import RangeBook, TableBook
from millrace.storage.partition.edge_shards import open_edge_shards, shard_edges, write_edge_shards
from millrace.storage.partition.partition import extract_partition, open_partition
from millrace.tests.contracts.messages import graphs


@st.composite
def parted(draw):
    """A graph and a book with empty parts, and often more parts than nodes; ranges or a table."""
    graph = draw(graphs())
    parts = draw(st.sampled_from([1, 2, 3, 5, 20, 300]))
    of = draw(st.lists(st.integers(0, parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes))
    if draw(st.booleans()):
        return graph, TableBook(np.array(of, np.int32), parts).check()
    return graph, RangeBook(
        np.concatenate([[0], np.cumsum(np.bincount(np.array(of, np.int64), minlength=parts))]).astype(np.int64)
    ).check()


def sharded(graph, book, part):
    partition = extract_partition(graph, book, part)
    return partition, shard_edges(partition, book, graph.indptr[partition.owned], graph.num_edges)


def edges_of(shards, book):
    """Per shard, then per edge: (source's global id, local row), read off the fields one by one."""
    for q in range(shards.num_parts):
        sources = shards.sources[shards.source_splits[q] : shards.source_splits[q + 1]]
        lo, found = shards.edge_splits[q], []
        for r in range(shards.row_splits[q], shards.row_splits[q + 1]):
            found += [
                (int(book.global_ids(q, np.array([at if q == shards.part else sources[at]]))[0]), int(shards.rows[r]))
                for at in shards.indices[lo : lo + shards.counts[r]]
            ]
            lo += shards.counts[r]
        assert lo == shards.edge_splits[q + 1]
        yield found


@given(parted())
def test_put_together_they_are_the_partition(case):
    graph, book = case
    seen = 0
    for p in sorted({0, book.num_parts - 1, *book.part(np.arange(graph.num_nodes)).tolist()}):
        partition, shards = sharded(graph, book, p)
        shards.check()
        assert (shards.part, shards.num_parts, shards.num_owned) == (p, book.num_parts, partition.num_owned)
        assert (shards.num_edges, shards.total_edges) == (partition.num_edges, graph.num_edges)
        row = np.repeat(np.arange(partition.num_owned), np.diff(partition.indptr))
        put, weight = [None] * partition.num_edges, np.zeros(partition.num_edges, np.float32)
        for q, found in enumerate(edges_of(shards, book)):
            assert all(book.part(np.array([u]))[0] == q for u, _ in found)
            mine = slice(*shards.edge_splits[q : q + 2])
            for at, pair in zip(shards.edge[mine].tolist(), found):
                assert put[at] is None
                put[at] = pair
        assert put == list(zip(partition.nodes[partition.indices].tolist(), row.tolist()))
        assert (shards.edge_weight is None) == (partition.edge_weight is None)
        if shards.edge_weight is not None:
            weight[shards.edge] = shards.edge_weight
            assert np.array_equal(weight, partition.edge_weight)
        # An edge's number in the whole graph: what dropout is drawn by.
        number = shards.first_edge[row] + np.arange(len(row)) - partition.indptr[row]
        assert graph.indices[number].tolist() == partition.nodes[partition.indices].tolist()
        seen += shards.num_edges
    assert seen == graph.num_edges


@given(parted())
def test_what_a_part_receives_is_its_halo(case):
    graph, book = case
    for p in range(min(book.num_parts, 20)):
        partition, shards = sharded(graph, book, p)
        owner = np.repeat(np.arange(book.num_parts), np.diff(shards.source_splits))
        assert sorted(book.global_ids(owner, shards.sources).tolist()) == partition.halo.tolist()
        assert p not in owner


@settings(deadline=None, max_examples=10)
@given(parted())
def test_store_round_trip(tmp_path_factory, case):
    graph, book = case
    path = tmp_path_factory.mktemp("s") / "s"
    _, shards = sharded(graph, book, 0)
    write_edge_shards(path, shards, fingerprint={"graph": "g"})
    again = open_edge_shards(path, fingerprint={"graph": "g"}).check()
    assert again.nbytes == shards.nbytes > 0
    for name, value in vars(shards).items():
        assert (
            np.array_equal(value, getattr(again, name))
            if isinstance(value, np.ndarray)
            else value == getattr(again, name)
        )
    with pytest.raises(StoreError, match="graph"):
        open_edge_shards(path, fingerprint={"graph": "other"})
    with pytest.raises(StoreError, match="expected 'millrace-partition'"):
        open_partition(path)
    with pytest.raises(StoreError, match="exists already"):
        write_edge_shards(path, shards)
    write_edge_shards(path, shards, overwrite=True)


# Into part 1, which owns 2 and 3: a loop at 3, twice 0 -> 2, then 1 -> 2, 4 -> 2, 3 -> 2, 0 -> 3.
GRAPH = from_edges([3, 0, 0, 1, 4, 3, 0], [3, 2, 2, 2, 2, 2, 3], 5, edge_weight=[1, 2, 3, 4, 5, 6, 7])
BOOK = RangeBook(np.array([0, 2, 4, 5, 5]))


def test_a_small_one_by_hand():
    _, s = sharded(GRAPH, BOOK, 1)
    assert (s.row_splits.tolist(), s.rows.tolist(), s.counts.tolist()) == (
        [0, 2, 4, 5, 5],
        [0, 1, 0, 1, 0],
        [3, 1, 1, 1, 1],
    )
    assert (s.edge_splits.tolist(), s.indices.tolist(), s.edge.tolist()) == (
        [0, 4, 6, 7, 7],
        [0, 0, 1, 0, 1, 1, 0],
        [0, 1, 2, 5, 3, 6, 4],
    )
    assert (s.source_splits.tolist(), s.sources.tolist()) == ([0, 2, 2, 3, 3], [0, 1, 0])
    assert (s.first_edge.tolist(), s.total_edges) == ([0, 5], 7)
    assert s.edge_weight is not None
    assert s.edge_weight.tolist() == [2, 3, 4, 7, 6, 1, 5]


@pytest.mark.parametrize(
    "book", [RangeBook(np.array([0, 3, 5])), RangeBook(np.array([0, 5])), RangeBook(np.array([0, 1, 4, 5]))]
)
def test_another_books_partition_is_refused(book):
    partition = extract_partition(GRAPH, BOOK, 1)
    with pytest.raises(
        InputError, match=rf"partition 1 of 2 nodes is none of this book's {book.num_parts} parts; give the book"
    ):
        shard_edges(partition, book, GRAPH.indptr[partition.owned], GRAPH.num_edges)


def test_damage_is_seen(tmp_path):
    _, shards = sharded(GRAPH, BOOK, 1)
    write_edge_shards(tmp_path / "s", shards)
    chunk = next(p for p in (tmp_path / "s" / "arrays" / "edge").rglob("0") if p.is_file())
    raw = bytearray(chunk.read_bytes())
    raw[-9] ^= 1
    chunk.write_bytes(raw)
    with pytest.raises(StoreError, match="'edge' is damaged"):
        open_edge_shards(tmp_path / "s")
    chunk.unlink()
    with pytest.raises(StoreError, match="'edge' lacks 1 of its 1 files"):
        open_edge_shards(tmp_path / "s")
    with pytest.raises(StoreError, match="never committed"):
        open_edge_shards(tmp_path / "none")


def i32(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    "change",
    [
        {"part": 4},
        {"part": -1},
        {"part": 0},
        {"row_splits": i32(0, 2, 4, 5, 5)},
        {"row_splits": np.array([1, 2, 4, 5, 5])},
        {"row_splits": np.array([0, 2, 4, 4, 4])},
        {"row_splits": np.array([0, 3, 2, 5, 5])},
        {"row_splits": np.array([0, 3, 4, 5, 5])},
        {"edge_splits": np.array([0, 4, 6, 7])},
        {"edge_splits": np.array([0, 4, 5, 7, 7])},
        {"source_splits": np.array([0, 1, 2, 3, 3])},
        {"source_splits": np.array([0, 2, 2, 2, 2])},
        {"rows": np.array([0, 1, 0, 1, 0])},
        {"rows": i32(0, 0, 0, 1, 0)},
        {"rows": i32(0, 2, 0, 1, 0)},
        {"rows": i32(-1, 1, 0, 1, 0)},
        {"rows": i32(0, 1, 0, 1, 1)},
        {"counts": i32(3, 1, 1, 1)},
        {"counts": i32(4, 0, 1, 1, 1)},
        {"counts": i32(2, 1, 1, 1, 1)},
        {"counts": i32(2, 2, 1, 1, 1)},
        {"indices": i32(0, 0, 1, 0, 1, 1)},
        {"indices": i32(0, 0, 2, 0, 1, 1, 0)},
        {"indices": i32(0, 0, 0, 0, 1, 1, 0)},
        {"indices": i32(0, 0, 1, 0, 2, 1, 0)},
        {"indices": i32(0, 0, 1, 0, 1, 1, -1)},
        {"indices": i32(0, 0, 1, 0, -1, 1, 0)},
        {"row_splits": np.array([0, 2, 4, 6, 6]), "rows": i32(0, 1, 0, 1, 0, 1), "counts": i32(3, 1, 1, 1, 1, 0)},
        {"source_splits": np.array([0, 2, 3, 4, 4]), "sources": i32(0, 1, 0, 0)},
        {"edge": np.array([0, 1, 2, 5, 3, 6, 4])},
        {"edge": i32(0, 1, 2, 5, 3, 6)},
        {"edge": i32(1, 0, 2, 5, 3, 6, 4)},
        {"edge": i32(0, 1, 2, 5, 3, 6, 3)},
        {"edge": i32(0, 1, 2, 5, 3, 6, 7)},
        {"edge": i32(0, 1, 2, 6, 3, 4, 5)},
        {"sources": np.array([0, 1, 0])},
        {"sources": i32(1, 1, 0)},
        {"sources": i32(-1, 1, 0)},
        {"first_edge": i32(0, 5)},
        {"first_edge": np.array([[0, 5]])},
        {"first_edge": np.array([-1, 5])},
        {"first_edge": np.array([0, 4])},
        {"first_edge": np.array([5, 0])},
        {"first_edge": np.array([0])},
        {"total_edges": 6},
        {"edge_weight": np.ones(7)},
        {"edge_weight": np.ones(6, np.float32)},
    ],
)
def test_check_sees_bad_shards(change):
    _, good = sharded(GRAPH, BOOK, 1)
    with pytest.raises(InputError):
        replace(good.check(), **change).check()
