"""Edge shards: the in-edges of one part, grouped by the part that owns their source (SAR; Mostafa, MLSys 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..array_checks import AT_ONCE, proving, require, require_of_edges, require_splits, require_vector, require_within
from ..array_kinds import AnyArray, Float32Array, IdArray, Int32Array, IntArray, ValueArray
from ..errors import InputError
from ..graph import index_dtype, run_starts, starts_of
from ..optional import taken
from ..store.scratch import Empty, in_memory
from ..store.store import Store, open_store, write_store
from .book import PartitionBook
from .partition import Partition

PositionArray = npt.NDArray[np.int32]
KIND = "edge_shards"


@dataclass(frozen=True, eq=False)
class EdgeShards:
    """The e edges into the N rows of one part, as P edge shards: shard q holds those whose source part q owns.

    Edges lie shard by shard, within a shard by row, within a row in the Partition's order. All R (shard, row) pairs
    that have an edge are listed, and the S sources that other parts own, each once.
    """

    part: int
    """p, the part that owns the rows."""
    row_splits: IdArray
    """int64 [P+1]: ``rows[row_splits[q]:row_splits[q+1]]`` are the rows that have an edge in shard q."""
    rows: PositionArray
    """int32 [R], local rows in [0, N), ascending and distinct within a shard."""
    counts: PositionArray
    """int32 [R], edges of each of those rows in the shard, at least 1."""
    edge_splits: IdArray
    """int64 [P+1]: edges ``[edge_splits[q], edge_splits[q+1])`` are shard q."""
    indices: PositionArray
    """int32 [e]: a position among the shard's sources; in the part's own shard, the local row of the source."""
    edge: Int32Array | IdArray
    """int32 or int64 [e], the position of each edge in the Partition's order; ascending within a shard."""
    source_splits: IdArray
    """int64 [P+1]: ``sources[source_splits[q]:source_splits[q+1]]`` are the rows that part q must send."""
    sources: PositionArray
    """int32 [S], local ids *at their owner*, ascending and distinct within a shard; the part's own shard lists none."""
    first_edge: IdArray
    """int64 [N], the number of each row's first edge in the whole graph."""
    total_edges: int
    """E, edges of the whole graph."""
    edge_weight: Float32Array | None = None
    """float32 [e] in shard order, or None."""
    edge_type: AnyArray | None = None
    """[e], relation of each edge in the Partition's order; None: there is one."""

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.row_splits) - 1

    @property
    def num_owned(self) -> int:
        """N."""
        return len(self.first_edge)

    @property
    def num_edges(self) -> int:
        """e."""
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in self._arrays().values())

    def _arrays(self) -> dict[str, ValueArray]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def check(self) -> "EdgeShards":
        """Check the invariants, with temporary arrays of e + S flags and O(N). Raises InputError otherwise."""
        parts, n, e = self.num_parts, self.num_owned, self.num_edges
        require(type(self.part) is int and 0 <= self.part < parts, f"part is {self.part}; there are {parts}")
        require(
            type(self.total_edges) is int and self.total_edges >= e,
            f"total_edges is {self.total_edges}; the part alone has {e}",
        )
        for name, length in {"rows": None, "counts": len(self.rows), "indices": None, "sources": None}.items():
            require_vector(getattr(self, name), np.int32, length, name)
        require_vector(self.edge, index_dtype(e), e, "edge")
        require_vector(self.first_edge, np.int64, None, "first_edge")
        require_of_edges(e, self._arrays())
        ends = {"row_splits": len(self.rows), "edge_splits": e, "source_splits": len(self.sources)}
        for name, end in ends.items():
            require_splits(getattr(self, name), parts, end, name)

        require(_ascending(self.rows, self.row_splits, n), "rows do not ascend within a shard")
        require((self.counts > 0).all(), "a row of a shard has no edge")
        ends_of_rows = starts_of(self.counts)
        require(
            np.array_equal(ends_of_rows[self.row_splits], self.edge_splits),
            "the counts of a shard's rows do not add up to its edges",
        )
        require(_ascending(self.sources, self.source_splits), "sources do not ascend within a shard")
        require(_ascending(self.edge, self.edge_splits, e), "edges do not ascend within a shard")
        degree = (
            np.bincount(self.rows, self.counts, minlength=n).astype(np.int64)
            if len(self.rows)
            else np.zeros(n, np.int64)
        )
        self._check_edges(starts_of(degree), ends_of_rows)
        # A row's edges end before those of the next owned row begin; rows of other parts may lie between them.
        room = np.append(self.first_edge[1:], self.total_edges)[:n] - self.first_edge
        require(not n or (self.first_edge[0] >= 0 and (degree <= room).all()), "rows do not ascend in the whole graph")
        return self

    def _check_edges(self, indptr: IdArray, ends_of_rows: IdArray) -> None:
        """Check, piece by piece, that each edge belongs to its row, has a source in its shard, and occurs once."""
        seen, used = np.zeros(self.num_edges, bool), np.zeros(len(self.sources), bool)
        for q in range(self.num_parts):
            own = q == self.part
            begin, end = self.source_splits[q : q + 2].tolist()
            require(not own or begin == end, "rows are sent to their owner")
            first_of, end_of = self.edge_splits[q : q + 2].tolist()
            for first in range(first_of, end_of, AT_ONCE):
                stop = min(first + AT_ONCE, end_of)
                require_within(
                    self.indices[first:stop], self.num_owned if own else end - begin, f"indices of shard {q}"
                )
                if not own:
                    used[begin + self.indices[first:stop]] = True
                edge = self.edge[first:stop]
                seen[edge] = True
                of = slice(
                    int(np.searchsorted(ends_of_rows, first, side="right")) - 1,
                    int(np.searchsorted(ends_of_rows, stop)),
                )
                row = np.repeat(self.rows[of], np.diff(ends_of_rows[of.start : of.stop + 1].clip(first, stop)))
                require(((edge >= indptr[row]) & (edge < indptr[row + 1])).all(), "an edge does not lead to its row")
        require(seen.all(), "an edge lies in two shards")
        require(used.all(), "a row is sent for nothing")


