"""A backward pass that cannot be differentiated gives its gradients once, and refuses to give those of gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from millrace.stages.autograd import once_differentiable


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (2 * grads[0],)


def test_gradients_are_given_once() -> None:
    x = torch.ones(3, requires_grad=True)
    out = _Double.apply(x)
    assert isinstance(out, Tensor)
    (grad,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
    assert grad.tolist() == [8.0, 8.0, 8.0]
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()
