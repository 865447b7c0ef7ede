"""Bulks of samples in the memory of a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ....storage.array_kinds import IdArray, Int32Array
from ..runtime.device_memory import to_device
from .samples import EdgeList


@dataclass(frozen=True, eq=False)
class Rows:
    """Nodes of a bulk, minibatch after minibatch, on the device."""

    nodes: Tensor
    """[n], in the dtype of the graph's ids."""
    owner: Tensor
    """int32 [n], the minibatch of each, ascending."""


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of edges to draw from, in-edges of rows or a part of them, on the device."""

    rows: Rows
    """n of them, each with its minibatch, or tree."""
    begin: Tensor
    """int64 [n], the first edge of each."""
    until: Tensor
    """int64 [n], the end of each."""

    @property
    def degree(self) -> Tensor:
        """int64 [n], edges of each."""
        return self.until - self.begin


Counts = IdArray
"""int64 [k], on the host: one number for each minibatch."""


def prefix_sums(counts: Counts) -> Counts:
    """int64 [k+1]: sums of all counts before each."""
    return np.concatenate([[0], np.cumsum(counts)])


def cumulated(counts: Tensor) -> Tensor:
    """int64 [n+1]: sums of all counts before each."""
    out = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=out[1:])
    return out


def leading(counts: Counts, device: torch.device) -> tuple[Tensor, Tensor]:
    """int64 [sum of counts] each: the minibatch of each of its elements, and the element's number in it."""
    total = int(counts.sum())
    per = to_device(counts, device)
    owner = torch.repeat_interleave(torch.arange(len(counts), device=device), per, output_size=total)
    return owner, torch.arange(total, device=device) - to_device(prefix_sums(counts)[:-1], device)[owner]


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
    weight: Tensor | None = None
    """float32 [sum of edges]; None: edges are alike."""

    @property
    def edge_at(self) -> Counts:
        """int64 [k], the first edge of each minibatch."""
        return prefix_sums(self.edges)[:-1] if self.begin is None else self.begin


@dataclass(frozen=True, eq=False)
class DeviceSample:
    """k minibatches, one after the other, on the device."""

    rows: Rows
    """All nodes: of each minibatch the seeds, then each hop's new nodes ascending."""
    node_ends: tuple[Counts, ...]
    """L+1 times int64 [k], on the host."""
    lists: tuple[DeviceList, ...]
    """See `NeighborSample.lists`. Of layer-wise sampling L of them, nearest the seeds first."""
    edge_ends: tuple[Counts, ...]
    """L times int64 [k], on the host: edges of the rows that were known before each hop; of layer-wise sampling, edges
    of each layer."""

    def hops(self, h: int, owner: Tensor, row: Tensor) -> Tensor:
        """int64, the hop in which each of these rows of list h was drawn, by its minibatch and its place there."""
        hop = torch.full_like(row, h)
        # If one list is for all hops, a row was drawn in the hop after it was found.
        for ends in self.node_ends[:-2] if len(self.lists) == 1 else ():
            hop += row >= to_device(ends, row.device)[owner]
        return hop

    def weighing(self, weights: Sequence[Tensor]) -> Self:
        """These minibatches with the weights of the edges of each list."""
        return replace(self, lists=tuple(replace(x, weight=w) for x, w in zip(self.lists, weights, strict=True)))


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
