"""Bulks of samples in the memory of a GPU."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from ....storage.array_kinds import IdArray, Int32Array
from .samples import EdgeList


@dataclass(frozen=True, eq=False)
class Rows:
    """Nodes of a bulk, minibatch after minibatch, on the device."""

    nodes: Tensor
    """[n], in the dtype of the graph's ids."""
    owner: Tensor
    """int32 [n], the minibatch of each, ascending."""


Counts = IdArray
"""int64 [k], on the host: one number for each minibatch."""


def prefix_sums(counts: Counts) -> Counts:
    """int64 [k+1]: sums of all counts before each."""
    return np.concatenate([[0], np.cumsum(counts)])


@dataclass(frozen=True, eq=False)
class DeviceList:
    """Edges by destination of k minibatches, one after the other, on the device; their counts on the host. Between two
    minibatches there may be a gap in the arrays of edges."""

    indptr: Tensor
    """int32 [sum of (rows + 1)]: each minibatch's begins with 0."""
    indices: Tensor
    """int32 [sum of edges]."""
    positions: Tensor | None
    """int64 [sum of edges], if requested."""
    rows: Counts
    edges: Counts
    begin: Counts | None = None
    """int64 [k], the first edge of each minibatch; None: there are no gaps."""

    @property
    def edge_at(self) -> Counts:
        """int64 [k], the first edge of each minibatch."""
        return prefix_sums(self.edges)[:-1] if self.begin is None else self.begin


@dataclass(frozen=True, eq=False)
class DeviceSample:
    """k minibatches of node-wise sampling, one after the other, on the device."""

    rows: Rows
    """All nodes: of each minibatch the seeds, then each hop's new nodes ascending."""
    node_ends: tuple[Counts, ...]
    """L+1 times int64 [k], on the host."""
    lists: tuple[DeviceList, ...]
    """See `NeighborSample.lists`."""
    edge_ends: tuple[Counts, ...]
    """L times int64 [k], on the host: edges of the rows that were known before each hop."""


@dataclass(frozen=True, eq=False)
class DeviceLayers:
    """k minibatches of layer-wise sampling, one after the other, on the device."""

    rows: Rows
    """All nodes: of each minibatch the seeds, then each hop's new nodes ascending."""
    node_ends: tuple[Counts, ...]
    """L+1 times int64 [k], on the host."""
    lists: tuple[DeviceList, ...]
    """L of them, nearest the seeds first."""
    weight: tuple[Tensor, ...] | None
    """L vectors, float32 [sum of edges], or None."""

    @property
    def edge_ends(self) -> tuple[Counts, ...]:
        """L times int64 [k], on the host: edges of each layer."""
        return tuple(x.edges for x in self.lists)


class DeviceEdges(EdgeList):
    """Edges that are on the device but for `indptr`; the rest is copied to the host when it is read."""

    on_device: tuple[Tensor, Tensor | None, Tensor | None]
    """Indices, positions and weights."""

    def __init__(self, indptr: Int32Array, indices: Tensor, positions: Tensor | None, weight: Tensor | None) -> None:
        self.__dict__.update(indptr=indptr, on_device=(indices, positions, weight))

    def _host(self, i: int) -> Any:
        there = self.on_device[i]
        return None if there is None else there.cpu().numpy()

    @property
    def num_edges(self) -> int:
        return len(self.on_device[0])

    @cached_property
    # pyrefly: ignore[bad-override]
    def indices(self) -> Any:
        return self._host(0)

    @cached_property
    # pyrefly: ignore[bad-override]
    def positions(self) -> Any:
        return self._host(1)

    @cached_property
    # pyrefly: ignore[bad-override]
    def weight(self) -> Any:
        return self._host(2)
