"""Sum, mean and maximum over ranks, with their backward passes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...autograd import once_differentiable
from ...kernels.aggregation.lists import WeightedLists
from ...memory.arena import empty
from ..full_batch import Shard
from .layer import SequentialLayer


class Sums(NamedTuple):
    """What sums are over, and how they are scaled."""

    neighbourhood: SequentialLayer
    factor: Tensor | None = None
    """[num_src], of each source's row; None: ones."""
    scale: Tensor | None = None
    """[num_dst], of each sum; None: ones."""
    beside: bool = False
    """See `WeightedLists.beside`."""


class Sum(torch.autograd.Function):
    """``apply(x, own, sums)``: see `gradients.Spmm`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor | None, of_sums: Sums) -> Tensor:
        neighbourhood, factor, scale, beside = of_sums
        kernels, call = neighbourhood.kernels, neighbourhood.begin(factor)
        ctx.rest = *of_sums, call
        ctx.save_for_backward(own, x if own is not None and own.requires_grad else None)
        here = neighbourhood.own
        coef = _coefficients(here, factor, x.device)
        out = kernels.spmm(WeightedLists(here.lists, coef, scale, beside=beside), x, own)
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, x, call):
            shard = neighbourhood.view.shards[q]
            kernels.spmm_into(shard.weighted(x.device, scale), rows, out)
            del rows  # before the next rank's rows come
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        neighbourhood, factor, scale, beside, call = ctx.rest
        kernels, here, grad = neighbourhood.kernels, neighbourhood.own, grads[0].contiguous()
        own, x = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            of = WeightedLists(here.lists, _coefficients(here, factor, grad.device), scale, beside=beside)
            dx = kernels.spmm_backward(of, grad, own)
            width = grad.shape[1] // 2 if beside else grad.shape[1]

            def gradient_of(q: int) -> Tensor:
                shard = neighbourhood.view.shards[q]
                return kernels.spmm_from(shard.weighted(grad.device, scale), grad, width)

            neighbourhood.ring.push_all(neighbourhood.view, gradient_of, dx, call)
        down = kernels.dots(grad[:, None], x[: neighbourhood.num_dst, None])[:, 0] if ctx.needs_input_grad[1] else None
        return dx, down, None


def _coefficients(shard: Shard, factor: Tensor | None, device: torch.device) -> Tensor | None:
    """Coefficient of each edge between own rows, [e], on that device."""
    weight = shard.weight_on(device)
    if factor is None:
        return weight
    of_edge = factor[torch.from_numpy(shard.lists.indices).to(device)]
    return of_edge if weight is None else of_edge.mul_(weight)


class Maximum(torch.autograd.Function):
    """``apply(x, hood)``: keeps the position of the winning edge of each element, so that no row is fetched again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbourhood: SequentialLayer) -> Tensor:
        kernels, call = neighbourhood.kernels, neighbourhood.begin()
        out = empty((neighbourhood.num_dst, x.shape[1]), x.dtype, x.device)
        arg = empty(out.shape, torch.int64, x.device).fill_(-1)
        here = neighbourhood.own
        kernels.maximum_into(here.unweighted, x, out, arg)
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, x, call):
            shard = neighbourhood.view.shards[q]
            kernels.maximum_into(shard.unweighted, rows, out, arg)
            del rows
        out[torch.from_numpy(neighbourhood.view.kept == 0).to(out.device)] = 0
        ctx.rest = neighbourhood, call
        ctx.save_for_backward(arg)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        neighbourhood, call = ctx.rest
        (arg,) = ctx.saved_tensors
        grad = grads[0].contiguous()

        def gradient_of(q: int) -> Tensor:
            return neighbourhood.kernels.maximum_from(neighbourhood.view.shards[q].unweighted, arg, grad)

        dx = gradient_of(neighbourhood.batch.rank)
        neighbourhood.ring.push_all(neighbourhood.view, gradient_of, dx, call)
        return dx, None
