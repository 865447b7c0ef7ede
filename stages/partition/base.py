"""Partitioners: assign each node to a part."""

from typing import Protocol, runtime_checkable

import numpy as np

from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.partition.book import PartitionBook

MAX_PARTS = 1_000_000
"""Larger numbers are taken for a mistake: every part is a folder and a rank's work."""


@runtime_checkable
class Partitioner(Protocol):
    """Assigns every node of a graph to one part. A pure function of (graph, parts, seed): frozen, holds only its
    options."""

    @property
    def name(self) -> str:
        """Its name in configuration, on the command line and in fingerprints."""
        ...

    def assign(self, graph: Graph, parts: int, seed: int) -> PartitionBook:
        """Owner of every node.

        Args:
            graph: V nodes; only its structure is read.
            parts: P >= 1; may exceed V, which leaves parts empty.
            seed: the run's seed; partitioners that draw nothing ignore it.

        Raises:
            InputError: `parts` is not a positive integer.
        """
        ...


def check_parts(parts: int, num_nodes: int | None = None) -> int:
    """Return `parts` if it is a positive integer, and at most `num_nodes` if that is given.

    Raises:
        InputError: it is not.
    """
    if isinstance(parts, bool) or not isinstance(parts, int | np.integer) or not 1 <= parts <= MAX_PARTS:
        raise InputError(f"parts is {parts!r}; expected a whole number from 1 to {MAX_PARTS}")
    if num_nodes is not None and parts > num_nodes:
        raise InputError(
            f"parts is {parts}, but the graph has {num_nodes} nodes; expected at most a part for each node"
        )
    return int(parts)
