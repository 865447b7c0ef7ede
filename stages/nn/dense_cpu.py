"""`dense` for tensors in host memory: rows in blocks that fit a processor's cache.

Bias, activation and its gradient are applied while a block is still in the cache, instead of in passes over the whole
matrix. Threads take whole blocks, each by itself: no thread waits at a barrier inside a product, which costs little on
an idle machine and several times the product where a sampling thread wants a core now and then. Where blocks begin, and
in which order gradients are added, depends on the number of rows alone: any number of threads gives the same bits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...storage.optional import taken, when_present
from ..autograd import once_differentiable
from ..kernels.runtime.threads import parallel
from ..memory.arena import empty

LEAST_ROWS, MOST_ROWS = 512, 1024
"""Rows of a block."""
SERIAL = 1 << 24
"""Multiplications below which threads cost more than they save."""
SHARE = 8
"""A thread takes one in so many of the remaining blocks: few parts, and small ones at the end, when others wait."""
_aten: Any = torch.ops.aten

# Forward in place; gradient from (gradient, result) into a third tensor: neither needs the activation's input.
_FORWARD: dict[str, Callable[[Tensor], Any]] = {"relu": torch.relu_, "elu": torch.nn.functional.elu_}
_BACKWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "relu": lambda grad, out, into: _aten.threshold_backward.grad_input(grad, out, 0, grad_input=into),
    "elu": lambda grad, out, into: _aten.elu_backward.grad_input(grad, 1, 1, 1, True, out, grad_input=into),
}


def _parts(rows: int) -> list[list[slice]]:
    """Ranges of rows, each as a list of blocks. A thread takes one range, and its gradients are summed separately."""
    size = min(max(-(-rows // (4 * SHARE)), LEAST_ROWS), MOST_ROWS)
    blocks = [slice(first, min(first + size, rows)) for first in range(0, rows, size)]
    parts = []
    while blocks:
        count = -(-len(blocks) // SHARE)
        parts.append(blocks[:count])
        blocks = blocks[count:]
    return parts


def _each(work: Callable[[int, list[slice]], None], parts: list[list[slice]], multiplications: int) -> None:
    """``work(p, blocks)`` for every part, in the threads of the kernels; torch's own threads are not used."""

    def alone(p: int, blocks: list[slice]) -> None:
        # Both settings belong to the thread, which may be new or have had them changed.
        torch.set_num_threads(1)
        with torch.no_grad():
            work(p, blocks)

    before = torch.get_num_threads()
    try:
        if multiplications < SERIAL:
            for part in enumerate(parts):
                alone(*part)
        else:
            parallel(alone, list(enumerate(parts)))
    finally:
        torch.set_num_threads(before)


def _kept(x: Tensor, low: bool) -> Tensor:
    """Rows that the gradient reads: x itself, or room for it in bfloat16, in which both products take it."""
    return empty(x.shape, torch.int16).view(torch.bfloat16) if low else x


def _through(grad: Tensor, out: Tensor | None, activation: str, room: Tensor) -> Tensor:
    """Gradient before the activation, of one block; in `room`, which the blocks of a part share: a new tensor for each
    costs as many page faults as it has pages."""
    return grad if out is None else _BACKWARD[activation](grad, out, room[: len(out)])


