"""Exact evaluation for layers that fit into a device's memory: each layer is one block, and no row leaves the device.

Nodes are renamed so that those which more layers need come first. The rows of a layer are then the first of what the
next one reads: nothing is gathered between two layers, and the blocks are those of a nested minibatch whose fanouts
have no end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import Mask
from ...storage.features import FeatureStore
from ...storage.graph import Graph, edges_of_rows, starts_of
from ...storage.minibatch import Block
from ...storage.optional import taken
from ..neighbourhood.block import BlockNeighbourhood
from .chunks import EDGE_BYTES, MAX_BYTES, IdArray, layer_counts, needed_rows

LIST_BYTES = 8
"""Device memory per edge of a layer: source in 32 bits, weight."""
CALL_BYTES = 24
"""Temporary memory per edge while aggregating: source in 64 bits, coefficient and factor in 64 bits each."""


@dataclass(frozen=True)
class DeviceBudget:
    """Device that computes a model's layers, and the memory that evaluation may take there."""

    device: torch.device
    num_bytes: int
    kernels: ModuleType | None = None
    """See `BlockNeighbourhood`."""

    @classmethod
    def from_free_memory(cls, device: torch.device) -> "DeviceBudget":
        """Half of the free memory of a CUDA device: the allocator fragments it, and training goes on beside
        evaluation."""
        free, _ = torch.cuda.mem_get_info(device)
        return cls(device, (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 2)


@dataclass(frozen=True, eq=False)
class Layers:
    """Blocks that the layers of a model read for the outputs of some nodes."""

    nodes: IdArray
    """int64 [S], sources of the first layer. The first of them are the requested nodes, ascending."""
    neighbourhoods: tuple[BlockNeighbourhood, ...]
    """One for each layer, first to last."""
    device: torch.device

    @cached_property
    def _nodes_on_device(self) -> Tensor:
        return torch.from_numpy(self.nodes).to(self.device)

    def rows(self, features: FeatureStore | Tensor, dtype: torch.dtype) -> Tensor:
        """[S, F], input of the first layer, in the dtype of the model; features may be on the device."""
        if isinstance(features, Tensor):
            return features.index_select(0, self._nodes_on_device).to(dtype)
        rows = torch.empty(len(self.nodes), features.num_features, dtype=dtype, device=self.device)
        step = max(1, MAX_BYTES // max(1, features.num_features * features.dtype.itemsize))
        buffer = np.empty((min(step, len(self.nodes)), features.num_features), features.dtype)
        for first in range(0, len(self.nodes), step):
            nodes = self.nodes[first : first + step]
            rows[first : first + len(nodes)] = torch.from_numpy(features.gather(nodes, buffer[: len(nodes)]))
        return rows


def fits(graph: Graph, needed: Sequence[Mask], width: int, widest: int, itemsize: int, num_bytes: int) -> bool:
    """True if all layers fit, each as one block: the lists of all, and for one layer its rows, its results and two
    working copies of each. `needed`: L+1 times [V], sources of the first layer and rows of each; see `layers_for`."""
    counts, wide = layer_counts(graph, needed), max(width, widest) * itemsize
    lists = sum(c.num_edges * LIST_BYTES + 8 * c.num_dst for c in counts)
    layer = [c.num_edges * CALL_BYTES + (3 * c.num_src + 2 * c.num_dst) * wide for c in counts]
    return lists + max(layer) <= num_bytes


def _laid_out(graph: Graph, needed: Sequence[Mask], degree: Tensor, budget: DeviceBudget) -> Layers:
    times = np.add.reduce(needed, dtype=np.int16)
    nodes = np.flatnonzero(times)
    nodes = nodes[np.argsort(-times[nodes], kind="stable")]
    rows = [int(np.count_nonzero(mask)) for mask in needed]
    place = np.empty(graph.num_nodes, np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    dst = nodes[: rows[1]]
    indptr = starts_of(graph.in_degree[dst])
    indices = np.empty(indptr[-1], np.int32)
    weight = None if graph.edge_weight is None else np.empty(indptr[-1], np.float32)
    # In pieces: positions of all edges at once would take several times the memory of the lists.
    cuts = np.searchsorted(indptr, np.arange(0, indptr[-1], max(1, MAX_BYTES // EDGE_BYTES)))
    for first, last in pairwise([*cuts.tolist(), len(dst)]):
        _, edges = edges_of_rows(graph.indptr[dst[first:last]], graph.in_degree[dst[first:last]])
        here = slice(int(indptr[first]), int(indptr[last]))
        indices[here] = place[graph.indices[edges]]
        if weight is not None and graph.edge_weight is not None:
            weight[here] = graph.edge_weight[edges]
    degree = degree[torch.from_numpy(nodes)].to(budget.device)
    neighbourhoods: list[BlockNeighbourhood] = []
    for before, own in pairwise(rows):
        if neighbourhoods and (before, own) == (neighbourhoods[-1].num_src, neighbourhoods[-1].num_dst):
            # Its lists are on the device once.
            neighbourhoods.append(neighbourhoods[-1])
            continue
        e = int(indptr[own])
        block = Block(own, nodes[:before], indptr[: own + 1], indices[:e], taken(weight, slice(e)))
        neighbourhoods.append(BlockNeighbourhood(block, degree[:before], budget.kernels))
    return Layers(nodes, tuple(neighbourhoods), budget.device)


class ModelSizes(NamedTuple):
    """Sizes that the memory of a model's layers depends on."""

    num_layers: int
    width: int
    """Columns of the features."""
    widest: int
    """Rows of the widest weight."""
    dtype: torch.dtype


_kept: WeakKeyDictionary[Graph, tuple[Tensor, tuple[Any, ...], IdArray, Layers]] = WeakKeyDictionary()
"""Last result for each graph: validation asks for the same nodes epoch after epoch, and then neither makes nor moves
their lists again."""


def layers_for(graph: Graph, degree: Tensor, wanted: IdArray, model: ModelSizes, budget: DeviceBudget) -> Layers | None:
    """Layers for the outputs of `wanted`, ascending and distinct; None if they do not fit. See `layerwise.infer` for
    the others."""
    known = _kept.get(graph)
    key = model, budget.device, budget.kernels
    if known is not None and known[0] is degree and known[1] == key and np.array_equal(known[2], wanted):
        return known[3]
    _kept.pop(graph, None)
    needed = needed_rows(graph, wanted, model.num_layers + 1)
    if not fits(graph, needed, model.width, model.widest, model.dtype.itemsize, budget.num_bytes):
        return None
    layers = _laid_out(graph, needed, degree.to(model.dtype), budget)
    _kept[graph] = degree, key, wanted, layers
    return layers
