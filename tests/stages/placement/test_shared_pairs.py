"""Labelled edges over ranks: who has which, and which rows travel for them."""

import numpy as np
import pytest
import torch

from millrace.stages.neighbourhood.ring import Ring
from millrace.stages.placement.shared_pairs import SharedPairs, seeds_of
from millrace.storage.links.pairs import PairLabels, Pairs
from millrace.tests.contracts.thread_ranks import run_threads


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_edge_is_on_one_rank_with_the_rows_and_gradients_of_its_ends(ranks, seed):
    """Any owners, of whom one may have nothing; several edges of the same ends; ends on one rank only."""
    rng = np.random.default_rng(seed)
    v, n = 20, 60
    owner = rng.integers(max(1, ranks - seed % 2), size=v)
    table = rng.integers(0, v - 3, (n, 2))
    labels = PairLabels(rng.integers(0, 3, n), rng.random((n, 2)))
    pairs = Pairs(table, {"train": np.sort(rng.choice(n, 40, replace=False))}, labels=labels)
    weight, x = torch.from_numpy(rng.standard_normal((n, 6))), torch.from_numpy(rng.standard_normal((v, 3)))

    def work(group):
        owned = np.flatnonzero(owner == group.rank)
        seeds = seeds_of(pairs, owned)
        others = np.setdiff1d(np.arange(len(owned)), seeds)
        order = np.concatenate([np.random.default_rng(group.rank).permutation(seeds), others])
        mine = SharedPairs.divided(pairs, owned, order, group)
        rows = x[owned[order]].clone().requires_grad_()
        every = mine.all_rows(rows, Ring(group, 0))
        ends = every[torch.from_numpy(mine.positions)]
        own = mine.labels.features
        # Features tell which edges these are.
        numbers = [int(np.flatnonzero((labels.features == row).all(1))[0]) for row in own]
        assert np.array_equal(mine.labels.values, labels.values[numbers])
        assert torch.equal(ends.detach(), x[torch.from_numpy(table[numbers])]) if numbers else not len(ends)
        (ends.flatten(1) * weight[numbers]).sum().backward()
        return numbers, owned[order], rows.grad

    found = run_threads(work, ranks)
    every = np.concatenate([numbers for numbers, _, _ in found]).astype(np.int64)
    assert sorted(every) == pairs.sets["train"].tolist()
    wanted = torch.zeros(v, 3, dtype=torch.float64)
    for number in every:
        wanted[table[number, 0]] += weight[number, :3]
        wanted[table[number, 1]] += weight[number, 3:]
    for _, names, grad in found:
        torch.testing.assert_close(grad, wanted[torch.from_numpy(names)])
