"""Neighbour lists in the form that the aggregation kernels read, on the host or on a device, and their transpose.

On a device a program processes the lists of a few rows, so one long list among short ones would keep it busy after the
others. Therefore a program reads at most the first `CHUNK` edges of a list; the rest is divided into pieces, each a
list of its own whose partial result goes to scratch memory. A second launch adds up the pieces, in their order: the
result is the same from run to run.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....storage.array_kinds import AnyArray, IdArray, Int32Array, IntArray
from ....storage.graph import index_dtype
from ....storage.store.scratch import Empty, in_memory


def _plain(array: AnyArray, dtype: npt.DTypeLike) -> AnyArray:
    """The array if it is contiguous, aligned and writable, else a copy, so that one compiled version serves all
    callers."""
    return np.require(array, dtype, ["C", "A", "W"])


@dataclass(frozen=True, eq=False)
class OutLists:
    """The transpose of `InLists`: for every source, its destinations in ascending order."""

    indptr: IdArray
    """int64 [S+1], by source."""
    dst: Int32Array
    """int32 [e], destination row of each edge."""
    edge: IntArray
    """int32 or int64 [e], position of each edge in the `InLists`."""


@dataclass(frozen=True, eq=False)
class InLists:
    """In-neighbour lists of n destinations over S source rows: ``indices[indptr[v]:indptr[v+1]]`` are the sources of
    v."""

    indptr: IdArray
    """int64 [n+1]."""
    indices: IntArray
    """int32 or int64 [e], rows of the source matrix."""
    num_src: int
    """S."""
    empty: Empty = in_memory
    """Makes the arrays of the transpose."""

    @classmethod
    def from_arrays(cls, indptr: IntArray, indices: IntArray, num_src: int, empty: Empty = in_memory) -> "InLists":
        """Lists over these arrays, which are shared if their layout allows it."""
        return cls(_plain(indptr, np.int64), _plain(indices, indices.dtype), num_src, empty)

    @property
    def num_dst(self) -> int:
        """n."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """e."""
        return len(self.indices)

    @cached_property
    def kept(self) -> IdArray:
        """int64 [n], edges of each destination."""
        return np.diff(self.indptr)

    @cached_property
    def rows(self) -> IdArray:
        """int64 [e], destination of each edge."""
        return np.repeat(np.arange(self.num_dst), self.kept)

    @cached_property
    def of_edges(self) -> "InLists":
        """Lists in which every edge is a source of its own."""
        return InLists(self.indptr, np.arange(self.num_edges, dtype=self.indices.dtype), self.num_edges)

    def renumbered(self, place: Any, num_src: int) -> "InLists":
        """The lists with each source u as ``place[u]``, of that many."""
        return InLists(self.indptr, np.asarray(place)[self.indices].astype(self.indices.dtype), num_src)

    def sources_on(self, device: torch.device) -> Tensor:
        """[e], `indices` on a device."""
        return torch.from_numpy(self.indices).to(device)

    def rows_on(self, device: torch.device) -> Tensor:
        """int64 [e], `rows` on a device."""
        return torch.from_numpy(self.rows).to(device)

    def sums(self, weight: Tensor, kernels: Any) -> Tensor:
        """float64 [n], sum of the weights [e] of each list."""
        return torch.from_numpy(np.bincount(self.rows, weight.numpy().astype(np.float64), minlength=self.num_dst))

    @cached_property
    def transposed(self) -> OutLists:
        """Lists by source, by counting sort; made when a gradient first needs them."""
        # Imported here, so that a machine with a GPU needs no compiler for its CPU.
        from ..runtime.transpose import transpose

        t_indptr = np.zeros(self.num_src + 1, np.int64)
        t_dst = self.empty(self.num_edges, np.int32)
        t_edge = self.empty(self.num_edges, index_dtype(self.num_edges))
        transpose(self.indptr, self.indices, t_indptr, t_dst, t_edge)
        return OutLists(t_indptr, t_dst, t_edge)

    @cached_property
    def _copies(self) -> "dict[torch.device, DeviceLists]":
        return {}

    def to_device(self, device: torch.device) -> "DeviceLists":
        """Lists in the memory of `device`; copied once."""
        if device not in self._copies:
            self._copies[device] = DeviceLists.from_host(self, device)
        return self._copies[device]


@dataclass(frozen=True, eq=False)
class WeightedLists:
    """Lists whose sums are weighted: ``row_scale[v] * sum over edges e of v of coef[e] * ...``; maxima are not."""

    lists: InLists
    """n lists over S sources."""
    coef: Tensor | None = None
    """[e], float32 or the dtype of the rows; ones when absent."""
    row_scale: Tensor | None = None
    """[n] of the dtype of the rows, or of a shard [N]; ones when absent."""
    rows: IntArray | None = None
    """Of a shard: the row of the result that each list belongs to, see `cpu.shards`; its own when absent."""
    edge: IntArray | None = None
    """[e], position of each edge of a shard among all edges of those rows, by which maxima know it; that in the lists
    when absent."""
    beside: bool = False
    """Sums have the rows of the destinations themselves beside them, in columns [D, 2D)."""


CHUNK = 256
"""Edges of one list that one program reads."""


def on_device(array: IntArray, device: torch.device) -> Tensor:
    """Copy of the array in the memory of `device`."""
    return torch.from_numpy(np.require(array, requirements=["C", "A", "W"])).to(device, non_blocking=True)


def rows_on(rows: IntArray | None, device: torch.device) -> Tensor | None:
    """`on_device` of rows that may be absent."""
    return None if rows is None else on_device(rows, device)


@dataclass(frozen=True, eq=False)
class Rest:
    """Edges of m long lists beyond their first `CHUNK`, in p pieces of at most as many."""

    begin: Tensor
    """int64 [p], the first edge of each piece."""
    end: Tensor
    """int64 [p], the edge after its last."""
    of: Tensor
    """int64 [p], the list that each piece belongs to."""
    long: Tensor
    """int64 [m], the lists that have pieces."""
    pieces: "DeviceLists"
    """Pieces of each of the lists in `long`."""

    def rows_at(self, rows: Tensor | None, lists: Tensor) -> Tensor:
        """The row of each of these lists; its own number without `rows`."""
        return lists if rows is None else rows[lists]


@dataclass(frozen=True, eq=False)
class DeviceLists:
    """`InLists` on a device: n lists over S source rows."""

    indptr: Tensor
    """int32 or int64 [n+1]."""
    indices: Tensor
    """int32 or int64 [e]."""
    num_src: int
    """S."""
    longest: int
    """Edges of the longest list."""
    limit: int
    """Edges of one list that one program reads."""

    @classmethod
    def from_host(cls, lists: InLists, device: torch.device) -> "DeviceLists":
        """A copy of `lists` on `device`."""
        longest = int(lists.kept.max(initial=0))
        return cls(on_device(lists.indptr, device), on_device(lists.indices, device), lists.num_src, longest, CHUNK)

    @property
    def num_dst(self) -> int:
        """n."""
        # `len` of a tensor takes three times as long, and every launch needs it.
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """e."""
        return self.indices.shape[0]

    def to_device(self, device: torch.device) -> "DeviceLists":
        """The lists themselves."""
        return self

    @property
    def kept(self) -> Tensor:
        """[n], edges of each list."""
        return self.end - self.begin

    @cached_property
    def of_edges(self) -> "DeviceLists":
        """Lists in which every edge is a source of its own, as of `InLists`."""
        every = torch.arange(self.num_edges, device=self.indices.device)
        return DeviceLists(self.indptr, every, self.num_edges, self.longest, self.limit)

    def renumbered(self, place: Tensor, num_src: int) -> "DeviceLists":
        """The lists with each source u as ``place[u]``, of that many, as of `InLists`."""
        sources = place[self.indices.long()].to(self.indices.dtype)
        return DeviceLists(self.indptr, sources, num_src, self.longest, self.limit)

    def sources_on(self, device: torch.device) -> Tensor:
        """int64 [e], `indices`."""
        return self.indices.long()

    def rows_on(self, device: torch.device) -> Tensor:
        """int64 [e], the list of each edge."""
        each = torch.arange(self.num_dst, device=self.indptr.device)
        return torch.repeat_interleave(each, self.kept, output_size=self.num_edges)

    def sums(self, weight: Tensor, kernels: Any) -> Tensor:
        """float64 [n], sum of the weights [e] of each list: row by row, in the order of the edges, so that the bits are
        the same from run to run."""
        ones = torch.ones(self.num_src, 1, dtype=torch.float64, device=weight.device)
        of: Any = self
        return kernels.spmm(WeightedLists(of, weight), ones)[:, 0]

    @cached_property
    def begin(self) -> Tensor:
        """int64 [n], the first edge of each list."""
        return self.indptr[:-1]

    @cached_property
    def end(self) -> Tensor:
        """int64 [n], the edge after its last."""
        return self.indptr[1:]

    @cached_property
    def rest(self) -> Rest | None:
        """Edges beyond the first `limit` of each list; None if no list is longer."""
        if self.longest <= self.limit:
            return None
        kept = self.end - self.begin
        long = torch.nonzero(kept > self.limit)[:, 0]
        count = (kept[long] - 1) // self.limit
        indptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
        num_pieces = int(indptr[-1])
        of = torch.repeat_interleave(long, count, output_size=num_pieces)
        each = torch.arange(num_pieces, device=of.device)
        place = each - torch.repeat_interleave(indptr[:-1], count, output_size=num_pieces)
        begin = self.begin[of] + (place + 1) * self.limit
        end = torch.minimum(begin + self.limit, self.end[of])
        return Rest(
            begin, end, of, long, DeviceLists(indptr, each, num_pieces, (self.longest - 1) // self.limit, self.limit)
        )

    def over_rows(self, rows: Tensor | None) -> "DeviceLists":
        """The lists with ``rows[u]`` as source u; themselves without `rows`."""
        if rows is None:
            return self
        other = replace(self, indices=rows[self.indices])
        other.__dict__["rest"] = self.rest
        return other

    @cached_property
    def transposed(self) -> "tuple[DeviceLists, Tensor]":
        """Lists by source, whose indices are destinations, ascending; and [e], the position of each of their edges
        here.

        The length of the longest comes from the device: the host waits for it, once for each block.
        """
        # A stable sort keeps the edges of a source in the order of their destinations.
        edge = torch.sort(self.indices, stable=True).indices
        kept = torch.bincount(self.indices, minlength=self.num_src)
        dst = torch.repeat_interleave(
            torch.arange(self.num_dst, device=edge.device), self.end - self.begin, output_size=len(edge)
        )
        indptr = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
        narrow = torch.from_numpy(np.empty(0, index_dtype(max(len(edge), self.num_dst)))).dtype
        lists = DeviceLists(indptr, dst[edge].to(narrow), self.num_dst, int(kept.max()) if len(kept) else 0, self.limit)
        return lists, edge.to(narrow)