def _computed(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, low: bool) -> Tensor:
    """Rows of each head, [n, H, F], times its matrix, [H, D, F]: [n, H * D]. What backward passes need is saved."""
    heads, width = weight.shape[:2]
    out, kept = empty((len(x), heads * width), x.dtype), _kept(x, low)
    by_head = when_present(lambda of_all: of_all.view(heads, width), bias)
    w = weight.bfloat16() if low else weight

    def work(_: int, blocks: list[slice]) -> None:
        for rows in blocks:
            for h in range(heads):
                y = out[rows, h * width : (h + 1) * width]
                if low:
                    y.copy_(torch.mm(kept[rows, h].copy_(x[rows, h]), w[h].t()))
                    if by_head is not None:
                        y += by_head[h]
                elif by_head is None:
                    torch.mm(x[rows, h], w[h].t(), out=y)
                else:
                    torch.addmm(by_head[h], x[rows, h], w[h].t(), out=y)
            if activation != "none":
                _FORWARD[activation](out[rows])

    _each(work, _parts(len(x)), len(x) * weight.numel())
    ctx.activation, ctx.low = activation, low
    ctx.save_for_backward(kept, weight, None if activation == "none" else out)
    return out


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Those of the rows, the matrices and the bias of `_computed`, which are needed."""
    x, weight, out = ctx.saved_tensors
    heads, width = weight.shape[:2]
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    parts = _parts(len(x))
    dx = empty(x.shape, grad.dtype) if needs_x else None
    dw = empty((len(parts), *weight.shape), weight.dtype) if needs_weight else None
    db = empty((len(parts), heads * width), weight.dtype) if needs_bias else None
    w = weight.bfloat16() if ctx.low else weight

    def work(p: int, blocks: list[slice]) -> None:
        room = torch.empty_like(grad[blocks[0]], memory_format=torch.contiguous_format)
        for b, rows in enumerate(blocks):
            g = _through(grad[rows], taken(out, rows), ctx.activation, room)
            if db is not None:
                _accumulate(db[p], g.sum(0), b)
            g = g.bfloat16() if ctx.low else g
            for h in range(heads):
                own = g[:, h * width : (h + 1) * width]
                if dw is not None:
                    _add_product(dw[p, h], own.t(), x[rows, h], b, ctx.low)
                if dx is not None:
                    _product(dx[rows, h], own, w[h])

    _each(work, parts, len(x) * weight.numel())
    return dx, when_present(lambda of_parts: of_parts.sum(0), dw), when_present(lambda of_parts: of_parts.sum(0), db)


def _accumulate(into: Tensor, value: Tensor, block: int) -> None:
    """Store the value for the first block of a part, add it for the others."""
    if block:
        into += value
    else:
        into.copy_(value)


def _add_product(into: Tensor, a: Tensor, b: Tensor, block: int, low: bool) -> None:
    """`into` (+)= a b."""
    if low:
        _accumulate(into, torch.mm(a, b), block)
    elif block:
        into.addmm_(a, b)
    else:
        torch.mm(a, b, out=into)


def _product(into: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == into.dtype:
        torch.mm(a, b, out=into)
    else:
        into.copy_(torch.mm(a, b))


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, low: bool) -> Tensor:
        return _computed(ctx, x[:, None], weight[None], bias, activation, low)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw, db = _gradients(ctx, grads[0])
        return taken(dx, (slice(None), 0)), taken(dw, 0), db, None, None


class PerHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str, low: bool) -> Tensor:
        return _computed(ctx, x, weight, bias, activation, low)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(ctx, grads[0]), None, None


class Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        out = empty(x.shape, x.dtype)

        def work(_: int, blocks: list[slice]) -> None:
            for rows in blocks:
                torch.add(x[rows], bias, out=out[rows])
                if activation != "none":
                    _FORWARD[activation](out[rows])

        _each(work, _parts(len(x)), 8 * x.numel())
        ctx.activation = activation
        ctx.save_for_backward(None if activation == "none" else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        (out,) = ctx.saved_tensors
        parts = _parts(len(grad))
        db = empty((len(parts), grad.shape[1]), grad.dtype)
        dx = grad if out is None else empty(out.shape, out.dtype)

        def work(p: int, blocks: list[slice]) -> None:
            for b, rows in enumerate(blocks):
                if out is not None:
                    _BACKWARD[ctx.activation](grad[rows], out[rows], dx[rows])
                _accumulate(db[p], dx[rows].sum(0), b)

        _each(work, parts, 8 * grad.numel())
        return dx, db.sum(0), None
