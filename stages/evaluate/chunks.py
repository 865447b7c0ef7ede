"""Layer over the whole graph in bounded memory, in chunks of rows, with the sources and sinks of these rows.

Rows lie on the host, in memory or in files, and travel to the model's device chunk by chunk; or they stay there.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.features import FeatureStore, in_place
from ...storage.graph import Graph, edges_of_rows
from ...storage.minibatch import Block
from ..kernels import destinations_on_host, numbering_on_host
from ..memory.lazy_rows import LazyRows
from ..models.parts import LayerCounts
from ..neighbourhood.block import BlockNeighbourhood, types_of_edges

IdArray = npt.NDArray[np.int64]
ROWS_PER_EDGE = 4
"""Rows that a layer which keeps rows of edges has for each: its source's, its destination's, what is computed
of its features, and the message."""
MAX_BYTES = 256 << 20
EDGE_BYTES = 48
"""Most memory for building a block, per edge: its position, its source and its coefficient, and copies of them."""


class HostRows:
    """Rows of some of the nodes in a store on the host: `count` rows of `width` columns, numbers of `itemsize` bytes as
    stored, which come in `dtype`, and to `device`, those of the model."""

    def __init__(
        self, store: FeatureStore, ids: IdArray | None, device: torch.device, dtype: torch.dtype, lazy: bool
    ) -> None:
        """
        Args:
            store: the rows.
            ids: whose rows these are, ascending; None: those of all nodes.
            device: of the model.
            dtype: of the model.
            lazy: name rows of one array in memory instead of copying them, for kernels that read them in place.
        """
        self.count, self.width, self.itemsize = store.num_rows, store.num_features, store.dtype.itemsize
        self.device, self.dtype = device, dtype
        self._store, self._ids, self._lazy = store, ids, lazy
        self._real = torch.empty(0, dtype=dtype).numpy().dtype
        # One buffer for all chunks of a layer: fresh pages would cost as much as copying the rows.
        self._buffer = np.empty((0, self.width), store.dtype)

    def gather(self, nodes: npt.NDArray[np.integer]) -> Tensor:
        """[n, width], by global id; valid until the next call."""
        at = nodes if self._ids is None else np.searchsorted(self._ids, nodes)
        if self._lazy and self._store.dtype == self._real:
            base = in_place(self._store, at)
            if base is not None:
                return LazyRows(base, at)
        if len(nodes) > len(self._buffer):
            self._buffer = np.empty((len(nodes), self.width), self._store.dtype)
        return torch.from_numpy(self._store.gather(at, self._buffer[: len(nodes)])).to(self.device, self.dtype)


class DeviceRows:
    """`HostRows` in the memory of the model's device."""

    def __init__(self, rows: Tensor, ids: IdArray | None, dtype: torch.dtype) -> None:
        """
        Args:
            rows: [n, D].
            ids: see `HostRows`.
            dtype: of the model.
        """
        (self.count, self.width), self.itemsize = rows.shape, rows.itemsize
        self.device, self.dtype = rows.device, dtype
        self._rows, self._ids = rows, ids

    def gather(self, nodes: npt.NDArray[np.integer]) -> Tensor:
        """[n, width], by global id."""
        at = nodes if self._ids is None else np.searchsorted(self._ids, nodes)
        return self._rows.index_select(0, torch.from_numpy(at).to(self.device)).to(self.dtype)


Source = HostRows | DeviceRows


def layer_counts(graph: Graph, needed: Sequence[npt.NDArray[np.bool_]]) -> list[LayerCounts]:
    """Sizes of the layers, from L+1 masks [V]: sources of the first, and rows of each."""
    rows = [int(np.count_nonzero(mask)) for mask in needed]
    edges = [
        graph.num_edges if n == graph.num_nodes else int(graph.in_degree[mask].sum())
        for n, mask in zip(rows[1:], needed[1:])
    ]
    return [LayerCounts(a, b, e) for (a, b), e in zip(pairwise(rows), edges)]


def needed_rows(graph: Graph, wanted: IdArray, layers: int) -> list[npt.NDArray[np.bool_]]:
    """For each layer, first to last, a mask [V] of the rows it must compute: those of the next layer and their
    in-neighbours."""
    mask = np.zeros(graph.num_nodes, np.bool_)
    mask[wanted] = True
    needed = [mask]
    for _ in range(layers - 1):
        mask = needed[0].copy()
        rows = np.flatnonzero(mask)
        if len(rows) < graph.num_nodes:
            destinations_on_host().mark_sources(graph.indptr, graph.indices, rows, mask)
        needed.insert(0, mask)
    return needed


