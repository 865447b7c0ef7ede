"""A whole graph as an edge list, in plain torch operations: what `torch.export` can trace, and others can read."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...storage.errors import InputError
from ...storage.optional import moved, present
from .base import Loops, Message, Reduce


class EdgeIndexNeighbourhood:
    """Aggregation over the edges of a whole graph, every node of which is a destination. See `Neighbourhood`; nothing
    is dropped, and nothing checked."""

    names = None
    spans_ranks = True
    """The narrower side of a layer decides what comes first, as sizes are not known when a program is made."""

    def __init__(self, edge_index: Tensor, num_nodes: int, weight: Tensor | None, dtype: torch.dtype) -> None:
        """
        Args:
            edge_index: int64 [2, E], source and destination of each edge; all in-edges of each node.
            num_nodes: V.
            weight: [E], of the edges; None: ones.
            dtype: of the rows.
        """
        self.src, self.dst = edge_index[0], edge_index[1]
        self.num_src = self.num_dst = num_nodes
        self.weight = moved(weight, dtype)
        ones = torch.ones_like(self.dst, dtype=dtype)
        self.degree = self._added((ones if weight is None else weight.to(dtype))[:, None])[:, 0]

    @property
    def loops(self) -> Loops:
        """See `Neighbourhood.loops`: of any graph, since a program is made before its graph is known."""
        loop = self.is_loop(self.dst.device)
        weight = self.degree.new_ones(1).expand(self.num_edges) if self.weight is None else self.weight
        total = self._added((weight * loop)[:, None])[:, 0]
        # Edge e of a node's loops has the number e + 1: the last one is the largest.
        numbers = torch.arange(1, self.num_edges + 1, device=self.dst.device) * loop
        last = numbers.new_zeros(self.num_dst).scatter_reduce(0, self.dst, numbers, "amax")
        return Loops(self.degree - total, torch.cat([weight.new_ones(1), weight])[last], total)

    def is_loop(self, device: torch.device) -> Tensor:
        return (self.src == self.dst).to(device)

    @property
    def num_edges(self) -> int:
        """E."""
        return self.src.shape[0]

    def _added(self, messages: Tensor) -> Tensor:
        """[E, ...] -> [V, ...]."""
        return messages.new_zeros(self.num_dst, *messages.shape[1:]).index_add(0, self.dst, messages)

    def _weighted(self, messages: Tensor) -> Tensor:
        return messages if self.weight is None else messages * self._beside(self.weight, messages)

    @staticmethod
    def _beside(factor: Tensor, rows: Tensor) -> Tensor:
        return factor.view(-1, *[1] * (rows.ndim - 1))

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        total = self._added(self._weighted((h if factor is None else h * self._beside(factor, h))[self.src]))
        return total if own is None else total + h * self._beside(own, h)

    def mean(self, h: Tensor) -> Tensor:
        return self._over_degree(self.sum(h))

    def _over_degree(self, total: Tensor) -> Tensor:
        degree = self._beside(self.degree, total)
        return torch.where(degree > 0, total / torch.where(degree > 0, degree, 1), 0)

    def mean_beside(self, h: Tensor) -> Tensor:
        return torch.cat([self.mean(h), h], dim=1)

    def max(self, h: Tensor) -> Tensor:
        return self._largest(h[self.src])

    def _largest(self, messages: Tensor) -> Tensor:
        at = self._beside(self.dst, messages).expand_as(messages)
        zeros = messages.new_zeros(self.num_dst, *messages.shape[1:])
        return zeros.scatter_reduce(0, at, messages, "amax", include_self=False)

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        return self._attended(z, (z * a_src).sum(-1), logit_dst, slope)

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        return self._attended(z, (z * a_src).sum(-1), (z * a_dst).sum(-1), slope)

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        return self._attended(h[:, None], h @ a_src.T, h @ a_dst.T, slope)

    def _attended(self, z: Tensor, logit_src: Tensor, logit_dst: Tensor, slope: float) -> Tensor:
        """[V, H or 1, D], [V, H], [V, H] -> [V, H, D]."""
        of_edge = torch.nn.functional.leaky_relu(logit_src[self.src] + logit_dst[self.dst], slope)
        of_edge = torch.where((self.src == self.dst)[:, None], -torch.inf, of_edge)
        itself = torch.nn.functional.leaky_relu(logit_src + logit_dst, slope)
        at = self.dst[:, None].expand_as(of_edge)
        most = itself.scatter_reduce(0, at, of_edge, "amax", include_self=True)
        share, of_self = (of_edge - most[self.dst]).exp(), (itself - most).exp()
        total = self._added(share) + of_self
        return (self._added(share[..., None] * z[self.src]) + of_self[..., None] * z) / total[..., None]

    @property
    def edge_features(self) -> Tensor:
        """Raises InputError: there are none."""
        raise InputError("edges have no features in a program or an explainer; use a model that reads none")

    def apply(
        self,
        message: Message,
        h: Tensor,
        params: Sequence[Tensor] = (),
        reduce: Reduce = "sum",
        edge: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        messages = message(h[self.src], (h if own is None else own)[self.dst], self.weight, *present([edge]), *params)
        reducers: dict[Reduce, Callable[[], Tensor]] = {
            "sum": lambda: self._added(self._weighted(messages)),
            "mean": lambda: self._over_degree(self._added(self._weighted(messages))),
            "max": lambda: self._largest(messages),
            "plain": lambda: self._added(messages),
        }
        return reducers[reduce]()
