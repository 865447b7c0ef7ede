"""Renumbered datasets: the same graph under other numbers, with the old ones as names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.partition.hash import Hash
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.node_names import NodeNames
from millrace.storage.partition.reorder import ascending, reorder


def made(n: int, src: list[int], dst: list[int], weighted: bool = False, names: list[str] | None = None) -> Dataset:
    """A dataset whose rows and labels are the nodes' numbers."""
    graph = from_edges(
        np.array(src, np.int64), np.array(dst, np.int64), n, edge_weight=np.arange(len(src)) if weighted else None
    )
    graph = Graph(graph.indptr, graph.indices, graph.edge_weight, np.arange(graph.num_edges))
    thirds = np.array_split(np.arange(n), 3)
    return Dataset(
        "d",
        graph,
        ArrayFeatures(np.arange(n, dtype=np.float32)[:, None]),
        np.arange(n),
        Split(*thirds),
        n,
        node_names=names,
    ).check()


def edges(data: Dataset, old: np.ndarray) -> list[tuple[int, int, float, int]]:
    """Edges of a dataset by the old numbers of its nodes, with weight and id, sorted."""
    graph = data.graph
    dst = np.repeat(np.arange(data.num_nodes), graph.in_degree)
    weight = np.zeros(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    assert graph.edge_id is not None
    columns = (old[graph.indices], old[dst], weight, graph.edge_id)
    return sorted(zip(*(c.tolist() for c in columns)))


@settings(max_examples=25)
@given(st.data())
def test_the_same_graph_under_other_numbers(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    ends = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    names = [f"n{v}" for v in range(n)] if data.draw(st.booleans()) else None
    before = made(n, [s for s, _ in ends], [d for _, d in ends], data.draw(st.booleans()), names)
    old = np.array(data.draw(st.permutations(range(n))))
    after = reorder(before, old).check()
    assert edges(after, old) == edges(before, np.arange(n))
    for v in range(n):
        row = after.graph.indices[after.graph.indptr[v] : after.graph.indptr[v + 1]]
        assert (np.diff(row) >= 0).all()
    assert after.features.gather(np.arange(n))[:, 0].tolist() == after.labels.tolist() == old.tolist()
    for name in ("train", "val", "test"):
        assert set(old[getattr(after.split, name)]) == set(getattr(before.split, name))
    assert list(after.node_names or ()) == [names[v] if names else str(v) for v in old]
    # Back again, by the names.
    again = reorder(after, np.argsort(old))
    assert edges(again, np.arange(n)) == edges(before, np.arange(n))
    assert again.graph.indptr.tolist() == before.graph.indptr.tolist()


@settings(max_examples=25)
@given(st.data())
def test_pairs_keep_their_order_and_name_the_same_nodes(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    ends = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=12)
    pairs = np.array(data.draw(ends), np.int64).reshape(-1, 2)
    old, count = np.array(data.draw(st.permutations(range(n)))), len(pairs)
    values = {"split": Split(*np.array_split(np.arange(count), 3)), "pair_time": np.arange(count)}
    plain = replace(made(n, [0], [n - 1]), **values)
    rows = np.arange(2 * count, dtype=np.float32).reshape(-1, 2)
    edges_ = replace(plain, labels=np.arange(count), num_classes=n + 12, pairs=pairs, pair_features=rows)
    edges_ = replace(edges_, hides_pairs=data.draw(st.booleans()))
    after = reorder(edges_.check(), old).check()
    assert after.pairs is not None and np.array_equal(old[after.pairs], pairs)
    for name in ("labels", "split", "pair_time", "pair_features", "hides_pairs", "num_classes"):
        assert getattr(after, name) is getattr(edges_, name)
    kinds = np.zeros((count, 1), np.int64)
    links = replace(plain, labels=np.concatenate([pairs, kinds], 1), num_classes=1, task="link").check()
    table = reorder(links, old).check().labels
    assert np.array_equal(old[table[:, :2]], pairs) and np.array_equal(table[:, 2:], kinds)


def test_a_book_makes_each_part_a_range() -> None:
    before = made(50, [0, 7, 49], [3, 3, 0])
    book = Hash().assign(before.graph, 3, 0)
    after = reorder(before, book)
    owners = book.part(after.labels)
    assert (np.diff(owners) >= 0).all() and set(owners) == {0, 1, 2}
    for p in range(3):
        assert (np.diff(after.labels[owners == p]) > 0).all()


def test_a_store_keeps_old_numbers_as_names(tmp_path: Path) -> None:
    old = np.array([3, 0, 2, 1])
    write_dataset(tmp_path / "s", reorder(made(4, [0, 1], [1, 2]), old))
    found = open_dataset_store(tmp_path / "s")
    assert list(found.node_names or ()) == ["3", "0", "2", "1"]
    assert found.features.gather(np.array([0, 3]))[:, 0].tolist() == [3, 1]


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1, 2], [0, 1, 2, 4], [0.0, 1.0, 2.0, 3.0], [[0, 1], [2, 3]]])
def test_an_order_that_does_not_name_every_node_once_is_refused(order: list[float]) -> None:
    with pytest.raises(InputError, match=r"^order is .*; expected each of the 4 nodes once$"):
        reorder(made(4, [], []), np.array(order))


def test_an_order_by_name_is_checked() -> None:
    data = made(4, [3, 3], [1, 2])
    assert list(reorder(data, "degree").node_names or ()) == ["3", "0", "1", "2"]
    with pytest.raises(InputError, match="order is 'degre'; expected ids, degree, rcm; did you mean 'degree'"):
        reorder(data, "degre")
    with pytest.raises(InputError, match="within is 'rcm', and order is no partition book; leave within out"):
        reorder(data, np.arange(4), within="rcm")


def test_rows_that_are_asked_for_out_of_range_are_refused() -> None:
    features = reorder(made(3, [], []), np.array([2, 1, 0])).features
    with pytest.raises(IndexError, match="there are 3"):
        features.gather(np.array([3]))


def test_ascending_leaves_sorted_rows_alone_and_keeps_the_order_of_equal_sources() -> None:
    indptr, indices = np.array([0, 2, 2, 4]), np.array([4, 5, 0, 1])
    same, none = ascending(indptr, indices, None)
    assert same is indices and none is None
    sorted_, carried = ascending(np.array([0, 4]), np.array([2, 0, 2, 0]), np.array([10, 11, 12, 13]))
    assert sorted_.tolist() == [0, 0, 2, 2] and carried.tolist() == [11, 13, 10, 12]


def test_names_of_nodes_in_another_order() -> None:
    names = NodeNames.from_values(["a", "", "ccc"])
    assert list(names.reordered(np.array([2, 2, 1, 0]))) == ["ccc", "ccc", "", "a"]
    assert list(NodeNames.of_numbers(11))[9:] == ["9", "10"]
