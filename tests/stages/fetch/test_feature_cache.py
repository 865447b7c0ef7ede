"""Which rows are hot: those that were named most, whoever counts them, and never a rank's own."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.stages.comm.solo import Solo
from millrace.stages.feed.queue_feed import Sampled
from millrace.stages.fetch import feature_cache
from millrace.stages.fetch.feature_cache import choose, counted
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.messages import Placement, RankJob
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.ledger import Ledger
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.isolated import Seat
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


def book_of(*sizes: int) -> RangeBook:
    return RangeBook(np.cumsum([0, *sizes])).check()


def most_named(times: Counter[int], book: RangeBook, rank: int, count: int) -> list[int]:
    """By sorting all of them: most often first, smaller ids first among equals."""
    owned = set(book.owned(rank).tolist())
    ranked = sorted((-n, v) for v, n in times.items() if v not in owned)
    return sorted(v for _, v in ranked[:count])


def unused() -> Iterator[Any]:
    yield pytest.fail("nobody asks for samples here")


def check_ids(ids: np.ndarray) -> list[int]:
    assert ids.dtype == np.int64
    assert (np.diff(ids) > 0).all()
    return ids.tolist()


SAMPLES = st.lists(st.lists(st.integers(0, 11), unique=True), max_size=8)


@settings(max_examples=50, deadline=None)
@given(
    samples=SAMPLES,
    count=st.integers(0, 13),
    rank=st.integers(0, 2),
    at_once=st.sampled_from([1, 3, 1 << 22]),
    cut=st.integers(0, 12),
)
@example(samples=[], count=3, rank=0, at_once=1, cut=4)
@example(samples=[[5, 4, 11]] * 2 + [[7, 6]] * 2, count=3, rank=0, at_once=3, cut=4)
def test_by_samples_they_are_what_this_rank_names_most(
    samples: list[list[int]], count: int, rank: int, at_once: int, cut: int
) -> None:
    book = book_of(cut, 0, 12 - cut)
    graph = from_edges(np.empty(0, np.int64), np.empty(0, np.int64), 12)
    parts = [np.array(s, [np.int32, np.int64][i % 2]) for i, s in enumerate(samples)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_cache, "AT_ONCE", at_once)
        found = choose("samples", count, graph, book, Seat(rank, 3), iter(parts))
    assert check_ids(found) == most_named(Counter(v for s in samples for v in s), book, rank, count)


@pytest.mark.parametrize("at_once", [1, 10, 1 << 22])
def test_ids_are_counted_piece_by_piece(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "AT_ONCE", at_once)
    rng = np.random.default_rng(3)
    parts = [rng.integers(0, 50, n).astype(np.int32) for n in (0, 7, 30, 1, 0, 200, 12)]
    ids, times = counted(iter(parts))
    assert ids.dtype == times.dtype == np.int64
    assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == Counter(np.concatenate(parts).tolist())
    assert (np.diff(ids) > 0).all()
    assert [len(a) for a in counted([])] == [0, 0]


def graph_of(seed: int, v: int, e: int) -> Graph:
    """Skewed, with multi-edges and loops."""
    rng = np.random.default_rng(seed)
    return from_edges((rng.random(e) ** 2 * v).astype(np.int64), rng.integers(0, max(v, 1), e), v)


def rows_of(graph: Graph, book: RangeBook, block: int) -> Graph:
    lo, hi = (int(book.offsets[b]) for b in (block, block + 1))
    edges = slice(int(graph.indptr[lo]), int(graph.indptr[hi]))
    return Graph(graph.indptr[lo : hi + 1] - graph.indptr[lo], graph.indices[edges].copy())


CASES = (
    (1, 60, 400, (20, 25, 15)), (2, 60, 30, (60, 0)), (3, 9, 50, (1, 0, 7, 1)), (4, 40, 0, (20, 20)),
    (5, 30, 200, (30,)),
    (6, 300, 4000, (100, 1, 99, 100)),
)  # fmt: skip


@pytest.mark.parametrize(("seed", "v", "e", "sizes"), CASES)
def test_by_degree_they_are_in_the_most_lists_however_the_graph_is_held(
    seed: int, v: int, e: int, sizes: Sequence[int]
) -> None:
    """The same from the whole graph and from a block of rows on each rank; ties are many."""
    graph, book = graph_of(seed, v, e), book_of(*sizes)
    listed = Counter(graph.indices.tolist())

    def rank(group: ThreadGroup) -> None:
        block = rows_of(graph, book, group.rank)
        for count in (0, 1, 3, 10, v):
            due = most_named(listed, book, group.rank, count)
            assert check_ids(choose("degree", count, graph, book, group, unused())) == due
            assert check_ids(choose("degree", count, block, book, group, unused())) == due, count
            # What travels is bounded by what is chosen from: the rank's own best, told to all.
        before = group.ledger.get("network", "graph")
        choose("degree", 2, block, book, group, unused())
        owners = np.searchsorted(book.offsets[1:], np.unique(block.indices), side="right")
        foreign = int((owners != group.rank).sum())
        mine = len([u for u in listed if book.offsets[group.rank] <= u < book.offsets[group.rank + 1]])
        assert group.ledger.get("network", "graph") - before == 16 * (foreign + (len(sizes) - 1) * min(2, mine))

    run_threads(rank, len(sizes))


class Samples:
    """Real ones, of one rank among P."""

    def __init__(self, sampler: Any, rank: int, ranks: int) -> None:
        v = 500
        self.graph = graph_of(7, v, 6000)
        self.book = RangeBook(v * np.arange(ranks + 1) // ranks)
        none = np.empty(0, np.int64)
        place = Placement(
            self.graph, ArrayFeatures(np.zeros((v, 1))), torch.zeros(v), torch.zeros(v),
            Split(np.arange(0, v, 3), none, none)
        )  # fmt: skip
        group: Any = Seat(rank, ranks)
        job = RankJob(
            seed=5, batch_size=10, bulk_size=4, epochs=2, dtype=torch.float32, kernel=cpu, group=group, ledger=Ledger(),
            minibatches_per_step=2 * ranks,
        )  # fmt: skip
        self.of = lambda epoch: [m.nodes for m in Sampled(sampler).preview(place, job, epoch)]
        self.group = group


@pytest.mark.parametrize("sampler", [NeighborSampler((5, 3)), LadiesSampler((40, 30))], ids=lambda s: s.name)
@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (3, 4)])
def test_on_the_epoch_they_were_chosen_from_no_others_are_hit_more_often(sampler: Any, rank: int, ranks: int) -> None:
    samples = Samples(sampler, rank, ranks)
    nodes = samples.of(0)
    owned = samples.book.owned(rank)
    times = Counter(v for n in nodes for v in np.setdiff1d(n, owned).tolist())
    asked = times.total()
    assert asked > 200
    rates = []
    for share in (0.02, 0.1, 0.5):
        count = int(share * samples.book.num_nodes)
        ids = choose("samples", count, samples.graph, samples.book, samples.group, samples.of(0))
        hits = sum(int(np.isin(n, ids).sum()) for n in nodes)
        assert hits == sum(sorted(times.values(), reverse=True)[:count]), "the best of any set of that size"
        by_degree = most_named(Counter(samples.graph.indices.tolist()), samples.book, rank, count)
        assert sum(int(np.isin(n, by_degree).sum()) for n in nodes) <= hits
        rates.append(hits / asked)
    assert rates == sorted(rates)
    # A skewed graph: a tenth of the rows is far more than a tenth of what is asked for.
    assert rates[1] > 0.2
    later = samples.of(1)
    again = sum(
        int(np.isin(n, choose("samples", 50, samples.graph, samples.book, samples.group, nodes)).sum()) for n in later
    )
    assert again / sum(len(np.setdiff1d(n, owned)) for n in later) > 0.15, "the next epoch is like it"


def test_one_rank_has_no_rows_of_others() -> None:
    graph, book = graph_of(1, 20, 60), book_of(20)
    for by in ("samples", "degree"):
        assert not len(choose(by, 20, graph, book, Solo(), [np.arange(20)]))


def test_ties_at_the_edge_go_to_smaller_ids() -> None:
    graph, book = from_edges(np.empty(0, np.int64), np.empty(0, np.int64), 9), book_of(3, 6)
    parts = [np.array([8, 7, 6, 5]), np.array([4, 5, 8])]
    for count, due in ((1, [5]), (2, [5, 8]), (3, [4, 5, 8]), (4, [4, 5, 6, 8]), (9, [4, 5, 6, 7, 8])):
        seat: Any = Seat(0, 2)
        assert choose("samples", count, graph, book, seat, parts).tolist() == due
    assert math.isclose(sum(counted(parts)[1]), 7)
