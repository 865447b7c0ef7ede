"""Features owned by ranks: the rows that a direct gather gives, from the rank that has them, and ahead of the step that
needs them."""

import os
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace.stages.assignment import SeedPlan
from millrace.stages.comm import lockstep
from millrace.stages.comm.gloo import Gloo, ring_bytes
from millrace.stages.comm.solo import Solo
from millrace.stages.feed.collective_feed import SampledByOwners
from millrace.stages.feed.queue_feed import Sampled
from millrace.stages.fetch import owned_rows
from millrace.stages.fetch.ahead.units import MOST_STEPS
from millrace.stages.fetch.exchange import OwnedFeatures
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.fetch.owned_rows import IDLE_STEPS, OwnedRows, opened
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.memory.lazy_rows import LazyRows
from millrace.stages.messages import Phase, Placement, RankJob
from millrace.stages.placement.row_blocks import BlockRows, Grid
from millrace.stages.sample.base import Sampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.errors import InputError, MillraceError, StoreError
from millrace.storage.features import (
    ArrayFeatures,
    ConvertedFeatures,
    FeatureStore,
    MappedFeatures,
    ZarrFeatures,
    write_features,
)
from millrace.storage.graph import Graph, from_edges
from millrace.storage.ledger import Ledger
from millrace.storage.minibatch import MiniBatch
from millrace.storage.partition.book import RangeBook
from millrace.storage.queue.base import MemoryQueue
from millrace.storage.store.scratch import in_memory
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.isolated import Seat
from millrace.tests.contracts.process_ranks import run_ranks

# --- rows that ranks hold between them ---

CASES = (
    (1, 3, np.float32, True), (2, 1, np.float64, False), (5, 4, np.float32, True), (97, 8, np.float64, True),
    (500, 3, np.float32, False),
    (6, 0, np.float32, True), (0, 2, np.float32, True),
)  # fmt: skip
"""V, F, type, and whether degrees travel too; fewer rows than ranks, and none."""
RANKS = 4
GRIDS = (1, 2, 4)
"""c."""
ROUNDS, KEEP_AT = 8, 4
"""Times that ranks ask, and the one before which hot rows are chosen."""
Case = tuple[int, int, Any, bool]


