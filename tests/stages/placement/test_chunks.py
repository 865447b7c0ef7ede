"""What an isolated rank sees of the graph, and how it makes up for the rest, against what the graph itself says."""

import gc
import itertools
import weakref
from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from millrace.stages.assignment import BulkRequest
from millrace.stages.fetch.isolated import CoverageFetch, seed_weights, smoothed
from millrace.stages.kernels.sampling.reference import backend as reference
from millrace.stages.messages import Phase, Placement
from millrace.stages.placement.chunk_schedule import ChunkSchedule
from millrace.stages.placement.chunks import Chunks, Isolated, load
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import MemoryFeatures
from millrace.storage.graph import from_edges
from millrace.storage.minibatch import Block, MiniBatch
from millrace.tests.contracts.full_batch import Case, F, job, make_case
from millrace.tests.contracts.isolated import EPOCHS, CasePeers, Seat, names, placed, weighted_degree

CASES = st.builds(make_case, st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4]), st.booleans())
SWEEPS = ("sweep", "fixed", "none")
SEED = 3
"""Of `job`."""
JOB = job(Seat(0, 1), 1)  # pyright: ignore[reportArgumentType]


pytestmark = pytest.mark.usefixtures("one_thread")


# --- what is there ---


def edges(graph: Any, name: Any = None) -> Counter[tuple[int, int, float]]:
    """(destination, source, weight) of each edge, by name."""
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    name = range(graph.num_nodes) if name is None else name
    return Counter((name[v], name[u], w) for v, u, w in zip(dst.tolist(), graph.indices.tolist(), weight.tolist()))


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
        assert place.degree.tolist() == total[name].tolist(), "in the whole graph"
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
                assert place.in_edges is not None and place.in_edges[i] == sum(into.values())
            else:
                want = 0.0 if total[v] else 1.0
            assert float(place.coverage[i]) == want, (i, v)
    assert sorted(seeds) == case.split.train.tolist(), "each train node is a seed of one rank"


def test_one_rank_sees_the_whole_graph() -> None:
    case = make_case(0, 1)
    whole = Placement(
        case.graph, MemoryFeatures(case.x), case.labels, torch.from_numpy(weighted_degree(case)), case.split
    )
    place = Chunks().place(whole, Phase(0, 0, 1), job(Seat(0, 1), 1))  # pyright: ignore[reportArgumentType]
    assert all(
        getattr(place, name) is getattr(whole, name) for name in ("graph", "features", "labels", "degree", "split")
    )
    assert (place.num_base, place.num_visible) == (case.graph.num_nodes,) * 2
    assert torch.equal(place.coverage, torch.ones(case.graph.num_nodes, dtype=torch.float64))


def test_the_ledger_counts_what_is_read() -> None:
    case = make_case(0, 3)
    of = job(Seat(1, 3), 1)  # pyright: ignore[reportArgumentType]
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
    for name in ("num_base", "num_visible", "inclusion", "halo_inclusion", "base", "variable"):
        assert getattr(a, name) == getattr(b, name), name
    assert np.array_equal(a.comes_with, b.comes_with)
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


def fetched(place: Isolated, work: MiniBatch, policy: CoverageFetch) -> Any:
    return policy.fetcher(place, job(Seat(0, 1), 1), nn.Identity()).fetch(work)  # pyright: ignore[reportArgumentType]


def tree_weight(blocks: Any, coverage: Any, position: int, hops: int) -> float:
    """Of the tree that grows from one destination of the last block."""
    block = blocks[-1]
    own = float(coverage[block.src[position]])
    if hops == 1 or len(blocks) == 1:
        return own
    below = block.indices[block.indptr[position] : block.indptr[position + 1]]
    return own * prod(tree_weight(blocks[:-1], coverage, int(u), hops - 1) for u in below)


