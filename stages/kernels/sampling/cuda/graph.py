"""A graph's topology on the device, copied there once, and the tables in which a bulk finds and numbers its nodes."""

from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .....storage.graph import Graph
from ...runtime.triton_rng import device

Place = Literal["auto", "device", "pinned"]
"""In the device's memory, in the host's (locked, so that kernels read it there), or there if it fits."""
SHARE = 0.6
"""Of the device's free memory, at most, that one array may take to fit."""
SCAN = 1 << 12
"""Nodes of one minibatch that one program looks through for new ones."""
TABLE_BYTES = 4 << 30
"""Of the tables of a bulk: a larger bulk is drawn in pieces."""


def moved(array: npt.NDArray[Any], to: torch.device) -> Tensor:
    """The array on a device; a copy, unless that is the host."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(to, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Weights:
    """Exact integer weights of a graph's edges, on the device."""

    weight: Tensor
    """int64 [E]."""
    sums: Tensor
    """int64 [E+1], sums of all weights before an edge: a row's prefix sums are differences of these."""
    positive: Tensor
    """int64 [E+1], how many weights before an edge are not 0."""

    @classmethod
    def of(cls, weight: Tensor) -> "Weights":
        """Args: weight: int64 [E], below 2**26 each, so that no sum overflows."""
        zero = weight.new_zeros(1)
        return cls(weight, torch.cat([zero, weight.cumsum(0)]), torch.cat([zero, (weight > 0).cumsum(0)]))


@dataclass(eq=False)
class DeviceGraph:
    """In-neighbour lists on the device."""

    indptr: Tensor
    """int64 [V+1]."""
    indices: Tensor
    """int32 or int64 [E]; on the device, or in locked memory of the host (see `place`)."""
    max_degree: int
    """The largest in-degree."""
    placed: Place = "device"
    """See `place`."""
    _weights: dict[int, tuple[Any, Weights]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """V."""
        return len(self.indptr) - 1

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.indptr.device

    def weighted(self, probability: npt.NDArray[np.int64]) -> Weights:
        """int64 [E] on the device; those of the last array asked for are kept."""
        kept = self._weights.get(id(probability))
        if kept is None:
            # With the array itself, so that no other can come to have its identity.
            kept = probability, Weights.of(moved(probability, self.device))
            self._weights.clear()
            self._weights[id(probability)] = kept
        return kept[1]


_graphs: WeakKeyDictionary[Graph, DeviceGraph] = WeakKeyDictionary()
_numbers: WeakKeyDictionary[Graph, dict[str, Tensor]] = WeakKeyDictionary()


def number_on_device(graph: Graph, name: Literal["in_degree", "degree", "edge_weight"]) -> Tensor:
    """That array of the graph on the device; copied once, kept as long as the graph lives."""
    known = _numbers.setdefault(graph, {})
    if name not in known:
        known[name] = moved(getattr(graph, name), device())
        settle(known[name].device)
    return known[name]


def on_device(graph: Graph) -> DeviceGraph:
    """The graph's topology on the device; copied once, kept as long as the graph lives.

    Raises:
        InputError: there is no GPU.
    """
    return _graphs.get(graph) or place(graph, "auto")


def place(graph: Graph, where: Place) -> DeviceGraph:
    """Put the graph's topology where kernels read it.

    Args:
        graph: in-neighbour lists.
        where: of the sources of edges, the larger part of them; the rest is on the device in any case.

    Raises:
        InputError: there is no GPU.
    """
    to, known = device(), _graphs.get(graph)
    if known is not None and known.placed == where:
        return known
    indices = reachable(graph.indices, to, where)
    known = _graphs[graph] = DeviceGraph(moved(graph.indptr, to), indices, int(graph.in_degree.max(initial=0)), where)
    settle(to)
    return known


def fits(num_bytes: int, to: torch.device) -> bool:
    """Whether so much more leaves the device enough for work on it."""
    if to.type != "cuda":
        return True
    # What the allocator keeps of tensors that are gone is free too.
    kept = torch.cuda.memory_reserved(to) - torch.cuda.memory_allocated(to)
    return num_bytes <= SHARE * (torch.cuda.mem_get_info(to)[0] + kept)


def near(num_bytes: int, to: torch.device, where: Place) -> bool:
    """Whether an array of so many bytes goes to the device's own memory; ``auto``: if it fits."""
    return where == "device" or (where == "auto" and fits(num_bytes, to))


def reachable(array: npt.NDArray[Any], to: torch.device, where: Place) -> Tensor:
    """The array where kernels on the device can read it: there, or in locked memory of the host.

    Args:
        array: of any shape.
        to: the device.
        where: see `near`.
    """
    if near(array.nbytes, to, where):
        return moved(array, to)
    locked = torch.empty(
        array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, pin_memory=to.type == "cuda"
    )
    locked.numpy()[...] = array
    return locked


def settle(to: torch.device) -> None:
    """Wait for copies to the device: other threads, whose streams do not wait for this one's, read them too."""
    if to.type == "cuda":
        torch.cuda.synchronize(to)


@dataclass(frozen=True, eq=False)
class Tables:
    """What k minibatches know of all V nodes. Between bulks all is unknown and nothing found."""

    local: Tensor
    """int32 [k stride]: a node's position in its minibatch, or -1."""
    found: Tensor
    """uint8 [k stride]: 1 for sources of sampled edges."""
    stride: int
    """Entries of a minibatch: V, rounded up to whole programs, so that no program looks at two minibatches."""

    @property
    def programs(self) -> int:
        """That look through one minibatch."""
        return self.stride // SCAN

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.local.nbytes + self.found.nbytes


def stride(num_nodes: int) -> int:
    """See `Tables.stride`."""
    return max(1, -(-num_nodes // SCAN)) * SCAN


class Workspace:
    """Keeps a bulk's tables for the next bulk: what a bulk leaves in them costs less to clear than all of them."""

    def __init__(self) -> None:
        self._tables: Tables | None = None

    def take(self, k: int, graph: DeviceGraph) -> Tables:
        """Clear tables for k minibatches. They are the caller's until it puts them back, so what fails half way spoils
        nothing."""
        tables, self._tables = self._tables, None
        width = stride(graph.num_nodes)
        if (
            tables is None
            or tables.stride != width
            or len(tables.local) < k * width
            or tables.local.device != graph.device
        ):
            local = torch.full((k * width,), -1, dtype=torch.int32, device=graph.device)
            return Tables(local, torch.zeros(k * width, dtype=torch.uint8, device=graph.device), width)
        return tables

    def put_back(self, tables: Tables) -> None:
        """Args: tables: clear ones."""
        self._tables = tables

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self._tables is None else self._tables.nbytes
