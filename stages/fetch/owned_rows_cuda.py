"""Feature rows that the ranks of a grid column own between them on their GPUs, with a cache of hot rows of the
others."""

import numpy as np
import torch
from torch import Tensor

from ...storage.partition.book import RangeBook
from ..comm.base import Group
from ..kernels.minibatch_cuda.rows import Cache, gather_rows
from ..kernels.runtime.device_memory import to_device, wait_for_copies
from .owned_rows import HotRows, IdArray, Owned


class OwnedOnDevice(Owned[Tensor]):
    """`Owned` on a device: ids are sorted there, rows are gathered there, and both travel from there."""

    def __init__(
        self,
        own: Tensor,
        cache: Cache | None,
        book: RangeBook,
        group: Group,
        degree: Tensor | None,
        device: torch.device,
    ) -> None:
        """
        Args:
            own: [n, F], this rank's rows, on the device or in locked memory of the host.
            cache: cache of rows that lie in host memory.
            book: maps rows to ranks of the group.
            group: the column, for the thread that asks.
            degree: [n] on the device, of this rank's rows, if ranks know only their own.
            device: device of the ids and rows.
        """
        super().__init__(book, group, degree)
        self._own, self._cache, self._device = own, cache, device
        self._begins, self._ends = (
            to_device(book.offsets[:-1].copy(), device),
            to_device(book.offsets[1:-1].copy(), device),
        )
        self.row_bytes = own.shape[1] * own.itemsize
        self.hot = HotRows(self._begins[:0], own[:0])
        wait_for_copies(device)

    def _here(self, ids: IdArray) -> Tensor:
        hot = to_device(ids, self._device)
        wait_for_copies(self._device)
        return hot

    def _by_source(self, ids: Tensor) -> tuple[Tensor, list[int], Tensor]:
        # The host waits once for the device, for the number of rows requested from each rank, and once for the other
        # ranks, to exchange these.
        size, hot, ids = self.group.size, self.hot.ids, ids.long()
        owner = torch.searchsorted(self._ends, ids, right=True)
        source, where = torch.where(owner == self.group.rank, size, owner), ids - self._begins[owner]
        if len(hot):
            at = torch.searchsorted(hot, ids).clamp_(max=len(hot) - 1)
            kept = hot[at] == ids
            source, where = torch.where(kept, size + 1, source), torch.where(kept, at, where)
        source, order = torch.sort(source, stable=True)
        ends = torch.searchsorted(source, torch.arange(size + 2, device=self._device), right=True).tolist()
        return order, np.diff(ends, prepend=0).tolist(), where[order]

    def _buffer(self, n: int) -> Tensor:
        return torch.empty((n, self._own.shape[1]), dtype=self._own.dtype, device=self._device)

    def _take(self, asked: list[Tensor], out: list[Tensor]) -> None:
        for ids, into in zip(asked, out):
            gather_rows(self._own, ids, self._cache, out=into)

    def _take_hot(self, asked: Tensor, out: Tensor) -> None:
        gather_rows(self.hot.rows, asked, out=out)
