"""Aggregation kernels in plain torch, the tests' oracle: all messages in memory, gradients by autograd.

Same names, arguments and results as `cpu.backend`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millrace.stages.kernels.aggregation.attention_args import AttentionEdges, BackwardRows, SharedAttention
from millrace.stages.kernels.aggregation.lists import InLists, IntArray, WeightedLists
from millrace.stages.random import draw, node_words


def _edges(lists: InLists, rows: IntArray | None = None) -> tuple[Tensor, Tensor]:
    """Source and destination row of each edge, int64 [e]; list i belongs to row i, or rows[i]."""
    dst = lists.rows if rows is None else rows.astype(np.int64)[lists.rows]
    return torch.from_numpy(lists.indices.astype(np.int64)), torch.from_numpy(dst)


def _positions(lists: InLists, edge: IntArray | None) -> Tensor:
    return torch.arange(lists.num_edges) if edge is None else torch.from_numpy(edge.astype(np.int64))


def _gradients(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Any, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(fn(*leaves), leaves, grad)


def dots(x: Tensor, y: Tensor) -> Tensor:
    """See `cpu.softmax.dots`."""
    return (x * y).sum(-1)


def weighted_sum(weight: Tensor, z: Tensor) -> Tensor:
    """See `cpu.attention.weighted_sum`."""
    return (weight[..., None] * z).sum(0)


def add_outer(out: Tensor, weight: Tensor, a: Tensor) -> None:
    """See `cpu.attention.add_outer`."""
    out[: len(weight)] += weight[..., None] * a


def spmm(of: WeightedLists, x: Tensor, own: Tensor | None = None) -> Tensor:
    """See `cpu.backend.spmm`."""
    lists, coef, row_scale = of.lists, of.coef, of.row_scale
    src, dst = _edges(lists)
    messages = x[src] if coef is None else x[src] * coef.to(x.dtype)[:, None]
    result = x.new_zeros(lists.num_dst, x.shape[1]).index_add(0, dst, messages)
    result = result if row_scale is None else result * row_scale[:, None]
    if of.beside:
        return torch.cat([result, x[: lists.num_dst]], dim=1)
    return result if own is None else result + own[:, None] * x[: lists.num_dst]


def spmm_backward(of: WeightedLists, grad: Tensor, own: Tensor | None = None) -> Tensor:
    """See `cpu.backend.spmm_backward`."""
    x = grad.new_zeros(of.lists.num_src, grad.shape[1] >> of.beside)
    return _gradients(lambda x: spmm(of, x, own), (x,), grad)[0]


def maximum(lists: InLists, x: Tensor) -> tuple[Tensor, Tensor]:
    """See `cpu.backend.maximum`."""
    out = x.new_zeros(lists.num_dst, x.shape[1])
    arg = torch.full(out.shape, -1, dtype=torch.int32 if lists.num_edges < 2**31 - 1 else torch.int64)
    for v, (begin, end) in enumerate(zip(lists.indptr[:-1].tolist(), lists.indptr[1:].tolist())):
        if begin == end:
            continue
        rows = x[torch.from_numpy(lists.indices[begin:end].astype(np.int64))]
        # A NaN is the largest; only NumPy's `argmax` promises the first of equal values.
        first = rows.detach().numpy().argmax(axis=0)
        out[v] = rows.gather(0, torch.from_numpy(first)[None])[0]
        arg[v] = torch.from_numpy(first + begin)
    return out, arg


def maximum_backward(lists: InLists, arg: Tensor, grad: Tensor) -> Tensor:
    """Gradient of `maximum` with respect to x."""
    out = grad.new_zeros(lists.num_src, grad.shape[1])
    row, column = torch.nonzero(arg >= 0, as_tuple=True)
    src = _edges(lists)[0][arg[row, column].long()]
    return out.index_put_((src, column), grad[row, column], accumulate=True)


def spmm_into(of: WeightedLists, x: Tensor, out: Tensor) -> None:
    """See `cpu.shards.spmm_into`."""
    src, dst = _edges(of.lists, of.rows)
    messages = x[src] if of.coef is None else x[src] * of.coef.to(x.dtype)[:, None]
    out[:, : x.shape[1]].index_add_(0, dst, messages if of.row_scale is None else messages * of.row_scale[dst, None])


def spmm_from(of: WeightedLists, grad: Tensor, width: int) -> Tensor:
    """See `cpu.backend.spmm_from`."""
    src, dst = _edges(of.lists, of.rows)
    messages = grad[dst, :width] if of.coef is None else grad[dst, :width] * of.coef.to(grad.dtype)[:, None]
    scaled = messages if of.row_scale is None else messages * of.row_scale[dst, None]
    return grad.new_zeros(of.lists.num_src, width).index_add(0, src, scaled)


def maximum_into(of: WeightedLists, x: Tensor, out: Tensor, arg: Tensor) -> None:
    """See `cpu.shards.maximum_into`."""
    for u, v, position in zip(*(t.tolist() for t in (*_edges(of.lists, of.rows), _positions(of.lists, of.edge)))):
        new, old = x[u], out[v]
        tie = (new == old) | (new.isnan() & old.isnan())
        better = (arg[v] < 0) | (new > old) | (new.isnan() & ~old.isnan()) | (tie & (position < arg[v]))
        out[v], arg[v] = torch.where(better, new, old), torch.where(better, position, arg[v])


def maximum_from(of: WeightedLists, arg: Tensor, grad: Tensor) -> Tensor:
    """See `cpu.backend.maximum_from`."""
    src, dst = _edges(of.lists, of.rows)
    won = arg[dst] == _positions(of.lists, of.edge)[:, None]
    return grad.new_zeros(of.lists.num_src, grad.shape[1]).index_add(0, src, torch.where(won, grad[dst], 0))


def add_rows(out: Tensor, ids: IntArray, x: Tensor) -> None:
    """See `cpu.shards.add_rows`."""
    out.index_add_(0, torch.from_numpy(ids), x)


def take_rows(x: Tensor, ids: IntArray, factor: Tensor | None = None) -> Tensor:
    """See `cpu.shards.take_rows`."""
    taken = x[torch.from_numpy(ids)]
    return taken if factor is None else taken * factor[torch.from_numpy(ids)].reshape(-1, *[1] * (x.ndim - 1))


def dropout_factors(edges: AttentionEdges, heads: int) -> Tensor:
    """Factor of each coefficient, float64 [e + n, H]: 0 or `rule.keep_scale`; the rows' own edges come last."""
    lists, rule, numbers, rows = edges.lists, edges.rule, edges.numbers, edges.rows
    if numbers is None:
        names = np.arange(lists.num_edges + lists.num_dst)
    else:
        names = numbers.first[_edges(lists, rows)[1].numpy()] + _positions(lists, numbers.edge).numpy()
        names = np.concatenate([names, numbers.own[: lists.num_dst] if rows is None else numbers.own[rows]])
    words = node_words(rule.key, names)
    draws = np.stack([draw(words, h) for h in range(heads)], axis=1)
    return torch.from_numpy(np.where(draws >= rule.threshold, rule.keep_scale, 0.0))


