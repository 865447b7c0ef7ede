"""A stored dataset by the parts that own its rows, so that each part reads its own rows and no others.

Parts have rows everywhere in a graph. Were each of P parts to look for its own, all would be read P times; *dealing* reads them once.
A range of rows at a time is written again in the order of their owners, into a folder of its own. What a part owns is then a stretch of
every range, and these stretches, one after the other, are its rows, ascending. The folders are there while `stages/partition` cuts parts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .dataset import SPLITS, Split
from .dataset_store import StoredDataset
from .errors import StoreError
from .graph import TakenRows, edges_of_rows
from .partition_book import PartitionBook
from .store import Rows, committed_folder

IdArray = npt.NDArray[np.int64]
RANGE_BYTES = 64 << 20
"""A range holds about this much; one row may be more."""
STRETCH_BYTES = 256 << 10
"""And as much for each part, so that a stretch is worth looking for."""
PIECE_ROWS = 1 << 21


@dataclass(frozen=True, eq=False)
class OwnRows:
    """What a dataset has of the N nodes that one part owns."""

    nodes: IdArray
    """int64 [N], global ids, ascending."""
    graph: TakenRows
    """Their in-edges."""
    total_edges: int
    """E of the whole graph."""
    features: Rows
    """[N, F], which need not be in memory."""
    labels: npt.NDArray[np.generic]
    """int64 [N] or float32 [N, C]."""
    split: Split
    """Local ids."""


def row_ranges(dataset: StoredDataset, parts: int) -> IdArray:
    """int64 [K+1], where the K ranges of a dataset of V > 0 nodes begin that is dealt to `parts` parts, and V.

    Reads the row pointers, a piece at a time.

    Raises:
        StoreError: the dataset is damaged.
    """
    graph, features, labels = dataset.graph, dataset.features, dataset.labels
    # Beside features and label: node, first edge, row pointer and set.
    row = 25 + features.num_features * features.dtype.itemsize + labels.dtype.itemsize * int(np.prod(labels.shape[1:]))
    budget = max(RANGE_BYTES, parts * STRETCH_BYTES)
    bounds, last = [], -1
    for first in range(0, graph.num_nodes, PIECE_ROWS):
        rows = np.arange(first, min(first + PIECE_ROWS, graph.num_nodes))
        # How many budgets all rows before have filled.
        number = (rows * row + graph.first_edge(first, first + len(rows)) * graph.edge_bytes) // budget
        bounds.append(rows[np.diff(number, prepend=last) > 0])
        last = int(number[-1])
    return np.concatenate([*bounds, [graph.num_nodes]])


def deal(dataset: StoredDataset, first: int, stop: int, book: PartitionBook, parts: Collection[int], folder: Path) -> None:
    """Write rows ``[first, stop)`` of a dataset into `folder`, by owner; rows that none of `parts` owns are left out.

    Raises:
        StoreError: the dataset is damaged.
    """
    owner = book.part(np.arange(first, stop))
    # Of 16 bits, numpy sorts by radix.
    order = np.argsort(owner.astype(np.int16) if book.num_parts < 1 << 15 else owner, kind="stable")
    order = order[np.isin(owner[order], [*parts])]
    splits = np.zeros(book.num_parts + 1, np.int64)
    np.cumsum(np.bincount(owner[order], minlength=book.num_parts), out=splits[1:])
    rows = dataset.graph.take(np.arange(first, stop))
    indptr, edges = edges_of_rows(rows.indptr[order], np.diff(rows.indptr)[order])
    number = np.zeros(stop - first, np.uint8)
    for n, name in enumerate(SPLITS, 1):
        ids = getattr(dataset.split, name)
        number[ids[slice(*np.searchsorted(ids, (first, stop)))] - first] = n
    arrays = {
        "splits": splits,
        "nodes": first + order,
        "first_edge": rows.first_edge[order],
        "indptr": indptr,
        "indices": rows.indices[edges],
        "edge_weight": None if rows.edge_weight is None else rows.edge_weight[edges],
        "edge_id": None if rows.edge_id is None else rows.edge_id[edges],
        "split": number[order],
        "labels": dataset.labels[first:stop][order],
        "features": dataset.features.gather(first + order),
    }
    with committed_folder(folder, overwrite=True, durable=False) as aside:
        for name, array in arrays.items():
            if array is not None:
                np.save(aside / f"{name}.npy", array)


class Dealt:
    """What `deal` wrote of all ranges of a dataset of E edges."""

    def __init__(self, folders: Sequence[Path], total_edges: int) -> None:
        self.folders, self.total_edges = folders, total_edges

    def part(self, part: int) -> OwnRows:
        """The rows of a part: in memory, but for features.

        Raises:
            StoreError: a folder is incomplete.
        """
        rows = [Stretch(f, *_mapped(f, "splits")[part : part + 2].tolist()) for f in self.folders]
        pointers = [_mapped(s.folder, "indptr")[s.first : s.stop + 1] for s in rows]
        edges = [Stretch(s.folder, int(at[0]), int(at[-1])) for s, at in zip(rows, pointers)]
        indptr = np.concatenate([np.zeros(1, np.int64), *(np.diff(at) for at in pointers)])
        np.cumsum(indptr, out=indptr)
        weight, ids = (_joined(edges, n) if (self.folders[0] / f"{n}.npy").exists() else None for n in ("edge_weight", "edge_id"))
        graph = TakenRows(indptr, _joined(rows, "first_edge"), _joined(edges, "indices"), weight, ids)
        number = _joined(rows, "split")
        split = Split(*(np.flatnonzero(number == n).astype(np.int64) for n in range(1, 1 + len(SPLITS))))
        return OwnRows(_joined(rows, "nodes"), graph, self.total_edges, DealtFeatures(rows), _joined(rows, "labels"), split)


class Stretch(NamedTuple):
    """Rows ``[first, stop)`` of what lies in the folder of a range."""

    folder: Path
    first: int
    stop: int


class DealtFeatures:
    """Feature rows of a part, one stretch after the other. See `storage.store.Rows`."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self._stretches = stretches
        self._begin = np.cumsum([0, *(s.stop - s.first for s in stretches)])
        like = _mapped(stretches[0].folder, "features")
        self.shape, self.dtype = (int(self._begin[-1]), like.shape[1]), like.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        i = min(int(np.searchsorted(self._begin, rows.start, side="right")), len(self._stretches)) - 1
        j = max(int(np.searchsorted(self._begin, rows.stop)), i + 1)
        found = [
            s._replace(first=s.first + max(0, rows.start - at), stop=min(s.stop, s.first + rows.stop - at))
            for s, at in zip(self._stretches[i:j], self._begin[i:j].tolist())
        ]
        return _joined(found, "features")


def _joined(stretches: Sequence[Stretch], name: str) -> npt.NDArray[Any]:
    return np.concatenate([_mapped(s.folder, name)[s.first : s.stop] for s in stretches])


def _mapped(folder: Path, name: str) -> npt.NDArray[Any]:
    try:
        return np.load(folder / f"{name}.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as e:
        raise StoreError(f"{folder / name}.npy is incomplete ({e}); partition the dataset again") from e
