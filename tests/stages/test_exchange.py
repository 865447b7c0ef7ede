"""Features owned by ranks: the rows that a direct gather gives, from the rank that has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace.stages.arena import Arena, reusing
from millrace.stages.base import Placement, RankJob
from millrace.stages.comm.gloo import Gloo
from millrace.stages.comm.solo import Solo
from millrace.stages.fetch import exchange
from millrace.stages.fetch.exchange import Exchanged, SharedFeatures
from millrace.stages.fetch.gather import Gathered
from millrace.storage.dataset import Split
from millrace.storage.features import ConvertedFeatures, FeatureStore, MappedFeatures, MemoryFeatures, ZarrFeatures, write_features
from millrace.storage.graph import from_edges
from millrace.storage.ledger import Ledger
from millrace.storage.minibatch import Block, MiniBatch
from millrace.tests.contracts.gang import run_ranks

CASES = ((1, 3, np.float32), (2, 1, np.float64), (5, 4, np.float32), (97, 8, np.float64), (500, 3, np.float32), (6, 0, np.float32))
"""V, F and type; fewer rows than ranks, too."""
ROUNDS = 6


def all_rows(num_rows: int, num_features: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng(num_rows).random((num_rows, num_features)).astype(dtype)


def nodes_of(rank: int, number: int, num_rows: int) -> np.ndarray | None:
    """Distinct ids that a rank asks for in a round: none, one, some or all of them; None in a round that it sits out."""
    rng = np.random.default_rng([rank, number, num_rows])
    wanted = rng.choice([-1, 0, 1, num_rows // 2, num_rows])
    return None if wanted < 0 else rng.permutation(num_rows)[:wanted].astype(rng.choice([np.int32, np.int64]))


def minibatch_of(nodes: np.ndarray, index: int) -> MiniBatch:
    """The first half are seeds, and each other node sends to one of them."""
    seeds = -(-len(nodes) // 2)
    sources = np.arange(seeds, len(nodes), dtype=np.int32)
    indptr = np.minimum(np.arange(seeds + 1), len(sources)).astype(np.int32)
    return MiniBatch(0, index, (Block(seeds, nodes, indptr, sources),), nested=True).check()


def placement_of(features: FeatureStore) -> Placement:
    v = features.num_rows
    graph = from_edges(np.arange(v), np.arange(v), v)
    return Placement(
        graph, features, torch.arange(v) % 7, torch.arange(v) + 1.0, Split(np.arange(v), np.empty(0, np.int64), np.empty(0, np.int64))
    )


def job_of(group: Any, ledger: Ledger) -> RankJob:
    return RankJob(seed=0, batch_size=1, bulk_size=1, epochs=1, dtype=torch.float32, kernel=None, group=group, ledger=ledger)


def fetch(group: Gloo) -> list[dict[str, Any]]:
    found = []
    for case in CASES:
        ledger = group._ledger = Ledger()
        placement = placement_of(MemoryFeatures(all_rows(*case)))
        direct = Gathered().fetcher(placement, job_of(group, Ledger()), torch.nn.Identity())
        shared = Exchanged().fetcher(placement, job_of(group, ledger), torch.nn.Identity())
        wrong = []
        for number in range(ROUNDS):
            nodes = nodes_of(group.rank, number, case[0])
            if nodes is None:
                shared.idle()
                continue
            work = minibatch_of(nodes, number)
            a, b = direct.fetch(work), shared.fetch(work)
            same_hoods = all(torch.equal(x.degree, y.degree) for x, y in zip(a.hoods, b.hoods, strict=True))
            if not (same_hoods and a.h.dtype == b.h.dtype and torch.equal(a.h, b.h) and torch.equal(a.y, b.y) and b.index == number):
                wrong.append((case, number))
        found.append({"wrong": wrong, **{f"{c} {k}": ledger.get(c, k) for c, k in NAMES}})
    return found


NAMES = (("network", "features"), ("network", "control"), ("store", "features"))


def expected_bytes(rank: int, size: int, num_rows: int, num_features: int, dtype: Any) -> dict[str, int]:
    """Counted from the ids that are asked for, without the class under test."""
    row = num_features * np.dtype(dtype).itemsize
    blocks = [set(range(num_rows * r // size, num_rows * (r + 1) // size)) for r in range(size)]
    asked = [[set(() if n is None else n.tolist()) for n in (nodes_of(r, i, num_rows) for i in range(ROUNDS))] for r in range(size)]
    served = sum(len(blocks[rank] & ids) for r in range(size) if r != rank for ids in asked[r])
    missing = sum(len(ids - blocks[rank]) for ids in asked[rank])
    return {
        "network features": served * row,
        "network control": 8 * missing + 8 * (size - 1) * ROUNDS,
        "store features": len(blocks[rank]) * row,
    }


@pytest.mark.parametrize("size", [2, 4])
def test_the_rows_of_a_direct_gather_arrive(size: int) -> None:
    for rank, found in enumerate(run_ranks(fetch, size)):
        for case, got in zip(CASES, found, strict=True):
            assert got == {"wrong": [], **expected_bytes(rank, size, *case)}, f"rank {rank}, {case}"


class Watched(MemoryFeatures):
    """Remembers the ids that it was asked for."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self.asked: list[list[int]] = []

    def gather(self, ids: Any, out: Any = None) -> Any:
        self.asked.append(ids.tolist())
        return super().gather(ids, out)


