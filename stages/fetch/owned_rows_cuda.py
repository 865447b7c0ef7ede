"""Feature rows that the ranks of a grid column own between them on their GPUs, with a cache of hot rows of the
others."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...storage.partition.book import RangeBook
from ..comm.base import Group
from ..kernels.minibatch_cuda.rows import Cache, gather_rows
from ..kernels.runtime.device_memory import to_device, wait_for_copies
from .owned_rows import Hits, IdArray, Owned


@dataclass(frozen=True, eq=False)
class DeviceCollected:
    """`Collected` on a device."""

    rows: Tensor
    """[n, F]."""
    place: Tensor
    """int32 or int64 [n], position of each id's row."""
    degree: Tensor | None
    """[n], degrees of the ids in the whole graph, in their order; None if every rank knows them."""


class OwnedOnDevice(Owned):
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
        super().__init__(book, group)
        self._own, self._cache, self._degree, self._device = own, cache, degree, device
        self._begins, self._ends = (
            to_device(book.offsets[:-1].copy(), device),
            to_device(book.offsets[1:-1].copy(), device),
        )
        self._hot, self._hot_rows = self._begins[:0], own[:0]
        self._hot_degree = None if degree is None else degree[:0]
        wait_for_copies(device)

    @property
    def row_bytes(self) -> int:
        return self._own.shape[1] * self._own.itemsize

    @property
    def num_hot(self) -> int:
        return len(self._hot)

    def keep(self, ids: IdArray) -> None:
        hot = to_device(ids, self._device)
        got = self.collect(hot)
        self._hot, self._hot_rows, self._hot_degree = hot, gather_rows(got.rows, got.place), got.degree
        self.hits = Hits()
        wait_for_copies(self._device)

    def collect(self, ids: Tensor) -> DeviceCollected:
        """Rows of distinct `ids`, integers [n] on the device and in range, n = 0 included.

        The host waits once for the device, for the number of rows requested from each rank, and once for the other
        ranks, to exchange these.

        Raises:
            PeerLostError: a peer is gone.
        """
        group, n, ids = self.group, len(ids), ids.long()
        owner = torch.searchsorted(self._ends, ids, right=True)
        # Received rows are contiguous; own rows come after them, then cached ones.
        source = torch.where(owner == group.rank, group.size, owner)
        where = ids - self._begins[owner]
        if len(self._hot):
            at = torch.searchsorted(self._hot, ids).clamp_(max=len(self._hot) - 1)
            kept = self._hot[at] == ids
            source, where = torch.where(kept, group.size + 1, source), torch.where(kept, at, where)
        source, order = torch.sort(source, stable=True)
        ends = torch.searchsorted(source, torch.arange(group.size + 2, device=self._device), right=True).tolist()
        counts = np.diff(ends, prepend=0).tolist()
        self.hits.asked += n - counts[-2]
        self.hits.hits += counts[-1]
        *wanted, own, hot = where[order].to(self._id_type).split(counts)
        message = group.all_to_all(wanted, "control")

        asked, sizes = torch.cat(message), [len(a) for a in message]
        rows = torch.empty((n, self._own.shape[1]), dtype=self._own.dtype, device=self._device)
        *into, mine, near = rows.split(counts)
        answers = gather_rows(self._own, asked, self._cache)
        gather_rows(self._own, own, self._cache, out=mine)
        gather_rows(self._hot_rows, hot, out=near)
        group.all_to_all(list(answers.split(sizes)), "features", into)

        degree = None
        if self._degree is not None and self._hot_degree is not None:
            came = self._degree.new_empty(n, *self._degree.shape[1:])
            *into, mine, near = came.split(counts)
            mine.copy_(self._degree[own.long()])
            near.copy_(self._hot_degree[hot.long()])
            group.all_to_all(list(self._degree[asked.long()].split(sizes)), "graph", into)
            degree = torch.empty_like(came)
            degree[order] = came
        place = torch.empty(n, dtype=torch.int32 if n < 2**31 else torch.int64, device=self._device)
        place[order] = torch.arange(n, dtype=place.dtype, device=self._device)
        return DeviceCollected(rows, place, degree)
