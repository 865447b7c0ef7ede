"""Edges in the order of time, in memory that the kernels of a GPU can read, copied there once."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ....storage.array_kinds import IdArray, Mask, NumberArray
from ....storage.graph import Graph
from ..runtime.device_memory import MemoryKind, device_readable, to_device, wait_for_copies
from .device_graph import DeviceGraph, place_graph
from .device_samples import DeviceSample


@dataclass(frozen=True, eq=False)
class RowsOfTypes:
    """Rows of a graph with N node types, of which each node has one for each relation into its type, side by side."""

    offsets: IdArray
    """int64 [N+1], first node of each type, and V."""
    first: IdArray
    """int64 [N], first row of the first node of each type."""
    count: IdArray
    """int64 [N], rows of each node of a type."""
    timed: Mask
    """bool [N, largest count], True for rows whose edges have times."""

    def types_of(self, nodes: IdArray) -> IdArray:
        """int64 [n], type of each node."""
        return np.searchsorted(self.offsets[:-1], nodes, side="right") - 1


@dataclass(frozen=True, eq=False)
class DeviceTimes:
    """A graph whose rows are in the order of time, on the device."""

    lists: DeviceGraph
    """In-neighbour lists."""
    time: Tensor
    """int64 or float64 [E], time of each edge; placed as the sources of edges are."""
    num_nodes: int
    """V."""
    rows: RowsOfTypes | None
    """Rows of a graph with types; None: a row is a node."""
    by_type: tuple[Tensor, Tensor, Tensor, Tensor] | None
    """The same on the device."""
    edges_of_end: float
    """Expected in-edges of an end of an edge, the busier one: more than the mean where there are hubs."""
    _others: dict[str, Tensor]

    @property
    def most_rows(self) -> int:
        """Rows of a node, at most."""
        return 1 if self.rows is None else self.rows.timed.shape[1]

    def num_rows(self, nodes: IdArray) -> int:
        """Rows of all these nodes."""
        return len(nodes) if self.rows is None else int(self.rows.count[self.rows.types_of(nodes)].sum())

    @property
    def device(self) -> torch.device:
        """Device of the rows."""
        return self.lists.device

    def beside(self, name: str, array: NumberArray) -> Tensor:
        """Numbers of the edges, or of their ends, copied once to where the sources lie."""
        if name not in self._others:
            found = device_readable(array, self.device, self.lists.placed)
            # Before another thread, whose stream would not wait, can see it.
            wait_for_copies(self.device)
            self._others[name] = found
        return self._others[name]


@dataclass(frozen=True, eq=False)
class TimedDraws:
    """How edges are drawn that are not later than a moment."""

    fanout: Sequence[int]
    """L numbers, nearest the seeds first; -1: all."""
    last: bool
    """Take the latest edges in place of a uniform choice."""
    replace: bool
    """Draw independently."""
    weight: Tensor | None
    """float32 [E], of the edges in the order of time; None: they have none."""
    keep_positions: bool
    """Also return positions, in that order."""


@dataclass(frozen=True, eq=False)
class NodesInTrees:
    """All nodes of k minibatches, and what their degrees depend on."""

    nodes: Tensor
    """[n], those of the rows of a `TimedSample`."""
    tree: Tensor
    """int32 [n], the tree of each node, ascending within each hop of a minibatch."""
    moments: Tensor
    """[T], the moment of each tree."""
    num_rows: int
    """Rows of all nodes: see `RowsOfTypes`."""


@dataclass(frozen=True, eq=False)
class TimedSample(DeviceSample):
    """k minibatches whose nodes are in trees: those of all that is not later than a moment."""

    in_trees: NodesInTrees


# A property of the graph: kept as long as it is.
_known: WeakKeyDictionary[Graph, DeviceTimes] = WeakKeyDictionary()


def place_times(graph: Graph, time: NumberArray, rows: RowsOfTypes | None, where: MemoryKind) -> DeviceTimes:
    """Put a graph in the order of time into memory that kernels can read.

    Args:
        graph: in-neighbour lists, each in the order of time.
        time: int64 or float64 [E], of its edges.
        rows: of a graph with types.
        where: location of the sources and the times of edges, see `place_graph`.

    Raises:
        InputError: there is no GPU.
    """
    known = _known.get(graph)
    if known is not None and known.lists.placed == where:
        return known
    lists = place_graph(graph, where)
    by_type, num_nodes = None, graph.num_nodes
    if rows is not None:
        arrays = rows.offsets[:-1], rows.first, rows.count, rows.timed
        offsets, first, count, timed = (to_device(x, lists.device) for x in arrays)
        by_type, num_nodes = (offsets, first, count, timed), int(rows.offsets[-1])
    placed = device_readable(time, lists.device, where)
    wait_for_copies(lists.device)
    found = _known[graph] = DeviceTimes(lists, placed, num_nodes, rows, by_type, _edges_of_end(graph, rows), {})
    return found


def _edges_of_end(graph: Graph, rows: RowsOfTypes | None) -> float:
    own = graph.in_degree
    if rows is not None:
        before = np.cumsum(np.repeat(rows.count, np.diff(rows.offsets)))
        own = np.diff(graph.indptr[np.concatenate([[0], before])])
    sources = np.bincount(graph.indices, minlength=len(own))
    return max(float(np.dot(own.astype(np.float64), x)) for x in (own, sources)) / max(1, graph.num_edges)


def times_on_device(graph: Graph, time: NumberArray, rows: RowsOfTypes | None) -> DeviceTimes:
    """See `place_times`; where it was placed before, else on the device if it fits."""
    return _known.get(graph) or place_times(graph, time, rows, "auto")