@given(
    case=CASES,
    halo=st.sampled_from([0, 1]),
    expand=st.sampled_from(["new", "all"]),
    fanout=st.sampled_from([(2, 2, 2), (-1, 1, 2)]),
)
@example(case=make_case(3, 3), halo=0, expand="new", fanout=(2, 2, 2))
@settings(deadline=None, max_examples=25)
def test_weights_of_seeds_against_the_trees(case: Case, halo: int, expand: Any, fanout: Any) -> None:
    for rank in range(case.parts):
        place = placed(case, Chunks(halo=halo), rank)
        # Nodes of the variable chunk too: without a halo, these lack more.
        work = sampled(place, np.random.default_rng(rank).permutation(place.num_visible), fanout, expand)
        coverage = place.coverage.numpy()
        for hops in (1, 2, 3, 4):
            want = [tree_weight(work.blocks, coverage, i, hops) for i in range(place.num_visible)]
            got = seed_weights(work.blocks, coverage, hops)
            assert got.dtype == np.float64
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=0)
            assert torch.equal(fetched(place, work, CoverageFetch("hops", hops)).weight, torch.from_numpy(got))
        for correction in ("batch", "node"):
            np.testing.assert_allclose(
                fetched(place, work, CoverageFetch(correction)).weight, coverage[work.seeds], rtol=1e-14, atol=0
            )
        assert (
            fetched(place, work, CoverageFetch("none")).weight
            is fetched(place, work, CoverageFetch("edge")).weight
            is None
        )


def test_a_blocked_node_takes_its_tree_out() -> None:
    """Seeds 0, 1 and 2, of which the first two see node 3, which sees nothing of its own neighbours."""
    nodes = np.arange(4)
    inner = Block(3, nodes, np.array([0, 2, 3, 3]), np.array([2, 3, 3], np.int32))
    outer = Block(4, nodes, np.array([0, 0, 0, 1, 1]), np.array([0], np.int32))
    coverage = np.array([0.5, 0.25, 0.75, 0.0])
    assert seed_weights((outer, inner), coverage, 1).tolist() == pytest.approx([0.5, 0.25, 0.75])
    assert seed_weights((outer, inner), coverage, 2).tolist() == pytest.approx([0.0, 0.0, 0.75])
    assert len(seed_weights((Block(0, nodes[:0], np.zeros(1, np.int64), np.empty(0, np.int32)),), coverage, 1)) == 0


def tree(v: int, a: int | None, b: int | None) -> tuple[Block, Block]:
    """Blocks of the tree in which v has drawn a, and a has drawn b; local ids."""
    src = list(dict.fromkeys(x for x in (v, a, b) if x is not None))
    at = {x: i for i, x in enumerate(src)}
    middle = src[: len({v, a} - {None})]
    drawn = [] if a is None else [at[a]]
    inner = Block(1, np.array(middle), np.array([0, len(drawn)]), np.array(drawn, np.int32))
    deeper = drawn + ([] if b is None else [at[b]])
    indptr = [0, len(drawn), len(deeper)][: len(middle) + 1]
    return Block(len(middle), np.array(src), np.array(indptr), np.array(deeper, np.int32)), inner


