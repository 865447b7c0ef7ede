"""Batch normalisation over ranks: what one rank that saw all minibatches would have."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from millrace.stages.comm.base import Group
from millrace.stages.comm.solo import Solo
from millrace.stages.reduce.batch_norm import RunningStatistics
from millrace.stages.reduce.seed_weighted import SeedWeightedMean
from millrace.storage.errors import InputError
from millrace.tests.contracts.process_ranks import run_ranks

STEPS = (4, 4, 3, 1, 4)
"""Minibatches of each step."""


class Net(nn.Module):
    """Every kind of batch normalisation that a model may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 2)
        self.plain = nn.BatchNorm1d(4)
        self.bare = nn.BatchNorm1d(4, momentum=0.3, affine=False)
        self.twice = nn.BatchNorm1d(4, momentum=0.25)
        self.stateless = nn.BatchNorm1d(4, momentum=None, track_running_stats=False)
        self.frozen = nn.BatchNorm1d(4)
        self.unused = nn.BatchNorm1d(3)
        self.register_buffer("other", torch.arange(3.0))
        for buffer in (self.frozen.running_mean, self.frozen.running_var, self.unused.running_mean):
            assert buffer is not None
            buffer.fill_(0.7)

    def train(self, mode: bool = True) -> "Net":
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        h = self.stateless(self.bare(torch.relu(self.plain(self.first(x)))))
        return self.last(self.frozen(self.twice(self.twice(h) ** 2)))


def minibatch(step: int, position: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + position)
    return torch.randn(6 + position, 5, dtype=torch.float64, generator=generator) * (1 + position) + step


def train(group: Group) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    statistics = RunningStatistics(net, group)
    for step, of in enumerate(STEPS):
        net.train()
        optimizer.zero_grad()
        seeds = 0
        for position in range(group.rank, of, group.size):
            x = minibatch(step, position)
            with statistics.minibatch(position, of):
                net(x).pow(2).sum().backward()
            seeds += len(x)
        SeedWeightedMean().reduce([p for p in net.parameters() if p.requires_grad], seeds, group)
        statistics.finish(of)
        optimizer.step()
    return dict(net.state_dict())


def sequential() -> dict[str, Tensor]:
    """The same, without the class under test."""
    torch.manual_seed(0)
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, of in enumerate(STEPS):
        net.train()
        optimizer.zero_grad()
        batches = [minibatch(step, position) for position in range(of)]
        for x in batches:
            net(x).pow(2).sum().backward()
        for p in net.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad / sum(map(len, batches))
        optimizer.step()
    return dict(net.state_dict())


def assert_states_close(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        is_statistic = name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
        torch.testing.assert_close(
            state[name], value, rtol=0, atol=1e-12 if is_statistic else 1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert torch.equal(state["twice.num_batches_tracked"], torch.tensor(2 * sum(STEPS)))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_end_with_the_buffers_of_one(size: int) -> None:
    expected = sequential()
    for state in run_ranks(train, size):
        assert_states_close(state, expected)
        for name in ("frozen.running_mean", "unused.running_mean", "unused.num_batches_tracked", "other"):
            assert torch.equal(state[name], expected[name])


def test_one_rank_is_left_alone() -> None:
    state, expected = train(Solo()), sequential()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


class Pair(Solo):
    """Two ranks, of which the other has nothing; counts what would travel."""

    size = 2

    def __init__(self) -> None:
        self.reduced: list[tuple[int, str]] = []

    def all_reduce(self, flat: Tensor, kind: str, overlap: object = None) -> None:
        self.reduced.append((flat.numel(), kind))


def test_one_vector_travels_a_step_and_none_without_batch_normalisation() -> None:
    group = Pair()
    train_step(group, nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 7), nn.BatchNorm1d(7)))
    assert group.reduced == [(2 * (1 + 2 * 5), "gradients")]
    for model in (nn.Linear(3, 2), nn.BatchNorm1d(3, track_running_stats=False), nn.LayerNorm(3)):
        silent = Pair()
        train_step(silent, model)
        assert silent.reduced == []


def train_step(group: Any, model: nn.Module) -> None:
    statistics = RunningStatistics(model, group)
    with statistics.minibatch(0, 1):
        model(torch.randn(4, 3)).sum().backward()
    statistics.finish(1)


def test_a_cumulative_average_is_refused_on_several_ranks() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None))
    RunningStatistics(model, Solo())
    with pytest.raises(
        InputError, match=r"'1' has momentum=None.*give it one, such as momentum=0\.1, or train with one rank"
    ):
        RunningStatistics(model, Pair())


def test_a_module_that_some_minibatches_skip_is_refused() -> None:
    norm = nn.BatchNorm1d(3)
    statistics = RunningStatistics(nn.Sequential(norm), Pair())
    with statistics.minibatch(0, 2):
        norm(torch.randn(4, 3))
    with pytest.raises(InputError, match="'0' was called 1 times in 2 minibatches"):
        statistics.finish(2)


def test_a_minibatch_that_fails_leaves_no_trace() -> None:
    norm = nn.BatchNorm1d(3)
    norm(torch.randn(4, 3))
    before = copy.deepcopy(norm.state_dict())
    statistics = RunningStatistics(norm, Pair())

    def fail() -> None:
        with statistics.minibatch(0, 1):
            norm(torch.randn(4, 3))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    statistics.finish(1)
    assert all(torch.equal(norm.state_dict()[name], before[name]) for name in before)
