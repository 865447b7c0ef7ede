"""A block of destinations that aggregates the rows of a whole layer. Host memory, no gradients.

Rows are read where they lie, or some sources after the other while sums go on, with the same bits.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...storage.array_kinds import FloatArray, IdArray, Int32Array, ValueArray
from ...storage.graph import Graph
from ..kernels import destinations_on_host
from ..memory.arena import empty

Lists = Any
"""`Flat` of the kernels."""
Matrix = FloatArray | npt.NDArray[np.uint16]
WEIGHED_ROWS = 256
"""Destinations whose edges have weights in memory at once, before sums go on."""


def as_bfloat16(rows: ValueArray) -> Matrix:
    """The bits of bfloat16, as kernels read them; other rows as they are."""
    return rows.view(np.uint16) if rows.dtype == np.int16 else rows  # pyrefly: ignore[bad-return]


def positions(nodes: IdArray, num_nodes: int) -> Int32Array:
    """[V], the position of each of these nodes among them; others have any value."""
    place = np.empty(num_nodes, np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    return place


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Rows of a layer, of all nodes or of some."""

    matrix: Matrix
    """[N, P], C-contiguous: float32, float64, or bfloat16 as uint16."""
    place: Int32Array | IdArray
    """[V], the row of each node that has one; empty: node v has row v."""
    logits: FloatArray | None = None
    """[N, 2H], each row's part of attention logits: as a source, then as a destination."""


@dataclass(frozen=True, eq=False)
class Destinations:
    """n destinations with all their in-edges. Each call names what is aggregated for each of them; sums and means are
    those of `Neighbourhood`."""

    graph: Graph
    """V nodes."""
    degree: Tensor
    """[V] or [V, 3], see `ListNeighbourhood.degree_rows`; its dtype is that of the results."""
    nodes: IdArray
    """int64 [n], ascending."""

    @cached_property
    def kept(self) -> IdArray:
        """[n], number of in-edges."""
        return self.graph.indptr[self.nodes + 1] - self.graph.indptr[self.nodes]

    @cached_property
    def reach(self) -> FloatArray | None:
        """[n], how many edges each one stands for in sums: 1, unless degrees are given that say otherwise; None: edges
        have weights."""
        if self.graph.is_weighted:
            return None
        degree = self.degree.numpy()
        degree = degree[self.nodes] if degree.ndim == 1 else degree[self.nodes, 0]
        return degree / np.maximum(self.kept, 1).astype(degree.dtype)

    @property
    def none(self) -> FloatArray:
        """No numbers, of the dtype of the results."""
        return np.empty(0, self.degree.numpy().dtype)

    def _mean_scale(self) -> FloatArray:
        """One over each row's sum of coefficients, 0 for none."""
        total = self.kept.astype(np.float64)
        if self.graph.is_weighted:
            destinations_on_host().row_sums(self.graph.indptr, self.graph.edge_weight, self.nodes, total)
        real = self.degree.numpy().dtype
        return np.divide(1, total, out=np.zeros(len(total)), where=total > 0).astype(real)

    def sum(self, factor: Tensor | None = None, own: Tensor | None = None, scale: Tensor | None = None) -> "Sums":
        """``scale[v] * sum over in-edges (u, v) of coefficient * factor[u] * h[u] + own[v] * h[v]``, [n, P].

        Args:
            factor: [V]; ones when absent.
            own: [n]; zeros when absent.
            scale: [n]; ones when absent.
        """
        of_row, reach = self.none if scale is None else scale.numpy(), self.reach
        if reach is not None:
            of_row = of_row * reach if len(of_row) else reach
        factors, of_own = (self.none if each is None else each.numpy() for each in (factor, own))
        return Sums(self, "NOTHING" if own is None else "ADDED", of_row, factors, of_own)

    def mean_beside(self) -> "Sums":
        """``[mean(h) | h[v]]``, [n, 2P]."""
        return Sums(self, "BESIDE", self._mean_scale(), self.none, self.none)

    def mean_plus_own(self) -> "Sums":
        """``mean(h[:, :P/2]) + h[v, P/2:]``, [n, P/2]."""
        return Sums(self, "FROM_BESIDE", self._mean_scale(), self.none, self.none)

    def max_beside(self, width: int) -> "Maxima":
        """``[max(h[:, :width]) | h[v, width:]]``, [n, P]; the maximum of no edges is 0."""
        return Maxima(self, width)

    def attend(self, heads: int, apart: bool, slope: float) -> "Attention":
        """Softmax attention over the in-edges and the row itself, with the logits of the rows, [n, H D].

        Args:
            heads: H.
            apart: head h sums columns [h D, (h + 1) D); else each sums all P.
            slope: of the leaky ReLU below zero.
        """
        return Attention(self, heads, apart, slope)