def test_weighted_trees_are_unbiased_over_all_chunkings() -> None:
    """Of any function of a sampled tree: over every map of nodes to chunks, both super-epochs of a sweep, and every
    tree that isolated sampling can draw, the mean of W f is what sampling from the whole graph gives. W is the weight
    of the tree over the chance that all of it is seen. Without weights it is not."""
    neighbours = {0: [1, 2, 3], 1: [0, 2], 2: [0, 1, 3], 3: [0, 2]}
    n, parts = len(neighbours), 3
    dst, src = np.array([(v, u) for v, into in neighbours.items() for u in into]).T
    rng = np.random.default_rng(4)
    graph, f = from_edges(src, dst, n), rng.normal(size=(n, n, n, 2)) + np.arange(n)[:, None]
    none = np.empty(0, np.int64)
    everything = Case(
        graph,
        np.zeros(n, np.int64),
        parts,
        Split(np.arange(n), none, none),
        rng.normal(size=(n, F)),
        torch.zeros(n).long(),
    )
    want = [np.mean([np.mean([f[v, a, b] for b in neighbours[a]], 0) for a in neighbours[v]], 0) for v in range(n)]
    got, plain, seen, node, covered = np.zeros((n, 2)), np.zeros((n, 2)), np.zeros(n), np.zeros((n, 2)), np.zeros(n)
    chance = 1 / parts**n / (parts - 1)
    for part_of in itertools.product(range(parts), repeat=n):
        case = replace(everything, part_of=np.array(part_of))
        for rank, t in itertools.product(set(part_of), range(parts - 1)):
            place = placed(case, Chunks(halo=0), rank, t)
            name, coverage = names(case, place), place.coverage.numpy()
            here = [place.graph.indices[i:j].tolist() for i, j in zip(place.graph.indptr, place.graph.indptr[1:])]
            for v in range(place.num_base):
                if not here[v]:
                    assert seed_weights(tree(v, None, None), coverage, 2)[0] == 0
                reached = []
                for a in here[v]:
                    if not here[a]:
                        assert seed_weights(tree(v, a, None), coverage, 2)[0] == 0
                    for b in here[a]:
                        others = {v, a, b} - {v}
                        weight = seed_weights(tree(v, a, b), coverage, 2)[0] / (2 / parts) ** len(others)
                        value = f[name[v], name[a], name[b]]
                        got[name[v]] += chance / len(here[v]) / len(here[a]) * weight * value
                        reached.append((value, 1 / len(here[v]) / len(here[a])))
                if reached:
                    values, odds = zip(*reached)
                    mean = chance * np.average(values, 0, odds)
                    plain[name[v]], seen[name[v]] = plain[name[v]] + mean, seen[name[v]] + chance
                    node[name[v]], covered[name[v]] = (
                        node[name[v]] + coverage[v] * mean,
                        covered[name[v]] + coverage[v] * chance,
                    )
    assert np.abs(got - want).max() < 1e-12
    off = [np.linalg.norm(a.sum(0) / b.sum() - np.mean(want, 0)) for a, b in ((plain, seen), (node, covered))]
    assert 1e-3 < off[1] < off[0], "weighed by the coverage of the root alone, it is nearer, and not there"


# --- weights of messages ---


def sums(place: Isolated, correction: Any) -> np.ndarray:
    """Of the features of all in-neighbours, [num_base, F], by full local neighbourhoods."""
    work = sampled(place, np.arange(place.num_base), (-1,))
    h = torch.from_numpy(place.features.gather(work.nodes))
    return fetched(place, work, CoverageFetch(correction)).neighbourhoods[-1].sum(h).numpy()


def whole_sums(case: Case, rank: int) -> np.ndarray:
    total = np.zeros_like(case.x)
    for (v, u, w), k in edges(case.graph).items():
        total[v] += k * w * case.x[u]
    return total[case.part_of == rank]


