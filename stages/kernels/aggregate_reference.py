"""The aggregation kernels in plain torch: every edge's message in memory, gradients by autograd. Slow, obvious, the tests' oracle.

Same names, arguments and results as `aggregate_cpu`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..random import draw, node_words
from .lists import InLists
from .rules import AttentionRule


def _edges(lists: InLists) -> tuple[Tensor, Tensor]:
    """Source and destination row of each edge, int64 [e]."""
    return torch.from_numpy(lists.indices.astype(np.int64)), torch.from_numpy(lists.rows)


def _gradients(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Any, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(fn(*leaves), leaves, grad)


def dots(x: Tensor, y: Tensor) -> Tensor:
    """See `softmax_cpu.dots`."""
    return (x * y).sum(-1)


def spmm(lists: InLists, x: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None, own: Tensor | None = None) -> Tensor:
    """See `aggregate_cpu.spmm`."""
    src, dst = _edges(lists)
    messages = x[src] if coef is None else x[src] * coef.to(x.dtype)[:, None]
    result = x.new_zeros(lists.num_dst, x.shape[1]).index_add(0, dst, messages)
    result = result if row_scale is None else result * row_scale[:, None]
    return result if own is None else result + own[:, None] * x[: lists.num_dst]


def spmm_backward(
    lists: InLists, grad: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None, own: Tensor | None = None
) -> Tensor:
    """See `aggregate_cpu.spmm_backward`."""
    x = grad.new_zeros(lists.num_src, grad.shape[1])
    return _gradients(lambda x: spmm(lists, x, coef, row_scale, own), (x,), grad)[0]


def spmm_beside(lists: InLists, x: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None) -> Tensor:
    """See `aggregate_cpu.spmm_beside`."""
    return torch.cat([spmm(lists, x, coef, row_scale), x[: lists.num_dst]], dim=1)


def spmm_beside_backward(lists: InLists, grad: Tensor, coef: Tensor | None = None, row_scale: Tensor | None = None) -> Tensor:
    """See `aggregate_cpu.spmm_beside_backward`."""
    x = grad.new_zeros(lists.num_src, grad.shape[1] // 2)
    return _gradients(lambda x: spmm_beside(lists, x, coef, row_scale), (x,), grad)[0]


def maximum(lists: InLists, x: Tensor) -> tuple[Tensor, Tensor]:
    """See `aggregate_cpu.maximum`."""
    out = x.new_zeros(lists.num_dst, x.shape[1])
    arg = torch.full(out.shape, -1, dtype=torch.int32 if lists.num_edges < 2**31 - 1 else torch.int64)
    for v, (begin, end) in enumerate(zip(lists.indptr[:-1].tolist(), lists.indptr[1:].tolist())):
        if begin == end:
            continue
        rows = x[torch.from_numpy(lists.indices[begin:end].astype(np.int64))]
        # A NaN is the largest; `argmax` promises the first of equals only in NumPy.
        first = rows.detach().numpy().argmax(axis=0)
        out[v] = rows.gather(0, torch.from_numpy(first)[None])[0]
        arg[v] = torch.from_numpy(first + begin)
    return out, arg


def maximum_backward(lists: InLists, arg: Tensor, grad: Tensor) -> Tensor:
    """See `aggregate_cpu.maximum_backward`."""
    out = grad.new_zeros(lists.num_src, grad.shape[1])
    row, column = torch.nonzero(arg >= 0, as_tuple=True)
    src = _edges(lists)[0][arg[row, column].long()]
    return out.index_put_((src, column), grad[row, column], accumulate=True)


def dropout_factors(lists: InLists, heads: int, rule: AttentionRule) -> Tensor:
    """What each coefficient is multiplied by, float64 [e + n, H]: 0 or `rule.keep_scale`; the rows' own edges come last."""
    words = node_words(rule.key, np.arange(lists.num_edges + lists.num_dst))
    draws = np.stack([draw(words, h) for h in range(heads)], axis=1)
    return torch.from_numpy(np.where(draws >= rule.threshold, rule.keep_scale, 0.0))


def attend(lists: InLists, z: Tensor, a_src: Tensor, logit_dst: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """See `aggregate_cpu.attend`."""
    n, heads = logit_dst.shape
    src, dst = _edges(lists)
    src, dst = torch.cat([src, torch.arange(n)]), torch.cat([dst, torch.arange(n)])
    logit = torch.nn.functional.leaky_relu((z * a_src).sum(-1)[src] + logit_dst[dst], rule.slope)
    top = z.new_full((n, heads), -torch.inf).scatter_reduce(0, dst[:, None].expand(-1, heads), logit.detach(), "amax")
    p = torch.exp(logit - top[dst])
    total = p.new_zeros(n, heads).index_add(0, dst, p)
    factor = dropout_factors(lists, heads, rule).to(z.dtype)
    messages = (p / total[dst] * factor)[..., None] * z[src]
    return z.new_zeros(n, *z.shape[1:]).index_add(0, dst, messages), top + total.log()


def attend_backward(
    lists: InLists, z: Tensor, a_src: Tensor, logit_dst: Tensor, rule: AttentionRule, out: Tensor, log_sum: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `aggregate_cpu.attend_backward`; `out` and `log_sum` are not needed here."""
    dz, da, dl = _gradients(lambda z, a, logit: attend(lists, z, a, logit, rule)[0], (z, a_src, logit_dst), grad)
    return dz, da, dl


def attend_shared(lists: InLists, x: Tensor, a_src: Tensor, a_dst: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor, Tensor]:
    """See `attention_shared_cpu.attend_shared`."""
    logit_dst = x[: lists.num_dst] @ a_dst.T
    out, log_sum = attend(lists, x[:, None].expand(-1, len(a_src), -1), a_src, logit_dst, rule)
    return out, logit_dst, log_sum


def attend_shared_backward(
    lists: InLists,
    x: Tensor,
    a_src: Tensor,
    a_dst: Tensor,
    rule: AttentionRule,
    out: Tensor,
    logit_dst: Tensor,
    log_sum: Tensor,
    grad: Tensor,
    needs_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """See `attention_shared_cpu.attend_shared_backward`; what the forward pass left is not needed here."""
    dx, d_src, d_dst = _gradients(lambda x, a, b: attend_shared(lists, x, a, b, rule)[0], (x, a_src, a_dst), grad)
    return dx if needs_x else None, d_src, d_dst
