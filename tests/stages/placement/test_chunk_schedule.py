"""Which chunks lie where, by counting."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.partition.hash import Hash
from millrace.stages.placement.chunk_schedule import ChunkSchedule
from millrace.storage.graph import from_edges

SWEEPS = ("sweep", "fixed", "none")


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
def test_a_sweep_visits_every_ordered_pair_once(ranks: int) -> None:
    deal = ChunkSchedule(0, ranks)
    for start in (0, 3 * (ranks - 1)):
        seen = Counter((p, *deal.variable(p, start + t)) for p in range(ranks) for t in range(ranks - 1))
        assert seen == Counter(itertools.permutations(range(ranks), 2))
    for t in range(ranks):
        assert sorted(deal.variable(p, t)[0] for p in range(ranks)) == list(range(ranks)), "each is seen by one"


def test_other_schedules() -> None:
    for t in range(5):
        assert [ChunkSchedule(0, 4, rotation="fixed").variable(p, t) for p in range(4)] == [(1,), (2,), (3,), (0,)]
        assert [ChunkSchedule(0, 4, rotation="none").variable(p, t) for p in range(4)] == [()] * 4
        assert {ChunkSchedule(0, 1, rotation=s).variable(0, t) for s in SWEEPS} == {()}  # type: ignore[arg-type]
        assert [ChunkSchedule(t, 3, 2).base(p, t) for p in range(3)] == [(0, 1), (2, 3), (4, 5)], "nothing moves"


@given(
    seed=st.integers(0, 99), ranks=st.integers(1, 6), per_rank=st.integers(1, 4),
    reshuffle_fraction=st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0]),
    rotation=st.sampled_from(SWEEPS), t=st.integers(0, 5),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_every_chunk_has_one_rank(
    seed: int, ranks: int, per_rank: int, reshuffle_fraction: float, rotation: Any, t: int
) -> None:
    deal = ChunkSchedule(seed, ranks, per_rank, reshuffle_fraction, rotation)
    bases = [deal.base(p, t) for p in range(ranks)]
    assert sorted(itertools.chain(*bases)) == list(range(ranks * per_rank))
    assert all(len(b) == per_rank and list(b) == sorted(b) for b in bases)
    for p in range(ranks):
        other = deal.beside(p, t)
        assert other != p
        assert deal.variable(p, t) == (() if other is None else bases[other])
    moves = np.count_nonzero(deal.assignment(t) != deal.assignment(t + 1))
    assert moves <= (max(2, round(reshuffle_fraction * ranks * per_rank)) if reshuffle_fraction else 0)


def test_the_chosen_chunks_move_and_no_others() -> None:
    """If k places are permuted uniformly, one keeps its chunk on average; the mean over 400 switches, within 5
    sigma."""
    for reshuffle_fraction, k in ((0.05, 2), (0.25, 5), (0.5, 10), (1.0, 20)):
        deals = [ChunkSchedule(seed, 5, 4, reshuffle_fraction) for seed in range(400)]
        moves = [np.count_nonzero(d.assignment(2) != d.assignment(3)) for d in deals]
        assert max(moves) <= k
        assert abs(np.mean(moves) - (k - 1)) < 5 / np.sqrt(400)


@pytest.mark.parametrize(("reshuffle_fraction", "t"), [(0.3, 0), (0.3, 1), (0.3, 4), (1.0, 0), (1.0, 2)])
@pytest.mark.parametrize(
    ("ranks", "per_rank", "rotation"),
    [(3, 2, "sweep"), (4, 1, "sweep"), (3, 2, "fixed"), (3, 3, "none"), (2, 3, "sweep")],
)
def test_what_is_seen_beside_a_chunk_where_chunks_move(
    reshuffle_fraction: float, t: int, ranks: int, per_rank: int, rotation: Any
) -> None:
    """The share of deals in which chunk c is seen where chunk d is a base chunk, or a variable one: within
    4.5 sigma, (2 m - 1) / (Q - 1) for a sweep, and so for any pair."""
    q, draws = ranks * per_rank, 1500
    want = ((per_rank if rotation == "none" else 2 * per_rank) - 1) / (q - 1)
    pairs = [(0, 1), (q - 1, 0), (1, 2)]
    together = {pair: [0, 0, 0] for pair in pairs}
    for seed in range(draws):
        deal = ChunkSchedule(seed, ranks, per_rank, reshuffle_fraction, rotation)
        at = deal.assignment(t).reshape(ranks, per_rank)
        beside = [deal.beside(p, t) for p in range(ranks)]
        for p in range(ranks):
            base = set(at[p].tolist())
            variable = set() if beside[p] is None else set(at[beside[p]].tolist())  # type: ignore[index]
            for d, c in pairs:
                together[d, c][0] += d in base and c in base | variable
                together[d, c][1] += d in variable and c in base | variable
                together[d, c][2] += d in variable
    for of_base, of_variable, times in together.values():
        sigma = np.sqrt(draws * want * (1 - want))
        assert abs(of_base - draws * want) <= 4.5 * sigma
        assert times == (0 if rotation == "none" else draws)
        assert rotation == "none" or abs(of_variable - draws * want) <= 4.5 * sigma


@pytest.mark.parametrize("parts", [3, 8])
def test_nodes_meet_in_hashed_chunks_as_often_as_chance_has_it(parts: int) -> None:
    """Node u is seen where v is a base node in 2 / P of all hashed chunkings, within 4 sigma."""
    seeds, pairs = 600, [(0, 1), (5, 2), (3, 7)]
    graph, seen = from_edges([], [], 8), np.zeros(len(pairs))
    for seed in range(seeds):
        part, deal = Hash().assign(graph, parts, seed).part(np.arange(graph.num_nodes)), ChunkSchedule(seed, parts)
        for i, (v, u) in enumerate(pairs):
            seen[i] += part[u] in (part[v], *deal.variable(int(part[v]), seed))
    assert (np.abs(seen / seeds - 2 / parts) < 4 * np.sqrt(2 / parts * (1 - 2 / parts) / seeds)).all()
