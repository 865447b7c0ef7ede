"""Shuffles a stored dataset by owner, so that each part reads its own rows and no others.

The rows of a part lie anywhere in a graph. If each of P parts looked for its own, all rows would be read P times;
*dealing* reads them once. The rows are cut into ranges, and each range is written again, into a file of its own, in the
order of the owners. The rows of a part are then a contiguous stretch of every file, and these stretches, one after the
other, are its rows in ascending order.

A folder holds a plan (`begin`) and the files (`deal`: in any order, by anyone, more than once if it must be).
`stages/partition` makes it, reads parts from it (`ShuffledStore`) and removes it.
"""

import os
import uuid
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..array_checks import proving, require_ascending, require_splits
from ..array_kinds import AnyArray, IdArray
from ..dataset import SPLITS, Split
from ..dataset_store import StoredDataset
from ..errors import StoreError
from ..graph import TakenRows, edges_of_rows, starts_of
from ..store.store import Store, open_store, write_store
from ..stored.edge_features import OF_EDGES
from ..stored.graph import OF_EACH_EDGE
from .book import PartitionBook
from .partition import OwnRows

KIND = "dealing"
RANGE_BYTES = 128 << 20
"""Memory for dealing a range, unless a single row is larger;"""
STRETCH_BYTES = 512 << 10
"""or, if that is more, this much for each part, so that reading a stretch is worth a seek;"""
MOST_BYTES = 1 << 30
"""but no more than this."""
PIECE_ROWS = 1 << 21


