"""Softmax attention over ranks: an online softmax forward, rows fetched again (or kept) backward."""

from typing import Any

import torch
from torch import Tensor

from ...autograd import once_differentiable
from ...kernels.aggregation.attention_args import AttentionRule, BackwardRows
from ...memory.arena import empty
from ..checked import Kind
from ..full_batch import Shard
from .layer import SequentialLayer, rebuild

Over = tuple[SequentialLayer, AttentionRule]
"""What attention goes over, and how."""


class Attend(torch.autograd.Function):
    """``apply(z, a_src, dst, over, kind)``: keeps z of this rank, the result and two numbers per row and head. If
    "shared", z is [num_src, F] and all heads sum its rows. `dst` is logit_dst, or a_dst if "both"."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a_src: Tensor, dst: Tensor, over: Over, kind: Kind) -> Tensor:
        neighbourhood, rule = over
        kernels, call = neighbourhood.kernels, neighbourhood.begin()
        both, spread = kind == "both", _Spread(len(a_src) if kind == "shared" else 0)
        logit_dst = kernels.dots(z[: neighbourhood.num_dst], dst[None]) if both else dst
        out = empty((neighbourhood.num_dst, *a_src.shape), z.dtype, z.device).zero_()
        log_sum = empty((neighbourhood.num_dst, len(a_src)), z.dtype, z.device).fill_(-torch.inf)

        def attend(shard: Shard, rows: Tensor) -> None:
            edges = neighbourhood.attention_edges(shard, rule)
            kernels.attend_into(edges, spread(rows), a_src, logit_dst, out, log_sum)

        attend(neighbourhood.own, z)
        kept = {}
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, z, call):
            attend(neighbourhood.view.shards[q], rows)
            if neighbourhood.keep:
                kept[q] = rows
            del rows
        ctx.rest = neighbourhood, rule, spread, call, kept
        ctx.save_for_backward(z, a_src, logit_dst, out, log_sum, dst if both else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        neighbourhood, rule, spread, call, kept = ctx.rest
        kernels, here, view = neighbourhood.kernels, neighbourhood.own, neighbourhood.view
        z, a_src, logit_dst, out, log_sum, a_dst = ctx.saved_tensors
        grad = grads[0].contiguous()
        d_dst = empty(logit_dst.shape, z.dtype, z.device).zero_()
        of, d_src = BackwardRows(logit_dst, log_sum, grad, kernels.dots(grad, out), d_dst), torch.zeros_like(a_src)

        def gradient_of(shard: Shard, rows: Tensor) -> Tensor:
            dz, da = kernels.attend_from(neighbourhood.attention_edges(shard, rule), spread(rows), a_src, of)
            d_src.add_(da)
            return spread.back(dz)

        dz = gradient_of(here, z)
        onto = dz if ctx.needs_input_grad[0] else None
        rebuild(neighbourhood, z, call, kept, lambda q, rows: gradient_of(view.shards[q], rows), onto)
        if a_dst is not None:
            kernels.add_outer(dz, d_dst, a_dst)
            d_dst = kernels.weighted_sum(d_dst, z[: neighbourhood.num_dst])
        return onto, d_src, d_dst, None, None


class _Spread:
    """Repeats rows that all heads share once for each head."""

    def __init__(self, heads: int) -> None:
        self._heads = heads

    def __call__(self, rows: Tensor) -> Tensor:
        if not self._heads:
            return rows
        return empty((len(rows), self._heads, rows.shape[1]), rows.dtype, rows.device).copy_(rows[:, None])

    def back(self, grad: Tensor) -> Tensor:
        """Gradient of the shared rows."""
        return grad.sum(1) if self._heads else grad
