"""The part of the graph that an isolated rank sees, and its correction for the rest, compared with the graph itself."""

import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from millrace.stages.assignment import BulkRequest
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.fetch.gather import InPlace
from millrace.stages.messages import Phase, Placement
from millrace.stages.placement.chunk_schedule import ChunkSchedule
from millrace.stages.placement.chunks import Chunks, Isolated
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.stages.self_loops import has_loops, with_loops
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.minibatch import MiniBatch
from millrace.tests.contracts.full_batch import Case, F, job, make_case
from millrace.tests.contracts.isolated import EPOCHS, CasePeers, Seat, names, placed, weighted_degree
from millrace.tests.oracles.sampling import backend as reference

CASES = st.builds(make_case, st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4]), st.booleans())
SWEEPS = ("sweep", "fixed", "none")
SEED = 3
"""Seed of `job`."""
JOB = job(Seat(0, 1), 1)


pytestmark = pytest.mark.usefixtures("one_thread")


# --- what is there ---


def edges(graph: Any, name: Any = None) -> Counter[tuple[int, int, float]]:
    """(destination, source, weight) of each edge, by name."""
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    name = range(graph.num_nodes) if name is None else name
    return Counter((name[v], name[u], w) for v, u, w in zip(dst.tolist(), graph.indices.tolist(), weight.tolist()))


EVERY_NODE = "each rank sees every node: with grappa.rotation={} two ranks show each other all they have;"
SOME = "each rank sees {} of {} parts of the graph at a time, {} of the nodes where parts are even"


@pytest.mark.parametrize(
    ("parts", "rotation", "halo", "sentence"),
    [
        (2, "sweep", 0, EVERY_NODE.format("sweep")),
        (2, "fixed", 0, EVERY_NODE.format("fixed")),
        (2, "none", 0, SOME.format(1, 2, "50%")),
        (4, "sweep", 0, SOME.format(2, 4, "50%")),
        (4, "none", 1, SOME.format(1, 4, "25%")),
    ],
)
def test_the_first_rank_says_once_how_much_ranks_see(parts: int, rotation: Any, halo: int, sentence: str) -> None:
    case, said = make_case(11, parts), list[str]()
    policy = Chunks(rotation=rotation, halo=halo)
    for rank in range(parts):
        part, place = CasePeers(case).own(rank), None
        for t in (0, 1):
            place = policy.place(part, Phase(t, t, t + 1), replace(job(Seat(rank, parts), 1), tell=said.append), place)
    assert len(said) == 1 and said[0].startswith(sentence)
    assert ("nodes around them (on rank 0; grappa.halo)" in said[0]) == bool(halo)


