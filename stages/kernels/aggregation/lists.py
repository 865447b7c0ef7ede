"""Neighbour lists as the aggregation kernels read them, and their transpose."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ....storage.graph import index_dtype

if TYPE_CHECKING:
    from .cuda.lists import DeviceLists

IntArray = npt.NDArray[np.integer]


def _plain(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array itself where it is contiguous, aligned and writable, else a copy: one compiled version serves all callers."""
    return np.require(array, dtype, ["C", "A", "W"])


@dataclass(frozen=True, eq=False)
class OutLists:
    """The transpose of `InLists`: for every source, its destinations in ascending order."""

    indptr: npt.NDArray[np.int64]
    """int64 [S+1], by source."""
    dst: npt.NDArray[np.int32]
    """int32 [e], destination row of each edge."""
    edge: IntArray
    """int32 or int64 [e], position of each edge in the `InLists`."""


@dataclass(frozen=True, eq=False)
class InLists:
    """In-neighbour lists of n destinations over S source rows: ``indices[indptr[v]:indptr[v+1]]`` are the sources of v."""

    indptr: npt.NDArray[np.int64]
    """int64 [n+1]."""
    indices: IntArray
    """int32 or int64 [e], rows of the source matrix."""
    num_src: int
    """S."""

    @classmethod
    def of(cls, indptr: IntArray, indices: IntArray, num_src: int) -> "InLists":
        """Lists over these arrays, which are shared where their layout allows it."""
        return cls(_plain(indptr, np.int64), _plain(indices, indices.dtype), num_src)

    @property
    def num_dst(self) -> int:
        """n."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """e."""
        return len(self.indices)

    @cached_property
    def kept(self) -> npt.NDArray[np.int64]:
        """int64 [n], edges of each destination."""
        return np.diff(self.indptr)

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64 [e], destination of each edge."""
        return np.repeat(np.arange(self.num_dst), self.kept)

    @cached_property
    def transposed(self) -> OutLists:
        """Lists by source, by counting sort; made when a gradient first needs them."""
        # Here, so that a machine with a GPU needs no compiler for its processor.
        from .cpu.lists import transpose

        t_indptr = np.zeros(self.num_src + 1, np.int64)
        t_dst = np.empty(self.num_edges, np.int32)
        t_edge = np.empty(self.num_edges, index_dtype(self.num_edges))
        transpose(self.indptr, self.indices, t_indptr, t_dst, t_edge)
        return OutLists(t_indptr, t_dst, t_edge)

    @cached_property
    def _there(self) -> "dict[torch.device, DeviceLists]":
        return {}

    def on(self, device: torch.device) -> "DeviceLists":
        """The lists in the memory of `device`: they travel once, however many calls ask."""
        from .cuda.lists import DeviceLists

        if device not in self._there:
            self._there[device] = DeviceLists.of(self, device)
        return self._there[device]
