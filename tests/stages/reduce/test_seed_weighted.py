import pytest
import torch
from torch import nn

from millrace.stages.reduce.corrected import CoverageCorrected
from millrace.stages.reduce.seed_weighted import AllSeedsMean, SeedWeightedMean
from millrace.tests.contracts.thread_ranks import run_threads

SEEDS = ((3.0, 2.0), (3.0, 0.0), (0.0, 4.0))


@pytest.mark.parametrize("policy", [SeedWeightedMean(), AllSeedsMean(), CoverageCorrected()])
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("flagged", [None, 1])
def test_a_step_leaves_alone_what_no_rank_has_a_gradient_of(policy, seeds, flagged):
    """Parameters: one with a gradient on all ranks with seeds, one on the last of these alone, one on none."""
    last = max(r for r, n in enumerate(seeds) if n)

    def rank(group):
        parameters = [nn.Parameter(torch.zeros(n)) for n in (3, 2, 4)]
        if seeds[group.rank]:
            parameters[0].grad = torch.full((3,), seeds[group.rank])
        if group.rank == last:
            parameters[1].grad = torch.full((2,), 10.0)
        total, stops = policy.reduce(parameters, seeds[group.rank], group, flagged == group.rank)
        return [None if p.grad is None else p.grad.tolist() for p in parameters], total, stops

    expected = [[1.0] * 3, [torch.tensor(10.0).div(sum(seeds)).item()] * 2, None]
    assert run_threads(rank, 2) == [(expected, sum(seeds), flagged is not None)] * 2


def test_nothing_more_travels_where_each_parameter_has_a_gradient():
    kinds = []

    class Counted:
        size = 2

        def all_reduce(self, flat, kind, overlap=None):
            kinds.append((kind, flat.numel()))

    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    SeedWeightedMean().reduce([p], 1.0, Counted())
    assert kinds == [("gradients", 5)]
