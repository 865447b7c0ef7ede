"""Neighbourhoods over a minibatch's blocks on the device that sampled them."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ..kernels import aggregation_backend
from ..kernels.aggregation.lists import DeviceLists
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.frames import Frame
from .base import Reduce
from .block import ListNeighbourhood


class ResidentNeighbourhood(ListNeighbourhood):
    """`ListNeighbourhood` over lists on a device: no call waits for the device."""

    def __init__(self, bulk: ResidentBulk | Frame, q: int, hop: int, degree: Callable[[], Tensor]) -> None:
        """
        Args:
            bulk: holds the minibatch.
            q: its position there.
            hop: 0 is nearest the seeds.
            degree: returns [num_src] on the device, see `ListNeighbourhood`.
        """
        super().__init__(degree, aggregation_backend("cuda"))
        self._where = bulk, q, hop
        self._lists = bulk.block(q, hop)

    @property
    def lists(self) -> DeviceLists:
        """The edges as the kernels read them."""
        return self._lists

    @cached_property
    def _edge_lists(self) -> DeviceLists:
        x = self._lists
        return DeviceLists(
            x.indptr, torch.arange(x.num_edges, device=x.indices.device), x.num_edges, x.longest, x.limit
        )

    @cached_property
    def weight(self) -> Tensor | None:
        """`Block.weight` on the device, float32 [e]."""
        bulk, q, hop = self._where
        return bulk.weight_of(q, hop)

    def _row_scale(self, reduce: Reduce, dtype: torch.dtype) -> Tensor | None:
        bulk, q, hop = self._where
        if self.weight is None:
            inverse = bulk.inverse_kept(q, hop, dtype)
            return self.degree[: self.num_dst].to(dtype) * inverse if reduce == "sum" else inverse
        if reduce == "sum":
            return None
        # Row by row, in the order of the edges: the same bits from run to run, unlike a running sum over all edges.
        ones = torch.ones(self.num_src, 1, dtype=torch.float64, device=self.weight.device)
        total = self._kernels(ones).spmm(self._lists, ones, self.weight)[:, 0]
        return torch.where(total > 0, 1 / total, 0.0).to(dtype)

    def _ends(self, lists: DeviceLists, device: torch.device) -> tuple[Tensor, Callable[[], Tensor]]:
        kept = torch.diff(lists.indptr)
        rows = torch.arange(len(kept), device=device)
        return lists.indices.long(), lambda: torch.repeat_interleave(rows, kept, output_size=lists.num_edges)
