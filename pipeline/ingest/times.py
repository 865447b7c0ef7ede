"""Times of nodes and edges: dates in one unit, and one dtype where an array holds those of several types."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.array_kinds import IntArray
from ...storage.graph import ALWAYS
from ...storage.times.moments import as_times, in_one_unit
from ..datasets.cleaning.node_ids import is_text
from ..datasets.cleaning.raw import AnyArray, about
from ..datasets.readers.parquet import times_of
from ..datasets.schema.columns import Columns
from .names import NodeMap, file_of
from .source import Table

Opened = Sequence[tuple[Table, Columns]]
"""Tables and their columns."""


@dataclass(frozen=True)
class Times:
    """Dtypes, unit and place of a graph's times."""

    of_edges: str = ""
    """Their dtype; empty: edges have none."""
    of_nodes: str = ""
    """Their dtype; empty: no type of nodes has any."""
    dates: str = ""
    """The dtype of NumPy that dates have, the finest of all columns; empty: there are no dates."""
    unit: str | None = None
    """See `Graph.time_unit`."""
    file: Path = Path()
    """Times of all nodes, in the order of their numbers."""
    borrowed: tuple[int, ...] = ()
    """Relations whose edges have the times of their sources; 0 in a graph with one."""

    def converted(self, values: Any) -> Any:
        """Numbers, or dates in the unit of all. Raises InputError: one is too far from 1970 for that."""
        return in_one_unit((values, np.empty(0, self.dates)))[0][0] if self.dates else values

    def on_edges(self, own: AnyArray, sources: IntArray, relations: AnyArray) -> AnyArray:
        """The times of edges: their `own`, but of those in a `borrowed` relation the times of their sources."""
        at = np.isin(relations, self.borrowed)
        if at.any():
            own[at] = np.memmap(self.file, self.of_nodes, "r")[sources[at]]
        return own


NO_TIMES = Times()


def settled_times(nodes: Opened, edges: Opened, file: Path) -> Times:
    """Settle dtypes and unit of the times of some tables; those of nodes lie in `file`. Raises InputError: a column
    holds no times."""
    found, unit = in_one_unit(_sample(table, own) for table, own in (*nodes, *edges))
    kinds = ["" if a is None else str(as_times(a[:0], "", 0).dtype) for a in found]
    of_nodes, of_edges = ([*filter(None, some)] for some in (kinds[: len(nodes)], kinds[len(nodes) :]))
    if not (known := [*of_edges, *of_nodes]):
        return NO_TIMES
    if any(table.source.type for table, _ in nodes):
        of_nodes = of_edges = known = [str(np.result_type(*known))]
    dates = next((str(a.dtype) for a in found if a is not None and a.dtype.kind == "M"), "")
    borrowed = tuple(k for k, kind in enumerate(kinds[len(nodes) :]) if not kind)
    return Times(known[0], next(iter(of_nodes), ""), dates, unit, file, borrowed)


def _sample(table: Table, own: Columns) -> Any:
    """The times of no rows of a table; of the first ones, which an error shows, if the column is text."""
    is_shown = own.time and is_text(table.empty[own.time].type)
    rows = next(table.pieces((own.time or "",)), table.empty) if is_shown else table.empty
    with about(table.source.of_type):
        return times_of(rows, own.time, own.table)


def gather_times(times: Times, types: Sequence[tuple[NodeMap, int, str]]) -> dict[str, Any]:
    """Write the times of the nodes of all types, in the order of their numbers. `types` are of each its nodes, the
    first one's number, and the name of its times; empty: it has none. Raises InputError: a node has no time."""
    total, kind = sum(nodes.num_nodes for nodes, *_ in types), np.dtype(times.of_nodes)
    out = np.full(total, ALWAYS[kind], kind)
    for nodes, begin, what in types:
        if what:
            given = times.converted(np.load(file_of(nodes.folder, "time")))
            out[begin : begin + nodes.num_nodes] = as_times(given, what, nodes.num_nodes)
    out.tofile(times.file)
    return {}
