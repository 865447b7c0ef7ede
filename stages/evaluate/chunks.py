"""Layer over the whole graph in bounded memory, in chunks of rows, with the sources and sinks of these rows.

Rows lie on the host, in memory or in files, and travel to the model's device chunk by chunk; or they stay there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.array_kinds import IdArray, IntArray, Mask
from ...storage.errors import InputError
from ...storage.features import FeatureStore, in_place
from ...storage.graph import Graph, edges_of_rows, starts_of
from ...storage.minibatch import Block
from ..kernels import destinations_on_host, numbering_on_host
from ..memory.arena import Arena, reusing
from ..memory.lazy_rows import LazyRows, torch_dtype
from ..models.base import keeps_edges, layered
from ..models.parts import LayerCounts
from ..neighbourhood.block import BlockNeighbourhood, types_of_edges

ROWS_PER_EDGE = 4
"""Rows that a layer which keeps rows of edges has for each: its source's, its destination's, what is computed
of its features, and the message."""
MAX_BYTES = 256 << 20
EDGE_BYTES = 48
"""Most memory for building a block, per edge: its position, its source and its coefficient, and copies of them."""


@dataclass(eq=False)
class Source:
    """Rows of some of the nodes, `count` of `width` columns, numbers of `itemsize` bytes as stored. They come in
    `dtype`, and to `device`, those of the model."""

    rows: FeatureStore | Tensor
    """In a store on the host, or on the device of the model."""
    ids: IdArray | None
    """Whose rows these are, ascending; None: those of all nodes."""
    device: torch.device
    dtype: torch.dtype
    lazy: bool = False
    """Name rows of one array in memory instead of copying them, for kernels that read them in place."""

    def __post_init__(self) -> None:
        rows, self._dtype = self.rows, np.dtype(np.float32)
        if isinstance(rows, Tensor):
            self.count, self.width = rows.shape
        else:
            self.count, self.width, self._dtype = rows.num_rows, rows.num_features, rows.dtype
        self.itemsize = rows.dtype.itemsize
        # One buffer for all chunks of a layer: fresh pages would cost as much as copying the rows.
        self._buffer = np.empty((0, self.width), self._dtype)

    def gather(self, nodes: IntArray) -> Tensor:
        """[n, width], by global id; valid until the next call."""
        at = nodes if self.ids is None else np.searchsorted(self.ids, nodes)
        if isinstance(self.rows, Tensor):
            return self.rows.index_select(0, torch.from_numpy(at).to(self.device)).to(self.dtype)
        if self.lazy and torch_dtype(self._dtype) == self.dtype and (base := in_place(self.rows, at)) is not None:
            return LazyRows(base, at)
        if len(nodes) > len(self._buffer):
            self._buffer = np.empty((len(nodes), self.width), self._dtype)
        return torch.from_numpy(self.rows.gather(at, self._buffer[: len(nodes)])).to(self.device, self.dtype)


def layer_counts(graph: Graph, needed: Sequence[Mask]) -> list[LayerCounts]:
    """Sizes of the layers, from L+1 masks [V]: sources of the first, and rows of each."""
    rows = [int(np.count_nonzero(mask)) for mask in needed]
    starts, stops = graph.indptr[:-1], graph.indptr[1:]
    edges = [int(np.sum(stops, where=mask)) - int(np.sum(starts, where=mask)) for mask in needed[1:]]
    return [LayerCounts(a, b, e) for (a, b), e in zip(pairwise(rows), edges)]


def needed_rows(graph: Graph, wanted: IdArray, layers: int) -> list[Mask]:
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


def widest_weight(model: nn.Module) -> int:
    """Number of rows of a model's widest weight."""
    return max((p.shape[0] for p in model.parameters() if p.is_floating_point() and p.ndim > 1), default=0)


@dataclass(eq=False)
class Chunks:
    """Divides rows into chunks under the bound, and computes layers of a model on their blocks."""

    model: nn.Module
    graph: Graph
    degree: Tensor
    """[V], in the dtype of the model, on the host."""
    max_bytes: int
    """See `layerwise.infer`."""
    device: torch.device
    """Device of the model."""
    kernels: ModuleType | None = None
    """See `BlockNeighbourhood`."""
    edges: FeatureStore | None = None
    """Features of edges, if the model reads them."""

    def __post_init__(self) -> None:
        self._table = numbering_on_host().new_table(self.graph.num_nodes)

    def layer(self, i: int, rows: IdArray, source: Source, append: Callable[[Tensor], None]) -> Iterator[int]:
        """Compute rows of layer i and hand them on, chunk by chunk; the number of each."""
        # Layers differ in width: what one has used would lie idle beside what the next one takes.
        arena = Arena()
        for dst in self.cut(rows, source):
            neighbourhood = self.neighbourhood(dst)
            with reusing(arena):
                append(apply_layer(self.model, i, neighbourhood, source.gather(neighbourhood.block.src)))
            arena.step()
            yield len(dst)

    def cut(self, rows: IdArray, source: Source) -> Iterator[IdArray]:
        """Successive pieces of `rows`, as long as the bound allows; one empty piece if there are no rows, which shows
        the result's width."""
        width = source.width
        wide = max(width, widest_weight(self.model))
        itemsize = max(self.degree.element_size(), source.itemsize)
        source_bytes, row_bytes = (width + 2 * wide) * itemsize, 2 * wide * itemsize
        edge_bytes = EDGE_BYTES
        if keeps_edges(self.model):
            of_edges = 0 if self.edges is None else self.edges.num_features
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
        indptr = starts_of(graph.in_degree[dst])
        src, indices = numbering_on_host().number_sources(graph.indptr, graph.indices, dst, self._table)
        weight = None if graph.edge_weight is None else graph.edge_weight[edges_of(graph, dst)]
        block = Block(len(dst), src, indptr, indices, weight)
        there = None if self.device.type == "cpu" else self.device
        return BlockNeighbourhood(
            block,
            # Few layers read degrees.
            lambda: torch.from_numpy(self.degree.numpy()[src]).to(self.device),
            self.kernels,
            edge_types=None if graph.types.is_single else types_of_edges(graph, edges_of(graph, dst), there),
            edges=None if self.edges is None else lambda: self._edge_rows(dst),
        )

    def _edge_rows(self, dst: IdArray) -> Tensor:
        """Features of the in-edges of `dst`, in the dtype of the degrees."""
        assert self.edges is not None
        ids = edges_of_rows(self.graph.indptr[dst], self.graph.in_degree[dst])[1]
        return torch.from_numpy(self.edges.gather(ids)).to(self.device, self.degree.dtype)


def apply_layer(model: nn.Module, i: int, neighbourhood: BlockNeighbourhood, h: Tensor) -> Tensor:
    """Layer i on a block.

    Raises:
        InputError: its result has the wrong shape, or the features have another width than it reads.
    """
    with nullcontext() if i else naming_features(model, h.shape[1]):
        out = layered(model).layer(i, neighbourhood, h)
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != neighbourhood.num_dst:
        seen = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"layer {i} of {type(model).__name__} returned {seen}; expected [{neighbourhood.num_dst}, D], a row per "
            "destination"
        )
    return out


@contextmanager
def naming_features(model: nn.Module, width: int) -> Iterator[None]:
    """Context in which rows of a wrong width are a sentence."""
    try:
        yield
    except RuntimeError as e:
        # torch has no error class of its own for this.
        if "shapes cannot be multiplied" not in str(e):
            raise
        raise InputError(
            f"a node has {width} features; expected as many as the first layer of {type(model).__name__} multiplies "
            f"({e})"
        ) from e