class Column(NamedTuple):
    """One array in a file."""

    name: str
    of_edges: bool
    """True if it has an entry for each edge, rather than for each row."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of one entry."""

    @property
    def nbytes(self) -> int:
        """Bytes of one entry."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape))


def begin(dataset: StoredDataset, num_parts: int, parts: Sequence[int], folder: Path) -> int:
    """Write the plan of dealing a dataset with `num_parts` parts to some of them; return the number of ranges.

    Reads the row pointers and the ids of the splits, piece by piece.

    Raises:
        StoreError: the dataset is damaged.
    """
    graph, features, labels, of_edges = dataset.graph, dataset.features, dataset.labels, dataset.edge_features
    columns = (
        *(Column(name, False, "int64", ()) for name in ("nodes", "first_edge", "degree")),
        Column("set", False, "uint8", ()),
        Column("labels", False, labels.dtype.name, labels.shape[1:]),
        *(Column(name, True, dtype.name, ()) for name, dtype in graph.of_edges.items()),
        *(
            () if of_edges is None
            else (Column(OF_EDGES, True, of_edges.dtype.name, (of_edges.num_features,)),)
        ),
        Column("features", False, features.dtype.name, (features.num_features,)),
    )  # fmt: skip
    bounds = _ranges(dataset, columns, num_parts)
    offsets = np.zeros((len(SPLITS), len(bounds)), np.int64)
    for before, name in zip(offsets, SPLITS):
        ids = dataset.split[name]
        for first in range(0, ids.shape[0], PIECE_ROWS):
            before += np.searchsorted(ids[first : first + PIECE_ROWS], bounds)
    arrays = {"bounds": bounds, "offsets": offsets, "parts": np.asarray(parts, np.int64)}
    meta = {"num_parts": num_parts, "total_edges": graph.num_edges, "columns": columns}
    # Again, if a worker was lost that had written it and not said so.
    write_store(folder / "plan", KIND, fingerprint={}, meta=meta, arrays=arrays, overwrite=True)
    return len(bounds) - 1


def _ranges(dataset: StoredDataset, columns: Sequence[Column], parts: int) -> IdArray:
    """int64 [K+1], bounds of the ranges, and V."""
    # Memory of a row: its columns, the owner, the order and a row pointer. Of an edge: what is read, the same in order,
    # and 24 bytes to find it.
    row = sum(c.nbytes for c in columns if not c.of_edges) + 24
    edge = 2 * sum(c.nbytes for c in columns if c.of_edges) + 24
    budget = min(max(RANGE_BYTES, parts * STRETCH_BYTES), MOST_BYTES)
    bounds, last, nodes = [np.zeros(1, np.int64)], 0, dataset.graph.num_nodes
    for first in range(0, nodes, PIECE_ROWS):
        rows = np.arange(first, min(first + PIECE_ROWS, nodes))
        # Number of budgets that all rows before have filled.
        number = (rows * row + dataset.graph.first_edge(first, first + len(rows)) * edge) // budget
        bounds.append(rows[np.diff(number, prepend=last) > 0])
        last = int(number[-1])
    return np.concatenate([*bounds, [nodes]])


def deal(dataset: StoredDataset, k: int, book: PartitionBook, folder: Path) -> None:
    """Write range `k` unless it is there; rows that none of the plan's parts owns are left out.

    Raises:
        StoreError: the dataset or the plan is damaged.
        FileNotFoundError: the folder has been removed.
    """
    path, plan = _file(folder, k), open_store(folder / "plan", KIND)
    if path.exists():
        return
    first, stop = plan.piece("bounds", slice(k, k + 2)).tolist()
    owner = book.part(np.arange(first, stop))
    # NumPy sorts 16-bit integers by radix.
    order = np.argsort(owner.astype(np.int16) if book.num_parts < 1 << 15 else owner, kind="stable")
    order = order[np.isin(owner[order], plan.read("parts"))]
    rows = dataset.graph.rows(first, stop)
    degree = np.diff(rows.indptr)[order]
    indptr, edges = edges_of_rows(rows.indptr[order], degree)
    sets = np.zeros(stop - first, np.uint8)
    for number, (name, offsets) in enumerate(zip(SPLITS, plan.read("offsets")[:, k : k + 2].tolist()), 1):
        sets[dataset.split[name][slice(*offsets)] - first] = number
    found: dict[str, AnyArray] = {
        "nodes": first + order,
        "first_edge": rows.first_edge[order],
        "degree": degree,
        "set": sets[order],
        "labels": dataset.labels[first:stop][order],
        "features": dataset.features.gather(first + order),
        **{name: getattr(rows, name)[edges] for name in dataset.graph.of_edges},
    }
    if dataset.edge_features is not None:
        begin = int(rows.first_edge[0]) if len(rows.first_edge) else 0
        found[OF_EDGES] = dataset.edge_features.gather(begin + edges)
    columns, index = _columns(plan), np.zeros((book.num_parts + 1, 3), np.int64)
    np.cumsum(np.bincount(owner[order], minlength=book.num_parts), out=index[1:, 1])
    index[:, 2] = indptr[index[:, 1]]
    index[:, 0] = (
        index.nbytes + index[:, 1] * _bytes(columns, of_edges=False) + index[:, 2] * _bytes(columns, of_edges=True)
    )
    aside = folder / f".{uuid.uuid4().hex}"
    with open(aside, "wb") as file:
        file.write(index.data)
        for part in np.flatnonzero(np.diff(index[:, 1])):
            for column in columns:
                file.write(found[column.name][slice(*index[part : part + 2, 1 + column.of_edges])].tobytes())
    os.replace(aside, path)


class Stretch(NamedTuple):
    """A part's rows in the file of one range: its columns, one after the other."""

    path: Path
    begin: int
    """First byte in the file."""
    rows: int
    edges: int


