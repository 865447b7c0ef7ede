"""Plans of pairs: minibatches are the same for any bulk, rank and order of asking."""

import numpy as np
import pytest

from millrace.stages.links.plan import Ends, LinkPlan, before
from millrace.stages.links.train_pairs import LAWS, Negatives, TrainPairs
from millrace.storage.links.pairs import Pairs
from millrace.tests.contracts.graphs import sbm

GRAPH = sbm(60)
PAIRS = np.array([(i % 60, (7 * i + 1) % 60, 0) for i in range(50)] + [(0, 1, 1)], np.int64)


def plan_of(law="uniform", bulk=3, seed=1, **options):
    links = TrainPairs.from_graph(GRAPH, Pairs(PAIRS, {}), Negatives(law, 2))
    return LinkPlan(np.arange(50), 8, bulk, seed, links=links, **options)


def minibatches(plan, epoch=2):
    found = {}
    for number in range(plan.num_bulks):
        request = plan.request(epoch, number)
        found |= dict(zip(request.indices, zip(request.seeds, request.positives)))
    return found


@pytest.mark.parametrize("law", LAWS)
def test_minibatches_do_not_depend_on_bulks_or_ranks(law):
    one = minibatches(plan_of(law))
    assert sorted(one) == list(range(7))
    ranks = [minibatches(plan_of(law, bulk=4).of_rank(2, 2, rank)) for rank in range(2)]
    for other in (minibatches(plan_of(law, bulk=7)), ranks[0] | ranks[1]):
        assert sorted(other) == sorted(one)
        for index, (seeds, positives) in one.items():
            assert np.array_equal(other[index][0], seeds) and np.array_equal(other[index][1], positives)


def test_an_epoch_has_each_pair_once_and_seeds_are_all_ends():
    plan = plan_of()
    found = minibatches(plan)
    every = np.concatenate([positives for _, positives in found.values()])
    assert sorted(map(tuple, every.tolist())) == sorted(map(tuple, PAIRS[:50, :2].tolist()))
    for index, (seeds, positives) in found.items():
        pairs = plan.pairs(index, 2)
        assert np.array_equal(np.unique(pairs), seeds) and np.array_equal(pairs[:, 0], positives)
    assert any((plan.pairs(0, 0) != p).any() for p in (plan.pairs(0, 1), plan_of(seed=2).pairs(0, 0)))


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_ends_are_met_before_their_pairs(dtype):
    pairs = np.array([[[3, 1], [3, 2]], [[1, 3], [1, 1]], [[3, 2], [3, 5]]])
    ends = Ends.from_pairs(pairs, np.array([4, 2, 4], dtype), 9)
    times = np.ceil(ends.moments) if dtype == np.float64 else ends.moments + 1
    assert list(zip(ends.nodes, times)) == [(1, 2), (3, 2), (1, 4), (2, 4), (3, 4), (5, 4)]
    assert (ends.moments < np.array([2, 2, 4, 4, 4, 4])).all() and ends.moments.dtype == dtype
    assert np.array_equal(ends.nodes[ends.positions], pairs)
    assert np.array_equal(
        np.ceil(ends.moments[ends.positions]) + (dtype == np.int64), np.broadcast_to([[[4]], [[2]], [[4]]], pairs.shape)
    )
    assert before(np.array([np.iinfo(np.int64).min]))[0] == np.iinfo(np.int64).min
    plain = Ends.from_pairs(pairs, None, 9)
    assert plain.moments is None and plain.nodes.tolist() == [1, 2, 3, 5]


def test_requests_have_the_moments_of_their_seeds():
    links = TrainPairs.from_graph(GRAPH, Pairs(PAIRS, {}), Negatives("uniform", 2), np.arange(51) // 5)
    plan = LinkPlan(np.arange(50), 8, 3, 1, links=links)
    request = plan.request(1, 1)
    for index, seeds, moments in zip(request.indices, request.seeds, request.moments):
        ends = plan.ends(plan.pairs(index, 1), index, 1)
        assert np.array_equal(ends.nodes, seeds) and np.array_equal(ends.moments, moments)
        own = ends.moments[ends.positions]
        assert (own == (plan.numbers(index, 1) // 5 - 1)[:, None, None]).all()
