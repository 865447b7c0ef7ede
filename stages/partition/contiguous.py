"""Contiguous ranges of node ids."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...storage.errors import InputError
from ...storage.partition.book import RangeBook
from .base import check_parts
from .rows import RowSource


@dataclass(frozen=True)
class Contiguous:
    """Part p owns one range of ids. The book is P + 1 numbers, whatever V is.

    Cuts few edges only where the order of ids follows the graph (crawls, grids, a graph that was reordered); on
    shuffled ids it cuts as many as a hash. A graph that was renumbered part by part keeps these parts, or joins
    neighbouring ones where fewer are asked for, if their number divides.
    """

    balance: Literal["nodes", "edges"] = "edges"
    """Quantity that parts share evenly: nodes, or nodes + in-edges (the work of sampling and aggregation). A row is
    never divided, so a part can exceed its share by one row."""

    name = "contiguous"
    reads_rows = True

    def __post_init__(self) -> None:
        if self.balance not in ("nodes", "edges"):
            raise InputError(f"balance is {self.balance!r}; expected 'nodes' or 'edges'")

    def assign(self, graph: RowSource, parts: int, seed: int) -> RangeBook:
        """See `Partitioner.assign`. O(P log V) beyond reading the row pointers; draws nothing from `seed`."""
        parts = check_parts(parts)
        if (stored := graph.part_offsets) is not None and (len(stored) - 1) % parts == 0:
            return RangeBook(stored[:: (len(stored) - 1) // parts].copy())
        n, e = graph.num_nodes, graph.num_edges
        cuts = np.arange(parts + 1, dtype=np.int64)
        if self.balance == "nodes":
            return RangeBook(_share(n, cuts, parts))
        before = graph.first_edge(0, n + 1) + np.arange(n + 1, dtype=np.int64)
        return RangeBook(np.searchsorted(before, _share(n + e, cuts, parts)).astype(np.int64))


def _share(total: int, cuts: np.ndarray, parts: int) -> np.ndarray:
    """floor(total * cuts / parts), without the overflow of that product."""
    whole, rest = divmod(total, parts)
    return cuts * whole + cuts * rest // parts
