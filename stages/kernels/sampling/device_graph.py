"""A graph's topology in the memory of a GPU, copied there once."""

from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....storage.graph import Graph
from ..runtime.device_memory import ArrayPlace, device_readable, to_device, wait_for_copies
from ..runtime.triton_rng import device


@dataclass(frozen=True, eq=False)
class Weights:
    """Exact integer weights of a graph's edges, on the device."""

    weight: Tensor
    """int64 [E]."""
    sums: Tensor
    """int64 [E+1], sums of all weights before an edge: a row's prefix sums are differences of these."""
    positive: Tensor
    """int64 [E+1], number of weights before an edge that are not 0."""

    @classmethod
    def of(cls, weight: Tensor) -> "Weights":
        """Build from int64 [E] weights, below 2**26 each, so that no sum overflows."""
        zero = weight.new_zeros(1)
        return cls(weight, torch.cat([zero, weight.cumsum(0)]), torch.cat([zero, (weight > 0).cumsum(0)]))


@dataclass(eq=False)
class DeviceGraph:
    """In-neighbour lists on the device."""

    indptr: Tensor
    """int64 [V+1]."""
    indices: Tensor
    """int32 or int64 [E]; on the device, or in page-locked host memory (see `place_graph`)."""
    max_degree: int
    """The largest in-degree."""
    placed: ArrayPlace = "device"
    """See `place_graph`."""
    _weights: dict[int, tuple[Any, Weights]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """V."""
        return len(self.indptr) - 1

    @property
    def device(self) -> torch.device:
        """Device of `indptr`."""
        return self.indptr.device

    def weighted(self, probability: npt.NDArray[np.int64]) -> Weights:
        """Weights of these probabilities, int64 [E], on the device; those of the last array are kept."""
        kept = self._weights.get(id(probability))
        if kept is None:
            # Kept with the array itself, so that no other array can get its identity.
            kept = probability, Weights.of(to_device(probability, self.device))
            self._weights.clear()
            self._weights[id(probability)] = kept
        return kept[1]


_graphs: WeakKeyDictionary[Graph, DeviceGraph] = WeakKeyDictionary()
_numbers: WeakKeyDictionary[Graph, dict[str, Tensor]] = WeakKeyDictionary()


def number_on_device(graph: Graph, name: Literal["in_degree", "degree", "edge_weight"]) -> Tensor:
    """An array of the graph on the device; copied once, kept as long as the graph lives."""
    known = _numbers.setdefault(graph, {})
    if name not in known:
        known[name] = to_device(getattr(graph, name), device())
        wait_for_copies(known[name].device)
    return known[name]


def on_device(graph: Graph) -> DeviceGraph:
    """The graph's topology on the device; copied once, kept as long as the graph lives.

    Raises:
        InputError: there is no GPU.
    """
    return _graphs.get(graph) or place_graph(graph, "auto")


def place_graph(graph: Graph, where: ArrayPlace) -> DeviceGraph:
    """Put the graph's topology into memory that kernels can read.

    Args:
        graph: in-neighbour lists.
        where: location of the sources of edges, which are the larger part; the rest is on the device in any case.

    Raises:
        InputError: there is no GPU.
    """
    to, known = device(), _graphs.get(graph)
    if known is not None and known.placed == where:
        return known
    indices = device_readable(graph.indices, to, where)
    known = _graphs[graph] = DeviceGraph(
        to_device(graph.indptr, to), indices, int(graph.in_degree.max(initial=0)), where
    )
    wait_for_copies(to)
    return known
