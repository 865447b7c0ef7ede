"""A dataset that is dealt gives each part what the part would take from it in memory."""

import os
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import own_rows
from millrace.storage.dataset import SPLITS, Dataset, Split
from millrace.storage.dataset_store import open_stored, write_dataset
from millrace.storage.errors import StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.partition import shuffle
from millrace.storage.partition.book import TableBook
from millrace.storage.partition.shuffle import ShuffledStore, begin, deal
from millrace.storage.store.store import open_store
from millrace.tests.contracts.messages import graphs


def dataset_of(graph, seed=0, classes=None):
    """A dataset around any graph."""
    n, rng = graph.num_nodes, np.random.default_rng(seed)
    split = Split(
        *(np.sort(part) for part in np.split(rng.permutation(n), [n // 3, n // 2])[:2]), np.empty(0, np.int64)
    )
    labels = rng.integers(2, size=n) if classes is None else rng.integers(2, size=(n, classes)).astype(np.float32)
    features = ArrayFeatures(rng.random((n, 3), np.float32))
    return Dataset(
        "toy", graph, features, labels, split, classes or 2, "multiclass" if classes is None else "multilabel"
    )


def dealt_to(folder, stored, book, parts):
    folder.mkdir()
    for k in range(begin(stored, book.num_parts, [*parts], folder)):
        deal(stored, k, book, folder)
    return ShuffledStore(folder)


def bounds_of(folder, stored, parts):
    k = begin(stored, parts, [0], folder)
    bounds = open_store(folder / "plan", shuffle.KIND).read("bounds")
    assert len(bounds) == k + 1
    return bounds


def same(got, expected):
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected)


def same_rows(got, expected):
    same(got.nodes, expected.nodes)
    for name in ("indptr", "first_edge", "indices", "edge_weight", "edge_id"):
        a, b = getattr(got.graph, name), getattr(expected.graph, name)
        assert (a is None) == (b is None), name
        if a is not None:
            same(a, b)
    assert got.total_edges == expected.total_edges
    assert (got.features.shape, got.features.dtype) == (expected.features.shape, expected.features.dtype)
    n = len(got.nodes)
    for rows in (slice(0, n), slice(n // 3, n // 2), slice(n, n)):
        same(got.features[rows], expected.features[rows])
    same(got.labels, expected.labels)
    for name in SPLITS:
        same(getattr(got.split, name), getattr(expected.split, name))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_part_gets_what_it_would_take(tmp_path_factory, data):
    """Any graph, any owners, ranges of any size, all parts or some."""
    graph = data.draw(graphs(max_nodes=12, max_edges=40))
    parts = data.draw(st.sampled_from([1, 2, 5, 17]))
    book = data.draw(
        st.sampled_from(
            [
                Hash().assign(graph, parts, 0),
                Contiguous("nodes").assign(graph, parts, 0),
                TableBook(np.random.default_rng(1).integers(parts, size=graph.num_nodes).astype(np.int16), parts),
            ]
        )
    )
    dataset = dataset_of(graph, classes=data.draw(st.sampled_from([None, 3])))
    folder = tmp_path_factory.mktemp("d")
    write_dataset(folder / "data", dataset, features_format=data.draw(st.sampled_from(["npy", "zarr"])))
    wanted = data.draw(st.sets(st.integers(0, parts - 1), min_size=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "RANGE_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(shuffle, "STRETCH_BYTES", 0)
        patch.setattr(shuffle, "PIECE_ROWS", data.draw(st.sampled_from([1, 3, 100])))
        found = dealt_to(folder / "dealt", open_stored(folder / "data"), book, wanted)
    for part in wanted:
        same_rows(found.part(part), own_rows(dataset, book.owned(part)))
    for part in {*range(parts)} - wanted:
        assert not len(found.part(part).nodes)


NODES = 900


def hub():
    """Half of the edges lead to one node."""
    rng = np.random.default_rng(0)
    dst = np.concatenate([rng.integers(NODES, size=6000), np.full(6000, NODES // 2)])
    return from_edges(rng.integers(NODES, size=12_000), dst, NODES)


def test_ranges_hold_a_budget_or_a_row(tmp_path, monkeypatch):
    write_dataset(tmp_path / "data", dataset_of(hub()))
    stored = open_stored(tmp_path / "data")
    size = 24 + (3 * 8 + 1 + 8 + 12) + (2 * 4 + 24) * np.diff(hub().indptr)
    for n, (budget, pieces) in enumerate([(1 << 12, 1 << 21), (1 << 12, 100), (1 << 30, 70)]):
        monkeypatch.setattr(shuffle, "RANGE_BYTES", budget)
        monkeypatch.setattr(shuffle, "STRETCH_BYTES", 0)
        monkeypatch.setattr(shuffle, "PIECE_ROWS", pieces)
        bounds = bounds_of(tmp_path / str(n), stored, 4)
        assert bounds[0] == 0 and bounds[-1] == NODES and (np.diff(bounds) > 0).all()
        held, largest = np.add.reduceat(size, bounds[:-1]), np.maximum.reduceat(size, bounds[:-1])
        assert (held <= budget + largest).all()
        assert len(bounds) - 1 <= 1 + size.sum() / budget
    monkeypatch.setattr(shuffle, "RANGE_BYTES", 1 << 12)
    monkeypatch.setattr(shuffle, "STRETCH_BYTES", 1 << 8)
    assert len(bounds_of(tmp_path / "many", stored, 10**3)) == 3, "many parts make ranges larger"
    monkeypatch.setattr(shuffle, "MOST_BYTES", 1 << 12)
    # Written again, as by a task whose worker was lost before it said so.
    assert len(bounds_of(tmp_path / "many", stored, 10**3)) > 50, "and not too large"


def test_every_row_is_read_once(tmp_path, monkeypatch):
    """However many parts there are."""
    write_dataset(tmp_path / "data", dataset_of(hub()), features_format="zarr")
    stored, taken = open_stored(tmp_path / "data"), []
    monkeypatch.setattr(shuffle, "RANGE_BYTES", 1 << 14)
    monkeypatch.setattr(shuffle, "STRETCH_BYTES", 0)
    monkeypatch.setattr(
        stored.graph, "rows", lambda i, j, rows=stored.graph.rows: taken.append(np.arange(i, j)) or rows(i, j)
    )
    dealt_to(tmp_path / "dealt", stored, Hash().assign(hub(), 100, 0), range(100))
    assert np.array_equal(np.concatenate(taken), np.arange(NODES))
    assert len(taken) > 10


@pytest.mark.parametrize("how", ["gone", "without its index", "short"])
def test_a_file_that_is_incomplete_is_refused(tmp_path, how):
    write_dataset(tmp_path / "data", dataset_of(hub()))
    found = dealt_to(tmp_path / "dealt", open_stored(tmp_path / "data"), Hash().assign(hub(), 2, 0), [0, 1])
    file = tmp_path / "dealt" / "range-00000000"
    data = file.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes(data[:-1] if how == "short" else data[:10])
    with pytest.raises(StoreError, match=r"range-00000000 is (missing|incomplete); partition"):
        _ = found.part(1).features[0 : NODES // 2]


def test_a_range_is_dealt_once_and_nowhere_else(tmp_path):
    """A task that is done again, since its worker was lost, takes nothing away from readers; one that comes too late
    makes no folder."""
    write_dataset(tmp_path / "data", dataset_of(hub()))
    stored, book = open_stored(tmp_path / "data"), Hash().assign(hub(), 2, 0)
    dealt_to(tmp_path / "dealt", stored, book, [0, 1])
    stamp = (tmp_path / "dealt" / "range-00000000").stat()
    deal(stored, 0, book, tmp_path / "dealt")
    assert (tmp_path / "dealt" / "range-00000000").stat() == stamp
    with pytest.raises(StoreError):
        deal(stored, 0, book, tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_more_ranges_than_files_may_be_open(tmp_path, monkeypatch):
    write_dataset(tmp_path / "data", dataset_of(hub()))
    monkeypatch.setattr(shuffle, "RANGE_BYTES", 1 << 13)
    monkeypatch.setattr(shuffle, "STRETCH_BYTES", 0)
    book = Hash().assign(hub(), 3, 0)
    found = dealt_to(tmp_path / "dealt", open_stored(tmp_path / "data"), book, [1])
    assert len([*(tmp_path / "dealt").glob("range-*")]) > 30
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, len(os.listdir("/proc/self/fd")) + 15), hard))
    try:
        same_rows(found.part(1), own_rows(dataset_of(hub()), book.owned(1)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
