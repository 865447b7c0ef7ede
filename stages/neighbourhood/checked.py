"""Neighbourhoods whose calls check their arguments, and edges of lists, over which subclasses aggregate."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import FloatArray
from ...storage.optional import moved, present, when_present
from ..kernels import aggregation_on
from ..kernels.aggregation.attention_args import AttentionRule
from ..kernels.aggregation.lists import WeightedLists
from .base import Message, Reduce
from .checks import (
    absent_rows,
    alike,
    as_matrix,
    attention_rule,
    check_attention,
    check_both,
    check_edge,
    check_own,
    check_reduce,
    check_scale,
    check_shared,
)
from .gradients import Maximum, Spmm

Kind = Literal["each", "both", "shared"]
"""Attention: ``each``: rows of each head, and logits of destinations; ``both``: logits of both ends come from rows of
each head; ``shared``: all heads read the same rows."""


Reduction = Reduce | Literal["beside"]
"""``beside``: means, and beside them the destinations' own rows."""


class UserMessage(NamedTuple):
    """A function of `Neighbourhood.apply`, with its other arguments but the rows."""

    function: Message
    params: Sequence[Tensor]
    reduce: Reduce
    edge: Tensor | None
    own: Tensor | None


class Factors(NamedTuple):
    """Arguments of `Neighbourhood.sum` beside the rows, in their dtype and on their device."""

    of_sources: Tensor | None = None
    """[num_src], constant."""
    own: Tensor | None = None
    """[num_dst]."""


BARE = Factors()
"""Rows are summed as they are."""


