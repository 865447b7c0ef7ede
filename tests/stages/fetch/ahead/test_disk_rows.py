"""Rows read ahead from disk: units as large as their bytes allow, each row once, none before its turn."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.stages.assignment import Steps
from millrace.stages.fetch.ahead import disk_rows, units
from millrace.stages.fetch.ahead.disk_rows import DiskRows, FromDisk, RowsFromDisk, distinct, unit_bytes
from millrace.stages.fetch.ahead.units import Plan
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.minibatch import Block, MiniBatch

V, WIDTH = 500, 4
ROW_BYTES = 4 * WIDTH
NODES = 20
PLACES = 4 * NODES + 4 * NODES + 16
"""Bytes that a minibatch's own table of places takes, and its lists: of nodes and of no edges."""


class OnDisk(ArrayFeatures):
    """Rows that count what is gathered."""

    def __init__(self) -> None:
        super().__init__(np.arange(V * WIDTH, dtype=np.float32).reshape(V, WIDTH))
        self.asked: list[np.ndarray[Any, Any]] = []

    def gather(self, ids: Any, out: Any = None) -> Any:
        self.asked.append(np.array(ids))
        return super().gather(ids, out)


class Given:
    """A feed of minibatches."""

    stored, sample_s = False, 0.0
    drawn = 2
    """As many are there, without waiting, after those that are released."""

    def __init__(self, work: dict[tuple[int, int], MiniBatch]) -> None:
        self.work, self.released = work, (-1, -1)

    def get(self, epoch: int, index: int) -> MiniBatch:
        return self.work[epoch, index]

    def peek(self, epoch: int, index: int) -> MiniBatch | None:
        there = [key for key in self.work if key > self.released][: self.drawn]
        return self.work[epoch, index] if (epoch, index) <= max(there, default=self.released) else None

    def expect(self, epoch: int, index: int) -> None:
        pass

    def release(self, epoch: int, index: int) -> None:
        self.released = epoch, index

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass


def minibatch(epoch: int, index: int, nodes: Any) -> MiniBatch:
    block = Block(1, np.asarray(nodes, np.int32), np.zeros(2, np.int64), np.empty(0, np.int32), None)
    return MiniBatch(epoch, index, (block,), True)


def from_disk(store: OnDisk, room: int) -> FromDisk:
    job: Any = SimpleNamespace(tell=lambda text: None)
    return FromDisk(DiskRows(store), None, room, job)


def trained(
    room: int, count: int, monkeypatch: pytest.MonkeyPatch, epochs: int = 1, **of_feed: Any
) -> tuple[list[int], OnDisk]:
    """Go through epochs of minibatches; the number of those in each unit, and the store."""
    monkeypatch.setattr(disk_rows, "reads_together", lambda features, ids: True)
    rng, store = np.random.default_rng(0), OnDisk()
    work = {(e, i): minibatch(e, i, rng.permutation(V)[:NODES]) for e in range(epochs) for i in range(count)}
    feed = Given(work)
    for name, value in of_feed.items():
        setattr(feed, name, value)
    plan = Plan(Steps(count, 1, 1, 0), epochs, (0, 0))
    ahead = RowsFromDisk(feed, from_disk(store, room), plan, lambda m: [])
    sizes = []
    try:
        for step, (epoch, i) in enumerate(work):
            m = ahead.get(epoch, i)
            got = ahead.rows(m)
            assert got is not None
            np.testing.assert_array_equal(got.rows[got.place], store.rows[m.nodes])
            unit = next(u for u in ahead._units if u.first_step <= step < u.last_step)
            if unit.first_step == step:
                sizes.append(unit.last_step - step)
            ahead.release(epoch, i)
    finally:
        ahead.close()
    return sizes, store


def test_a_budget_beyond_the_memory_that_is_left_is_a_quarter_of_it(monkeypatch, tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((V, WIDTH), np.float32))
    monkeypatch.setattr(disk_rows, "bytes_left", lambda: 2000 << 20)
    told: list[str] = []
    job: Any = SimpleNamespace(tell=told.append, packed=None, group=SimpleNamespace(size=2))
    place: Any = SimpleNamespace(features=MappedFeatures(tmp_path / "rows.npy"), edge_features=None)
    sizes = [FromDisk.chosen(place, job, given) for given in ("auto", 1900 << 20, 2001 << 20)]
    assert [each and each.unit_bytes for each in sizes] == [
        unit_bytes("auto", 1000 << 20),
        *(unit_bytes(given, 1000 << 20) for given in (1900 << 20, "auto")),
    ]
    assert told == [
        "bulk.prefetch_bytes is 2,001 MiB, but 2,000 MiB of memory are left: a quarter of that is used, as with "
        "bulk.prefetch_bytes=auto"
    ]