class ShuffledStore:
    """Dataset that has been dealt."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._plan = folder, open_store(folder / "plan", KIND)
        self._num_ranges = self._plan.array("bounds").shape[0] - 1

    def part(self, part: int) -> OwnRows:
        """Rows of a part, in memory except for features, of nodes and of edges.

        Raises:
            StoreError: a file is incomplete.
        """
        stretches = [s for k in range(self._num_ranges) if (s := self._stretch(k, part)).rows]
        *columns, of_features = _columns(self._plan)
        of_edges = columns.pop() if columns[-1].name == OF_EDGES else None
        rows, edges = sum(s.rows for s in stretches), sum(s.edges for s in stretches)
        found = {c.name: np.empty((edges if c.of_edges else rows, *c.shape), c.dtype) for c in columns}
        row = edge = 0
        for s in stretches:
            with open(s.path, "rb") as file:
                file.seek(s.begin)
                for c in columns:
                    _fill(
                        file, found[c.name][edge : edge + s.edges] if c.of_edges else found[c.name][row : row + s.rows]
                    )
            row, edge = row + s.rows, edge + s.edges
        indptr = starts_of(found["degree"])
        with proving(self._folder):
            require_splits(indptr, rows, edges, "the sum of degrees")
            require_ascending(found["nodes"], "the rows of a part")
        graph = TakenRows(indptr, found["first_edge"], found["indices"], *(found.get(n) for n in OF_EACH_EDGE[1:]))
        split = Split(
            *(np.flatnonzero(found["set"] == number).astype(np.int64) for number in range(1, 1 + len(SPLITS)))
        )
        before = _bytes(columns, of_edges=False), _bytes(columns, of_edges=True)
        beyond = [s._replace(begin=s.begin + s.rows * before[0] + s.edges * before[1]) for s in stretches]
        rows_of_edges = None
        if of_edges is not None:
            # Edges take the place of rows.
            rows_of_edges = DealtFeatures(of_edges, [s._replace(rows=s.edges) for s in beyond])
            beyond = [s._replace(begin=s.begin + s.edges * of_edges.nbytes) for s in beyond]
        features, total = DealtFeatures(of_features, beyond), self._plan.meta["total_edges"]
        return OwnRows(found["nodes"], graph, total, features, found["labels"], split, edge_features=rows_of_edges)

    def _stretch(self, k: int, part: int) -> Stretch:
        path, index = _file(self._folder, k), np.empty((2, 3), np.int64)
        try:
            with open(path, "rb") as file:
                file.seek(part * index[0].nbytes)
                _fill(file, index)
        except FileNotFoundError as e:
            raise StoreError(f"{path} is missing; partition the dataset again") from e
        begin, (rows, edges), columns = int(index[0, 0]), np.diff(index, axis=0)[0, 1:].tolist(), _columns(self._plan)
        end = begin + rows * _bytes(columns, of_edges=False) + edges * _bytes(columns, of_edges=True)
        if min(begin, rows, edges) < 0 or end > path.stat().st_size:
            raise StoreError(f"{path} is incomplete; partition the dataset again")
        return Stretch(path, begin, rows, edges)


class DealtFeatures:
    """Feature rows of a part, of its nodes or its edges, read when asked for. See `storage.store.arrays.Rows`."""

    def __init__(self, column: Column, stretches: Sequence[Stretch]) -> None:
        self._column, self._stretches = column, stretches
        self._first = np.cumsum([0, *(s.rows for s in stretches)])
        self.shape, self.dtype = (int(self._first[-1]), *column.shape), np.dtype(column.dtype)

    def __getitem__(self, rows: slice) -> AnyArray:
        """Raises StoreError if a file is incomplete."""
        out = np.empty((rows.stop - rows.start, *self._column.shape), self.dtype)
        begin, end = np.searchsorted(self._first, (rows.start, rows.stop), side="right")
        for s, first in zip(self._stretches[begin - 1 : end], self._first[begin - 1 : end].tolist()):
            i, j = max(rows.start, first), min(rows.stop, first + s.rows)
            with open(s.path, "rb") as file:
                file.seek(s.begin + (i - first) * self._column.nbytes)
                _fill(file, out[i - rows.start : j - rows.start])
        return out


def _columns(plan: Store) -> list[Column]:
    return [Column(name, of_edges, dtype, tuple(shape)) for name, of_edges, dtype, shape in plan.meta["columns"]]


def _bytes(columns: Sequence[Column], of_edges: bool) -> int:
    return sum(c.nbytes for c in columns if c.of_edges == of_edges)


def _file(folder: Path, k: int) -> Path:
    return folder / f"range-{k:08d}"


def _fill(file: BufferedReader, out: AnyArray) -> None:
    if out.size and file.readinto(out.reshape(-1).view(np.uint8).data) != out.nbytes:
        raise StoreError(f"{file.name} is incomplete; partition the dataset again")