class CheckedNeighbourhood(ABC):
    """Base of neighbourhoods. See `Neighbourhood` for what each call computes; calls raise InputError for a wrong
    shape, dtype or device."""

    num_dst: int
    """Rows of the result."""
    num_src: int
    """Rows of `h`."""
    num_edges: int
    """Edges present."""
    spans_ranks: bool
    """See `EdgeCounts.spans_ranks`."""

    @abstractmethod
    def _reduced(self, kind: Reduction, x: Tensor, factors: Factors = BARE) -> Tensor:
        """Rows of matrices, reduced over the in-edges of each destination; sums with these factors."""

    @abstractmethod
    def _attend(self, kind: Kind, z: Tensor, a_src: Tensor, dst: Tensor, rule: AttentionRule) -> Tensor:
        """Attention of contiguous tensors; `dst` is `logit_dst`, or `a_dst`."""

    @abstractmethod
    def _applied(self, of: UserMessage, h: Tensor) -> Tensor:
        """A message of each edge, of its source's row of `h` and its destination's of `own`, else of `h`, reduced."""

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """[num_src, ...], [num_src], [num_dst] -> [num_dst, ...]."""
        x = as_matrix(h, self.num_src, "h")
        check_scale(factor, self.num_src, "factor")
        check_scale(own, self.num_dst, "own")
        factor = moved(when_present(Tensor.detach, factor), x.device, x.dtype)
        own = when_present(Tensor.contiguous, moved(own, x.device, x.dtype))
        return self._reduced("sum", x, Factors(factor, own)).reshape(self.num_dst, *h.shape[1:])

    def mean(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        return self._reduced("mean", as_matrix(h, self.num_src, "h")).reshape(self.num_dst, *h.shape[1:])

    def mean_beside(self, h: Tensor) -> Tensor:
        """[num_src, D] -> [num_dst, 2D]."""
        return self._reduced("beside", as_matrix(h, self.num_src, "h"))

    def max(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]. Of equal values the first edge takes the gradient."""
        return self._reduced("max", as_matrix(h, self.num_src, "h")).reshape(self.num_dst, *h.shape[1:])

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [num_dst, H] -> [num_dst, H, D].

        Dropout takes one key from torch's CPU generator, so `torch.manual_seed` governs it.
        """
        z, a_src, logit_dst = alike(z=z, a_src=a_src, logit_dst=logit_dst)
        check_attention(z, a_src, logit_dst, self.num_src, self.num_dst)
        return self._attend("each", z, a_src, logit_dst, attention_rule(slope, dropout))

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [H, D] -> [num_dst, H, D]. Dropout as in `attend`."""
        z, a_src, a_dst = alike(z=z, a_src=a_src, a_dst=a_dst)
        check_both(z, a_src, a_dst, self.num_src)
        return self._attend("both", z, a_src, a_dst, attention_rule(slope, dropout))

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """[num_src, F], [H, F], [H, F] -> [num_dst, H, F]. Dropout as in `attend`."""
        h, a_src, a_dst = alike(h=h, a_src=a_src, a_dst=a_dst)
        check_shared(h, a_src, a_dst, self.num_src)
        return self._attend("shared", h, a_src, a_dst, attention_rule(slope, dropout))

    def apply(
        self,
        message: Message,
        h: Tensor,
        params: Sequence[Tensor] = (),
        reduce: Reduce = "sum",
        edge: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """User-defined message function, reduced over in-edges: [num_src, ...] -> [num_dst, ...]."""
        check_reduce(reduce)
        check_edge(edge, self.num_edges)
        check_own(own, self.num_dst)
        as_matrix(h, self.num_src, "h")
        return self._applied(UserMessage(message, params, reduce, edge, own), h)


class ListEdges(ABC):
    """Edges of lists, with their weights, their features and what a row's sum of them is multiplied by."""

    lists: Any
    """The edges as the kernels read them: `InLists`, or `DeviceLists`."""
    num_dst: int
    """Rows of the result."""
    num_src: int
    """Rows that are read."""
    num_edges: int
    """Edges present."""

    def __init__(self, kernels: ModuleType | None, edges: Callable[[], Tensor] | None) -> None:
        """
        Args:
            kernels: the aggregation backend; by default that of the rows' device.
            edges: returns `edge_features`, called when a layer first needs them; None: there are none.
        """
        self._given, self._make_edges = kernels, absent_rows if edges is None else edges

    @property
    @abstractmethod
    def weight(self) -> Tensor | None:
        """`Block.weight` of the edges as a tensor, float32 [num_edges]; None: all are alike."""

    @abstractmethod
    def _sum_scale(self, dtype: torch.dtype) -> Tensor:
        """Factor of each row's sum of edges without weights, [num_dst], on the host or on the device of the degrees."""

    @cached_property
    def edge_features(self) -> Tensor:
        """[num_edges, D], features of the present edges; of a relation as many columns as it has, 0 if only edges of
        other relations have features.

        Raises:
            InputError: no edges have features, or the model does not say that it reads them.
        """
        return self._make_edges()

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """int64 [num_edges] each, the source and the destination of every edge as rows of `h` and of the result, on
        that device."""
        return self.lists.sources_on(device).long(), self._rows_on(self.lists, device)

    def _rows_on(self, lists: Any, device: torch.device) -> Tensor:
        """int64 [e], destinations of the edges of some lists, on that device."""
        return lists.rows_on(device)

    def coefficients(self, like: Tensor) -> Tensor:
        """[num_edges], coefficient of each edge in `sum`, in the dtype of `like` and on its device."""
        scale = self._scale("sum", like)
        if scale is None:
            assert self.weight is not None
            return self.weight.to(like)
        return scale[self._rows_on(self.lists, like.device)]

    def _kernels(self, x: Tensor) -> Any:
        return self._given or aggregation_on(x.device)

    def _weight(self, like: Tensor) -> Tensor | None:
        return moved(self.weight, like.device)

    def _row_scale(self, reduce: Reduction, dtype: torch.dtype) -> Tensor | None:
        """Factor of each row's weighted sum, [num_dst], on the host or on the device of the degrees; None if it is
        1."""
        if self.weight is None:
            if reduce == "sum":
                return self._sum_scale(dtype)
            return 1 / torch.as_tensor(self.lists.kept).clamp(min=1).to(dtype)
        return None if reduce == "sum" else share(self.lists, self.weight, self._kernels(self.weight)).to(dtype)

    def _scale(self, reduce: Reduction, like: Tensor) -> Tensor | None:
        return moved(self._row_scale(reduce, like.dtype), like.device)

    def _reduce(self, lists: Any, x: Tensor, reduce: Reduction, factors: Factors = BARE) -> Tensor:
        if reduce == "max":
            return Maximum.apply(x, self._kernels(x), lists)
        if reduce == "plain":
            return Spmm.apply(x, None, self._kernels(x), WeightedLists(lists))
        coef = self._weight(x)
        if factors.of_sources is not None:
            of_edge = factors.of_sources[lists.sources_on(x.device)]
            coef = of_edge if coef is None else of_edge.mul_(coef)
        of = WeightedLists(lists, coef, self._scale(reduce, x), beside=reduce == "beside")
        return Spmm.apply(x, factors.own, self._kernels(x), of)

    def _applied(self, of: UserMessage, h: Tensor) -> Tensor:
        """A message of each edge, which gets its `Block.weight`, if there is one; the coefficients of `sum` and `mean`
        are applied to its result."""
        weight = moved(self.weight, h.device, h.dtype)
        src, dst = self.lists.sources_on(h.device), self._rows_on(self.lists, h.device)
        own = h if of.own is None else of.own
        messages = of.function(h[src], own[dst], weight, *present([of.edge]), *of.params)
        x = as_matrix(messages, self.num_edges, "the message's result")
        return self._reduce(self.lists.of_edges, x, of.reduce).reshape(self.num_dst, *messages.shape[1:])


def share(lists: Any, weight: Tensor | None, kernels: Any) -> Tensor:
    """float64 [n], 1 over the sum of the weights of each list, 0 where that is 0; without weights, over its edges."""
    total = torch.as_tensor(lists.kept).double() if weight is None else lists.sums(weight, kernels)
    return torch.where(total > 0, 1 / total, 0.0)


def weight_tensor(weight: FloatArray) -> Tensor:
    """`Block.weight` as a tensor, float32 [e]."""
    return torch.from_numpy(np.require(weight, np.float32, ["C", "A", "W"]))