@given(
    case=CASES,
    halo=st.sampled_from([0, 1]),
    rotation=st.sampled_from(SWEEPS),
    later=st.integers(0, 4),
    per_rank=st.sampled_from([1, 2]),
    reshuffle_fraction=st.sampled_from([0.0, 0.5, 1.0]),
)
@example(case=make_case(0, 3), halo=1, rotation="sweep", later=1, per_rank=1, reshuffle_fraction=0.0)
@example(case=make_case(11, 3), halo=0, rotation="sweep", later=1, per_rank=1, reshuffle_fraction=0.0)
@example(case=make_case(11, 4), halo=1, rotation="none", later=0, per_rank=1, reshuffle_fraction=0.0)
@example(case=make_case(8, 6), halo=0, rotation="sweep", later=1, per_rank=2, reshuffle_fraction=1.0)
@example(case=make_case(1, 8), halo=1, rotation="sweep", later=2, per_rank=4, reshuffle_fraction=0.5)  # one node
@settings(deadline=None, max_examples=25)
def test_what_a_rank_sees_is_the_graph_restricted(
    case: Case, halo: int, rotation: Any, later: int, per_rank: int, reshuffle_fraction: float
) -> None:
    ranks = max(1, case.parts // per_rank)
    case = replace(case, part_of=case.part_of % (ranks * per_rank), parts=ranks * per_rank)
    whole, total, seeds = edges(case.graph), weighted_degree(case), []
    deal = ChunkSchedule(SEED, ranks, per_rank, reshuffle_fraction, rotation)
    for rank in range(ranks):
        place = placed(
            case,
            Chunks(rotation=rotation, halo=halo, per_rank=per_rank, reshuffle_fraction=reshuffle_fraction),
            rank,
            later,
        )
        place.graph.check()
        name = names(case, place)
        base, visible = name[: place.num_base], name[: place.num_visible]
        assert base == [v for c in deal.base(rank, later) for v in np.flatnonzero(case.part_of == c)]
        assert visible == base + [v for c in deal.variable(rank, later) for v in np.flatnonzero(case.part_of == c)]
        among = set(visible)
        kept = Counter({(v, u, w): k for (v, u, w), k in whole.items() if v in among and (halo or u in among)})
        assert edges(place.graph, name) == kept
        outside = name[place.num_visible :]
        assert len(set(outside)) == len(outside)
        assert set(outside) == {u for _, u, _ in kept} - among
        assert not place.graph.in_degree[place.num_visible :].any()

        assert place.degree.dtype == torch.float64
        assert (place.degree if place.degree.ndim == 1 else place.degree[:, 0]).tolist() == total[name].tolist(), (
            "in the whole graph"
        )
        rows = with_loops(case.graph)[name]
        if place.degree.ndim > 1:
            assert place.degree.numpy().tolist() == rows.tolist()
        else:
            assert not has_loops(rows)
        assert torch.equal(place.labels[: len(visible)], case.labels[torch.tensor(visible, dtype=torch.int64)])
        assert place.labels.shape[1:] == case.labels.shape[1:]
        assert not place.labels[len(visible) :].any()
        for which in ("train", "val", "test"):
            local = getattr(place.split, which)
            assert [name[i] for i in local] == [v for v in base if v in set(getattr(case.split, which).tolist())]
        seeds += [name[i] for i in place.seeds]

        for i, v in enumerate(name):
            into = {(u, w): k for (d, u, w), k in whole.items() if d == v and u != v}
            here = {(u, w): k for (u, w), k in into.items() if (v, u, w) in kept}
            if i < place.num_visible:
                want = sum(here.values()) / sum(into.values()) if into else 1.0
                assert not halo or want == 1
            else:
                want = 0.0 if total[v] else 1.0
            assert float(place.coverage[i]) == want, (i, v)
    assert sorted(seeds) == case.split.train.tolist(), "each train node is a seed of one rank"


def test_one_rank_sees_the_whole_graph() -> None:
    case = make_case(0, 1)
    whole = Placement(
        case.graph, ArrayFeatures(case.x), case.labels, torch.from_numpy(weighted_degree(case)), case.split
    )
    place = Chunks().place(whole, Phase(0, 0, 1), job(Seat(0, 1), 1))
    assert all(
        getattr(place, name) is getattr(whole, name) for name in ("graph", "features", "labels", "degree", "split")
    )
    assert (place.num_base, place.num_visible) == (case.graph.num_nodes,) * 2
    assert torch.equal(place.coverage, torch.ones(case.graph.num_nodes, dtype=torch.float64))


def test_the_ledger_counts_what_is_read() -> None:
    case = make_case(0, 3)
    of = job(Seat(1, 3), 1)
    peers = CasePeers(case)
    place = Chunks().place(peers.own(1), Phase(0, 0, of.epochs), of)
    rows = place.graph.num_nodes
    assert rows > place.num_visible, "there are halo nodes"
    record = of.ledger.as_record()
    assert record["store"]["features"] == rows * F * 8
    assert record["store"]["graph"] == sum(case.part(p).shards.nbytes for p in (1, 2))
    assert not sum(record["network"].values())


# --- from one super-epoch to the next ---


def same(a: Isolated, b: Isolated) -> None:
    """Bit for bit."""
    for name in ("indptr", "indices", "edge_weight"):
        x, y = getattr(a.graph, name), getattr(b.graph, name)
        assert (x is None) == (y is None)
        assert x is None or (x.dtype == y.dtype and x.tobytes() == y.tobytes()), name
    assert names_of(a).tobytes() == names_of(b).tobytes()
    for name in ("labels", "degree", "coverage"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    for name in ("num_base", "num_visible", "base", "variable"):
        assert getattr(a, name) == getattr(b, name), name
    assert all(np.array_equal(getattr(a.split, s), getattr(b.split, s)) for s in ("train", "val", "test"))


def names_of(place: Isolated) -> np.ndarray:
    return place.features.gather(np.arange(place.graph.num_nodes))


@pytest.mark.parametrize(("per_rank", "reshuffle_fraction"), [(1, 0.0), (2, 0.0), (1, 1.0), (2, 0.4), (2, 1.0)])
@pytest.mark.parametrize("halo", [0, 1])
def test_the_next_super_epoch_is_put_together_ahead(halo: int, per_rank: int, reshuffle_fraction: float) -> None:
    """Each when the super-epoch before it begins; those that stay are not read again."""
    case, rank = make_case(8, 4 * per_rank), 1
    policy, deal = (
        Chunks(halo=halo, per_rank=per_rank, reshuffle_fraction=reshuffle_fraction),
        ChunkSchedule(SEED, 4, per_rank, reshuffle_fraction),
    )
    # A rank opens its first chunk before it knows what it will see.
    peers, before, own = CasePeers(case), None, rank * per_rank
    want: list[int] = []
    here: set[int] = set()
    for t in range(6):
        place = placed(case, policy, rank, t, before, peers)
        if place.following is not None:
            place.following.result()
        for s in (t, t + 1):
            sees = {*deal.base(rank, s), *deal.variable(rank, s)}
            if s > t or not t:
                want += sorted(sees - here - {own})
                here = sees
        assert sorted(peers.opened) == sorted(want), t
        same(place, placed(case, policy, rank, t))
        before = place


def test_nothing_is_loaded_for_after_the_end() -> None:
    case = make_case(8, 4)
    peers = CasePeers(case)
    assert placed(case, Chunks(), 0, EPOCHS - 1, None, peers).following is None
    assert peers.opened == [*ChunkSchedule(SEED, 4).variable(0, EPOCHS - 1)]


@pytest.mark.parametrize(("rotation", "parts"), [("sweep", 2), ("fixed", 3), ("none", 3)])
def test_a_chunk_that_stays_is_not_read_again(rotation: Any, parts: int) -> None:
    case = make_case(8, parts)
    peers, policy = CasePeers(case), Chunks(rotation=rotation)
    first = placed(case, policy, 0, 0, None, peers)
    assert placed(case, policy, 0, 1, first, peers).graph is first.graph
    assert peers.opened == ([] if rotation == "none" else [1])


@pytest.mark.parametrize("halo", [0, 1])
def test_nothing_ahead_is_the_same_and_reads_no_chunk_twice(halo: int) -> None:
    case, rank = make_case(8, 4), 1
    policy, peers, before = Chunks(halo=halo, ahead=False), CasePeers(case), None
    for t in range(6):
        place = placed(case, policy, rank, t, before, peers)
        assert place.following is None and peers.opened == [
            c for s in range(t + 1) for c in ChunkSchedule(SEED, 4).variable(rank, s)
        ]
        same(place, placed(case, Chunks(halo=halo), rank, t))
        before = place


@pytest.mark.parametrize("ahead", [True, False])
def test_rows_of_earlier_super_epochs_do_not_stay(ahead: bool) -> None:
    """A chunk that stays is a view of the rows that are seen now, and those of the super-epoch before are given
    back."""
    case, policy = make_case(8, 4), Chunks(ahead=ahead)
    rows, place = [], None
    for t in range(4):
        place = placed(case, policy, 1, t, place)
        if place.following is not None:
            place.following.result()
        rows.append(weakref.ref(place.features))
    gc.collect()
    assert [ref() is not None for ref in rows] == [False, False, False, True]
    assert (
        place is not None
        and all(c.features.rows.base is not None for c in place.kept.values())
        and bool(place.kept) is not ahead
    )


def test_going_on_in_the_middle_of_a_sweep() -> None:
    """A resumed run has no chunk of the phase before it."""
    case, policy = make_case(8, 4), Chunks()
    before = None
    for t in range(3):
        before = placed(case, policy, 2, t, before)
    assert before is not None
    same(before, placed(case, policy, 2, 2))


def test_a_chunk_that_was_loaded_for_another_super_epoch_is_not_used() -> None:
    case, policy = make_case(8, 4), Chunks()
    same(placed(case, policy, 0, 2, placed(case, policy, 0, 0)), placed(case, policy, 0, 2))


def test_a_chunk_that_cannot_be_loaded_is_told_when_it_is_needed() -> None:
    case = make_case(8, 4)
    peers = CasePeers(case, damaged=2)
    first = placed(case, Chunks(), 0, 0, None, peers)
    with pytest.raises(OSError, match="part 2 is damaged"):
        placed(case, Chunks(), 0, 1, first, peers)


# --- weights of seeds ---


def sampled(place: Isolated, seeds: Any, fanout: tuple[int, ...], expand: Any = "new") -> MiniBatch:
    sampler = NeighborSampler(fanout, expand=expand)
    return sampler.sample(place.graph, BulkRequest(3, 0, 0, 0, (np.asarray(seeds, np.int64),)), reference).minibatches[
        0
    ]


def fetched(place: Isolated, work: MiniBatch, policy: Fetch) -> Any:
    return policy.fetcher(place, job(Seat(0, 1), 1), nn.Identity()).fetch(work)


@given(
    case=CASES,
    halo=st.sampled_from([0, 1]),
    expand=st.sampled_from(["new", "all"]),
    fanout=st.sampled_from([(2, 2, 2), (-1, 1, 2)]),
)
@example(case=make_case(3, 3), halo=0, expand="new", fanout=(2, 2, 2))
@settings(deadline=None, max_examples=25)
def test_weights_of_seeds_are_their_coverage(case: Case, halo: int, expand: Any, fanout: Any) -> None:
    for rank in range(case.parts):
        place = placed(case, Chunks(halo=halo), rank)
        # Nodes of the variable chunk too: without a halo, these lack more.
        work = sampled(place, np.random.default_rng(rank).permutation(place.num_visible), fanout, expand)
        for correction in ("batch", "node"):
            weight = fetched(place, work, Fetch(InPlace(is_read=True), correction=correction)).weight
            assert weight.dtype == torch.float64
            np.testing.assert_allclose(weight, place.coverage.numpy()[work.seeds], rtol=1e-14, atol=0)
        assert fetched(place, work, Fetch(InPlace(is_read=True), correction="none")).weight is None


# --- a share of the halo ---


@pytest.mark.parametrize("rotation", ["sweep", "fixed"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_share_of_the_halo(rotation: Any, ahead: bool) -> None:
    """Whole nodes are seen or not, with all their edges into the chunks; others in the next super-epoch, whatever went
    before."""
    case, seen, around, place = make_case(8, 4), [], [], None
    policy = Chunks(halo=0.5, rotation=rotation, ahead=ahead)
    whole = edges(case.graph)
    for t in range(6):
        place = placed(case, policy, 2, t, place)
        same(place, placed(case, policy, 2, t))
        name = names(case, place)
        visible, halo = set(name[: place.num_visible]), set(name[place.num_visible :])
        assert edges(place.graph, name) == Counter(
            {e: k for e, k in whole.items() if e[0] in visible and e[1] in visible | halo}
        )
        full = placed(case, Chunks(rotation=rotation), 2, t)
        every = set(names(case, full)[full.num_visible :])
        assert halo <= every
        seen.append(frozenset(halo))
        around.append(len(every))
    assert len(set(seen)) > 3
    assert abs(sum(map(len, seen)) / sum(around) - 0.5) < 4.5 * np.sqrt(0.25 / sum(around))


def sums(place: Isolated) -> np.ndarray:
    """Features of all in-neighbours that are present, [num_base, F]."""
    work = sampled(place, np.arange(place.num_base), (-1,))
    h = torch.from_numpy(place.features.gather(work.nodes))
    return fetched(place, work, Fetch(InPlace(is_read=True), correction="none")).neighbourhoods[-1].sum(h).numpy()


def whole_sums(case: Case, rank: int) -> np.ndarray:
    total = np.zeros_like(case.x)
    for (v, u, w), k in edges(case.graph).items():
        total[v] += k * w * case.x[u]
    return total[case.part_of == rank]


@pytest.mark.parametrize("seed", [3, 8])
def test_with_a_halo_sums_are_those_of_the_whole_graph(seed: int) -> None:
    case = make_case(seed, 4)
    for rank in range(4):
        np.testing.assert_allclose(sums(placed(case, Chunks(), rank)), whole_sums(case, rank), rtol=1e-12, atol=1e-12)


def test_a_halo_that_happens_to_be_empty_is_no_lack() -> None:
    """Chunk 2 has nothing to do with the others: what a rank with a halo sees has no halo nodes, and lacks nothing."""
    rng = np.random.default_rng(0)
    graph = from_edges([1, 0, 2, 3, 3], [0, 1, 3, 2, 0], 6)
    none = np.empty(0, np.int64)
    case = Case(
        graph,
        np.array([0, 0, 1, 1, 2, 2]),
        3,
        Split(np.arange(6), none, none),
        rng.normal(size=(6, F)),
        torch.zeros(6).long(),
    )
    for t in range(2):
        np.testing.assert_allclose(sums(placed(case, Chunks(), 0, t)), whole_sums(case, 0), rtol=1e-12)


def test_rows_and_degrees_are_those_of_this_rank() -> None:
    case = make_case(0, 3)
    place = placed(case, Chunks(), 0)
    work = sampled(place, place.seeds, (2, 2))
    got = fetched(place, work, Fetch(InPlace(is_read=True), correction="batch"))
    name = names(case, place)
    assert torch.equal(got.y, case.labels[[name[i] for i in work.seeds]])
    assert got.neighbourhoods[0].degree.tolist() == weighted_degree(case)[[name[i] for i in work.nodes]].tolist()