def test_units_take_what_their_bytes_allow(monkeypatch):
    # Two minibatches, which share a row at least, and not three.
    room = 2 * (NODES * ROW_BYTES + PLACES) + NODES
    sizes, store = trained(room, 9, monkeypatch)
    assert sizes == [1, 2, 2, 2, 2]
    for ids in store.asked:
        assert np.all(np.diff(ids) > 0), "ascending, each once"
        assert len(ids) * ROW_BYTES <= room


def test_all_of_an_epoch_is_read_together_if_there_is_room(monkeypatch):
    sizes, store = trained(1 << 30, 9, monkeypatch)
    assert sizes == [1, 8]
    assert len(store.asked[1]) < 8 * NODES, "rows of several minibatches are read once"


def test_units_run_on_into_the_next_epochs(monkeypatch):
    sizes, store = trained(1 << 30, 3, monkeypatch, epochs=4, drawn=12)
    assert sizes == [1, 11]
    assert len(store.asked) == 2 and len(store.asked[1]) < 11 * NODES, "epochs share rows"
    # The second has room for four minibatches, beyond the end of its epoch.
    room = 4 * (NODES * ROW_BYTES + PLACES)
    assert trained(room, 3, monkeypatch, epochs=3, drawn=9)[0] == [1, 4, 4]


def test_no_unit_waits_for_minibatches_of_next_epochs(monkeypatch):
    """Those that nobody has drawn yet: training would begin when all epochs have been."""
    assert trained(1 << 30, 3, monkeypatch, epochs=4, drawn=0)[0] == [1, 2, 3, 3, 3]


def test_minibatches_count_of_which_all_rows_are_there(monkeypatch):
    """However few rows a graph has, a unit's minibatches take memory of their own."""
    sizes, store = trained(V * ROW_BYTES + 9 * PLACES, 100, monkeypatch)
    assert max(sizes) < 100 and sum(sizes) == 100
    assert max(n * PLACES + len(ids) * ROW_BYTES for n, ids in zip(sizes, store.asked)) <= V * ROW_BYTES + 9 * PLACES


def test_without_room_minibatches_are_read_in_turn(monkeypatch):
    assert trained(0, 4, monkeypatch)[0] == [1] * 4


def test_a_bounded_queue_on_disk_gives_what_is_there(monkeypatch):
    """It holds later minibatches back until the earlier ones are released: waiting for them would never end."""
    sizes, _ = trained(1 << 30, 9, monkeypatch, stored=True)
    assert sum(sizes) == 9 and max(sizes) <= 3


def test_rows_in_the_cache_are_left_where_they_lie(monkeypatch):
    monkeypatch.setattr(disk_rows, "reads_together", lambda features, ids: False)
    store = OnDisk()
    feed: Any = Given({(0, i): minibatch(0, i, np.arange(i, i + NODES)) for i in range(3)})
    plan = Plan(Steps(3, 1, 1, 0), 1, (0, 0))
    ahead = RowsFromDisk(feed, from_disk(store, 1 << 30), plan, lambda m: [])
    for i in range(3):
        assert ahead.rows(ahead.get(0, i)) is None
        ahead.release(0, i)
    ahead.close()
    assert not store.asked


def test_reading_ends_with_training(monkeypatch):
    monkeypatch.setattr(disk_rows, "PIECE_BYTES", ROW_BYTES)
    rows = DiskRows(store := OnDisk())
    rows.is_wanted = lambda: len(store.asked) < 3
    rows.collect(np.arange(V))
    assert len(store.asked) == 3


@given(st.lists(st.integers(0, 99), max_size=50), st.sampled_from([0, 1, 10**6]))
def test_distinct_ids_are_ascending(ids, sparse):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "SPARSE", sparse)
        asked = np.array(ids, np.int32)
        known, place = distinct(asked, 100)
    np.testing.assert_array_equal(known, sorted(set(ids)))
    np.testing.assert_array_equal(known[place], asked)
