"""The assignment of minibatches to steps and ranks, against a walk through all of them by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.stages.assignment import SeedPlan, Steps, isolated_plan


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("per_step", [1, 2, 4, 7])
@pytest.mark.parametrize("minibatches", [0, 1, 6, 7, 13])
def test_every_minibatch_is_trained_on_once_and_ranks_go_through_as_many_rounds(minibatches, per_step, ranks):
    all_ranks = [Steps(minibatches, per_step, ranks, rank) for rank in range(ranks)]
    seen = []
    for step in range(len(all_ranks[0])):
        rounds = [list(s.rounds(step)) for s in all_ranks]
        assert len({len(r) for r in rounds}) == 1
        for steps, mine in zip(all_ranks, rounds):
            own = [i for i in mine if i is not None]
            assert own == [i for i in steps.minibatches_of(step) if steps.is_mine(i)]
            assert all(steps.step_of(i) == step for i in own)
            seen += own
    assert sorted(seen) == list(range(minibatches))


def test_the_last_step_of_an_epoch_may_be_smaller():
    steps = Steps(7, 3)
    assert [list(steps.minibatches_of(s)) for s in range(len(steps))] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(("ranks", "per_step"), [(2, 2), (2, 3), (3, 4), (3, 2)])
def test_the_plans_of_all_ranks_divide_the_bulks(ranks, per_step):
    plan = SeedPlan(np.arange(100), 7, 4, seed=5)
    for number in range(plan.num_bulks):
        whole = plan.request(1, number)
        parts = [plan.of_rank(per_step, ranks, rank).request(1, number) for rank in range(ranks)]
        found = sorted((i, seeds.tolist()) for p in parts for i, seeds in zip(p.indices, p.seeds, strict=True))
        assert found == [(i, seeds.tolist()) for i, seeds in zip(whole.indices, whole.seeds, strict=True)]


@pytest.mark.parametrize("own", [0, 1, 5, 20, 24])
def test_isolated_ranks_need_no_more_than_the_common_number_of_steps(own):
    plan = isolated_plan(np.arange(own), 4, 2, seed=1, steps=6, rank=2)
    assert plan.num_minibatches <= 6 and plan.batch_size <= 4
    assert plan.num_minibatches == 6 or own < 24
    other = isolated_plan(np.arange(own), 4, 2, seed=1, steps=6, rank=0)
    assert other.seed == 1 != plan.seed


@given(st.integers(0, 60), st.integers(1, 7), st.integers(1, 5), st.integers(1, 4))
def test_local_seeds_leave_each_round_its_seeds_and_deal_them_in_order(
    seeds: int, batch: int, per_step: int, ranks: int
) -> None:
    ids = np.arange(seeds) * 3
    plain = SeedPlan(ids, batch, 2, seed=1).of_rank(per_step, ranks, 0)
    local = SeedPlan(ids, batch, 2, seed=1, local=True).of_rank(per_step, ranks, 0)
    steps = local.steps
    assert steps is not None
    spans = list(steps.spans())
    assert [j for span in spans for j in span] == list(range(local.num_minibatches))
    for rank in range(ranks):
        mine = Steps(steps.minibatches, per_step, ranks, rank)
        found = [j for step in range(len(mine)) for j in mine.rounds(step)]
        assert found == [span[rank] if rank < len(span) else None for span in spans]
    for span in spans:
        part = slice(span.start * batch, span.stop * batch)
        assert local.order(3)[part].tolist() == sorted(plain.order(3)[part].tolist())