class Aggregate(ABC):
    """What n destinations aggregate: `result` of all rows, or of their sources in ascending order, some after the
    other: `begin`, `add` for the summed columns of some sources, then `result` for the own rows of some
    destinations."""

    start = 0.0
    """What an aggregate of no edges yet is."""
    loops: tuple[str, str] = ("AS_THEY_ARE", "AS_THEY_ARE")
    """What becomes of edges from the destination itself in `add`, and in `result`."""
    has_coefficients = False

    def __init__(self, block: Destinations) -> None:
        self.block, self._kernels = block, destinations_on_host()
        self.real = block.none.dtype
        """Of the sums."""
        self._scale = self._factor = block.none
        """[n] and [V], factors of the coefficients of destinations and of sources; empty: ones."""
        self._at = np.empty(0, np.int64)
        """[n], edge that comes next; none before `begin`."""

    @abstractmethod
    def widths(self, columns: int) -> tuple[int, int]:
        """Columns that are summed, and those of the result, of rows of so many columns."""

    @abstractmethod
    def _aggregate(self, lists: Lists, rows: LayerRows, into: FloatArray, span: slice, is_last: bool) -> None:
        """Aggregate lists of some of the destinations; after `begin`, on from what `into` has."""

    def begin(self, rows: LayerRows, into: FloatArray) -> None:
        """Begin without edges. `rows` has the place and the logits of every row, and need not have its matrix."""
        self._at, into[...] = self.block.graph.indptr[self.block.nodes], self.start

    def add(self, rows: LayerRows, stop: int, into: FloatArray) -> None:
        """Add the edges up to source `stop`, exclusive, that were not added yet, to the aggregates so far."""
        everything = slice(None)
        self._aggregate(self._lists(rows, everything, stop, self.loops[0]), rows, into, everything, False)

    def result(self, rows: LayerRows, span: slice = slice(None), so_far: FloatArray | None = None) -> Tensor:
        """The aggregates of some of the destinations, [n, D]: `so_far` has their edges and `rows` the own rows; without
        it, `rows` has all."""
        summed, columns = self.widths(rows.matrix.shape[1])
        out = empty((len(self.block.nodes[span]), columns), self.block.degree.dtype)
        if so_far is not None:
            out.numpy()[:, :summed] = so_far
        self._aggregate(
            self._lists(rows, span, self.block.graph.num_nodes, self.loops[1]), rows, out.numpy(), span, True
        )
        return out

    def _lists(self, rows: LayerRows, span: slice, stop: int, loops: str) -> Lists:
        graph, nodes, kernels = self.block.graph, self.block.nodes[span], self._kernels
        weight = graph.edge_weight if self.has_coefficients else None
        none = np.empty(0, np.float32)
        edges = kernels.Edges(graph.indptr, graph.indices, rows.place, none if weight is None else weight, self._factor)
        return kernels.flatten(
            edges,
            nodes,
            scale=self._scale[span],
            real=self.real if self.has_coefficients else None,
            loops=getattr(kernels, loops),
            at=self._at[span] if self._continues else graph.indptr[nodes],
            stop=stop,
        )

    @property
    def _continues(self) -> bool:
        return len(self._at) > 0


class Sums(Aggregate):
    """Sums with a coefficient for each edge; `kind` says what is added of the own row, see `spmm_rows`."""

    has_coefficients = True

    def __init__(self, block: Destinations, kind: str, scale: FloatArray, factor: FloatArray, own: FloatArray) -> None:
        super().__init__(block)
        self._kind, self._scale, self._factor, self._own = kind, scale, factor, own

    def widths(self, columns: int) -> tuple[int, int]:
        summed = columns // 2 if self._kind == "FROM_BESIDE" else columns
        return summed, 2 * summed if self._kind == "BESIDE" else summed

    def _aggregate(self, lists: Lists, rows: LayerRows, into: FloatArray, span: slice, is_last: bool) -> None:
        kind = getattr(self._kernels, self._kind if is_last else "NOTHING")
        width = into.shape[1] // (2 if kind == self._kernels.BESIDE else 1)
        self._kernels.sums(lists, rows.matrix, width, kind, factor=self._own[span], more=self._continues, out=into)


class Maxima(Aggregate):
    """Maxima of the first columns, and the others of the own row."""

    start = -np.inf

    def __init__(self, block: Destinations, width: int) -> None:
        super().__init__(block)
        self._width = width

    def widths(self, columns: int) -> tuple[int, int]:
        return self._width, columns

    def _aggregate(self, lists: Lists, rows: LayerRows, into: FloatArray, span: slice, is_last: bool) -> None:
        if is_last and self._continues:
            into[self.block.kept[span] == 0, : self._width] = 0
        self._kernels.maxima(lists, rows.matrix, self._width, is_last, more=self._continues, out=into)


class Attention(Aggregate):
    """Softmax attention, whose weights follow from the logits of the rows."""

    loops = ("LEFT_OUT", "AT_THE_END")

    def __init__(self, block: Destinations, heads: int, apart: bool, slope: float) -> None:
        super().__init__(block)
        self._heads, self._apart, self._slope = heads, apart, slope
        self._softmax = block.none, block.none, block.none

    def widths(self, columns: int) -> tuple[int, int]:
        summed = columns if self._apart else columns * self._heads
        return summed, summed

    def begin(self, rows: LayerRows, into: FloatArray) -> None:
        found, stop = list[tuple[FloatArray, ...]](), self.block.graph.num_nodes
        for first in range(0, max(1, len(self.block.nodes)), WEIGHED_ROWS):
            self._weigh(self._lists(rows, slice(first, first + WEIGHED_ROWS), stop, self.loops[1]), rows)
            found.append(self._softmax)
        here, top, total = map(np.concatenate, zip(*found))
        self._softmax = here, top, total
        super().begin(rows, into)

    def _weigh(self, lists: Lists, rows: LayerRows) -> FloatArray:
        """Weights of all edges; keeps what those of some need."""
        assert rows.logits is not None
        here = rows.logits[lists.own, self._heads :]
        self._softmax = here, np.empty_like(here), np.empty_like(here)
        return self._kernels.weigh(lists, rows.logits, self._slope, *self._softmax, known=False)

    def _aggregate(self, lists: Lists, rows: LayerRows, into: FloatArray, span: slice, is_last: bool) -> None:
        if self._continues:
            some = [each[span] for each in self._softmax]
            p = self._kernels.weigh(lists, rows.logits, self._slope, *some, known=True)
        else:
            p = self._weigh(lists, rows)
        total = self._softmax[2][span] if is_last else self.block.none[:, None]
        self._kernels.head_sums(lists, p, rows.matrix, self._apart, total, more=self._continues, out=into)
