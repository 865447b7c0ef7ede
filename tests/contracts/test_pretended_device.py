"""The pretended device: values stay, and what lies on the host is refused."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from millrace.stages.kernels import aggregation_on
from millrace.stages.kernels.aggregation.lists import InLists

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


MIXED: dict[str, Callable[[Tensor], object]] = {
    "a product": lambda x: x @ torch.ones(3, 2),
    "a product, the other way": lambda x: ROWS.t() @ x,
    "a sum": lambda x: x + ROWS,
    "in place": lambda x: x.add_(ROWS),
    "onto the host": lambda x: ROWS.clone().add_(x),
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
    "rows on the host": lambda x: ROWS[torch.tensor([0, 1], device=TO)],
    "concatenated": lambda x: torch.cat([x, ROWS]),
    "a kernel": lambda x: aggregation_on(TO).spmm(InLists.of(np.array([0, 1]), np.array([2]), 4), x, torch.ones(1)),
}


@pytest.mark.parametrize("what", MIXED)
def test_what_lies_on_the_host_is_refused(what: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=r"same device|cannot be accessed"):
        MIXED[what](ROWS.to(TO))


def test_copies_numbers_and_locked_memory_go_between() -> None:
    x = ROWS.to(TO)
    x[1:, :2] = 7
    x[0] = torch.ones(3)
    assert (x * 2 + torch.tensor(1.0)).cpu().tolist()[0] == [3.0] * 3 and x[1].tolist() == [7, 7, 5]
    host = torch.empty(4, 3, pin_memory=True).copy_(x)
    assert not host.is_cuda and torch.equal(host, x.cpu())
    lists = InLists.of(np.array([0, 2]), np.array([0, 3]), 4)
    assert aggregation_on(TO).spmm(lists, x, host[:2, 0].contiguous().pin_memory()).is_cuda
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