def shard_edges(partition: Partition, book: PartitionBook, first_edge: IdArray, total_edges: int) -> EdgeShards:
    """Group a partition's edges by the owner of their source: O(e + N + P) memory.

    Args:
        partition: N rows, e edges.
        book: the book that assigned its nodes, P parts.
        first_edge: int64 [N], ``graph.indptr[partition.owned]``.
        total_edges: E of the whole graph.

    Raises:
        InputError: the partition is not one of the book's.
    """
    part, n, e, parts = partition.rank, partition.num_owned, partition.num_edges, book.num_parts
    if not _is_of(partition, book):
        raise InputError(
            f"partition {part} of {n} nodes is none of this book's {parts} parts; give the book that it was cut by"
        )
    halo_part = book.part(partition.halo)
    # Local ids follow global ids, so a stable sort by owner leaves them ascending.
    halo_order = _stable_order(halo_part, parts)
    source_splits = starts_of(np.bincount(halo_part, minlength=parts))
    position = np.empty(partition.num_halo, np.int32)
    position[halo_order] = np.arange(partition.num_halo) - np.repeat(source_splits[:-1], np.diff(source_splits))

    # Map each of the N + H positions to its place in the shards, then each edge.
    owner = np.concatenate([np.full(n, part, halo_part.dtype), halo_part])[partition.indices]
    edge = _stable_order(owner, parts)
    edge_splits = starts_of(np.bincount(owner, minlength=parts))
    indices = np.concatenate([np.arange(n, dtype=np.int32), position])[partition.indices[edge]]
    row = np.repeat(np.arange(n, dtype=np.int32), np.diff(partition.indptr))[edge]
    begins = run_starts(row)
    # The last row of a shard may also be the first of the next.
    begins[edge_splits[:-1][np.diff(edge_splits) > 0]] = True
    starts = np.flatnonzero(begins)
    return EdgeShards(
        part,
        row_splits=np.searchsorted(starts, edge_splits).astype(np.int64, copy=False),
        rows=row[starts],
        counts=np.diff(starts, append=e).astype(np.int32),
        edge_splits=edge_splits,
        indices=indices,
        edge=edge.astype(index_dtype(e)),
        source_splits=source_splits,
        sources=book.local(partition.halo)[halo_order].astype(np.int32),
        first_edge=first_edge,
        total_edges=total_edges,
        edge_weight=taken(partition.edge_weight, edge),
        edge_type=partition.edge_type,
    )


def write_edge_shards(
    path: Path, shards: EdgeShards, *, fingerprint: Mapping[str, str] | None = None, overwrite: bool = False
) -> Store:
    """Write edge shards as a committed store.

    Args:
        path: the folder to make.
        shards: what to write.
        fingerprint: what they were made from, e.g. the digests of the graph and of the book.
        overwrite: replace a store that is there.
    """
    meta = {"part": shards.part, "total_edges": shards.total_edges}
    return write_store(
        Path(path), KIND, fingerprint=fingerprint or {}, meta=meta, arrays=shards._arrays(), overwrite=overwrite
    )


def open_edge_shards(
    path: Path, *, fingerprint: Mapping[str, str] | None = None, empty: Empty = in_memory
) -> EdgeShards:
    """Open edge shards; refuse them if `fingerprint` is given and differs. Their arrays are made by `empty`.

    Raises:
        StoreError: absent, damaged, or made from something else.
    """
    store = open_store(Path(path), KIND, fingerprint=fingerprint)
    with proving(path):
        # pyrefly: ignore[bad-argument-type]
        return EdgeShards(**{**store.meta, **{name: store.read_into(name, empty) for name in store.entries}}).check()


def _is_of(partition: Partition, book: PartitionBook) -> bool:
    owned, part = partition.owned, partition.rank
    if (
        not 0 <= part < book.num_parts
        or book.sizes()[part] != len(owned)
        or (len(owned) and owned[-1] >= book.num_nodes)
    ):
        return False
    return bool((book.part(owned) == part).all())


def _stable_order(keys: IntArray, bound: int) -> npt.NDArray[np.intp]:
    # NumPy sorts keys of up to 16 bits by counting.
    return np.argsort(keys.astype(np.min_scalar_type(bound)), kind="stable")


def _ascending(values: IntArray, splits: IdArray, bound: int | None = None) -> bool:
    """True if values are at least 0, below `bound`, and rise strictly between splits."""
    if not len(values):
        return True
    if values.min() < 0 or (bound is not None and values.max() >= bound):
        return False
    for first in range(1, len(values), AT_ONCE):
        stop = min(first + AT_ONCE, len(values))
        falls = np.flatnonzero(values[first:stop] <= values[first - 1 : stop - 1]) + first
        if not np.isin(falls, splits).all():
            return False
    return True
