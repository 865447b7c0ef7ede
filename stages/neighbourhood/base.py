"""Protocol of neighbourhoods: a layer's access to its neighbours.

A layer is ``layer(neighbourhood, h) -> h'``. `h` holds the rows that this rank has, [num_src, ...]; the destinations
are the first `num_dst` of them. A sampled block answers the same calls as a sequence of remote partitions under SAR, so
a layer is written once.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ...storage.array_kinds import IdArray
from ..memory.lazy_rows import head
from ..nn.compile_boundary import untraced


class Loops(NamedTuple):
    """Self loops of a graph that has some, see `loops`."""

    others: Tensor
    """[num_src], in-degree of each row in the whole graph without its self loops."""
    weight: Tensor
    """[num_src], weight of the row's last self loop, 1 where it has none: that of the one which a GCN adds."""
    present: Tensor
    """[num_dst], sum of the coefficients of the self loops among the edges that are present."""


Message = Callable[..., Tensor]
"""``message(h_src [e, ...], h_dst [e, ...], weight [e] | None, *params) -> [e, D]``, applied to every edge; with values
of edges, ``message(h_src, h_dst, weight, edge [e, ...], *params)``."""
Reduce = Literal["sum", "mean", "max", "plain"]
"""``plain`` is the sum of the messages as they are, without coefficients."""


class EdgeCounts(Protocol):
    """Sizes of one layer's bipartite graph."""

    @property
    def num_dst(self) -> int:
        """Rows of the result."""

    @property
    def num_src(self) -> int:
        """Rows that are read."""

    @property
    def num_edges(self) -> int:
        """Edges present."""

    @property
    def spans_ranks(self) -> bool:
        """True if rows of other ranks are aggregated too: then all ranks must make the same calls, with rows of the
        same width, whatever rows they have. The same on every rank."""


class Neighbourhood(EdgeCounts, Protocol):
    """Aggregation over in-neighbours, differentiable in every floating-point argument.

    `sum`, `mean` and `apply(reduce="sum" | "mean")` estimate the value over the *full* neighbourhood of the graph,
    without bias if the sampler is unbiased, and are exact if every in-edge is present: the coefficient of an edge is
    `Block.weight` if that is given, else in_degree(v) / (kept edges of v). Rows without an edge give zeros (in `max`
    too).
    """

    @property
    def degree(self) -> Tensor:
        """[num_src], in-degree of each row of `h` in the whole graph (weighted: the sum of its in-edges' weights), in
        the dtype of the features. Never depends on sampling or partitioning."""

    @property
    def loops(self) -> "Loops | None":
        """Self loops of the whole graph; None if it has none, or if no layer of the model `reads_loops`."""

    def is_loop(self, device: torch.device) -> Tensor:
        """bool [num_edges] on that device, true for edges from a row to itself, in the order that `apply` takes."""

    @property
    def names(self) -> IdArray | None:
        """int64 [num_src]: name of each row of `h` in random streams, independent of its place; None: its position."""

    @property
    def edge_features(self) -> Tensor:
        """[num_edges, D], features of the edges that are present, in the order that `apply` takes. Gathered when they
        are first read.

        Raises:
            InputError: the edges of the graph have no features.
        """

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """Sum over in-edges (u, v) of coefficient * factor[u] * h[u], plus own[v] * h[v]: [num_src, D] -> [num_dst, D].

        Args:
            h: the rows.
            factor: [num_src], constant; ones when absent.
            own: [num_dst], differentiable; zeros when absent.
        """

    def mean(self, h: Tensor) -> Tensor:
        """`sum` divided by the row's sum of coefficients: [num_src, D] -> [num_dst, D]."""

    def mean_beside(self, h: Tensor) -> Tensor:
        """``[mean(h) | h[:num_dst]]``, so that one product serves both: [num_src, D] -> [num_dst, 2D]."""

    def max(self, h: Tensor) -> Tensor:
        """Largest value over the present in-edges; the gradient of a tie goes to the first edge that attains it."""

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """Softmax attention over the present in-edges and the row itself, which takes the place of its self loops.

        ``e_uv = leaky_relu(<a_src, z[u]> + logit_dst[v], slope)``, softmax over u in N(v) \\ {v} + {v}, then the
        weighted sum of z[u].

        Args:
            z: [num_src, H, D].
            a_src: [H, D]; the source logit is computed at the receiver, so that only z travels.
            logit_dst: [num_dst, H].
            slope: slope of the leaky ReLU below zero.
            dropout: probability of dropping an attention coefficient (inverted scaling); pass 0 in evaluation.

        Returns:
            [num_dst, H, D].
        """

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """`attend` with ``logit_dst = <a_dst, z[v]>``, which needs no tensor of z's size for it.

        Args:
            z: [num_src, H, D].
            a_src: [H, D].
            a_dst: [H, D].
            slope: see `attend`.
            dropout: see `attend`.

        Returns:
            [num_dst, H, D].
        """

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """`attend` whose heads all sum the rows of h: ``e_uv = leaky_relu(<a_src, h[u]> + <a_dst, h[v]>, slope)``.

        With z = W_h h, ``attend`` gives W_h times this, if here a_src is W_h^T times what it is there, and a_dst
        likewise.

        Args:
            h: [num_src, F].
            a_src: [H, F].
            a_dst: [H, F].
            slope: see `attend`.
            dropout: see `attend`; the same key drops the same coefficients.

        Returns:
            [num_dst, H, F].
        """

    def apply(
        self,
        message: Message,
        h: Tensor,
        params: Sequence[Tensor] = (),
        reduce: Reduce = "sum",
        edge: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """User-defined message function, reduced over in-edges: [num_src, ...] -> [num_dst, D].

        Args:
            message: computes the messages of some edges.
            h: the rows.
            params: further arguments of `message`, differentiable.
            reduce: how messages are reduced.
            edge: [num_edges, ...], values of the edges, differentiable: `edge_features`, or what is computed of them.
                `message` gets those of its edges after their weights.
            own: [num_dst, ...], rows of the destinations, differentiable, which `message` gets in place of those of
                `h`.
        """


def destinations(neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
    """Rows of `h` that belong to the destinations, [num_dst, ...]."""
    return untraced(head, h, neighbourhood.num_dst)


EDGE_COST = 8
"""Cost of a multiply-add of an aggregation, in multiply-adds of a matrix product: the first is bound by memory."""


def aggregate_first(neighbourhood: EdgeCounts, weights: int, before: int, after: int) -> bool:
    """True if aggregating before a product with a matrix is cheaper than after it. Both give the same, up to rounding.

    If rows travel, the narrower side decides: the network is slower than either, and all ranks know the widths.

    Args:
        neighbourhood: a block has many more sources than destinations; a whole graph as many.
        weights: elements of the matrix.
        before: columns of the aggregate if it comes first.
        after: columns of the aggregate if the product comes first.
    """
    if neighbourhood.spans_ranks:
        return before <= after
    edges = EDGE_COST * neighbourhood.num_edges
    return neighbourhood.num_dst * weights + edges * before <= neighbourhood.num_src * weights + edges * after
