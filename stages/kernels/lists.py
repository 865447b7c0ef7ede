"""Neighbour lists as the aggregation kernels read them, and their transpose."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from torch import Tensor

from ...storage.graph import index_dtype

IntArray = npt.NDArray[np.integer]
_JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}


@njit(**_JIT)
def at(ids, u):
    """The row that `u` names, ``ids[u]``, or u itself where `ids` is None: uint64.

    Rows are indexed by unsigned numbers: a signed index brings numba's test for negative ones into the inner loop.
    """
    return np.uint64(u) if ids is None else np.uint64(ids[np.uint64(u)])


@njit(**_JIT)
def factor(values, i):
    """``values[i]``, or 1 where `values` is None."""
    return np.float32(1) if values is None else values[i]


@njit(**_JIT)
def of_row(values, i, x):
    """``values[i]``, or 1 in the type of `x` where `values` is empty.

    Once a row this is asked at run time: a compiled version for each kind of absence would take seconds to make, and save nothing.
    """
    return values[i] if len(values) else x.dtype.type(1)


def rows_array(values: Tensor | None, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A number for each row as kernels take it: empty, and of the type of `like`, where there is none."""
    return np.empty(0, like.dtype) if values is None else values.numpy()


def _plain(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array itself where it is contiguous, aligned and writable, else a copy: one compiled version serves all callers."""
    return np.require(array, dtype, ["C", "A", "W"])


@njit(**_JIT)
def _transpose(indptr, indices, t_indptr, t_dst, t_edge):
    n, num_src = len(indptr) - 1, len(t_indptr) - 1
    for j in range(len(indices)):
        t_indptr[np.uint64(indices[j]) + np.uint64(1)] += 1
    for u in range(num_src):
        t_indptr[u + 1] += t_indptr[u]
    for v in range(n):
        for j in range(indptr[v], indptr[v + 1]):
            u = np.uint64(indices[j])
            at = t_indptr[u]
            t_dst[at] = v
            t_edge[at] = j
            t_indptr[u] = at + 1
    for u in range(num_src, 0, -1):
        t_indptr[u] = t_indptr[u - 1]
    t_indptr[0] = 0


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
        t_indptr = np.zeros(self.num_src + 1, np.int64)
        t_dst = np.empty(self.num_edges, np.int32)
        t_edge = np.empty(self.num_edges, index_dtype(self.num_edges))
        _transpose(self.indptr, self.indices, t_indptr, t_dst, t_edge)
        return OutLists(t_indptr, t_dst, t_edge)
