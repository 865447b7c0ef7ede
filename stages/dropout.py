"""Dropout under autograd, drawn from counters (see `kernels.dropout_cpu`)."""

from typing import Any

import torch
from torch import Tensor

from .kernels.dropout_cpu import scale_kept
from .rows import NamedRows


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, key: int, p: float) -> Tensor:
        ctx.key, ctx.p = key, p
        return scale_kept(h.detach().contiguous(), key, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return scale_kept(grads[0].contiguous(), ctx.key, ctx.p), None, None


def dropout(h: Tensor, p: float, training: bool) -> Tensor:
    """`h` with each element dropped with probability p and the others divided by 1 - p; `h` itself outside training.

    One number from torch's generator is the key of the mask, so `torch.manual_seed` governs it. Rows that are only named are gathered
    and dropped in one go.
    """
    if not training or p == 0.0:
        return h
    key = int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)) & 0xFFFF_FFFF_FFFF_FFFF
    # Constants need no gradient, and autograd would have to ask for one.
    return scale_kept(h, key, p) if isinstance(h, NamedRows) else _Dropout.apply(h, key, p)