def edges_of(graph: Graph, rows: IdArray) -> slice | IdArray:
    """Positions of the in-edges of ascending `rows`, in their order; a slice if the rows are consecutive."""
    if not len(rows):
        return slice(0, 0)
    starts = graph.indptr[rows]
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(starts[0]), int(graph.indptr[rows[-1] + 1]))
    return edges_of_rows(starts, graph.indptr[rows + 1] - starts)[1]


class Chunks:
    """Divides rows into chunks under the bound, and builds their blocks."""

    def __init__(
        self,
        graph: Graph,
        degree: Tensor,
        max_bytes: int,
        device: torch.device,
        kernels: ModuleType | None = None,
        edges: FeatureStore | None = None,
        keeps_edges: bool = False,
    ) -> None:
        """
        Args:
            graph: V nodes.
            degree: [V], in the dtype of the model, on the host.
            max_bytes: see `layerwise.infer`.
            device: device of the model.
            kernels: see `BlockNeighbourhood`.
            edges: features of edges, if the model reads them.
            keeps_edges: layers keep rows for each edge.
        """
        self._edges, self._keeps_edges = edges, keeps_edges
        self.graph, self.degree, self.max_bytes = graph, degree, max_bytes
        self._device, self._kernels, self.on_host = device, kernels, device.type == "cpu" and kernels is None
        self._table = numbering_on_host().new_table(graph.num_nodes)

    def cut(self, rows: IdArray, source: Source, widest: int) -> Iterator[IdArray]:
        """Successive pieces of `rows`, as long as the bound allows; one empty piece if there are no rows, which shows
        the result's width."""
        width = source.width
        wide = max(width, widest)
        itemsize = max(self.degree.element_size(), source.itemsize)
        source_bytes, row_bytes = (width + 2 * wide) * itemsize, 2 * wide * itemsize
        edge_bytes = EDGE_BYTES
        if self._keeps_edges:
            of_edges = 0 if self._edges is None else self._edges.num_features
            edge_bytes += (2 * of_edges + ROWS_PER_EDGE * wide) * itemsize
        before = np.concatenate([[0], np.cumsum(self.graph.in_degree[rows])])

        def cost(end: int) -> int:
            edges = int(before[end] - before[start])
            sources = min(end - start + edges, source.count)
            return edges * edge_bytes + sources * source_bytes + (end - start) * row_bytes

        start, stop = 0, 0
        while not stop or start < len(rows):
            stop = start + max(1, bisect_right(range(start + 1, len(rows) + 1), self.max_bytes, key=cost))
            yield rows[start:stop]
            start = stop

    def neighbourhood(self, dst: IdArray) -> BlockNeighbourhood:
        """Block of ascending `dst` with all their in-edges; its sources are `dst`, then the other in-neighbours in
        order."""
        graph = self.graph
        indptr = np.zeros(len(dst) + 1, np.int64)
        np.cumsum(graph.in_degree[dst], out=indptr[1:])
        src, indices = numbering_on_host().number_sources(graph.indptr, graph.indices, dst, self._table)
        weight = None if graph.edge_weight is None else graph.edge_weight[edges_of(graph, dst)]
        block = Block(len(dst), src, indptr, indices, weight)
        there = None if self._device.type == "cpu" else self._device
        # Few layers read degrees.
        rows = None if self._edges is None else lambda: self._edge_rows(dst)
        return BlockNeighbourhood(
            block,
            lambda: torch.from_numpy(self.degree.numpy()[src]).to(self._device),
            self._kernels,
            edge_types=None if graph.types.is_single else types_of_edges(graph, edges_of(graph, dst), there),
            edges=rows,
        )

    def _edge_rows(self, dst: IdArray) -> Tensor:
        """Features of the in-edges of `dst`, in the dtype of the degrees."""
        assert self._edges is not None
        ids = edges_of_rows(self.graph.indptr[dst], self.graph.in_degree[dst])[1]
        return torch.from_numpy(self._edges.gather(ids)).to(self._device, self.degree.dtype)
