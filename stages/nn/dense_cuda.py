"""`dense` for tensors in a device's memory: in float32 by `kernels.products_cuda`, else by torch's products, one after
the other, with as few launches as torch offers.

Of torch's products bias and activation are a part if cuBLAS supports that, else applied to the result in place; the
activation's gradient is computed from its result. Operands of a product in bfloat16 are rounded once and kept for the
backward pass; the products come in float32.

Products are written into tensors of a given dtype, which autocast leaves alone: `dense` reads its setting.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...storage.optional import taken
from ..autograd import once_differentiable

_aten: Any = torch.ops.aten
STRETCHES = 32
"""Pieces that a long sum over rows is divided into."""

_FORWARD: dict[str, Callable[[Tensor], Any]] = {
    "relu": torch.relu_,
    "elu": torch.nn.functional.elu_,
    "none": lambda y: y,
}
_BACKWARD: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "relu": lambda grad, out: _aten.threshold_backward(grad, out, 0),
    "elu": lambda grad, out: _aten.elu_backward(grad, 1, 1, 1, True, out),
    "none": lambda grad, out: grad,
}


def _own(*tensors: Tensor) -> bool:
    """True if `kernels.products_cuda`, which needs Triton, multiplies such rows and weights."""
    if not all(t.is_cuda for t in tensors):
        return False
    from ..kernels import products_cuda

    return products_cuda.takes(*tensors)


def _backward(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, out: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of x, weight and bias by those kernels.

    Args:
        ctx: of the forward pass.
        grad: [n, H * D].
        x: [H, n, K].
        weight: [H, D, K].
        out: [n, H * D] or None, the result of the activation.
    """
    from ..kernels import products_cuda

    (heads, columns), needs, of, low = weight.shape[:2], ctx.needs_input_grad[:3], ctx.activation, ctx.low
    g, y = (None if t is None else t.view(-1, heads, columns).transpose(0, 1) for t in (grad.contiguous(), out))
    assert g is not None
    dx = products_cuda.rows_by_weight(g, weight.transpose(1, 2), result=y, of=of, low=low) if needs[0] else None
    dw, db = products_cuda.sums_over_rows(g, x, y, of, needs[2], low=low) if any(needs[1:]) else (None, None)
    return dx, dw, db


def _operand(x: Tensor, low: bool) -> Tensor:
    return x.bfloat16() if low else x


def _product(a: Tensor, b: Tensor, into: Tensor) -> Tensor:
    """``a b``, of matrices or of batches of matrices, into a tensor of float32 or of their dtype."""
    product = torch.mm if a.ndim == 2 else torch.bmm
    if a.dtype == into.dtype:
        product(a, b, out=into)
    elif a.is_cuda:
        product(a, b, out_dtype=into.dtype, out=into)
    else:
        # torch's products on the CPU have the dtype of their operands.
        into.copy_(product(a, b))
    return into


class Linear(torch.autograd.Function):
    """``apply(x, weight, bias, activation, low)``: see `dense.linear`; `low` asks for products in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, low: bool) -> Tensor:
        ctx.activation, ctx.low, ctx.own = activation, low, _own(x, weight)
        if ctx.own:
            from ..kernels import products_cuda

            out = products_cuda.rows_by_weight(x[None], weight[None], bias, activation, low=low)
            ctx.save_for_backward(x, weight, None if activation == "none" else out)
            return out
        a, w = _operand(x, low), _operand(weight, low)
        out = x.new_empty(len(x), len(weight))
        if low or bias is None:
            _product(a, w.t(), out)
            if bias is not None:
                out += bias
            _FORWARD[activation](out)
        elif activation == "relu":
            _aten._addmm_activation.out(bias, a, w.t(), out=out)
        else:
            _FORWARD[activation](torch.addmm(bias, a, w.t(), out=out))
        ctx.save_for_backward(a, w, None if activation == "none" else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, w, out = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if ctx.own:
            dx, dw, db = _backward(ctx, grads[0], a[None], w[None], out)
            return dx, taken(dw, 0), db, None, None
        grad = _BACKWARD[ctx.activation](grads[0], out)
        g = _operand(grad, ctx.low)
        return (
            _product(g, w, grad.new_empty(a.shape)) if needs_x else None,
            _product(g.t(), a, grad.new_empty(w.shape)) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
            None,
            None,
        )


class PerHead(torch.autograd.Function):
    """``apply(x, weight, bias, activation, low)``: see `dense.per_head`; one product for all heads, written in
    place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str, low: bool) -> Tensor:
        heads, width = weight.shape[:2]
        ctx.activation, ctx.low, ctx.own = activation, low, _own(x, weight)
        if ctx.own:
            from ..kernels import products_cuda

            out = products_cuda.rows_by_weight(x.transpose(0, 1), weight, bias, activation, low=low)
            ctx.save_for_backward(x, weight, None if activation == "none" else out)
            return out
        a, w = _operand(x, low), _operand(weight, low)
        out = x.new_empty(len(x), heads * width)
        _product(a.transpose(0, 1), w.transpose(1, 2), out.view(-1, heads, width).transpose(0, 1))
        _FORWARD[activation](out.add_(bias))
        ctx.save_for_backward(a, w, None if activation == "none" else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, w, out = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if ctx.own:
            dx, dw, db = _backward(ctx, grads[0], a.transpose(0, 1), w, out)
            return None if dx is None else dx.view(a.shape), dw, db, None, None
        grad = _BACKWARD[ctx.activation](grads[0], out)
        g = _operand(grad, ctx.low).unflatten(1, w.shape[:2]).transpose(0, 1)
        dx = grad.new_empty(a.shape) if needs_x else None
        if dx is not None:
            _product(g, w, dx.transpose(0, 1))
        return (
            dx,
            _over_rows(g, a, grad.dtype) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
            None,
            None,
        )


def _over_rows(g: Tensor, a: Tensor, dtype: torch.dtype) -> Tensor:
    """[H, n, D], [n, H, F] -> [H, D, F], the sum over rows of each head's outer products, in `dtype`.

    The result is small and the sum long: as one product for each head it would use few of a hundred multiprocessors. So
    rows are cut into `STRETCHES`, each a product of its own.
    """
    heads, n, width = g.shape
    m, features = n // STRETCHES, a.shape[2]
    whole = m * STRETCHES
    dw = g.new_zeros(heads, width, features, dtype=dtype)
    for h in range(heads):
        if m:
            rows = g[h, :whole].unflatten(0, (STRETCHES, m)), a[:whole, h].unflatten(0, (STRETCHES, m))
            torch.sum(
                _product(rows[0].transpose(1, 2), rows[1], dw.new_empty(STRETCHES, width, features)), 0, out=dw[h]
            )
        if whole < n:
            dw[h] += _product(g[h, whole:].t(), a[whole:, h], dw.new_empty(width, features))
    return dw


class Activate(torch.autograd.Function):
    """``apply(x, bias, activation)``: see `dense.activate`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        out = _FORWARD[activation](x + bias)
        ctx.activation = activation
        ctx.save_for_backward(None if activation == "none" else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = _BACKWARD[ctx.activation](grads[0], *ctx.saved_tensors)
        return grad if ctx.needs_input_grad[0] else None, grad.sum(0) if ctx.needs_input_grad[1] else None, None