def all_rows(num_rows: int, num_features: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng(num_rows).random((num_rows, num_features)).astype(dtype)


def degrees(num_rows: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng([num_rows, 1]).random(num_rows).astype(dtype)


def nodes_of(rank: int, number: int, num_rows: int) -> np.ndarray:
    """Distinct ids that a rank asks for in a round: none, the first, one, some or all of them."""
    rng = np.random.default_rng([rank, number, num_rows])
    wanted = int(rng.choice([0, 1, num_rows // 2, num_rows]))
    ids = np.zeros(min(1, num_rows), np.int64) if (rank + number) % 5 == 0 else rng.permutation(num_rows)[:wanted]
    return ids.astype([np.int32, np.int64][number % 2])


def book_of(num_rows: int, blocks: int) -> RangeBook:
    """Uneven, with an empty block where there are more than two."""
    cuts = np.sort(np.random.default_rng([num_rows, blocks]).integers(0, num_rows + 1, blocks - 1))
    if blocks > 2:
        cuts[1] = cuts[0]
    return RangeBook(np.concatenate([[0], cuts, [num_rows]]).astype(np.int64)).check()


def hot_of(rank: int, place: int, book: RangeBook) -> np.ndarray:
    """A third of the rows that the block at `place` has not."""
    rng = np.random.default_rng([rank, book.num_nodes, 2])
    ids = np.arange(book.num_nodes)
    return ids[(book.part(ids) != place) & (rng.random(len(ids)) < 1 / 3)]


def sent(ledger: Ledger, channel: str = "network") -> dict[str, int]:
    return ledger.as_record()[channel].copy()


def collect(group: Gloo) -> dict[str, Any]:
    """Ask for rows as the cases say, and hold on to some of what comes."""
    found: dict[str, Any] = {}
    for c in GRIDS:
        grid = Grid(group.size, c)
        column = grid.subgroup(group, f"grid of {c}")
        for case in CASES:
            v, f, dtype, with_degree = case
            x, degree, book = all_rows(v, f, dtype), degrees(v, dtype), book_of(v, grid.blocks)
            lo, hi = (int(book.offsets[column.rank + i]) for i in (0, 1))
            # A rank's store may hold the whole or its block alone.
            whole = (v + c) % 2 == 0
            store = ArrayFeatures(x) if whole else ArrayFeatures(x[lo:hi].copy())
            of_own = torch.from_numpy(degree[lo:hi]) if with_degree else None
            # Rows may be read when they are asked for, by some ranks and not by others.
            empty = None if (v + group.rank) % 2 else in_memory
            owned = opened(store, lo if whole else 0, book, column, of_own, empty)
            before, held, wrong, hits = sent(group._ledger), deque(maxlen=3), [], []
            for number in range(ROUNDS):
                if number == KEEP_AT:
                    hits.append((owned.hits.asked, owned.hits.hits))
                    owned.keep(hot_of(group.rank, column.rank, book))
                ids = nodes_of(group.rank, number, v)
                got = owned.collect(ids)
                good = (
                    got.rows.shape == (len(ids), f)
                    and got.rows.dtype == dtype
                    and np.array_equal(np.sort(got.place), np.arange(len(ids)))
                    and np.array_equal(got.rows[got.place], x[ids])
                    and (got.degree is not None) == with_degree
                    and (got.degree is None or np.array_equal(got.degree.numpy(), degree[ids]))
                )
                held.append((ids, got))
                good = good and all(np.array_equal(g.rows[g.place], x[i]) for i, g in held)
                if not good:
                    wrong.append(number)
            hits.append((owned.hits.asked, owned.hits.hits))
            after = sent(group._ledger)
            kept = (0 if empty is None else hi - lo) + len(hot_of(group.rank, column.rank, book))
            nbytes = kept * f * np.dtype(dtype).itemsize
            found[f"c={c} {case}"] = {
                "wrong": wrong, "hits": hits, "kept": owned.own.rows.nbytes + owned.hot.rows.nbytes == nbytes,
                **{k: after[k] - before[k] for k in after},
            }  # fmt: skip
    return found


def due_of(rank: int, c: int, case: Case) -> dict[str, Any]:
    """Counted from sets of ids, without the classes under test but the grid's own arithmetic."""
    v, f, dtype, with_degree = case
    itemsize = np.dtype(dtype).itemsize
    column = [r for r in range(RANKS) if r % c == rank % c]
    book = book_of(v, RANKS // c)
    blocks = {r: set(range(int(book.offsets[i]), int(book.offsets[i + 1]))) for i, r in enumerate(column)}
    hot = {r: set(hot_of(r, i, book).tolist()) for i, r in enumerate(column)}
    rounds = [{r: set(nodes_of(r, i, v).tolist()) for r in column} for i in range(ROUNDS)]
    wanted = [
        {r: ids - blocks[r] - (hot[r] if i >= KEEP_AT else set()) for r, ids in of.items()}
        for i, of in enumerate(rounds)
    ]
    wanted.append(hot)
    served = sum(len(of[r] & blocks[rank]) for of in wanted for r in column if r != rank)
    asked = [len(of[rank] - blocks[rank]) for of in rounds]
    return {
        "wrong": [],
        "hits": [
            (sum(asked[:KEEP_AT]), 0),
            (sum(asked[KEEP_AT:]), sum(len(of[rank] & hot[rank]) for of in rounds[KEEP_AT:])),
        ],
        "kept": True,
        "features": served * f * itemsize,
        "graph": served * itemsize * with_degree,
        "control": 4 * sum(len(of[rank]) for of in wanted) + 8 * (len(column) - 1) * (ROUNDS + 1),
        "activations": 0,
        "gradients": 0,
    }


def test_each_row_comes_from_the_rank_that_has_it_and_hot_rows_from_nobody() -> None:
    for rank, found in enumerate(run_ranks(collect, RANKS)):
        for c in GRIDS:
            for case in CASES:
                assert found[f"c={c} {case}"] == due_of(rank, c, case), f"rank {rank}, c={c}, {case}"


class Watched(ArrayFeatures):
    """Remembers the ids that it was asked for."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self.asked: list[list[int]] = []

    def gather(self, ids: Any, out: Any = None) -> Any:
        self.asked.append(ids.tolist())
        return super().gather(ids, out)


def of_rank(store: FeatureStore, rank: int, ranks: int, first: int | None = None) -> OwnedRows:
    """The rows that a rank would hold, computed without communication."""
    book = RangeBook(store.num_rows * np.arange(ranks + 1) // ranks)
    seat: Any = Seat(rank, ranks)
    return opened(store, int(book.offsets[rank]) if first is None else first, book, seat, None)


def test_a_rank_reads_its_own_rows_once_in_slices_from_any_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_rows, "LOAD_BYTES", 2 * 8)
    rows = all_rows(11, 2, np.float32)
    write_features(tmp_path / "zarr", rows)
    np.save(tmp_path / "rows.npy", rows)
    asked = []
    for rank in range(3):
        watched = Watched(rows)
        of_rank(watched, rank, 3)
        asked.append(watched.asked)
    assert asked == [[[0, 1], [2]], [[3, 4], [5, 6]], [[7, 8], [9, 10]]]
    stores = (
        ZarrFeatures(tmp_path / "zarr"),
        MappedFeatures(tmp_path / "rows.npy"),
        ConvertedFeatures(ArrayFeatures(rows), np.float64),
    )
    for store in stores:
        owned = opened(store, 0, RangeBook(np.array([0, 11])), Solo(), None)
        ids = np.array([10, 0, 7, 3], np.int32)
        got = owned.collect(ids)
        assert got.rows.dtype == store.dtype
        assert np.array_equal(got.rows[got.place], store.gather(ids))


class Damaged(ArrayFeatures):
    def gather(self, ids: Any, out: Any = None) -> Any:
        if 7 in ids:
            raise StoreError("row 7 is damaged")
        return super().gather(ids, out)


def test_a_damaged_store_is_noticed_by_the_rank_that_reads_it_before_any_row_travels() -> None:
    store = Damaged(all_rows(9, 2, np.float32))
    of_rank(store, 0, 3)
    with pytest.raises(StoreError, match="row 7 is damaged"):
        of_rank(store, 2, 3)


@pytest.mark.parametrize("ids", [[9], [-1], [3, 9], [1 << 40]])
def test_ids_outside_the_rows_are_refused(ids: list[int]) -> None:
    owned = opened(ArrayFeatures(all_rows(9, 2, np.float32)), 0, RangeBook(np.array([0, 9])), Solo(), None)
    with pytest.raises(IndexError, match="the partition book has 9 nodes"):
        owned.collect(np.array(ids))
    assert owned.hits.asked == 0


def address(rows: np.ndarray) -> int:
    return rows.ctypes.data


def alone(num_rows: int, num_features: int) -> tuple[OwnedRows, np.ndarray]:
    rows = all_rows(num_rows, num_features, np.float32)
    return opened(ArrayFeatures(rows), 0, RangeBook(np.array([0, num_rows])), Solo(), None), rows


def test_rows_lie_in_memory_that_later_ones_use_again() -> None:
    owned, rows = alone(5000, 20)
    seen = set()
    # Sizes creep up by less than what there is to spare.
    for n in (4500, 4000, 5000, 4900, 3000, 4999):
        ids = np.random.default_rng(n).permutation(5000)[:n]
        got = owned.collect(ids)
        assert np.array_equal(got.rows[got.place], rows[ids])
        seen.add(address(got.rows))
        del got
    assert len(seen) == 1


HOLD: dict[str, Callable[[Any], Any]] = {
    "the rows": lambda got: got.rows,
    "some of them": lambda got: got.rows[7:9],
    "a column": lambda got: got.rows.T[3],
    "bytes": lambda got: memoryview(got.rows),
    "a tensor": lambda got: torch.from_numpy(got.rows),
    "a piece of one": lambda got: torch.from_numpy(got.rows)[10:20].t(),
    "what a minibatch names": lambda got: LazyRows(got.rows, got.place),
}


@pytest.mark.parametrize("what", HOLD)
def test_memory_that_somebody_views_is_never_used_again(what: str) -> None:
    owned, _ = alone(1000, 20)
    got = owned.collect(np.arange(1000))
    first, holder = address(got.rows), HOLD[what](got)
    before = np.array(holder.tolist())
    del got
    others = []
    for _ in range(3):
        others.append(owned.collect(np.arange(1000)[::-1].copy()))
        assert address(others[-1].rows) != first
        assert np.array_equal(np.array(holder.tolist()), before)
    assert len({address(o.rows) for o in others}) == 3
    del holder, others
    again = [owned.collect(np.arange(1000)) for _ in range(3)]
    assert len({address(g.rows) for g in again}) == 3


def test_what_is_not_used_again_is_let_go_of() -> None:
    owned, rows = alone(20_000, 20)
    tracemalloc.start()
    try:
        held = [owned.collect(np.arange(20_000)) for _ in range(9)]
        assert len({address(h.rows) for h in held}) == 9
        assert all(np.array_equal(h.rows[h.place], rows) for h in held)
        all_of_it = tracemalloc.get_traced_memory()[0]
        del held
        for _ in range(IDLE_STEPS + 2):
            owned.collect(np.arange(1))
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert all_of_it > 9 * rows.nbytes
    assert left < rows.nbytes


def among(group: Gloo) -> dict[str, Any]:
    """Groups of one rank, of some and of all, used by threads beside each other."""
    grid, found = Grid(group.size, 2), {}
    column = grid.subgroup(group, "some")
    found["place"] = (column.rank, column.size)
    inner = column.sub("inner", range(column.size))
    heard: dict[str, list[list[int]]] = {"whole": [], "column": [], "inner": []}

    def talk(name: str, over: Any, salt: int) -> None:
        for i in range(50):
            parts = [torch.tensor([1000 * salt + 100 * over.rank + 10 * r + i % 7]) for r in range(over.size)]
            heard[name].append([int(p) for p in over.all_to_all(parts, "graph")])

    before = sent(group._ledger)
    threads = [
        threading.Thread(target=talk, args=a) for a in (("whole", group, 1), ("column", column, 2), ("inner", inner, 3))
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    after = sent(group._ledger)
    for name, over, salt in (("whole", group, 1), ("column", column, 2), ("inner", inner, 3)):
        found[name] = heard[name] == [
            [1000 * salt + 100 * r + 10 * over.rank + i % 7 for r in range(over.size)] for i in range(50)
        ]
    found["bytes"] = after["graph"] - before["graph"]
    alone_ = group.sub(f"alone-{group.rank}", [group.rank])
    found["alone"] = (alone_.rank, alone_.size, alone_.any(True))
    total = torch.ones(3)
    column.all_reduce(total, "gradients")
    found["sum"] = total.tolist()
    group.close()
    try:
        inner.any(True)
    except Exception:
        found["closed"] = True
    return found


def test_groups_of_some_ranks_talk_beside_the_whole_and_end_with_it() -> None:
    for rank, found in enumerate(run_ranks(among, 4)):
        assert found["place"] == (rank // 2, 2)
        assert found["whole"] and found["column"] and found["inner"]
        assert found["bytes"] == 50 * 8 * (3 + 1 + 1)
        assert found["alone"] == (0, 1, True)
        assert found["sum"] == [2.0] * 3
        assert found["closed"]
    assert Solo().sub("any", [0]).size == 1


# --- rows ahead of the steps that need them ---

V, F, BATCH, SEED = 300, 3, 7, 5
X = all_rows(V, F, np.float32)
TRAIN = np.sort(np.random.default_rng(4).permutation(V)[:88])
"""13 minibatches, the last of them short."""
MINIBATCHES = 13
LABELS = torch.arange(V) % 7
ROW_BYTES = 4 * F
LOST_S = 90.0
NAMES = ("fetching rows", "sampling", "millrace-sample")
"""Threads that must not outlive their feed."""
SAMPLERS: dict[str, Sampler] = {
    "new": NeighborSampler((3, 2)), "all": NeighborSampler((3, 2), expand="all"), "ladies": LadiesSampler((20, 16)),
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """Training of ranks. `m`: minibatches of a step."""

    m: Callable[[int], int] = lambda p: p
    bulk: int = 2
    ahead: int = 1 << 20
    epochs: int = 2
    first: tuple[int, int] = (0, 0)
    """Epoch and step."""
    c: Callable[[int], int] = lambda p: 1
    hot: float = 0.0
    hot_by: Any = "samples"
    sampler: str = "new"
    waiting: int = 1 << 20
    """Bytes of sampled minibatches that may wait."""
    in_step: bool = True
    """Ranks reduce gradients after each step; else each goes on by itself."""
    slow: str = ""
    """The slow stage of one rank: training or sampling."""
    features: Any = "auto"
    """On a device: where a rank's own rows lie."""


WAYS = {
    "a step's rows": Way(),
    "nothing ahead": Way(lambda p: 2 * p, ahead=0),
    "hardly anything ahead": Way(lambda p: 3 * p + 1, ahead=1, bulk=3),
    "two steps ahead": Way(lambda p: p + 1, ahead=2500, bulk=1),
    "some ahead": Way(lambda p: 2 * p - 1, ahead=9000, bulk=4, epochs=3),
    "fewer minibatches than ranks": Way(lambda p: 1, bulk=1),
    "fewer, nothing ahead": Way(lambda p: max(1, p - 1), ahead=0, bulk=5),
    "an epoch is a step": Way(lambda p: 100, bulk=1, epochs=3),
    "a bulk is more than an epoch": Way(lambda p: 2 * p, bulk=50, waiting=1),
    "hardly any sampled": Way(lambda p: p, bulk=1, waiting=1, ahead=3000),
    "from the second step": Way(lambda p: p, first=(0, 1)),
    "from the middle of the second epoch": Way(lambda p: p + 1, first=(1, 2), epochs=3, bulk=2, ahead=4000),
    "from the last step": Way(lambda p: 4, first=(1, 3), bulk=2),
    "hot by samples": Way(hot=0.2),
    "hot by degree": Way(hot=0.1, hot_by="degree", ahead=3000),
    "all rows hot": Way(lambda p: 2 * p, hot=1.0),
    "hot in mid-run": Way(hot=0.2, first=(1, 1), ahead=0),
    "everything everywhere": Way(c=lambda p: p, hot=0.1),
    "two columns": Way(c=lambda p: 2 if p % 2 == 0 else p, hot=0.1, ahead=3000),
    "blocks that are not nested": Way(sampler="all", bulk=3),
    "layer-wise": Way(sampler="ladies", hot=0.1),
    "each rank for itself": Way(in_step=False, ahead=3000),
    "each for itself, nothing ahead": Way(in_step=False, ahead=0, waiting=1),
    "a rank that trains slowly": Way(slow="training", epochs=1),
    "a rank that trains slowly by itself": Way(slow="training", epochs=1, in_step=False, waiting=1, ahead=3000),
    "a rank that samples slowly": Way(slow="sampling", epochs=1, bulk=1, in_step=False),
}


@lru_cache(maxsize=1)
def graph() -> Graph:
    rng = np.random.default_rng(8)
    return from_edges((rng.random(2500) ** 2 * V).astype(np.int64), rng.integers(0, V, 2500), V)


def split() -> Split:
    none = np.empty(0, np.int64)
    return Split(TRAIN, none, none)


def replicated() -> Placement:
    return Placement(graph(), ArrayFeatures(X), LABELS, torch.from_numpy(graph().degree).float(), split())


def block_rows(grid: Grid, column: Any) -> BlockRows:
    g, book, block = graph(), book_of(V, grid.blocks), column.rank
    lo, hi = int(book.offsets[block]), int(book.offsets[block + 1])
    edges = slice(int(g.indptr[lo]), int(g.indptr[hi]))
    rows = Graph(g.indptr[lo : hi + 1] - g.indptr[lo], g.indices[edges].copy())
    return BlockRows(
        rows, ArrayFeatures(X[lo:hi].copy()), LABELS[lo:hi], torch.from_numpy(rows.degree).float(), split(), book=book,
        block=block,
        first_edge=int(g.indptr[lo]), train_labels=LABELS[torch.from_numpy(TRAIN)], column=column,
    )  # fmt: skip


@lru_cache(maxsize=64)
def serial(sampler: str, epoch: int) -> tuple[MiniBatch, ...]:
    """The minibatches of an epoch, as one process draws them."""
    plan = SeedPlan(TRAIN, BATCH, MINIBATCHES, SEED)
    return SAMPLERS[sampler].sample(graph(), plan.request(epoch, 0), cpu).minibatches


class Sluggish:
    """A sampler that takes its time, or raises in a bulk."""

    def __init__(
        self, inner: Sampler, pause_s: float = 0.0, error: BaseException | None = None, at: tuple[int, int] = (0, 1)
    ) -> None:
        self._inner, self._pause_s, self._error, self._at = inner, pause_s, error, at
        self.num_layers, self.record, self.name = inner.num_layers, inner.record, inner.name

    def _suffer(self, request: Any) -> None:
        time.sleep(self._pause_s)
        if self._error is not None and (request.epoch, request.number) >= self._at:
            raise self._error

    def sample(self, graph: Any, request: Any, kernel: Any, workspace: Any = None) -> Any:
        self._suffer(request)
        return self._inner.sample(graph, request, kernel, workspace)

    def sample_by_owners(self, owners: Any, request: Any) -> Any:
        self._suffer(request)
        return self._inner.sample_by_owners(owners, request)

    def sample_by_owners_on_device(self, owners: Any, request: Any) -> Any:
        self._suffer(request)
        inner: Any = self._inner
        return inner.sample_by_owners_on_device(owners, request)


class Trainer:
    """As much of a rank's loop as feeds and fetchers see."""

    def __init__(
        self,
        group: Any,
        way: Way,
        by_owners: bool,
        sampler: Any = None,
        produce: bool = True,
        device: torch.device | None = None,
    ) -> None:
        self.group, self.way = group, way
        self.ledger = group._ledger if isinstance(group, Gloo) else Ledger()
        p = group.size
        self.m, c = way.m(p), way.c(p)
        self.steps = -(-MINIBATCHES // self.m)
        grid = Grid(p, c)
        # A bulk of k minibatches of each rank.
        queue = MemoryQueue(bulk_size=way.bulk * p, max_bytes=way.waiting, minibatches_per_epoch=MINIBATCHES)
        queue.stored = not produce
        sampler = sampler or SAMPLERS[way.sampler]
        if way.slow == "sampling" and group.rank == 0:
            sampler = Sluggish(sampler, 0.02)
        # Owners draw on the device wherever the sampler can.
        able = isinstance(SAMPLERS[way.sampler], NeighborSampler)
        resident = device is not None and by_owners and able
        self.job = RankJob(
            seed=SEED, batch_size=BATCH, bulk_size=way.bulk if by_owners else way.bulk * p, epochs=way.epochs,
            dtype=torch.float32,
            kernel=cpu, group=group, ledger=self.ledger, queue=queue, minibatches_per_step=self.m,
            produce=produce, device=device, resident=resident,
        )  # fmt: skip
        if by_owners:
            place, sample = block_rows(grid, grid.subgroup(group, "column")), SampledByOwners(sampler, way.waiting)
        else:
            place, sample = replicated(), Sampled(sampler)
        policy = Fetch(OwnedFeatures(c, way.hot, way.hot_by, way.ahead))
        if device is not None:
            from millrace.stages.fetch.gather_cuda import DeviceMemory

            policy = replace(policy, memory=DeviceMemory(way.features, 10 * ROW_BYTES))
        self.fetcher = policy.fetcher(place, self.job)
        first = way.first[0], way.first[1] * self.m
        self.inner: Any = sample.feed(place, Phase(0, 0, way.epochs), self.job, first)
        # Rows of which blocks are held are counted when they are read: nothing later.
        self.read = sent(self.ledger, "store")["features"]
        self.feed = self.fetcher.ahead(self.inner, sample, Phase(0, 0, way.epochs), first)
        self.trained = 0
        """Minibatches."""
        self.where = ""
        """Last call of this rank."""
        self.held: deque[tuple[np.ndarray, Any]] = deque(maxlen=2)

    def coordinates(self) -> Iterator[tuple[int, int]]:
        for epoch in range(self.way.first[0], self.way.epochs):
            for step in range(self.way.first[1] if epoch == self.way.first[0] else 0, self.steps):
                yield epoch, step

    def step(self, epoch: int, step: int) -> None:
        p, rank = self.group.size, self.group.rank
        first, last = step * self.m, min((step + 1) * self.m, MINIBATCHES)
        for index in range(first + rank, last + -(last - first) % p + rank, p):
            if index >= last:
                self.fetcher.idle()
                continue
            self.where = "get"
            work = self.feed.get(epoch, index)
            self.where = "fetch"
            self.check(work, epoch, index)
            if self.way.slow == "training" and rank == p - 1:
                time.sleep(0.03)
            if not self.way.ahead:
                units: Any = self.feed._units
                assert max(u.last_step for u in units) == epoch * self.steps + step + 1, "they take turns"
        if self.way.in_step:
            flat = torch.ones(1)
            self.group.all_reduce(flat, "gradients")
            assert flat.item() == p
        self.feed.release(epoch, last - 1)

    def check(self, work: MiniBatch, epoch: int, index: int) -> None:
        assert (work.epoch, work.index) == (epoch, index)
        assert work.on_host is not self.job.resident
        assert minibatch_digest(work) == minibatch_digest(serial(self.way.sampler, epoch)[index])
        fetched, nodes = self.fetcher.fetch(work), work.nodes.astype(np.int64)
        assert (fetched.epoch, fetched.index, fetched.h.shape, fetched.h.dtype) == (
            epoch,
            index,
            (len(nodes), F),
            torch.float32,
        )
        assert isinstance(fetched.h, LazyRows)
        assert np.array_equal(named(fetched.h), X[nodes])
        assert fetched.y.device == fetched.h.device
        assert torch.equal(fetched.y.cpu(), LABELS[torch.from_numpy(work.seeds.astype(np.int64))])
        for neighbourhood, block in zip(fetched.neighbourhoods, work.blocks, strict=True):
            degree = graph().degree[block.src]
            assert np.array_equal(neighbourhood.degree.cpu().numpy(), degree.astype(np.float32))
        # Rows that were given out stay as they are, whatever is fetched in the meantime.
        self.held.append((nodes, fetched.h))
        assert all(np.array_equal(named(h), X[n]) for n, h in self.held)
        self.trained += 1

    def close(self) -> None:
        # Ranks end after the same step, which a rank without minibatches in it has not waited for.
        self.group.all_reduce(torch.ones(1), "gradients")
        for _ in range(2):
            self.feed.close()


def named(h: LazyRows) -> Any:
    """The rows, on the host."""
    rows = h.base[h.ids]
    return rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows


def left_over() -> list[str]:
    """Threads that are still there a moment after they were told to end."""
    end = time.monotonic() + LOST_S
    while time.monotonic() < end and any(t.name in NAMES for t in threading.enumerate()):
        time.sleep(0.01)
    return [t.name for t in threading.enumerate() if t.name in NAMES]


def fresh(group: Any, name: str) -> Any:
    """A group and a ledger of their own for each case that the ranks go through."""
    own = group.sub(name, range(group.size))
    if isinstance(own, Gloo):
        own._ledger = Ledger()
    return own


def train(group: Any, cells: Sequence[tuple[str, bool]], on_device: bool = False) -> dict[tuple[str, bool], Any]:
    """Counts of training in each cell: a way by name, and true if owners of rows sample."""
    found = {}
    for name, by_owners in cells:
        own = fresh(group, f"{name} {by_owners}")
        trainer = Trainer(own, {**WAYS, **DEVICE_WAYS}[name], by_owners, device=the_device() if on_device else None)
        for epoch, step in trainer.coordinates():
            trainer.step(epoch, step)
        trainer.close()
        left = left_over()
        network = sent(trainer.ledger)
        found[name, by_owners] = {
            "left": left, "trained": trainer.trained, "told": trainer.fetcher.hit_counts, "read": trainer.read,
            "features": network["features"], "graph": network["graph"], "control": network["control"],
            "read in all": sent(trainer.ledger, "store")["features"], "exchange_s": trainer.fetcher.exchange_s,
        }  # fmt: skip
        if isinstance(own, Gloo):
            own.close()
    return found


class Due:
    """Rows that ranks should have fetched, counted from the serial minibatches."""

    def __init__(self, way: Way, ranks: int, by_owners: bool) -> None:
        self.way, self.ranks, self.by_owners = way, ranks, by_owners
        self.m, self.c = way.m(ranks), way.c(ranks)
        self.steps = -(-MINIBATCHES // self.m)
        blocks = ranks // self.c
        self.book = book_of(V, blocks) if by_owners else RangeBook(V * np.arange(blocks + 1) // blocks)
        self.columns = [[r for r in range(ranks) if r % self.c == q] for q in range(self.c)]

    def mine(self, rank: int, epoch: int, first_step: int, last_step: int) -> list[np.ndarray]:
        """Nodes of each of a rank's minibatches in some steps: every P-th of a step, from the rank's place on."""
        work = serial(self.way.sampler, epoch)
        return [
            work[i].nodes
            for s in range(first_step, last_step)
            for i in range(s * self.m + rank, min((s + 1) * self.m, MINIBATCHES), self.ranks)
        ]

    def block(self, rank: int) -> set[int]:
        i = rank // self.c
        return set(range(int(self.book.offsets[i]), int(self.book.offsets[i + 1])))

    def hot(self, rank: int) -> set[int]:
        count = int(self.way.hot * V)
        if not count or self.ranks == self.c:
            return set()
        if self.way.hot_by == "samples":
            named = np.concatenate([np.empty(0, np.int64), *self.mine(rank, self.way.first[0], 0, self.steps)])
        else:
            named = graph().indices
        times = np.bincount(named, minlength=V)
        ranked = sorted((-n, v) for v, n in enumerate(times.tolist()) if n and v not in self.block(rank))
        return {v for _, v in ranked[:count]}

    def units(self, column: list[int]) -> Iterator[tuple[int, int, int]]:
        """(epoch, first step, one behind the last), of one step until it is known what that takes."""
        together = 0
        for epoch in range(self.way.first[0], self.way.epochs):
            step = self.way.first[1] if epoch == self.way.first[0] else 0
            while step < self.steps:
                last = min(step + max(1, together), self.steps)
                yield epoch, step, last
                if not together:
                    most = max(len(self.union(r, epoch, step, last)) for r in column) * ROW_BYTES
                    together = max(1, min(MOST_STEPS, self.way.ahead // most)) if most else 0
                step = last

    def union(self, rank: int, epoch: int, first: int, last: int) -> set[int]:
        return {v for nodes in self.mine(rank, epoch, first, last) for v in nodes.tolist()}

    def of(self, rank: int) -> dict[str, Any]:
        column = self.columns[rank % self.c]
        units = list(self.units(column))
        hot = {r: self.hot(r) for r in column}
        asked = {r: [self.union(r, *u) - self.block(r) for u in units] for r in column}
        served = sum(len((a - hot[r]) & self.block(rank)) for r in column if r != rank for a in asked[r])
        served += sum(len(hot[r] & self.block(rank)) for r in column if r != rank)
        missing = sum(len(a - hot[rank]) for a in asked[rank]) + len(hot[rank])
        hits = sum(len(a & hot[rank]) for a in asked[rank])
        size, kept = len(column), bool(self.way.hot) and len(column) > 1
        agreed = next((n for n, u in enumerate(units, 1) if any(self.union(r, *u) for r in column)), len(units))
        epochs = range(self.way.first[0], self.way.epochs)
        trained = sum(len(self.mine(rank, e, self.way.first[1] if e == epochs[0] else 0, self.steps)) for e in epochs)
        return {
            "left": [],
            "trained": trained,
            "told": {
                "rows": len(hot[rank]),
                "asked": sum(map(len, asked[rank])),
                "hits": hits,
                "saved_bytes": hits * ROW_BYTES,
            },
            "read": len(self.block(rank)) * ROW_BYTES,
            "read in all": len(self.block(rank)) * ROW_BYTES,
            "features": served * ROW_BYTES,
            "graph": 0,
            "control": 4 * missing
            + 8 * (size - 1) * (len(units) + kept)
            + (size - 1) * (len(units) + (kept and self.way.hot_by == "degree"))
            + (agreed * ring_bytes(size, 8, rank // self.c, size) if size > 1 else 0),
        }


FEW = (
    "hardly anything ahead",
    "fewer, nothing ahead",
    "from the middle of the second epoch",
    "hot by samples",
    "each rank for itself",
)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_come_ahead_as_a_direct_gather_would_find_them(ranks: int) -> None:
    """The minibatches, rows, degrees and labels (in `Trainer.check`), and exactly the distinct rows of each unit over
    the network."""
    cells = tuple(product(FEW, (False, True)))
    if ranks == 4:
        # What feeds the fetcher knows nothing of how far ahead it is.
        cells += tuple((name, i % 2 == 0) for i, name in enumerate(WAYS) if name not in FEW)
    reports = [train(Solo(), cells)] if ranks == 1 else run_ranks(train, ranks, cells, timeout_s=120)
    for name, by_owners in cells:
        due = Due(WAYS[name], ranks, by_owners)
        for rank, report in enumerate(reports):
            found, expected = report[name, by_owners], due.of(rank)
            assert found.pop("exchange_s") > 0
            if ranks == 1:
                expected["control"] = 0
            if by_owners:
                # Sampling counts under the same names.
                for counted in ("graph", "control"):
                    del found[counted], expected[counted]
            assert found == expected, (name, by_owners, rank)


def the_device() -> torch.device:
    return pretended_device.install_for_good()


DEVICE_WAYS = {
    "own rows on the host": Way(features="pinned", hot=0.1),
    "own rows on the host, uneven": Way(features="pinned", sampler="ladies", ahead=3000),
}
OF_DEVICES = (
    "a step's rows", "nothing ahead", "hardly anything ahead", "some ahead", "fewer minibatches than ranks",
    "from the middle of the second epoch", "hot by samples", "all rows hot", "everything everywhere",
    "blocks that are not nested", "layer-wise", "each rank for itself",
)  # fmt: skip
"""Which units there are, which rows are hot and how long threads wait is decided by the same code without a device;
this leaves where rows lie and how they travel."""


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_come_ahead_on_a_device(ranks: int) -> None:
    """The same of rows that lie and travel on a device: a pretended one, or a GPU that ranks share."""
    both = ("two columns", "own rows on the host, uneven")
    once = {1: tuple(DEVICE_WAYS), 2: (*OF_DEVICES, *DEVICE_WAYS), 4: ()}[ranks]
    cells = tuple(product(both, (False, True)))
    # Others by owners every second time: that both find the same is shown without a device.
    cells += tuple((name, i % 2 == 0) for i, name in enumerate(once) if name not in both)
    reports = (
        [train(Solo(), cells, on_device=True)] if ranks == 1 else run_ranks(train, ranks, cells, True, timeout_s=240)
    )
    for name, by_owners in cells:
        due = Due({**WAYS, **DEVICE_WAYS}[name], ranks, by_owners)
        for rank, report in enumerate(reports):
            found, expected = report[name, by_owners], due.of(rank)
            assert found.pop("exchange_s") > 0
            # Ranks need no word before a unit: they begin it after the same step.
            size = ranks // due.c
            expected["control"] -= (size - 1) * len(list(due.units(due.columns[rank % due.c])))
            if ranks == 1:
                expected["control"] = 0
            if by_owners:
                # Sampling counts under the same names.
                for counted in ("graph", "control"):
                    del found[counted], expected[counted]
            assert found == expected, (name, by_owners, rank)


def test_steps_that_are_fetched_together_share_rows() -> None:
    """The exact bytes above in words: a row needed by several steps travels once."""
    alone_, together = (Due(replace(WAYS["nothing ahead"], ahead=a), 2, False) for a in (0, 1 << 20))
    one, many = (sum(d.of(r)["features"] for r in range(2)) for d in (alone_, together))
    assert len(list(together.units([0, 1]))) < len(list(alone_.units([0, 1])))
    assert many < 0.8 * one


@pytest.mark.parametrize(("ahead", "together"), [(0, 1), (100, 1), (300, 2), (500, 4), (1000, 8), (5000, 8)])
def test_no_more_rows_wait_than_may_and_as_many_as_can(ahead: int, together: int) -> None:
    """Minibatches of ten nodes without edges are all alike, so what is allowed is what is seen."""
    n, epochs, size = 200, 2, 10 * ROW_BYTES
    none = np.empty(0, np.int64)
    place = Placement(
        from_edges(none, none, n), ArrayFeatures(X[:n]), LABELS[:n], torch.zeros(n), Split(np.arange(n), none, none)
    )
    queue = MemoryQueue(bulk_size=4, max_bytes=1 << 20, minibatches_per_epoch=20)
    job = RankJob(
        seed=SEED, batch_size=10, bulk_size=4, epochs=epochs, dtype=torch.float32, kernel=cpu, group=Solo(),
        ledger=Ledger(), queue=queue,
    )  # fmt: skip
    sample, phase = Sampled(NeighborSampler((2,))), Phase(0, 0, epochs)
    fetcher = Fetch(OwnedFeatures(prefetch_bytes=ahead)).fetcher(place, job)
    feed: Any = fetcher.ahead(sample.feed(place, phase, job, (0, 0)), sample, phase, (0, 0))
    lengths = []
    for epoch, step in product(range(epochs), range(20)):
        fetcher.fetch(feed.get(epoch, step))
        before: list[Any] = []
        # Until the thread has done what it may do before this step is trained; on a busy machine it is late.
        late = time.monotonic() + 60
        while True:
            time.sleep(0.02)
            with feed._changed:
                units = [(u.first_step, u.last_step, u.bytes) for u in feed._units]
            waiting = sum(b for first, _, b in units if first > epoch * 20 + step)
            is_full = units[-1][1] == 20 * epochs or waiting + together * size > ahead
            if units == before and all(b for *_, b in units) and (is_full or time.monotonic() > late):
                break
            before = units
        lengths += [last - first for first, last, _ in units]
        assert all(b == (last - first) * size for first, last, b in units)
        assert waiting <= ahead, (epoch, step, units)
        assert is_full, "there was room for more"
        feed.release(epoch, step)
    feed.close()
    assert max(lengths) == together


def test_ranks_may_end_while_minibatches_are_still_to_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that sample elsewhere keep to a bound, and may wait for steps that will never be trained."""
    monkeypatch.setattr(lockstep, "JOIN_S", LOST_S)
    trainer = Trainer(Solo(), Way(), False, produce=False)
    plan = SeedPlan(TRAIN, BATCH, Way().bulk, SEED)
    trainer.job.queue.put(SAMPLERS["new"].sample(graph(), plan.request(0, 0), cpu), timeout_s=1.0)
    try:
        for _, (epoch, step) in zip(range(2), trainer.coordinates()):
            trainer.step(epoch, step)
        trainer.close()
        assert left_over() == []
    finally:
        trainer.job.queue.close()


CLOSED = {
    "far ahead": Way(lambda p: p, bulk=1), "nothing ahead": Way(lambda p: p, bulk=1, ahead=0), ("a "
        "little"): Way(lambda p: p, ahead=3000),
    "one rank slow": Way(lambda p: p, slow="sampling", bulk=1, waiting=1),
}  # fmt: skip


def close_early(group: Any) -> dict[tuple[str, bool, int], Any]:
    """End after every second of the steps in turn, with threads wherever they happen to be."""
    found = {}
    for (i, name), after in product(enumerate(CLOSED), range(8)):
        if (i + after) % 2:
            continue
        by_owners = (i + after) // 2 % 2 == 1
        own = fresh(group, f"{name} {by_owners} {after}")
        trainer = Trainer(own, CLOSED[name], by_owners)
        for _, (epoch, step) in zip(range(after), trainer.coordinates()):
            trainer.step(epoch, step)
        # A moment in which threads get ahead, on some of the ranks.
        time.sleep(0.02 * ((after + group.rank) % 3))
        start = time.monotonic()
        trainer.close()
        found[name, by_owners, after] = (time.monotonic() - start < LOST_S, left_over(), trainer.trained)
        own.close()
    return found


def test_ranks_may_end_after_any_step() -> None:
    for found in run_ranks(close_early, 3, timeout_s=120):
        assert {k: v[:2] for k, v in found.items()} == dict.fromkeys(found, (True, []))
        # 13 minibatches an epoch: in the fifth step there is one, for the first rank.
        assert {v[2] for v in found.values()} >= {0, 1, 2, 3, 4}


# --- errors and lost peers ---


def damage(queue: Any, error: BaseException) -> None:
    """From the seventh minibatch of an epoch on, a queue raises this."""
    get = queue.get

    def bad(epoch: int, index: int, timeout_s: float) -> MiniBatch:
        if index >= 6:
            raise error
        return get(epoch, index, timeout_s)

    queue.get = bad


def go_on(trainer: Trainer) -> BaseException | None:
    """End a rank's training."""
    try:
        try:
            for epoch, step in trainer.coordinates():
                trainer.step(epoch, step)
        finally:
            trainer.feed.close()
    except Exception as e:
        return e
    return None


def told(e: BaseException | None) -> tuple[str, str]:
    return type(e).__name__, str(e)


ERRORS = {
    "sampler": (InputError("weights are odd"), False), "sampler, a bug": (ZeroDivisionError("division by zero"), False),
    "queue": (StoreError("bulk 1 is damaged"), True), "queue, a bug": (AttributeError("no such minibatch"), True),
}  # fmt: skip
"""Errors raised in a thread of rank 1, and True if the queue raises them."""


def fail(group: Any) -> dict[tuple[str, bool, int], Any]:
    found = {}
    for what, by_owners, ahead in product(ERRORS, (False, True), (0, 1 << 20)):
        error, in_queue = ERRORS[what]
        own = fresh(group, f"{what} {by_owners} {ahead}")
        bad = own.rank == 1
        sampler = Sluggish(SAMPLERS["new"], error=error) if bad and not in_queue else None
        trainer = Trainer(own, Way(lambda p: p, bulk=1, ahead=ahead), by_owners, sampler)
        if bad and in_queue:
            damage(trainer.inner._queue, error)
        first = e = go_on(trainer)
        at = time.time()
        while e is not None and e.__cause__ is not None:
            e = e.__cause__
        # A rank that fails ends, and so do its connections.
        own.close()
        found[what, by_owners, ahead] = told(first), told(e), at, left_over()
    return found


def test_an_error_in_a_thread_is_raised_where_training_waits_and_ends_the_other_ranks() -> None:
    other, bad = run_ranks(fail, 2, timeout_s=120)
    assert len(bad) == 16
    for key, ((kind, text), cause, at, left) in bad.items():
        error, in_queue = ERRORS[key[0]]
        assert cause == told(error), key
        assert str(error) in text, "in its words"
        # What a queue's producer raises has always been a RunError; all else of the family is what it was.
        if isinstance(error, MillraceError) and (in_queue or key[1]):
            assert kind == type(error).__name__, key
        else:
            assert kind == "RunError" and type(error).__name__ in text, key
        assert left == [], key
        peer, _, peer_at, peer_left = other[key]
        assert peer[0] == "PeerLostError" and "rank 0 of 2" in peer[1], key
        assert peer_at - at < LOST_S, key
        assert peer_left == [], key


def die(group: Any, where: str, by_owners: bool, file: Path, on_device: bool = False) -> Any:
    """Rank 1 dies while the others train on their own; where they wait, and when they know."""

    def end(*arguments: Any, **named: Any) -> Any:
        # The others have come to where they wait for this one.
        time.sleep(0.5)
        file.write_text(str(time.time()))
        os._exit(1)

    class Dies(Sluggish):
        def _suffer(self, request: Any) -> None:
            if request.number >= 3:
                end()

    dying = group.rank == 1
    sampler = Dies(SAMPLERS["new"]) if dying and where == "sampling" else None
    way = Way(lambda p: p, bulk=1, ahead=0, waiting=1, in_step=False)
    trainer = Trainer(group, way, by_owners, sampler, device=the_device() if on_device else None)
    if dying and where != "sampling":
        over = trainer.fetcher.rows.owned.group
        all_to_all, any_, calls = over.all_to_all, over.any, []

        def exchange(parts: Any, kind: str, into: Any = None) -> Any:
            calls.append(kind)
            return end() if calls.count("features") == 3 else all_to_all(parts, kind, into)

        def word(flag: bool) -> bool:
            calls.append("word")
            return end() if calls.count("word") == 3 else any_(flag)

        if where == "exchange":
            over.all_to_all = exchange
        else:
            over.any = word
    e = go_on(trainer)
    return told(e), time.time(), trainer.where, trainer.trained


@pytest.mark.parametrize(
    ("where", "by_owners", "waits", "on_device"),
    [
        ("sampling", True, "get", False),
        ("exchange", False, "fetch", False),
        ("exchange", True, "fetch", False),
        ("word", False, "fetch", False),
        ("word", True, "fetch", False),
        ("sampling", True, "get", True),
        ("exchange", False, "fetch", True),
        ("exchange", True, "fetch", True),
    ],
)
def test_a_lost_peer_is_told_soon_wherever_the_others_wait(
    where: str, by_owners: bool, waits: str, on_device: bool, tmp_path: Path
) -> None:
    if on_device:
        pytest.importorskip("triton")
    first, none, third = run_ranks(die, 3, where, by_owners, tmp_path / "died", on_device, mortal=(1,))
    assert none is None
    died = float((tmp_path / "died").read_text())
    for (kind, text), at, waited, trained in (first, third):
        assert kind == "PeerLostError", text
        assert "can be resumed" in text
        assert at - died < LOST_S
        assert (waited, trained > 0) == (waits, True)
