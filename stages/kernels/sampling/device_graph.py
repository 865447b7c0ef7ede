"""A graph's topology in the memory of a GPU, copied there once."""

from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ....storage.errors import InputError
from ....storage.graph import Graph
from ..runtime.device_memory import MemoryKind, device_readable, to_device, wait_for_copies
from ..runtime.triton_rng import device
from .alias import AliasTable
from .device_samples import Lists, Rows


@dataclass(frozen=True, eq=False)
class Slots:
    """Alias tables of a graph, on the device."""

    slots: Tensor
    """int64 [E], the bits of `AliasTable.slots`."""
    weight: Tensor
    """float32 [E]."""
    positive: Tensor
    """int32 [V], see there."""


@dataclass(eq=False)
class DeviceGraph:
    """In-neighbour lists on the device."""

    indptr: Tensor
    """int64 [V+1]."""
    indices: Tensor
    """int32 or int64 [E]; on the device, or in page-locked host memory (see `place_graph`)."""
    max_degree: int
    """The largest in-degree."""
    placed: MemoryKind = "device"
    """See `place_graph`."""
    _table: tuple[AliasTable, Slots] | None = None

    @property
    def num_nodes(self) -> int:
        """V."""
        return len(self.indptr) - 1

    @property
    def device(self) -> torch.device:
        """Device of `indptr`."""
        return self.indptr.device

    def lists(self, rows: Rows) -> Lists:
        """All in-edges of some rows."""
        return Lists(rows, self.indptr.index_select(0, rows.nodes), self.indptr[1:].index_select(0, rows.nodes))

    def with_table(self, table: AliasTable) -> Slots:
        """These alias tables on the device; those of the last call are kept."""
        if self._table is None or self._table[0] is not table:
            arrays = (table.slots.view(np.int64), table.weight, table.positive)
            slots = Slots(*(to_device(a, self.device) for a in arrays))
            # Before another thread, whose stream would not wait, can see them; so below.
            wait_for_copies(self.device)
            self._table = table, slots
        return self._table[1]


@dataclass(frozen=True, eq=False)
class RowsOnDevice:
    """N rows on the device, of one block or of several, in which a sampler draws."""

    lists: DeviceGraph
    """With global sources."""
    first: int | Tensor
    """Id of the first row, if rows are consecutive; otherwise int64 [N], that of each."""
    of_rows: dict[str, Tensor]
    """[N] each, what the sampler reads of a row: "start", int64, the position of its first edge in the whole graph;
    "degree"; "positive" (see `Slots`)."""
    of_edges: dict[str, Tensor]
    """[E] each: "weight", and "slots" (see `Slots`)."""


_graphs: WeakKeyDictionary[Graph, DeviceGraph] = WeakKeyDictionary()
_numbers: WeakKeyDictionary[Graph, dict[str, Tensor]] = WeakKeyDictionary()


def number_on_device(graph: Graph, name: Literal["in_degree", "degree", "edge_weight", "edge_type"]) -> Tensor:
    """An array of the graph on the device; copied once, kept as long as the graph lives. More than 256 relations of
    edges are int32 there."""
    known = _numbers.setdefault(graph, {})
    if name not in known:
        array = getattr(graph, name)
        found = to_device(array.astype(np.int32) if array.dtype == np.uint16 else array, device())
        wait_for_copies(found.device)
        known[name] = found
    return known[name]


def on_device(graph: Graph) -> DeviceGraph:
    """The graph's topology on the device; copied once, kept as long as the graph lives.

    Raises:
        InputError: there is no GPU.
    """
    return _graphs.get(graph) or place_graph(graph, "auto")


def in_memory(graph: Graph, of: str) -> DeviceGraph:
    """The graph's topology, all of it in the device's own memory.

    Args:
        graph: in-neighbour lists.
        of: what needs it, in the message.

    Raises:
        InputError: there is no GPU, or the topology is not in its memory.
    """
    on = on_device(graph)
    if on.indices.device != on.device:
        raise InputError(
            f"{of} need the topology in the GPU's memory, and it is not there: use neighbor or labor, or kernel = "
            '"cpu"'
        )
    return on


def place_graph(graph: Graph, where: MemoryKind) -> DeviceGraph:
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
    found = DeviceGraph(to_device(graph.indptr, to), indices, int(graph.in_degree.max(initial=0)), where)
    wait_for_copies(to)
    _graphs[graph] = found
    return found
