"""Aggregation kernels as differentiable functions. `kernels` is a module of `stages.kernels`; matrices must be
contiguous.

Lazy rows (`stages.memory.lazy_rows`) are constants: they are read in place, and get no gradient.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..autograd import once_differentiable
from ..kernels.aggregation.attention_args import AttentionEdges, BackwardRows, SharedAttention
from ..kernels.aggregation.lists import InLists, WeightedLists
from ..memory.arena import empty
from ..memory.lazy_rows import head


class Spmm(torch.autograd.Function):
    """``apply(x, own, kernels, of)``: differentiable in x and `own` [n]; the weights of the graph are constants."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor | None, kernels: ModuleType, of: WeightedLists) -> Tensor:
        ctx.rest = kernels, of
        # x is only needed for the gradient of `own`.
        ctx.save_for_backward(own, x if own is not None and own.requires_grad else None)
        return kernels.spmm(of, x, own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels, of = ctx.rest
        own, x = ctx.saved_tensors
        grad = grads[0].contiguous()
        dx = kernels.spmm_backward(of, grad, own) if ctx.needs_input_grad[0] else None
        n = of.lists.num_dst
        down = kernels.dots(grad[:, None], head(x, n)[:, None])[:, 0] if ctx.needs_input_grad[1] else None
        return dx, down, None, None


class Pieces(torch.autograd.Function):
    """``apply(x, sizes)``: consecutive rows of x, which are not copied. Their gradients are copied once, where those of
    slices would each be as large as x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        ctx.rest = x.shape, x.dtype, x.device, sizes
        ctx.set_materialize_grads(False)
        return x.split(sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None]:
        *like, sizes = ctx.rest
        out = empty(*like)
        for piece, grad in zip(out.split(sizes), grads):
            # None: a piece that nothing reads.
            piece.zero_() if grad is None else piece.copy_(grad)
        return out, None


class ScatterParts(torch.autograd.Function):
    """``apply(positions, *parts)``: row i of each part at row ``positions[part][i]`` of the result, each row
    of which is in one part."""

    @staticmethod
    def forward(ctx: Any, positions: list[Tensor], *parts: Tensor) -> Tensor:
        ctx.positions = positions
        out = empty((sum(map(len, positions)), parts[0].shape[1]), parts[0].dtype, parts[0].device)
        for at, rows in zip(positions, parts):
            out.index_copy_(0, at, rows)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        found: list[Tensor | None] = [None]
        for n, at in enumerate(ctx.positions, start=1):
            out = empty((len(at), grad.shape[1]), grad.dtype, grad.device) if ctx.needs_input_grad[n] else None
            found.append(None if out is None else torch.index_select(grad, 0, at, out=out))
        return tuple(found)


class Maximum(torch.autograd.Function):
    """``apply(x, kernels, lists)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: ModuleType, lists: InLists) -> Tensor:
        out, arg = kernels.maximum(lists, x)
        ctx.rest = kernels, lists
        ctx.save_for_backward(arg)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels, lists = ctx.rest
        return kernels.maximum_from(WeightedLists(lists), *ctx.saved_tensors, grads[0].contiguous()), None, None


AttentionOver = tuple[ModuleType, AttentionEdges]
"""A backend's kernels, and the edges."""


def attend(
    kernels: ModuleType, edges: AttentionEdges, z: Tensor, a_src: Tensor, logit_dst: Tensor
) -> tuple[Tensor, Tensor]:
    """Result of attention over all edges, [n, H, D], and [n, H], the logarithm of each softmax's denominator. See
    `cpu.attention.attend_into`."""
    shape = edges.lists.num_dst, *z.shape[1:]
    out, log_sum = empty(shape, z.dtype, z.device), empty(shape[:2], z.dtype, z.device)
    kernels.attend_into(edges, z, a_src, logit_dst, out, log_sum, new=True)
    return out, log_sum


def attend_backward(
    kernels: ModuleType, edges: AttentionEdges, saved: Sequence[Tensor], grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `attend` with respect to z, a_src and logit_dst. `saved`: these, and what `attend` returned."""
    z, a_src, logit_dst, out, log_sum = saved
    d_dst = empty(logit_dst.shape, z.dtype, z.device).zero_()
    of = BackwardRows(logit_dst, log_sum, grad, kernels.dots(grad, out), d_dst)
    return *kernels.attend_from(edges, z, a_src, of), d_dst


class Attend(torch.autograd.Function):
    """``apply(z, a_src, dst, (kernels, edges), both)``: keeps its inputs, the result and one number per row and head.
    `dst` is logit_dst, or if `both` a_dst: ``logit_dst = <a_dst, z>``, whose gradient goes straight into that of z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a_src: Tensor, dst: Tensor, over: AttentionOver, both: bool) -> Tensor:
        kernels, edges = ctx.rest = over
        logit_dst = kernels.dots(z[: edges.lists.num_dst], dst[None]) if both else dst
        out, log_sum = attend(kernels, edges, z, a_src, logit_dst)
        ctx.save_for_backward(dst if both else None, z, a_src, logit_dst, out, log_sum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels, edges = ctx.rest
        a_dst, *saved = ctx.saved_tensors
        dz, d_src, d_dst = attend_backward(kernels, edges, saved, grads[0].contiguous())
        if a_dst is not None:
            kernels.add_outer(dz, d_dst, a_dst)
            d_dst = kernels.weighted_sum(d_dst, saved[0][: edges.lists.num_dst])
        return dz, d_src, d_dst, None, None


class AttendShared(torch.autograd.Function):
    """``apply(x, a_src, a_dst, (kernels, edges))``: every head sums the rows of x; keeps a number per source and
    head, and two per destination and head."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a_src: Tensor, a_dst: Tensor, over: AttentionOver) -> Tensor:
        kernels, edges = ctx.rest = over
        made = kernels.attend_shared(edges, x, a_src, a_dst)
        ctx.save_for_backward(x, a_src, a_dst, *made)
        return made.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels, edges = ctx.rest
        *given, out, logit_src, logit_dst, log_sum = ctx.saved_tensors
        made = SharedAttention(out, logit_src, logit_dst, log_sum)
        grad, needs_x = grads[0].contiguous(), ctx.needs_input_grad[0]
        return *kernels.attend_shared_backward(edges, *given, made, grad, needs_x), None
