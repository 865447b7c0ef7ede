"""The aggregation kernels as differentiable functions. `kernels` is a module of `stages.kernels`; x and z must be contiguous."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels.lists import InLists
from ..kernels.rules import AttentionRule


class Spmm(torch.autograd.Function):
    """``apply(x, kernels, lists, coef, row_scale)``: differentiable in x; the weights of the graph are constants."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: ModuleType, lists: InLists, coef: Tensor | None, row_scale: Tensor | None) -> Tensor:
        ctx.rest = kernels, lists, coef, row_scale
        return kernels.spmm(lists, x, coef, row_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kernels, lists, coef, row_scale = ctx.rest
        return kernels.spmm_backward(lists, grads[0].contiguous(), coef, row_scale), None, None, None, None


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
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kernels, lists = ctx.rest
        return kernels.maximum_backward(lists, *ctx.saved_tensors, grads[0].contiguous()), None, None


class Attend(torch.autograd.Function):
    """``apply(z, a_src, logit_dst, kernels, lists, rule)``: keeps its inputs, the result and one number per row and head."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a_src: Tensor, logit_dst: Tensor, kernels: ModuleType, lists: InLists, rule: AttentionRule) -> Tensor:
        out, log_sum = kernels.attend(lists, z, a_src, logit_dst, rule)
        ctx.rest = kernels, lists, rule
        ctx.save_for_backward(z, a_src, logit_dst, out, log_sum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kernels, lists, rule = ctx.rest
        z, a_src, logit_dst, out, log_sum = ctx.saved_tensors
        return (*kernels.attend_backward(lists, z, a_src, logit_dst, rule, out, log_sum, grads[0].contiguous()), None, None, None)