def load(group: Gloo, folder: Path, monkey_bytes: int) -> list[Any]:
    exchange.LOAD_BYTES = monkey_bytes
    rows = all_rows(11, 2, np.float32)
    watched = Watched(rows)
    features = SharedFeatures(watched, group)
    ids = np.array([10, 0, 0, 7, 3, 10], np.int32)
    results: list[Any] = [watched.asked, np.array_equal(features.gather(ids), rows[ids]), len(watched.asked)]
    stores = (ZarrFeatures(folder / "zarr"), MappedFeatures(folder / "rows.npy"), ConvertedFeatures(MemoryFeatures(rows), np.float64))
    for store in stores:
        shared = SharedFeatures(store, group)
        got = shared.gather(ids)
        results.append((got.dtype == store.dtype == shared.dtype, np.array_equal(got, store.gather(ids))))
    return results


def test_a_rank_reads_its_own_rows_once_in_slices_from_any_store(tmp_path: Path) -> None:
    rows = all_rows(11, 2, np.float32)
    write_features(tmp_path / "zarr", rows)
    np.save(tmp_path / "rows.npy", rows)
    results = run_ranks(load, 3, tmp_path, 2 * 8)
    assert [r[0] for r in results] == [[[0, 1], [2]], [[3, 4], [5, 6]], [[7, 8], [9, 10]]]
    for asked, equal, reads, *stores in results:
        assert equal and reads == len(asked)
        assert stores == [(True, True)] * 3


def test_one_rank_owns_all_rows() -> None:
    rows, ledger = all_rows(9, 2, np.float32), Ledger()
    placement = placement_of(MemoryFeatures(rows))
    fetcher = Exchanged().fetcher(placement, job_of(Solo(), ledger), torch.nn.Identity())
    nodes = np.array([8, 0, 4])
    fetcher.idle()
    assert np.array_equal(fetcher.fetch(minibatch_of(nodes, 0)).h.numpy(), rows[nodes])
    assert (ledger.get("network", "features"), ledger.get("store", "features")) == (0, rows.nbytes)


def test_the_store_reads_like_the_whole_and_refuses_ids_outside_it() -> None:
    features = SharedFeatures(MemoryFeatures(all_rows(9, 2, np.float32)), Solo())
    assert (features.num_rows, features.num_features, features.dtype) == (9, 2, np.float32)
    out = np.empty((2, 2), np.float32)
    assert features.gather(np.array([3, 1]), out) is out
    for ids in ([9], [-1]):
        with pytest.raises(IndexError, match="the partition book has 9 nodes"):
            features.gather(np.array(ids))


def test_rows_lie_in_a_buffer_that_the_next_fetch_reuses() -> None:
    rows, arena = all_rows(5000, 20, np.float32), Arena()
    fetcher = Exchanged().fetcher(placement_of(MemoryFeatures(rows)), job_of(Solo(), Ledger()), torch.nn.Identity())
    with reusing(arena):
        for n in (5000, 4000, 4900):
            assert np.array_equal(fetcher.fetch(minibatch_of(np.arange(n), 0)).h.numpy(), rows[:n])
    assert rows.nbytes < arena.nbytes < 3 * rows.nbytes
