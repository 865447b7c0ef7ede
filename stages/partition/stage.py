"""Partition stage: writes a dataset as a folder of parts.

``book/`` maps nodes to owners; ``part-0000/graph`` is a part's structure, ``part-0000/shards`` its edges by the owner
of their source, and ``part-0000/rows`` its own rows of features, labels and split; ``manifest.json``, written last,
makes the folder a store. All of them carry one fingerprint.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.array_checks import proving, require, require_ascending, require_vector, require_within
from ...storage.array_kinds import AnyArray, Float64Array, FloatArray, IdArray, ValueArray
from ...storage.dataset import SPLITS, Dataset, Split, require_dataset, require_nodes
from ...storage.dataset_store import open_stored
from ...storage.errors import StoreError
from ...storage.features import FeatureStore, ZarrFeatures
from ...storage.fingerprint import dataset_fingerprint
from ...storage.graph import edges_of_rows
from ...storage.optional import taken
from ...storage.partition.book import KIND as BOOK_KIND
from ...storage.partition.book import Book, open_book, write_book
from ...storage.partition.edge_shards import KIND as SHARDS_KIND
from ...storage.partition.edge_shards import EdgeShards, open_edge_shards, shard_edges, write_edge_shards
from ...storage.partition.partition import KIND as GRAPH_KIND
from ...storage.partition.partition import OwnRows, Partition, open_partition, partition_of, write_partition
from ...storage.partition.shuffle import ShuffledStore, begin, deal
from ...storage.store.committed_folder import ASIDE, committed_folder, remove_tree, sweep_leftovers
from ...storage.store.manifest import MANIFEST, write_manifest
from ...storage.store.scratch import Empty, in_memory
from ...storage.store.store import Store, open_store, write_store
from ...storage.stored.edge_features import OF_EDGES
from ..self_loops import degree_rows
from .base import Cut, Partitioner, book_of, check_parts
from .quality import PartCounts, PartitionQuality, count_part

KIND = "partitioning"
ROWS_KIND = "partition-rows"
WEIGHTED = "weighted_degree"
"""Array of weighted degrees among a part's rows, if edges have weights."""
LOOPS = "self_loops"
"""Number of a part's self loops, among the metadata of its rows; not written by earlier versions."""
LAYOUT = 2
"""Layout of the folder: 1 had no edge shards. `partition_dataset` completes a folder of an earlier layout."""
WriteParts = Callable[[list[int], dict[str, str]], Iterator[tuple[int, PartCounts]]]


@dataclass(frozen=True)
class Cutter:
    """Who assigns nodes to parts and who writes these, in any process."""

    assign: Callable[[dict[str, str]], None]
    """Called with the fingerprint if there is no book; calls `assign_nodes`."""
    write_parts: WriteParts
    """Called with the missing parts and the fingerprint, once the book is stored; calls `write_part` for each, and
    yields each part with its counts."""

    @classmethod
    def here(cls, dataset: Dataset, cut: Cut, out: Path) -> "Cutter":
        """This process, from a dataset in memory."""
        return cls(lambda made: assign_nodes(dataset, cut, out, made), _parts_here(dataset, out))


@dataclass(frozen=True)
class PartitionReport:
    """Result of the stage."""

    path: Path
    quality: PartitionQuality
    parts_written: int
    """Parts written by this call; the others were there already."""
    seconds: float


@dataclass(frozen=True, eq=False)
class PartRows:
    """A part's own rows: row i belongs to its owned node i."""

    features: FeatureStore
    """[N, F], read from the store as rows are gathered."""
    labels: ValueArray
    """int64 [N] or float32 [N, C]."""
    split: Split
    """Local ids."""
    edge_features: FeatureStore | None = None
    """[e, D], row i is of the part's edge at position i; read from the store as rows are gathered."""


