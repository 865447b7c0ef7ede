"""Products with weights under autograd, with their bias and activation, in memory that the next step uses again.

Rows are taken in blocks that fit a processor's cache: bias, activation and its gradient are applied while a block is still there,
instead of in passes over the whole matrix.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .arena import empty
from .rows import NamedRows

BLOCK_ROWS = 2048
_aten: Any = torch.ops.aten

# Forward in place; gradient from (gradient, result) into a third tensor: neither needs what the activation was applied to.
_FORWARD: dict[str, Callable[[Tensor], Any]] = {"relu": torch.relu_, "elu": torch.nn.functional.elu_}
_BACKWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "relu": lambda grad, out, into: _aten.threshold_backward.grad_input(grad, out, 0, grad_input=into),
    "elu": lambda grad, out, into: _aten.elu_backward.grad_input(grad, 1, 1, 1, True, out, grad_input=into),
}
FUSED = ("none", *_FORWARD)
"""Activations that a product can apply."""


def _blocks(rows: int) -> Iterator[slice]:
    for first in range(0, rows, BLOCK_ROWS):
        yield slice(first, min(first + BLOCK_ROWS, rows))


def _through(grad: Tensor, out: Tensor | None, activation: str, scratch: Tensor | None) -> Tensor:
    """The gradient before the activation, of one block."""
    if out is None or scratch is None:
        return grad
    into = scratch[: len(grad)]
    _BACKWARD[activation](grad, out, into)
    return into


def _scratch(activation: str, rows: int, width: int, like: Tensor) -> Tensor | None:
    return None if activation == "none" else like.new_empty(min(rows, BLOCK_ROWS), width)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, low: bool) -> Tensor:
        out = empty((len(x), len(weight)), x.dtype)
        w = weight.bfloat16() if low else weight
        for rows in _blocks(len(x)):
            y = out[rows]
            if low:
                y.copy_(torch.mm(x[rows].bfloat16(), w.t()))
                if bias is not None:
                    y += bias
            elif bias is None:
                torch.mm(x[rows], w.t(), out=y)
            else:
                torch.addmm(bias, x[rows], w.t(), out=y)
            if activation != "none":
                _FORWARD[activation](y)
        ctx.activation, ctx.low = activation, low
        ctx.save_for_backward(x, weight, None if activation == "none" else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0]
        x, weight, out = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dx = empty(x.shape, x.dtype) if needs_x else None
        dw = torch.zeros_like(weight) if needs_weight else None
        db = weight.new_zeros(len(weight)) if needs_bias else None
        scratch = _scratch(ctx.activation, len(x), len(weight), weight)
        w = weight.bfloat16() if ctx.low else weight
        for rows in _blocks(len(x)):
            g = _through(grad[rows], None if out is None else out[rows], ctx.activation, scratch)
            if db is not None:
                db += g.sum(0)
            if ctx.low:
                g = g.bfloat16()
                if dw is not None:
                    dw += torch.mm(g.t(), x[rows].bfloat16())
                if dx is not None:
                    dx[rows].copy_(torch.mm(g, w))
            else:
                if dw is not None:
                    dw.addmm_(g.t(), x[rows])
                if dx is not None:
                    torch.mm(g, w, out=dx[rows])
        return dx, dw, db, None, None


class _PerHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str, low: bool) -> Tensor:
        heads, width = weight.shape[:2]
        out = empty((len(x), heads * width), x.dtype)
        by_head = bias.view(heads, width)
        w = weight.bfloat16() if low else weight
        for rows in _blocks(len(x)):
            for h in range(heads):
                y = out[rows, h * width : (h + 1) * width]
                if low:
                    y.copy_(torch.mm(x[rows, h].bfloat16(), w[h].t()))
                    y += by_head[h]
                else:
                    torch.addmm(by_head[h], x[rows, h], w[h].t(), out=y)
            if activation != "none":
                _FORWARD[activation](out[rows])
        ctx.activation, ctx.low = activation, low
        ctx.save_for_backward(x, weight, None if activation == "none" else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0]
        x, weight, out = ctx.saved_tensors
        heads, width = weight.shape[:2]
        dx = empty(x.shape, x.dtype) if ctx.needs_input_grad[0] else None
        dw, db = torch.zeros_like(weight), weight.new_zeros(heads * width)
        scratch = _scratch(ctx.activation, len(x), heads * width, weight)
        w = weight.bfloat16() if ctx.low else weight
        for rows in _blocks(len(x)):
            g = _through(grad[rows], None if out is None else out[rows], ctx.activation, scratch)
            db += g.sum(0)
            g = g.bfloat16() if ctx.low else g
            for h in range(heads):
                own = g[:, h * width : (h + 1) * width]
                if ctx.low:
                    dw[h] += torch.mm(own.t(), x[rows, h].bfloat16())
                    if dx is not None:
                        dx[rows, h].copy_(torch.mm(own, w[h]))
                else:
                    dw[h].addmm_(own.t(), x[rows, h])
                    if dx is not None:
                        torch.mm(own, w[h], out=dx[rows, h])
        return dx, dw, db, None, None


def _in_bfloat16(x: Tensor) -> bool:
    return x.dtype == torch.float32 and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """``activation(x weight^T + bias)``, [n, D_in] -> [n, D_out].

    Under ``torch.autocast("cpu", torch.bfloat16)`` float32 operands are multiplied in bfloat16; what goes in and comes out, bias and
    activation stay in float32.

    Args:
        x: [n, D_in].
        weight: [D_out, D_in].
        bias: [D_out] or None.
        activation: one of `FUSED`.
    """
    x = x.gathered() if isinstance(x, NamedRows) else x
    return _Linear.apply(x, weight, bias, activation, _in_bfloat16(x))  # pyright: ignore[reportReturnType]


def per_head(x: Tensor, weight: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Each head's rows by that head's weight, side by side: ``activation(concat_h(x[:, h] weight[h]^T) + bias)``; see `linear`.

    Args:
        x: [n, H, D_in].
        weight: [H, D_out, D_in].
        bias: [H * D_out].
        activation: one of `FUSED`.

    Returns:
        [n, H * D_out].
    """
    return _PerHead.apply(x, weight, bias, activation, _in_bfloat16(x))  # pyright: ignore[reportReturnType]
