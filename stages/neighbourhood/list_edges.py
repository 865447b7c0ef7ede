"""What is aggregated over edges of lists, be they all edges of a block or those of one of its relations."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import FloatArray
from ...storage.optional import moved, present
from ..kernels import aggregation_on
from .base import Reduce
from .checked import BARE, Factors, UserMessage
from .checks import absent_rows, as_matrix
from .gradients import Maximum, Spmm


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

    def _row_scale(self, reduce: Reduce, dtype: torch.dtype) -> Tensor | None:
        """Factor of each row's weighted sum, [num_dst], on the host or on the device of the degrees; None if it is
        1."""
        if self.weight is None and reduce == "sum":
            return self._sum_scale(dtype)
        if self.weight is None:
            return 1 / torch.as_tensor(self.lists.kept).clamp(min=1).to(dtype)
        return None if reduce == "sum" else share(self.lists, self.weight, self._kernels(self.weight)).to(dtype)

    def _scale(self, reduce: Reduce, like: Tensor) -> Tensor | None:
        return moved(self._row_scale(reduce, like.dtype), like.device)

    def _reduce(self, lists: Any, x: Tensor, reduce: Reduce, factors: Factors = BARE) -> Tensor:
        if reduce == "max":
            return Maximum.apply(x, self._kernels(x), lists)
        if reduce == "plain":
            return Spmm.apply(x, None, self._kernels(x), lists, None, None)
        coef = self._weight(x)
        if factors.of_sources is not None:
            of_edge = factors.of_sources[lists.sources_on(x.device)]
            coef = of_edge if coef is None else of_edge.mul_(coef)
        return Spmm.apply(x, factors.own, self._kernels(x), lists, coef, self._scale(reduce, x))

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
