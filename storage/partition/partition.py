"""Partition: the nodes that one rank owns, their in-edges, and the remote in-neighbours (the halo)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import array_checks as checks
from ..array_checks import proving, require
from ..array_kinds import AnyArray, Float32Array, IdArray, Int32Array, ValueArray
from ..dataset import Split
from ..errors import InputError
from ..graph import Graph, TakenRows
from ..optional import present_items
from ..store.arrays import Rows
from ..store.store import Store, open_store, write_store
from .book import PartitionBook

KIND = "partition"
MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Partition:
    """N owned nodes with all their in-edges. A source is a *position*: below N an owned row, from N on a row of
    `halo`."""

    rank: int
    """The partition's number."""
    owned: IdArray
    """int64 [N], global ids, ascending."""
    halo: IdArray
    """int64 [H], global ids of the in-neighbours that other parts own, ascending, distinct."""
    indptr: IdArray
    """int64 [N+1], by destination in the order of `owned`."""
    indices: Int32Array
    """int32 [e], positions in [0, N+H), in the order of the graph's rows."""
    in_degree: IdArray
    """int64 [N], in-degree of each owned node in the whole graph, including edges that are left out here."""
    edge_weight: Float32Array | None = None
    """float32 [e] or None."""
    edge_id: IdArray | None = None
    """int64 [e] or None: the graph's own `edge_id`."""
    edge_type: AnyArray | None = None
    """[e], relation of each edge; None: there is one."""

    @property
    def num_owned(self) -> int:
        """N."""
        return len(self.owned)

    @property
    def num_halo(self) -> int:
        """H."""
        return len(self.halo)

    @property
    def num_edges(self) -> int:
        """e."""
        return len(self.indices)

    @property
    def nodes(self) -> IdArray:
        """int64 [N+H], global id of each position."""
        return np.concatenate([self.owned, self.halo])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in self._arrays().values())

    def _arrays(self) -> dict[str, ValueArray]:
        names = ("owned", "halo", "indptr", "indices", "in_degree", "edge_weight", "edge_id", "edge_type")
        return present_items({name: getattr(self, name) for name in names})

    def check(self) -> "Partition":
        """Check the invariants. Raises InputError otherwise."""
        n, h, e = self.num_owned, self.num_halo, self.num_edges
        for name in ("owned", "halo"):
            checks.require_vector(getattr(self, name), np.int64, None, name)
            checks.require_ascending(getattr(self, name), name)
        at = np.minimum(np.searchsorted(self.owned, self.halo), max(n - 1, 0))
        require(not n or not (self.owned[at] == self.halo).any(), "halo holds owned nodes")
        checks.require_splits(self.indptr, n, e, "indptr")
        checks.require_vector(self.in_degree, np.int64, n, "in_degree")
        require(
            (np.diff(self.indptr) <= self.in_degree).all(),
            "a row holds more edges than the node has in the whole graph",
        )
        checks.require_vector(self.indices, np.int32, None, "indices")
        checks.require_within(self.indices, n + h, "indices")
        checks.require_of_edges(e, self._arrays())
        return self


@dataclass(frozen=True, eq=False)
class OwnRows:
    """Rows of a dataset for the N nodes that one part owns."""

    nodes: IdArray
    """int64 [N], global ids, ascending."""
    graph: TakenRows
    """Their in-edges."""
    total_edges: int
    """E of the whole graph."""
    features: Rows
    """[N, F], not necessarily in memory."""
    labels: ValueArray
    """int64 [N] or float32 [N, C]."""
    split: Split
    """Local ids."""
    edge_features: Rows | None = None
    """[e, D], of their in-edges, not necessarily in memory."""


def extract_partition(graph: Graph, book: PartitionBook, part: int) -> Partition:
    """Extract one partition from the whole graph, with every in-edge of the nodes it owns.

    Raises:
        InputError: the book is for another number of nodes, or the partition needs more than 2**31 - 1 positions.
        IndexError: there is no such partition.
    """
    if book.num_nodes != graph.num_nodes:
        raise InputError(f"the partition book has {book.num_nodes} nodes; expected the graph's {graph.num_nodes}")
    owned = book.owned(part)
    return partition_of(owned, graph.take(owned), book, part)


def partition_of(owned: IdArray, rows: TakenRows, book: PartitionBook, part: int) -> Partition:
    """Build a partition from the nodes that it owns and their rows; see `extract_partition`."""
    src = rows.indices
    remote = book.part(src) != part
    halo = np.unique(src[remote]).astype(np.int64)
    if len(owned) + len(halo) > MAX_POSITIONS:
        raise InputError(
            f"partition {part} has {len(owned)} nodes and a halo of {len(halo)}; at most {MAX_POSITIONS} fit: use "
            "more parts"
        )
    indices = np.empty(len(src), np.int32)
    indices[~remote] = book.local(src[~remote])
    indices[remote] = len(owned) + np.searchsorted(halo, src[remote])
    of_edges = rows.edge_weight, rows.edge_id, rows.edge_type
    return Partition(part, owned, halo, rows.indptr, indices, np.diff(rows.indptr), *of_edges)


def write_partition(
    path: Path, partition: Partition, *, fingerprint: Mapping[str, str] | None = None, overwrite: bool = False
) -> Store:
    """Write a partition as a committed store.

    Args:
        path: the folder to make.
        partition: what to write.
        fingerprint: what it was made from, e.g. the digests of the graph and of the book.
        overwrite: replace a store that is there.
    """
    meta = {"rank": partition.rank}
    return write_store(
        path, KIND, fingerprint=fingerprint or {}, meta=meta, arrays=partition._arrays(), overwrite=overwrite
    )


def open_partition(path: Path, *, fingerprint: Mapping[str, str] | None = None) -> Partition:
    """Open a partition; refuse it if `fingerprint` is given and differs.

    Raises:
        StoreError: absent, damaged, or made from something else.
    """
    store = open_store(Path(path), KIND, fingerprint=fingerprint)
    with proving(path):
        return Partition(store.value("rank", int), **{name: store.read(name) for name in store.entries}).check()
