"""Attention as the public SAR and DGL compute it: ordinary operations on a tensor of one value for each edge and head.

The baseline of `fullbatch_memory.py`. Imported by the ranks that it starts, which find it on ``PYTHONPATH``.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from millrace.stages.autograd import once_differentiable
from millrace.stages.kernels.aggregation.lists import InLists
from millrace.stages.memory.arena import empty
from millrace.stages.models.gat import GAT, GATConv
from millrace.stages.neighbourhood.base import Neighbourhood
from millrace.stages.neighbourhood.halo import HaloNeighbourhood
from millrace.stages.nn.dense import activate, linear

_JIT: Any = {"nogil": True, "cache": True, "boundscheck": False, "fastmath": True}


class Unfused(nn.Module):
    """A GAT with the parameters of `GAT.build`, over rows that come in one exchange (mode ``halo``); heads are treated
    as there."""

    def __init__(self, config: GAT, num_features: int, num_classes: int) -> None:
        super().__init__()
        model = config.build(num_features, num_classes)
        self.num_layers, self.convs, self.activation = config.layers, model.convs, config.activation
        self._lists: dict[InLists, tuple[InLists, InLists]] = {}

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `Model.layer`."""
        conv = self.convs[i]
        assert isinstance(conv, GATConv)
        activation = "none" if i == self.num_layers - 1 else self.activation
        if not isinstance(neighbourhood, HaloNeighbourhood):
            # Evaluation visits one rank after the other in every mode.
            return conv(neighbourhood, h, activation)
        z = linear(h, conv.linear.weight).view(-1, conv.heads, conv.head_width)
        out = self._attend(neighbourhood, neighbourhood._all(z), conv)
        return activate(out.flatten(1) if conv.concat else out.mean(1), conv.bias, activation)

    def _attend(self, neighbourhood: HaloNeighbourhood, z: Tensor, conv: GATConv) -> Tensor:
        """[num_src + B, H, D] -> [num_dst, H, D]."""
        lists, by_source = self._with_loops(neighbourhood._halo.neighbourhood.lists)
        n = lists.num_dst
        src, dst = torch.from_numpy(lists.indices), torch.from_numpy(lists.rows)
        of_src = (z * conv.a_src).sum(-1)
        of_dst = (z[:n] * conv.a_dst).sum(-1)
        logit = nn.functional.leaky_relu(of_src.index_select(0, src) + of_dst.index_select(0, dst), conv.slope)
        most = logit.new_full((n, conv.heads), -torch.inf).scatter_reduce_(
            0, dst[:, None].expand_as(logit), logit.detach(), "amax"
        )
        weight = (logit - most.index_select(0, dst)).exp()
        total = weight.new_zeros(n, conv.heads).index_add(0, dst, weight)
        return _Weighted.apply(z, weight / total.index_select(0, dst), lists, by_source)

    def _with_loops(self, lists: InLists) -> tuple[InLists, InLists]:
        """The lists with each row's own edge, and by source the place of each edge in them; made once."""
        if lists not in self._lists:
            n, loops = lists.num_dst, np.arange(lists.num_dst)
            indices = np.insert(lists.indices, lists.indptr[1:], loops.astype(lists.indices.dtype))
            both = InLists.from_arrays(lists.indptr + np.arange(n + 1), indices, lists.num_src)
            self._lists[lists] = both, InLists.from_arrays(both.transposed.indptr, both.transposed.edge, both.num_edges)
        return self._lists[lists]


class _Weighted(torch.autograd.Function):
    """``apply(z, weight, lists, by_source)``: the weighted sum of each row's sources, [S, H, D], [e, H] -> [n, H,
    D]."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, lists: InLists, by_source: InLists) -> Tensor:
        ctx.rest = lists, by_source
        ctx.save_for_backward(z, weight)
        out = empty((lists.num_dst, *z.shape[1:]), z.dtype)
        _sum(lists.indptr, lists.indices, weight.numpy(), z.numpy(), out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lists, by_source = ctx.rest
        z, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        dz, d_weight = empty(z.shape, z.dtype), torch.empty_like(weight)
        _sum_back(by_source.indptr, by_source.indices, lists.transposed.dst, weight.numpy(), grad.numpy(), dz.numpy())
        _dots(lists.indptr, lists.indices, z.numpy(), grad.numpy(), d_weight.numpy())
        return dz, d_weight, None, None


@njit(**_JIT)
def _sum(indptr, indices, weight, z, out):
    out[:] = 0
    for v in range(len(out)):
        for j in range(indptr[v], indptr[v + 1]):
            for h in range(out.shape[1]):
                o, a, w = out[v, h], z[indices[j], h], weight[j, h]
                for k in range(out.shape[2]):
                    o[k] += w * a[k]


@njit(**_JIT)
def _sum_back(indptr, edge, dst, weight, grad, dz):
    dz[:] = 0
    for u in range(len(dz)):
        for q in range(indptr[u], indptr[u + 1]):
            for h in range(dz.shape[1]):
                o, a, w = dz[u, h], grad[dst[q], h], weight[edge[q], h]
                for k in range(dz.shape[2]):
                    o[k] += w * a[k]


@njit(**_JIT)
def _dots(indptr, indices, z, grad, out):
    for v in range(len(grad)):
        for j in range(indptr[v], indptr[v + 1]):
            for h in range(out.shape[1]):
                a, b, total = z[indices[j], h], grad[v, h], np.float32(0)
                for k in range(len(a)):
                    total += a[k] * b[k]
                out[j, h] = total
