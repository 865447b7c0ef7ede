"""Tables in which a bulk finds and numbers its nodes on a GPU."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SCAN = 1 << 12
"""Nodes of one minibatch that one program scans for new ones."""
TABLE_BYTES = 4 << 30
"""Maximum size of a bulk's tables: a larger bulk is drawn in pieces."""


class Nodes(Protocol):
    """The nodes of a graph, such as a `DeviceGraph`."""

    @property
    def num_nodes(self) -> int:
        """V."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the tables."""
        ...


@dataclass(frozen=True, eq=False)
class Tables:
    """State of all V nodes in k minibatches. Between bulks all entries are clear."""

    local: Tensor
    """int32 [k stride]: a node's position in its minibatch, or -1."""
    found: Tensor
    """uint8 [k stride]: 1 for sources of sampled edges."""
    stride: int
    """Entries of a minibatch: V, rounded up to whole programs, so that no program looks at two minibatches."""

    @property
    def programs(self) -> int:
        """Programs that scan one minibatch."""
        return self.stride // SCAN

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.local.nbytes + self.found.nbytes


def stride(num_nodes: int) -> int:
    return max(1, -(-num_nodes // SCAN)) * SCAN


def at_once(num_nodes: int) -> int:
    """Minibatches whose tables fit together; at least one."""
    return max(1, TABLE_BYTES // (5 * stride(num_nodes)))


def table_bytes(num_nodes: int, k: int) -> int:
    """Bytes of the tables that a bulk of k minibatches is drawn by."""
    return 5 * stride(num_nodes) * min(k, at_once(num_nodes))


class Workspace:
    """Keeps a bulk's tables for the next bulk: clearing the used entries costs less than clearing all."""

    def __init__(self) -> None:
        self._tables: Tables | None = None
        self.edges_per_row = 0
        """Edges that a row of the layer-wise samplers keeps on average, where there was not enough room for them."""

    def take(self, k: int, graph: Nodes) -> Tables:
        """Clear tables for k minibatches. They belong to the caller until they are put back, so a failure spoils
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