@given(case=st.builds(make_case, st.integers(0, 10**6), st.sampled_from([2, 3, 4])))
@example(case=make_case(3, 4))
@settings(deadline=None, max_examples=25)
def test_over_a_sweep_weighted_messages_add_up_to_the_whole_sum(case: Case) -> None:
    """In expectation over the variable chunk, for one and the same base chunk."""
    for rank in range(case.parts):
        each = [sums(placed(case, Chunks(halo=0), rank, t), "edge") for t in range(case.parts - 1)]
        np.testing.assert_allclose(np.mean(each, 0), whole_sums(case, rank), rtol=1e-12, atol=1e-12)
        # With a halo all of them are there already.
        np.testing.assert_allclose(
            sums(placed(case, Chunks(), rank), "edge"), whole_sums(case, rank), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(("rotation", "parts"), [("sweep", 4), ("fixed", 4), ("none", 3)])
def test_over_halos_weighted_messages_add_up_to_the_whole_sum(rotation: Any, parts: int) -> None:
    """Of the nodes of the base chunk, where 0.4 of the nodes around are seen: over many super-epochs, each with a halo
    of its own."""
    case, policy = make_case(3, parts), Chunks(rotation=rotation, halo=0.4)
    times = 240 // (parts - 1) * (parts - 1)
    each = np.array([sums(placed(case, policy, 1, t), "edge") for t in range(times)])
    # Float32 weights, of an estimate with as much spread as it has.
    error = np.abs(each.mean(0) - whole_sums(case, 1))
    assert (error <= 4.5 * each.std(0) / np.sqrt(times) + 1e-5).all()
    plain = np.mean([sums(placed(case, policy, 1, t), "none") for t in range(times)], 0)
    assert np.abs(plain - whole_sums(case, 1)).max() > 2 * error.max() > 0, "it is drawn, and as it is it falls short"


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


@pytest.mark.parametrize(
    ("ranks", "per_rank", "rotation"),
    [(2, 2, "sweep"), (4, 1, "sweep"), (3, 2, "fixed"), (2, 3, "none"), (3, 1, "none")],
)
def test_over_all_deals_weighted_messages_add_up_to_the_whole_sum(ranks: int, per_rank: int, rotation: Any) -> None:
    """Of nodes of base chunks and of variable ones, where chunks move: over every set of chunks that a rank can see,
    with the weights of the real placement."""
    parts = ranks * per_rank
    case = make_case(3, parts)
    place = placed(case, Chunks(halo=0, per_rank=per_rank, reshuffle_fraction=1.0, rotation=rotation), 0)
    seen, whole = len(place.base + place.variable), whole_sums(replace(case, part_of=np.zeros_like(case.part_of)), 0)
    total, times = np.zeros_like(whole), np.zeros(case.graph.num_nodes)
    policy = Chunks(halo=0, per_rank=seen, reshuffle_fraction=1.0)
    for chosen in itertools.combinations(range(parts), seen):
        peers = CasePeers(case)
        held = policy._joined(
            {c: load(peers.own(c), JOB) for c in chosen}, chosen, (), place.inclusion, 0, peers.own(0), JOB
        )
        name = names(case, held)
        total[name] += sums(held, "edge")
        times[name] += 1
    if (seen, rotation) == (1, "none"):
        assert np.abs(total / times[:, None] - whole).max() > 0.1, "other chunks are never seen"
    else:
        np.testing.assert_allclose(total / times[:, None], whole, rtol=1e-6, atol=1e-6)


@given(case=CASES, halo=st.sampled_from([0, 1]), reshuffle_fraction=st.sampled_from([0.0, 1.0]))
@example(case=make_case(11, 4), halo=0, reshuffle_fraction=0.0)
@settings(deadline=None, max_examples=20)
def test_hajek_scales_messages_to_the_degree(case: Case, halo: int, reshuffle_fraction: float) -> None:
    """Sums are then degree x weighted mean; means are those of the plain weights."""
    for rank in range(case.parts):
        place = placed(case, Chunks(halo=halo, reshuffle_fraction=reshuffle_fraction), rank)
        work = sampled(place, np.arange(place.num_base), (-1,))
        h = torch.from_numpy(place.features.gather(work.nodes))
        plain, scaled = (fetched(place, work, CoverageFetch(c)).neighbourhoods[-1] for c in ("edge", "edge-hajek"))
        np.testing.assert_allclose(scaled.mean(h), plain.mean(h), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            scaled.sum(h), place.degree[: place.num_base, None] * plain.mean(h), rtol=1e-5, atol=1e-5
        )


@given(case=CASES, kappa=st.sampled_from([0.0, 0.5, 3.0, 1e9]))
@example(case=make_case(8, 3), kappa=0.5)
@settings(deadline=None, max_examples=20)
def test_coverage_is_drawn_to_the_mean(case: Case, kappa: float) -> None:
    """(d_p + kappa m) / (d + kappa), counted from the graph."""
    for rank in range(case.parts):
        place = placed(case, Chunks(halo=0), rank)
        name, coverage = names(case, place), place.coverage.numpy()
        got, mean = smoothed(place, kappa), coverage[place.seeds].mean() if len(place.seeds) else 1.0
        for i, v in enumerate(name if len(place.seeds) else []):
            into = [int(u) for u in case.graph.indices[case.graph.indptr[v] : case.graph.indptr[v + 1]] if u != v]
            here = sum(u in set(name) for u in into)
            assert got[i] == pytest.approx((here + kappa * mean) / (len(into) + kappa) if into else 1.0, abs=1e-12)
        if len(place.seeds):
            work = sampled(place, place.seeds, (1,))
            assert fetched(place, work, CoverageFetch("node", kappa=kappa)).weight.tolist() == pytest.approx(
                got[work.seeds].tolist()
            )
            assert kappa < 1e9 or np.abs(got[place.seeds][coverage[place.seeds] < 1] - mean).max(initial=0) < 1e-6


def test_what_is_known_of_halo_nodes_is_not_smoothed() -> None:
    case = make_case(0, 3)
    place = placed(case, Chunks(), 0)
    assert len(place.coverage) > place.num_visible
    assert np.array_equal(smoothed(place, 2.0), place.coverage.numpy())


def test_without_weights_they_do_not() -> None:
    """Where features tell the chunks apart, a mean over what is there is another one."""
    case = make_case(3 + 8, 4)
    assert case.graph.edge_weight is not None
    case = replace(case, graph=replace(case.graph, edge_weight=None), x=case.x + 2.0 * case.part_of[:, None])
    off = [
        np.mean([sums(placed(case, Chunks(halo=0), rank, t), "none") for t in range(3)], 0) - whole_sums(case, rank)
        for rank in range(4)
    ]
    assert np.abs(np.concatenate(off)).max() > 0.1


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
        np.testing.assert_allclose(sums(placed(case, Chunks(), 0, t), "edge"), whole_sums(case, 0), rtol=1e-12)


@pytest.mark.parametrize(("seed", "replaced"), [(19, False), (8, False), (19, True)])
def test_a_message_counts_for_the_edges_that_were_not_drawn(seed: int, replaced: bool) -> None:
    """(P - 1 from the variable chunk into the base chunk) x (present / drawn) x the edge's own weight."""
    case = make_case(seed, 3)
    place = placed(case, Chunks(halo=0), int(np.argmax(np.bincount(case.part_of))))
    sampler = NeighborSampler((3, 3), expand="all", replace=replaced, edge_ids=True)
    request = BulkRequest(3, 0, 0, 0, (np.arange(place.num_visible),))
    work = sampler.sample(place.graph, request, reference).minibatches[0]
    for block, neighbourhood in zip(work.blocks, fetched(place, work, CoverageFetch("edge")).neighbourhoods):
        drawn = np.diff(block.indptr)
        dst, source = np.repeat(block.src[: block.num_dst], drawn), block.src[block.indices]
        swept = (dst < place.num_base) & (source >= place.num_base)
        assert swept.any() and not swept.all()
        want = np.where(swept, 2, 1) * place.graph.in_degree[dst] / np.repeat(drawn, drawn)
        if place.graph.edge_weight is not None:
            want = want * place.graph.edge_weight[block.edge_id]
        np.testing.assert_allclose(neighbourhood.weight, want, rtol=1e-6)


def test_rows_and_degrees_are_those_of_this_rank() -> None:
    case = make_case(0, 3)
    place = placed(case, Chunks(), 0)
    work = sampled(place, place.seeds, (2, 2))
    got = fetched(place, work, CoverageFetch())
    name = names(case, place)
    assert torch.equal(got.y, case.labels[[name[i] for i in work.seeds]])
    assert got.neighbourhoods[0].degree.tolist() == weighted_degree(case)[[name[i] for i in work.nodes]].tolist()
