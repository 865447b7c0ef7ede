"""The pretended device: values stay, and what lies on the host is refused."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from millrace.stages.kernels import aggregation_on
from millrace.stages.kernels.aggregation.lists import InLists, WeightedLists

pytestmark = [
    pytest.mark.usefixtures("on_device"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]
ROWS = torch.arange(12.0).view(4, 3)
TO = torch.device("cuda", 0)


def test_values_and_gradients_are_those_of_the_host() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2))
    there = copy.deepcopy(model).to(TO)
    assert all(p.is_cuda and p.device == TO for p in there.parameters())
    for module, x in ((model, ROWS), (there, ROWS.to(TO))):
        optimizer = torch.optim.Adam(module.parameters(), fused=True)
        module(x).square().sum().backward()
        optimizer.step()
    for a, b in zip(model.parameters(), there.parameters()):
        torch.testing.assert_close(b.cpu(), a)
    assert copy.deepcopy(there)[0].weight.is_cuda


HERE = torch.arange(2)
"""Rows of the host."""
MIXED: dict[str, Callable[[Tensor], object]] = {
    "a product": lambda x: x @ torch.ones(3, 2),
    "a product, the other way": lambda x: ROWS.t() @ x,
    "a product into the host": lambda x: torch.mm(x, x.t(), out=torch.from_numpy(np.empty((4, 4), np.float32))),
    "a product and a number": lambda x: torch.addmm(torch.tensor(1.0), x, x.t()),
    "a sum": lambda x: x + ROWS,
    "in place": lambda x: x.add_(ROWS),
    "onto the host": lambda x: ROWS.clone().add_(x),
    "onto a number of the host": lambda x: torch.tensor(1.0).add_(x[0, 0]),
    "a number of the device and the host": lambda x: ROWS + x[0, 0],
    "compared": lambda x: x == ROWS,
    "equal": lambda x: torch.equal(x, ROWS),
    "a condition": lambda x: torch.where(ROWS > 0, x, x),
    "a mask": lambda x: x.masked_fill(ROWS > 0, 0.0),
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
    "selected by the host": lambda x: x.index_select(0, HERE),
    "selected by a number": lambda x: x.index_select(0, torch.tensor(1)),
    "rows on the host": lambda x: ROWS[torch.tensor([0, 1], device=TO)],
    "indices of the sums": lambda x: x.index_add_(0, HERE, x[:2]),
    "terms of the sums": lambda x: x.index_add_(0, HERE.to(TO), ROWS[:2]),
    "sums on the host": lambda x: ROWS.clone().index_add_(0, HERE, x[:2]),
    "scattered": lambda x: x.scatter_add_(0, torch.zeros(4, 3, dtype=torch.int64), x),
    "gathered": lambda x: x.gather(0, torch.zeros(4, 3, dtype=torch.int64)),
    "counted": lambda x: torch.bincount(HERE.to(TO), weights=torch.ones(2)),
    "searched": lambda x: torch.searchsorted(x[0], ROWS[0]),
    "concatenated": lambda x: torch.cat([x, ROWS]),
    "concatenated with nothing": lambda x: torch.cat([torch.empty(0), x]),
    "stacked numbers": lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]),
    "labels": lambda x: nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.int64)),
    "a kernel": lambda x: aggregation_on(TO).spmm(
        WeightedLists(InLists.from_arrays(np.array([0, 1]), np.array([2]), 4), torch.ones(1)), x
    ),
}


@pytest.mark.parametrize("what", MIXED)
def test_what_lies_on_the_host_is_refused(what: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=r"same device|cannot be accessed"):
        MIXED[what](ROWS.to(TO))


OF_HOST = torch.Generator()
LACKING: dict[str, Callable[[Tensor], object]] = {
    "an array": lambda x: np.asarray(x),
    "numbers in an array": lambda x: np.array([x[0, 0], x[0, 1]]),
    "rows of an array": lambda x: np.arange(4)[x[0].long()],
    "an array's function": lambda x: np.sqrt(x),
    "numbers by a generator of the host": lambda x: torch.rand(3, generator=OF_HOST, device=TO),
    "an order by a generator of the host": lambda x: torch.randperm(3, generator=OF_HOST, device=TO),
    "draws by a generator of the host": lambda x: torch.multinomial(x, 1, generator=OF_HOST),
    "in place by a generator of the host": lambda x: x.uniform_(generator=OF_HOST),
    "products of integers": lambda x: x.long() @ x.long().t(),
    "a tensor without numbers": lambda x: torch._foreach_mul_([x], torch.tensor(0.5, device="meta")),
    "page-locked": lambda x: x.pin_memory(),
    "made page-locked": lambda x: torch.empty(3, device=TO, pin_memory=True),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_a_gpu_lacks_is_refused(what: str) -> None:
    with pytest.raises(
        (TypeError, RuntimeError), match=r"convert cuda:0|generator|not implemented on|pin|without numbers"
    ):
        LACKING[what](ROWS.to(TO))


class Elsewhere(torch.autograd.Function):
    """A function whose gradients lie on the other device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        return grads[0].cpu() if grads[0].is_cuda else grads[0].to(TO)


def test_gradients_lie_where_their_inputs_do() -> None:
    for x in (ROWS.clone().requires_grad_(), ROWS.to(TO).requires_grad_()):
        with pytest.raises(RuntimeError, match="ElsewhereBackward returned an invalid gradient"):
            Elsewhere.apply(x).sum().backward()


def test_copies_numbers_and_locked_memory_go_between() -> None:
    x = ROWS.to(TO)
    x[1:, :2] = 7
    x[0] = torch.ones(3)
    assert (x * 2 + torch.tensor(1.0)).cpu().tolist()[0] == [3.0] * 3 and x[1].tolist() == [7, 7, 5]
    host = torch.empty(4, 3, pin_memory=True).copy_(x)
    assert not host.is_cuda and torch.equal(host, x.cpu())
    assert ROWS.double().type_as(x).is_cuda
    assert torch.where(x > 3, x, torch.tensor(0.0)).masked_fill(x > 6, torch.tensor(1.0)).sum() == 13
    lists = InLists.from_arrays(np.array([0, 2]), np.array([0, 3]), 4)
    assert aggregation_on(TO).spmm(WeightedLists(lists, host[:2, 0].contiguous().pin_memory()), x).is_cuda
    with pytest.raises(TypeError, match="convert cuda:0"):
        x.numpy()


def test_a_recording_is_run_again_and_may_read_nothing() -> None:
    x, graph = ROWS.to(TO), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2)[1:].relu()
        y += 1
    x.fill_(4)
    graph.replay()
    assert torch.equal(y.cpu(), torch.full((3, 3), 9.0))
    for read in (lambda: float(x.sum()), lambda: x.cpu(), lambda: x.copy_(ROWS)):
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
            read()
