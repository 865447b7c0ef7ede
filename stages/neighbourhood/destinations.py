"""A block of destinations that reads the rows of a whole layer where they lie. Host memory, no gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...storage.graph import Graph
from ..kernels import destinations_on_host
from ..memory.arena import empty

Matrix = npt.NDArray[np.floating] | npt.NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Rows of a layer, of all nodes or of some."""

    matrix: Matrix
    """[N, P], C-contiguous: float32, float64, or bfloat16 as uint16."""
    place: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    """[V], the row of each node that has one; empty: node v has row v."""
    logits: npt.NDArray[np.floating] | None = None
    """[N, 2H], each row's part of attention logits: as a source, then as a destination."""


@dataclass(frozen=True, eq=False)
class Destinations:
    """n destinations with all their in-edges. Each call returns a row for each of them.

    Sums and means are those of `Neighbourhood`, over the matrix's first `width` columns.
    """

    graph: Graph
    """V nodes."""
    degree: Tensor
    """[V] or [V, 3], see `ListNeighbourhood.degree_rows`; its dtype is that of the results."""
    nodes: npt.NDArray[np.int64]
    """int64 [n], ascending."""
    rows: LayerRows

    @cached_property
    def _kept(self) -> npt.NDArray[np.int64]:
        return self.graph.indptr[self.nodes + 1] - self.graph.indptr[self.nodes]

    @cached_property
    def reach(self) -> npt.NDArray[np.floating] | None:
        """[n], how many edges each one stands for in sums: 1, unless degrees are given that say otherwise; None: edges
        have weights."""
        if self.graph.is_weighted:
            return None
        degree = self.degree.numpy()
        degree = degree[self.nodes] if degree.ndim == 1 else degree[self.nodes, 0]
        return degree / np.maximum(self._kept, 1).astype(self._real)

    @property
    def _real(self) -> npt.DTypeLike:
        return self.degree.numpy().dtype

    def _lists(
        self, factor: Tensor | None, scale: npt.NDArray[np.floating] | None
    ) -> Sequence[npt.NDArray[np.generic]]:
        none, weight = np.empty(0, self._real), self.graph.edge_weight
        return destinations_on_host().flatten(
            self.graph.indptr,
            self.graph.indices,
            self.rows.place,
            self.nodes,
            np.empty(0, np.float32) if weight is None else weight,
            none if factor is None else factor.numpy(),
            scale=none if scale is None else scale,
            real=self._real,
        )

    def _sums(
        self,
        width: int,
        scale: npt.NDArray[np.floating] | None,
        kind: str,
        factor: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        kernels = destinations_on_host()
        columns = 2 * width if kind == "BESIDE" else width
        out = empty((len(self.nodes), columns), self.degree.dtype)
        none = np.empty(0, self._real)
        kernels.sums(
            self._lists(factor, scale),
            self.rows.matrix,
            width,
            getattr(kernels, kind),
            none if own is None else own.numpy(),
            out.numpy(),
        )
        return out

    def _mean_scale(self) -> npt.NDArray[np.floating]:
        """One over each row's sum of coefficients, 0 for none."""
        total = self._kept.astype(np.float64)
        if self.graph.is_weighted:
            destinations_on_host().row_sums(self.graph.indptr, self.graph.edge_weight, self.nodes, total)
        return np.divide(1, total, out=np.zeros(len(total)), where=total > 0).astype(self._real)

    def sum(self, factor: Tensor | None = None, own: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        """``scale[v] * sum over in-edges (u, v) of coefficient * factor[u] * h[u] + own[v] * h[v]``, [n, P].

        Args:
            factor: [V]; ones when absent.
            own: [n]; zeros when absent.
            scale: [n]; ones when absent.
        """
        of_row = None if scale is None else scale.numpy()
        if self.reach is not None:
            of_row = self.reach if of_row is None else of_row * self.reach
        kind = "NOTHING" if own is None else "ADDED"
        return self._sums(self.rows.matrix.shape[1], of_row, kind, factor, own)

    def mean_beside(self) -> Tensor:
        """``[mean(h) | h[v]]``, [n, 2P]."""
        return self._sums(self.rows.matrix.shape[1], self._mean_scale(), "BESIDE")

    def mean_plus_own(self) -> Tensor:
        """``mean(h[:, :P/2]) + h[v, P/2:]``, [n, P/2]."""
        return self._sums(self.rows.matrix.shape[1] // 2, self._mean_scale(), "FROM_BESIDE")

    def max_beside(self, width: int) -> tuple[Tensor, Tensor]:
        """``max(h[:, :width])``, 0 without edges, and ``h[v, width:]``."""
        kernels, matrix = destinations_on_host(), self.rows.matrix
        most = empty((len(self.nodes), width), self.degree.dtype)
        own = empty((len(self.nodes), matrix.shape[1] - width), self.degree.dtype)
        kernels.maxima(self._lists(None, None), matrix, width, most.numpy(), own.numpy())
        return most, own

    def attend(self, heads: int, apart: bool, slope: float) -> Tensor:
        """Softmax attention over the in-edges and the row itself, with the logits of `rows`: [n, H, D].

        Args:
            heads: H.
            apart: head h sums columns [h D, (h + 1) D); else each sums all P.
            slope: of the leaky ReLU below zero.
        """
        kernels, matrix = destinations_on_host(), self.rows.matrix
        assert self.rows.logits is not None
        width = matrix.shape[1] // heads if apart else matrix.shape[1]
        out = empty((len(self.nodes), heads, width), self.degree.dtype)
        none = np.empty(0, self._real)
        lists = kernels.flatten(
            self.graph.indptr,
            self.graph.indices,
            self.rows.place,
            self.nodes,
            np.empty(0, np.float32),
            none,
            scale=none,
            real=None,
            loops=True,
        )
        kernels.attend(lists, matrix, apart, self.rows.logits, slope, out.numpy())
        return out