def _logits(edges: AttentionEdges, z: Tensor, a_src: Tensor, logit_dst: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Source, destination and logits [., H] of the edges, and after them, if `own`, of the rows' own edges, in whose
    place self loops have -inf."""
    lists, own = edges.lists, edges.own
    src, dst = _edges(lists, edges.rows)
    loops = torch.cat([(src == dst) & own, torch.zeros(lists.num_dst if own else 0, dtype=torch.bool)])
    each = torch.arange(lists.num_dst if own else 0)
    src, dst = torch.cat([src, each]), torch.cat([dst, each])
    logit = torch.nn.functional.leaky_relu((z * a_src).sum(-1)[src] + logit_dst[dst], edges.rule.slope)
    return src, dst, torch.where(loops[:, None], -torch.inf, logit)


def _attended(edges: AttentionEdges, z: Tensor, a_src: Tensor, logit_dst: Tensor) -> tuple[Tensor, Tensor]:
    """Over all edges at once, differentiable: see `gradients.attend`."""
    n, heads = logit_dst.shape
    src, dst, logit = _logits(edges, z, a_src, logit_dst)
    top = z.new_full((n, heads), -torch.inf).scatter_reduce(0, dst[:, None].expand(-1, heads), logit.detach(), "amax")
    p = torch.exp(logit - top[dst])
    total = p.new_zeros(n, heads).index_add(0, dst, p)
    factor = dropout_factors(edges, heads).to(z.dtype)
    messages = (p / total[dst] * factor)[..., None] * z[src]
    return z.new_zeros(n, *z.shape[1:]).index_add(0, dst, messages), top + total.log()


def attend_into(
    edges: AttentionEdges, z: Tensor, a_src: Tensor, logit_dst: Tensor, out: Tensor, log_sum: Tensor, new: bool = False
) -> None:
    """See `cpu.attention.attend_into`."""
    if new:
        out.zero_()
        log_sum.fill_(-torch.inf)
    src, dst, logit = _logits(edges, z, a_src, logit_dst)
    top = log_sum.scatter_reduce(0, dst[:, None].expand(-1, logit.shape[1]), logit, "amax")
    seen = top > -torch.inf
    p = torch.exp(logit - top[dst])
    before = torch.where(seen, torch.exp(log_sum - top), 0)
    total = before.index_add(0, dst, p)
    factor = dropout_factors(edges, logit.shape[1])[: len(src)].to(z.dtype)
    sums = (out * before[..., None]).index_add(0, dst, (p * factor)[..., None] * z[src])
    out.copy_(torch.where(seen[..., None], sums / total[..., None], out))
    log_sum.copy_(torch.where(seen, top + total.log(), log_sum))


def attend_from(edges: AttentionEdges, z: Tensor, a_src: Tensor, of: BackwardRows) -> tuple[Tensor, Tensor]:
    """See `cpu.attention.attend_from`."""

    def whole(z: Tensor, a_src: Tensor, logit_dst: Tensor) -> Tensor:
        """Function with the gradients of the shard: the softmax's denominator is constant, and `delta` replaces its
        gradient."""
        src, dst, logit = _logits(edges, z, a_src, logit_dst)
        factor = dropout_factors(edges, logit.shape[1])[: len(src)].to(z.dtype)
        inner = factor * (of.grad[dst] * z[src]).sum(-1)
        return (torch.exp(logit - of.log_sum[dst]) * (inner - of.delta[dst])).sum()

    dz, da_src, d_logit = _gradients(whole, (z, a_src, of.logit), of.grad.new_ones(()))
    of.d_logit.add_(d_logit)
    return dz, da_src


def attend_shared(edges: AttentionEdges, x: Tensor, a_src: Tensor, a_dst: Tensor) -> SharedAttention:
    """See `cpu.attention_shared.attend_shared`."""
    logit_dst = x[: edges.lists.num_dst] @ a_dst.T
    out, log_sum = _attended(edges, x[:, None].expand(-1, len(a_src), -1), a_src, logit_dst)
    return SharedAttention(out, x @ a_src.T, logit_dst, log_sum)


def attend_shared_backward(
    edges: AttentionEdges, x: Tensor, a_src: Tensor, a_dst: Tensor, made: SharedAttention, grad: Tensor, needs_x: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """See `cpu.attention_shared.attend_shared_backward`; the results of the forward pass are not needed."""
    dx, d_src, d_dst = _gradients(lambda x, a, b: attend_shared(edges, x, a, b).out, (x, a_src, a_dst), grad)
    return dx if needs_x else None, d_src, d_dst
