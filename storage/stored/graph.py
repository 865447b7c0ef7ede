"""The graph of a stored dataset, read row by row."""

from functools import cached_property

import numpy as np

from ..array_checks import proving, require, require_splits, require_within
from ..array_kinds import AnyArray, IdArray
from ..graph import TakenRows
from ..store.store import Store
from ..times.moments import check_unit

OF_EACH_EDGE = ("indices", "edge_weight", "edge_id", "edge_type")
"""Arrays of a graph with an entry for each edge."""


class StoredGraph:
    """Graph of a stored dataset whose rows are read when asked for. See `stages.partition.rows.RowSource`."""

    def __init__(self, store: Store, *, only_sources: bool = False) -> None:
        """
        Args:
            store: of the dataset.
            only_sources: rows come without their edges' weights and ids, which are not read.
        """
        self._store = store
        with proving(store.path):
            self.num_nodes: int = store.entries["indptr"]["shape"][0] - 1
            self.num_edges: int = store.entries["indices"]["shape"][0]
            per_edge = [store.entries[n]["shape"] for n in OF_EACH_EDGE if n in store]
            vectors = store.entries["indptr"]["dtype"] == "int64" and len(store.entries["indptr"]["shape"]) == 1
            require(
                vectors and all(shape == [self.num_edges] for shape in per_edge),
                "indptr or an array of the edges has another shape",
            )
        self.of_edges = {
            n: np.dtype(store.entries[n]["dtype"])
            for n in OF_EACH_EDGE
            if n in store and (n == "indices" or not only_sources)
        }
        """Arrays with an entry for each edge, and their dtypes."""

    @cached_property
    def part_offsets(self) -> IdArray | None:
        """See `Graph.part_offsets`. Raises StoreError if the store is damaged."""
        if "part_offsets" not in self._store:
            return None
        offsets = self._store.read("part_offsets")
        with proving(self._store.path):
            require_splits(offsets, max(1, len(offsets) - 1), self.num_nodes, "part_offsets")
        return offsets

    def first_edge(self, first: int, stop: int) -> IdArray:
        """int64, first edge of each of the rows ``[first, stop)``; V is a row that begins at E. Raises StoreError if
        the store is damaged."""
        return self._store.piece("indptr", slice(first, stop))

    def rows(self, first: int, stop: int) -> TakenRows:
        """Rows ``[first, stop)``; no others are in memory. Raises StoreError if the store is damaged."""
        indptr = self.first_edge(first, stop + 1)
        edges = slice(int(indptr[0]), int(indptr[-1]))
        with proving(self._store.path):
            rises = edges.start >= 0 and edges.stop <= self.num_edges and (indptr[1:] >= indptr[:-1]).all()
            require(rises, f"indptr does not rise within [0, {self.num_edges}] from row {first} to {stop}")
        arrays = {name: self._store.piece(name, edges) for name in self.of_edges}
        with proving(self._store.path):
            require_within(arrays["indices"], self.num_nodes, "indices")
        return TakenRows(indptr - indptr[0], indptr[:-1], arrays["indices"], *map(arrays.get, OF_EACH_EDGE[1:]))


class StoredRows:
    """Array of a store that is read by slices of rows. See `storage.store.arrays.Rows`."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self.shape, self.dtype = tuple(store.entries[name]["shape"]), np.dtype(store.entries[name]["dtype"])

    def __getitem__(self, rows: slice) -> AnyArray:
        """Raises StoreError if the store is damaged."""
        return self._store.piece(self._name, rows)


def checked_unit(store: Store) -> str | None:
    """The unit of a store's times, see `Graph.time_unit`. Raises StoreError if it is none of NumPy's."""
    unit = store.meta.get("time_unit")
    with proving(store.path):
        check_unit(unit)
    return unit
