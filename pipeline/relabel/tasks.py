"""Tasks of a renumbering. Old numbers are those of the store that is read, new ones those of the store that is made."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...stages.partition.base import Cut, book_of
from ...stages.partition.quality import PartCounts
from ...storage.dataset import SPLITS
from ...storage.dataset_store import KIND, features_access, graph_access, open_features
from ...storage.features import FeatureStore
from ...storage.fingerprint import array_digest, labels_digest
from ...storage.graph import edges_of_rows, index_dtype
from ...storage.lazy_dataset import LazyDataset, open_lazily
from ...storage.node_names import NodeNames
from ...storage.partition.node_order import node_order
from ...storage.partition.reorder import relabelled
from ...storage.store.store import Store, open_store
from ...storage.stored.graph import StoredGraph
from ..datasets.cleaning.edges import edge_keys
from ..ingest.arrays import Matrix
from ..ingest.edges import STORED, EdgeWork
from ..ingest.spill import RunWriter, cells_of, shift_of

PIECE_ROWS = 1 << 20


@dataclass(frozen=True)
class Work:
    """Arguments that all tasks share."""

    folder: Path
    source: Path
    """The store that is read."""
    num_nodes: int

    def mapped(self, name: str) -> npt.NDArray[Any]:
        """An array that `assign_numbers` wrote."""
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")

    def open(self) -> LazyDataset:
        """The dataset that is read."""
        store = open_store(self.source, KIND)
        return open_lazily(self.source, features_access(self.source), graph=graph_access(store))


def assign_numbers(work: Work, cut: Cut, most: int) -> dict[str, object]:
    """Cut the graph, and write the new number of each node, the old one, and where parts begin: ``new``, ``old``,
    ``offsets``. Returns ranges of old nodes with about `most` edges."""
    data = work.open()
    book = book_of(data, cut)
    graph = StoredGraph(open_store(work.source, KIND))
    # Reverse Cuthill-McKee follows edges, and so needs them in memory or mapped.
    old = node_order(data.graph if cut.order == "rcm" else graph, cut.order, book)
    np.save(work.folder / "offsets.npy", np.append(0, np.cumsum(book.sizes())).astype(np.int64))
    np.save(work.folder / "old.npy", old)
    new = np.empty(work.num_nodes, index_dtype(work.num_nodes))
    new[old] = np.arange(work.num_nodes, dtype=new.dtype)
    np.save(work.folder / "new.npy", new)
    return {"bounds": _ranges(graph, most)}


def _ranges(graph: StoredGraph, most: int) -> list[int]:
    """Bounds of ranges of rows that have, with their edges, about `most` entries each, or are one row."""
    bounds, last = [0], 0
    for first in range(0, graph.num_nodes, PIECE_ROWS):
        rows = np.arange(first, min(first + PIECE_ROWS, graph.num_nodes))
        number = (rows + graph.first_edge(first, first + len(rows))) // most
        bounds += rows[np.diff(number, prepend=last) > 0].tolist()
        last = int(number[-1])
    return [*bounds, graph.num_nodes] if graph.num_nodes else [0]


def spill_rows(work: Work, edges: EdgeWork, number: int, first: int, stop: int) -> dict[str, Any]:
    """Spill the edges of the old rows ``[first, stop)`` under their new numbers, by ranges of new destinations."""
    rows, new = StoredGraph(open_store(work.source, KIND)).rows(first, stop), work.mapped("new")
    dst = np.repeat(new[first:stop], np.diff(rows.indptr))
    keys = edge_keys(new[rows.indices], dst, work.num_nodes)
    (way,), values = edges.ways, [getattr(rows, STORED[name]) for name in edges.values]
    with RunWriter(work.folder / way, number, edges.fields, len(edges.cells)) as writer:
        writer.add(edges.cells.numbered(dst, 0), keys, *values)
    return {"edges": len(keys)}


def move_labels(work: Work) -> dict[str, Any]:
    """Write labels, split and labelled pairs under the new numbers; return their digests and sizes."""
    data = work.open()
    moved = relabelled(data, work.mapped("old"), work.mapped("new"))
    split = moved.pop("split")
    arrays = {**data.arrays, **moved, **{name: getattr(split, name) for name in SPLITS}}
    for name, array in arrays.items():
        array.tofile(work.folder / name)
    digests = {name: array_digest(array) for name, array in arrays.items()}
    return {
        "digests": {"labels": labels_digest(digests, data.hides_pairs), **{name: digests[name] for name in SPLITS}},
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
    }


def unpack_names(work: Work) -> dict[str, Any]:
    """Write the store's names of nodes as files that can be mapped."""
    store = open_store(work.source, KIND)
    for name, step in (("node_name_text", 1 << 24), ("node_name_starts", PIECE_ROWS)):
        total = store.entries[name]["shape"][0]
        with open(work.folder / name, "wb") as file:
            for first in range(0, total, step):
                file.write(store.piece(name, slice(first, first + step)).tobytes())
    return {}


def move_names(work: Work, number: int, first: int, stop: int) -> dict[str, Any]:
    """Write the names of the new nodes ``[first, stop)``: those that they had, or their old numbers."""
    old = np.array(work.mapped("old")[first:stop])
    if (work.folder / "node_name_starts").exists():
        starts = np.memmap(work.folder / "node_name_starts", np.int64, "r")
        path = work.folder / "node_name_text"
        text = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        ends, letters = edges_of_rows(starts[old], starts[old + 1] - starts[old])
        names = NodeNames(text[letters], ends)
    else:
        names = NodeNames.of_integers(old)
    names.text.tofile(work.folder / f"names-{number:06d}.text")
    names.starts[1:].tofile(work.folder / f"names-{number:06d}.starts")
    return {"rows": stop - first, "bytes": len(names.text)}


def features_of(work: Work) -> FeatureStore:
    """Features of the store that is read, on disk."""
    return open_features(open_store(work.source, KIND), features_access(work.source))


def spill_features(work: Work, matrix: Matrix, number: int, first: int, stop: int) -> dict[str, object]:
    """Spill the features of the old nodes ``[first, stop)`` by ranges of their new numbers."""
    new = work.mapped("new")[first:stop].astype(np.int64)
    with RunWriter(work.folder / "features", number, matrix.fields, cells_of(work.num_nodes)) as writer:
        cell = (new >> shift_of(work.num_nodes)).astype(np.int16)
        writer.add(cell, new, features_of(work).gather(np.arange(first, stop)))
    return {}


def count_part(
    store: Path, entries: dict[str, Any], offsets: Sequence[int], part: int, most: int, of_pairs: bool
) -> dict[str, Any]:
    """`PartCounts` of a part of the new store, whose arrays are written and whose manifest is not. Where pairs are
    labelled no node is for training."""
    made = Store(store, KIND, {}, {}, entries)
    graph, (begin, end) = StoredGraph(made), offsets[part : part + 2]
    outside, edges, cut = np.zeros(graph.num_nodes, bool), 0, 0
    first = begin
    while first < end:
        starts = graph.first_edge(first, min(first + PIECE_ROWS, end) + 1)
        stop = first + max(1, int(np.searchsorted(starts, starts[0] + most, side="right")) - 1)
        sources = graph.rows(first, stop).indices
        away = sources[(sources < begin) | (sources >= end)]
        outside[away] = True
        edges, cut, first = edges + len(sources), cut + len(away), stop
    train = np.empty(0, np.int64) if of_pairs else made.read("train")
    inside = np.searchsorted(train, [begin, end])
    counts = PartCounts(end - begin, int(inside[1] - inside[0]), edges, cut, int(np.count_nonzero(outside)))
    return asdict(counts)