class _OwnedFeatures:
    """Feature rows of some nodes, or edges, by slices, so that they are never all in memory."""

    def __init__(self, features: FeatureStore, owned: IdArray) -> None:
        self.features, self.owned = features, owned
        self.shape = (len(owned), features.num_features)
        self.dtype = features.dtype

    def __getitem__(self, rows: slice) -> AnyArray:
        return self.features.gather(self.owned[rows])


def partition_dataset(
    dataset: Dataset,
    partitioner: Partitioner,
    parts: int,
    out: Path,
    seed: int = 0,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> PartitionReport:
    """Divide a dataset into parts and write each as committed stores, one after the other.

    Beyond the dataset itself, memory holds the book, the structure of one part, its edge shards and a slice of its
    features. A folder that an interrupted call or an earlier version left is completed: existing parts are kept. A
    complete one is only read.

    Args:
        dataset: V nodes.
        partitioner: assigns nodes to parts.
        parts: P, from 1 to V.
        out: the folder to make.
        seed: the run's seed.
        on_progress: called with (parts done, P).

    Raises:
        InputError: pairs are labelled, `parts` is not a positive integer, there are fewer nodes, or `out` cannot be
            written.
        StoreError: `out` holds something else, or parts that were made from something else; the message lists the
            differences.
    """
    require_dataset(dataset)
    require_nodes(dataset, "parts hold")
    return cut_dataset(dataset, Cut(partitioner, parts, seed), Path(out), on_progress)


def cut_dataset(
    dataset: Dataset,
    cut: Cut,
    out: Path,
    on_progress: Callable[[int, int], None] | None = None,
    cutter: Cutter | None = None,
) -> PartitionReport:
    """`partition_dataset` of any dataset, by any process. Parts of one of pairs have rows and edges, and no pairs.

    Args:
        dataset: V nodes.
        cut: into P parts.
        out: the folder to make.
        on_progress: called with (parts done, P).
        cutter: does the work; None: this process.
    """
    start = time.perf_counter()
    require_dataset(dataset)
    parts = check_parts(cut.parts, dataset.num_nodes)
    cutter = cutter or Cutter.here(dataset, cut, out)
    fingerprint = cut.fingerprint(dataset)
    if (out / MANIFEST).exists():
        whole = open_store(out, KIND, fingerprint=fingerprint)
        if _layout(whole) >= LAYOUT:
            return PartitionReport(out, quality_of(whole), 0, time.perf_counter() - start)
    check_folder(out)
    sweep_leftovers(out)
    if (out / "book").exists():
        stored = open_store(out / "book", BOOK_KIND, fingerprint=fingerprint)
        if (stored.value("num_parts", int), stored.value("num_nodes", int)) != (parts, dataset.num_nodes):
            raise StoreError(
                f"{out / 'book'} is of {stored.meta['num_parts']} parts and {stored.meta['num_nodes']} nodes; it was "
                f"changed: remove {out}"
            )
    else:
        cutter.assign(fingerprint)
    counts = {p: seen for p in range(parts) if (seen := _standing(_folder(out, p), fingerprint)) is not None}
    lacking = [p for p in range(parts) if p not in counts]
    for p, seen in cutter.write_parts(lacking, fingerprint):
        counts[p] = seen
        if on_progress is not None:
            on_progress(len(counts), parts)
    quality = PartitionQuality(tuple(counts[p] for p in range(parts)))
    meta = {
        "layout": LAYOUT,
        "num_parts": parts,
        "partitioner": cut.partitioner.name,
        "seed": cut.seed,
        "quality": quality.as_record(),
    }
    _commit(out, fingerprint, meta)
    return PartitionReport(out, quality, len(lacking), time.perf_counter() - start)


def holds_parts(folder: Path, dataset: Dataset, parts: int) -> bool:
    """True if a folder holds a dataset in so many parts, complete and in this layout."""
    if not (folder / MANIFEST).exists():
        return False
    whole, made = open_store(folder, KIND), dataset_fingerprint(dataset)
    same = all(whole.fingerprint.get(key) == value for key, value in made.items())
    return same and _layout(whole) >= LAYOUT and whole.value("num_parts", int) == parts


def check_folder(out: Path) -> None:
    """Raise StoreError if `out` holds something else than parts."""
    if (
        out.exists()
        and not ((out / "book").exists() or (out / MANIFEST).exists())
        and (not out.is_dir() or any(not p.name.startswith(".") for p in out.iterdir()))
    ):
        raise StoreError(f"{out} exists and holds no partitions; choose another folder, or remove it first")


def assign_nodes(
    dataset: Dataset,
    cut: Cut,
    out: Path,
    fingerprint: dict[str, str],
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Assign nodes to parts, and store the book in `out`; `on_progress` as in `base.make_book`."""
    book = book_of(dataset, cut, on_progress)
    assert isinstance(book, Book), f"{cut.partitioner.name} gave a book that cannot be stored"
    write_book(out / "book", book, fingerprint=fingerprint)


def _parts_here(dataset: Dataset, out: Path) -> WriteParts:
    """Writes parts in this process, from a dataset in memory."""

    def write(parts: list[int], fingerprint: dict[str, str]) -> Iterator[tuple[int, PartCounts]]:
        book = open_book(out / "book", fingerprint=fingerprint)
        for p in parts:
            yield p, write_part(out, own_rows(dataset, book.owned(p)), book, p, fingerprint)

    return write


def parts_of_store(dataset: Path, out: Path) -> WriteParts:
    """Writes parts in this process from the dataset's store: a range of its rows, or one part, is in memory.

    Until they are written, `out` holds their rows once more, uncompressed (see `storage.partition.shuffle`).
    """

    def write(parts: list[int], fingerprint: dict[str, str]) -> Iterator[tuple[int, PartCounts]]:
        if not parts:
            return
        folder = out / f"{ASIDE}dealt-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            stored, book = open_stored(dataset), open_book(out / "book", fingerprint=fingerprint)
            for k in range(begin(stored, book.num_parts, parts, folder)):
                deal(stored, k, book, folder)
            for part in parts:
                yield part, write_part(out, ShuffledStore(folder).part(part), book, part, fingerprint)
        finally:
            remove_tree(folder)

    return write


def own_rows(dataset: Dataset, owned: IdArray) -> OwnRows:
    """Rows of a dataset for the nodes that a part owns."""
    # Labelled pairs are read from the dataset by every rank.
    sets = (np.empty(0, np.int64) if dataset.of_pairs else getattr(dataset.split, name) for name in SPLITS)
    split = Split(*(np.flatnonzero(np.isin(owned, ids, assume_unique=True)).astype(np.int64) for ids in sets))
    labels = np.zeros(len(owned), np.int64) if dataset.of_pairs else dataset.labels[owned]
    features, graph = _OwnedFeatures(dataset.features, owned), dataset.graph
    taken, edges = graph.take(owned), None
    if graph.edge_features is not None:
        edges = _OwnedFeatures(graph.edge_features, edges_of_rows(taken.first_edge, np.diff(taken.indptr))[1])
    return OwnRows(owned, taken, graph.num_edges, features, labels, split, edge_features=edges)


def write_part(out: Path, own: OwnRows, book: Book, part: int, fingerprint: dict[str, str]) -> PartCounts:
    """Write one part; several processes may write parts of one call of `partition_dataset` at once."""
    partition = partition_of(own.nodes, own.graph, book, part)
    counts = count_part(partition, len(own.split.train))
    folder = _folder(out, part)
    sweep_leftovers(folder)
    write_partition(folder / "graph", partition, fingerprint=fingerprint, overwrite=True)
    shards = shard_edges(partition, book, own.graph.first_edge, own.total_edges)
    write_edge_shards(folder / "shards", shards, fingerprint=fingerprint, overwrite=True)
    _write_rows(folder / "rows", own, partition, counts, fingerprint)
    return counts


def open_part(out: Path, part: int) -> tuple[Partition, PartRows]:
    """Open part `part` of a folder that `partition_dataset` wrote.

    Raises:
        StoreError: the folder is incomplete or damaged, or there is no such part.
    """
    folder, whole = _opened(out, part)
    partition = open_partition(folder / "graph", fingerprint=whole.fingerprint)
    return partition, _open_rows(folder, whole, partition.num_owned)


def owned_nodes(out: Path, part: int) -> IdArray:
    """The global ids of the rows of a part. Raises StoreError if the folder is damaged."""
    folder, whole = _opened(out, part)
    return open_store(folder / "graph", GRAPH_KIND, fingerprint=whole.fingerprint).read("owned")


def open_shards(out: Path, part: int, empty: Empty = in_memory) -> tuple[EdgeShards, IdArray, PartRows]:
    """Open part `part` of a folder that `partition_dataset` wrote: its edges by the owner of their source, in arrays
    that `empty` makes, the global ids of its rows, and the rows.

    Raises:
        StoreError: the folder is incomplete or damaged, an earlier version wrote it, or there is no such part.
    """
    folder, whole = _opened(out, part)
    if _layout(whole) < LAYOUT:
        raise StoreError(
            f"{out} was written by an earlier version of Millrace, which made no edge shards; partition the same "
            "dataset into it again, "
            "with the same options, and what is lacking is added"
        )
    owned = open_store(folder / "graph", GRAPH_KIND, fingerprint=whole.fingerprint).read("owned")
    shards = open_edge_shards(folder / "shards", fingerprint=whole.fingerprint, empty=empty)
    with proving(folder / "shards"):
        require(
            (shards.part, shards.num_owned) == (part, len(owned)),
            f"it is of part {shards.part}, of {shards.num_owned} nodes",
        )
        sizes = [counts.nodes for counts in quality_of(whole).parts]
        require(len(sizes) == shards.num_parts, f"it is of {shards.num_parts} parts; there are {len(sizes)}")
        for q, size in enumerate(sizes):
            require_within(
                shards.sources[slice(*shards.source_splits[q : q + 2])], size, f"sources that part {q} is to send"
            )
    with proving(folder / "graph"):
        require_vector(owned, np.int64, None, "owned")
        require_ascending(owned, "owned")
    return shards, owned, _open_rows(folder, whole, len(owned))


def open_neighbours(out: Path, part: int, loops: bool) -> tuple[FeatureStore, Float64Array]:
    """Open the data that other parts may need of the nodes of part `part`: their features, and the sum of their
    in-edges' weights, [N]; with `loops` also their self loops, [N, 3].

    The part's edges are not read, unless it has self loops or an earlier version has written it: a rank calls this for
    all other parts, repeatedly.

    Raises:
        StoreError: see `open_part`.
    """
    folder, whole = _opened(out, part)
    graph = open_store(folder / "graph", GRAPH_KIND, fingerprint=whole.fingerprint)
    rows = open_store(folder / "rows", ROWS_KIND, fingerprint=whole.fingerprint)
    if "edge_weight" not in graph:
        degree = graph.read("in_degree").astype(np.float64)
    elif WEIGHTED in rows:
        degree = rows.read(WEIGHTED)
    else:
        # Written by a version that did not store the sums.
        degree = _weighted_degree(open_partition(folder / "graph", fingerprint=whole.fingerprint))
    features = ZarrFeatures.inside(rows, "features")
    with proving(rows.path):
        require_vector(degree, np.float64, features.num_rows, "the degree of its nodes")
    if not loops:
        return features, degree
    if not rows.meta.get(LOOPS, 1):
        return features, degree_rows(degree, np.empty(0, np.int64), None)
    partition = open_partition(folder / "graph", fingerprint=whole.fingerprint)
    return features, degree_rows(degree, *_self_loops(partition))


def _self_loops(partition: Partition) -> tuple[IdArray, FloatArray | None]:
    """The row of each self loop in the order of edges, and its weight if edges have any."""
    rows = np.repeat(np.arange(partition.num_owned), np.diff(partition.indptr))
    at = np.flatnonzero(partition.indices == rows)
    return rows[at], taken(partition.edge_weight, at)


def _weighted_degree(partition: Partition) -> Float64Array:
    """float64 [N], the sum of the weights of each node's in-edges."""
    assert partition.edge_weight is not None
    rows = np.repeat(np.arange(partition.num_owned), np.diff(partition.indptr))
    return np.bincount(rows, partition.edge_weight, minlength=partition.num_owned).astype(np.float64, copy=False)


def _opened(out: Path, part: int) -> tuple[Path, Store]:
    """Folder of a part, and the store that it belongs to."""
    whole = open_store(Path(out), KIND)
    parts = whole.value("num_parts", int)
    if not 0 <= part < parts:
        raise StoreError(f"{out} has parts 0 to {parts - 1}; part {part} was asked for")
    return _folder(Path(out), part), whole


def quality_of(whole: Store) -> PartitionQuality:
    """Quality of the parts from the folder's manifest. Raises StoreError if it cannot be read."""
    with proving(whole.path):
        return PartitionQuality.from_record(whole.meta["quality"])


def _open_rows(folder: Path, whole: Store, num_owned: int) -> PartRows:
    rows = open_store(folder / "rows", ROWS_KIND, fingerprint=whole.fingerprint)
    split, labels = Split(*(rows.read(name) for name in SPLITS)), rows.read("labels")
    features = ZarrFeatures.inside(rows, "features")
    with proving(rows.path):
        split.check(num_owned)
        require(
            features.num_rows == len(labels) == num_owned,
            f"{features.num_rows} rows and {len(labels)} labels of {num_owned} nodes",
        )
        require(
            (labels.dtype, labels.ndim) in ((np.int64, 1), (np.float32, 2)),
            f"labels are {labels.dtype}{list(labels.shape)}",
        )
    return PartRows(features, labels, split, ZarrFeatures.inside(rows, OF_EDGES) if OF_EDGES in rows else None)


def _layout(whole: Store) -> int:
    return whole.value("layout", int) if "layout" in whole.meta else 1


def _folder(out: Path, part: int) -> Path:
    return out / f"part-{part:04d}"


def _standing(folder: Path, fingerprint: dict[str, str]) -> PartCounts | None:
    """Counts of a part that exists already. Its rows were written last, so they vouch for the rest, in this layout."""
    try:
        open_store(folder / "shards", SHARDS_KIND, fingerprint=fingerprint)
        rows = open_store(folder / "rows", ROWS_KIND, fingerprint=fingerprint)
        with proving(folder):
            return PartCounts(**rows.meta["counts"])
    except StoreError:
        return None


def _write_rows(
    path: Path, own: OwnRows, partition: Partition, counts: PartCounts, fingerprint: dict[str, str]
) -> None:
    arrays = {"features": own.features, "labels": own.labels, **{name: getattr(own.split, name) for name in SPLITS}}
    if partition.edge_weight is not None:
        arrays[WEIGHTED] = _weighted_degree(partition)
    if own.edge_features is not None:
        arrays[OF_EDGES] = own.edge_features
    meta = {"counts": asdict(counts), LOOPS: len(_self_loops(partition)[0])}
    write_store(path, ROWS_KIND, fingerprint=fingerprint, meta=meta, arrays=arrays, overwrite=True)


def _commit(out: Path, fingerprint: dict[str, str], meta: dict[str, Any]) -> None:
    """Write the folder's manifest beside its parts, whole or not at all."""
    with committed_folder(out / "summary", overwrite=True) as aside:
        write_manifest(aside, KIND, fingerprint, meta, {})
    os.replace(out / "summary" / MANIFEST, out / MANIFEST)
    (out / "summary").rmdir()
