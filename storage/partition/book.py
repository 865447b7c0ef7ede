"""Partition books map nodes to their owners and local ids. Local ids follow ascending global ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..array_checks import proving, require, require_vector
from ..array_kinds import AnyArray, IdArray, Int32Array
from ..errors import InputError, StoreError
from ..fingerprint import ArrayDigest, digest_arrays
from ..graph import starts_of
from ..store.store import Store, open_store, write_store
from .splitmix import node_words

Ids = npt.NDArray[np.integer]
KIND = "partition_book"


@runtime_checkable
class PartitionBook(Protocol):
    """Global id -> (partition, local id) and back, for V nodes in P partitions. Partitions may be empty."""

    @property
    def num_parts(self) -> int:
        """P."""

    @property
    def num_nodes(self) -> int:
        """V."""

    @property
    def fingerprint(self) -> str:
        """Digest of the book."""

    def part(self, ids: Ids) -> Int32Array:
        """int32 [n], the owner of each global id. Raises IndexError for ids outside [0, V)."""

    def local(self, ids: Ids) -> IdArray:
        """int64 [n], the local id of each global id within its owner. Raises IndexError for ids outside [0, V)."""

    def global_ids(self, part: int | Ids, local: Ids) -> IdArray:
        """int64 [n], the global ids of `local` ids in one partition, or in one partition each."""

    def owned(self, part: int) -> IdArray:
        """int64 [N], the global ids that a partition owns, ascending. Raises IndexError for a partition outside [0,
        P)."""

    def sizes(self) -> IdArray:
        """int64 [P], nodes of each partition."""

    def check(self) -> "PartitionBook":
        """Check the book's invariants. Raises InputError otherwise."""


def _in_range(ids: Ids, num_nodes: int) -> Ids:
    if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
        raise IndexError(f"node ids [{ids.min()}, {ids.max()}] asked for; the partition book has {num_nodes} nodes")
    return ids


def _known_part(part: int, num_parts: int) -> int:
    if not 0 <= part < num_parts:
        raise IndexError(f"partition {part} asked for; the partition book has {num_parts}")
    return part


@dataclass(frozen=True, eq=False)
class RangeBook:
    """Partition p owns the ids ``[offsets[p], offsets[p+1])``: P + 1 numbers hold the whole book."""

    offsets: IdArray
    """int64 [P+1], non-decreasing from 0 to V."""

    @classmethod
    def even(cls, count: int, parts: int) -> "RangeBook":
        """So many ids in so many parts, whose sizes differ by at most one."""
        return cls(count * np.arange(parts + 1, dtype=np.int64) // parts)

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.offsets) - 1

    @property
    def num_nodes(self) -> int:
        """V."""
        return int(self.offsets[-1])

    @property
    def fingerprint(self) -> str:
        """Digest of the offsets."""
        return digest_arrays(offsets=self.offsets)

    def part(self, ids: Ids) -> Int32Array:
        """int32 [n], the owner of each global id."""
        # "right" steps over empty partitions, whose range starts at the same id as the next one.
        return (np.searchsorted(self.offsets, _in_range(ids, self.num_nodes), side="right") - 1).astype(np.int32)

    def local(self, ids: Ids) -> IdArray:
        """int64 [n], the local id of each global id."""
        return ids - self.offsets[self.part(ids)]

    def global_ids(self, part: int | Ids, local: Ids) -> IdArray:
        """int64 [n], the global ids of `local` ids."""
        return self.offsets[part] + local

    def owned(self, part: int) -> IdArray:
        """int64 [N], ascending."""
        p = _known_part(part, self.num_parts)
        return np.arange(self.offsets[p], self.offsets[p + 1], dtype=np.int64)

    def sizes(self) -> IdArray:
        """int64 [P]."""
        return np.diff(self.offsets)

    def check(self) -> "RangeBook":
        """Check the invariants. Raises InputError otherwise."""
        o = self.offsets
        if o.dtype != np.int64 or o.ndim != 1 or len(o) < 2:
            raise InputError(f"offsets is {o.dtype}{list(o.shape)}; expected int64 [P+1] with P >= 1")
        if o[0] != 0 or (np.diff(o) < 0).any():
            raise InputError(
                f"offsets must rise from 0; they start at {o[0]} and {(np.diff(o) < 0).sum()} of them fall"
            )
        return self


@dataclass(frozen=True, eq=False)
class TableBook:
    """Any assignment, as a table of owners (METIS, chunks)."""

    part_of: npt.NDArray[np.int16] | Int32Array
    """int16 or int32 [V], the owner of each node."""
    num_parts: int
    """P; the last partitions may be empty, so the table alone does not determine it."""

    @property
    def num_nodes(self) -> int:
        """V."""
        return len(self.part_of)

    @property
    def fingerprint(self) -> str:
        """Digest of the table and of P."""
        return digest_arrays(part_of=self.part_of.astype(np.int32), parts=np.array([self.num_parts], np.int64))

    @cached_property
    def _starts(self) -> IdArray:
        return starts_of(np.bincount(self.part_of, minlength=self.num_parts))

    @cached_property
    def _by_part(self) -> IdArray:
        # A stable sort keeps ids ascending within a partition.
        return np.argsort(self.part_of, kind="stable").astype(np.int64, copy=False)

    @cached_property
    def _local_of(self) -> IdArray:
        local = np.empty(self.num_nodes, np.int64)
        local[self._by_part] = np.arange(self.num_nodes) - np.repeat(self._starts[:-1], np.diff(self._starts))
        return local

    def part(self, ids: Ids) -> Int32Array:
        """int32 [n], the owner of each global id."""
        return self.part_of[_in_range(ids, self.num_nodes)].astype(np.int32)

    def local(self, ids: Ids) -> IdArray:
        """int64 [n], the local id of each global id."""
        return self._local_of[_in_range(ids, self.num_nodes)]

    def global_ids(self, part: int | Ids, local: Ids) -> IdArray:
        """int64 [n], the global ids of `local` ids."""
        return self._by_part[self._starts[part] + local]

    def owned(self, part: int) -> IdArray:
        """int64 [N], ascending."""
        p = _known_part(part, self.num_parts)
        return self._by_part[self._starts[p] : self._starts[p + 1]]

    def sizes(self) -> IdArray:
        """int64 [P]."""
        return np.diff(self._starts)

    def check(self) -> "TableBook":
        """Check the invariants. Raises InputError otherwise."""
        t = self.part_of
        if t.dtype not in (np.int16, np.int32) or t.ndim != 1:
            raise InputError(f"part_of is {t.dtype}{list(t.shape)}; expected int16 or int32 [V]")
        if self.num_parts < 1:
            raise InputError(f"the partition book has {self.num_parts} partitions; expected at least 1")
        if len(t) and (t.min() < 0 or t.max() >= self.num_parts):
            raise InputError(f"part_of lies in [{t.min()}, {t.max()}]; expected [0, {self.num_parts})")
        return self


@dataclass(frozen=True, eq=False)
class HashBook:
    """Assigns each node by 32 bits of its random word: no table, whatever V is. The owner of a node is computed. Its
    local id is counted within its block of ids, whose owners are computed again, and added to a table of how many nodes
    each partition has before each block; one pass over all ids makes that table when it is first needed."""

    key: int
    """Key of the stream of words, uint64."""
    num_nodes: int
    """V."""
    num_parts: int
    """P."""
    block: int = 0
    """Ids per block; 0: as many as keep the table below 2**24 numbers, and at least 2**18."""

    @property
    def fingerprint(self) -> str:
        """Digest of the key, V and P."""
        return digest_arrays(hash=np.array([self.key, self.num_nodes, self.num_parts], np.uint64))

    @cached_property
    def _block(self) -> int:
        return self.block or max(1 << 18, self.num_nodes * self.num_parts >> 24)

    @cached_property
    def _before(self) -> IdArray:
        """int64 [blocks + 1, P], nodes of each partition in all blocks before each block."""
        blocks = -(-self.num_nodes // self._block)
        counts = np.zeros((blocks + 1, self.num_parts), np.int64)
        for b in range(blocks):
            counts[b + 1] = np.bincount(self._owners(self._ids(b)), minlength=self.num_parts)
        return np.cumsum(counts, axis=0)

    def _ids(self, b: int) -> IdArray:
        return np.arange(b * self._block, min(self.num_nodes, (b + 1) * self._block), dtype=np.int64)

    def _owners(self, ids: Ids) -> Int32Array:
        words = node_words(self.key, ids)
        return (((words >> np.uint64(32)) * np.uint64(self.num_parts)) >> np.uint64(32)).astype(np.int32)

    def _by_part(self, b: int) -> tuple[IdArray, IdArray]:
        """Positions in a block by owner, ascending within each, and where each owner's begin, [P + 1]."""
        owners = self._owners(self._ids(b))
        # NumPy sorts 16-bit integers by radix.
        order = np.argsort(owners.astype(np.int16) if self.num_parts < 1 << 15 else owners, kind="stable")
        return order, starts_of(self._before[b + 1] - self._before[b])

    def _in_blocks(self, block: IdArray) -> Iterator[tuple[int, IdArray]]:
        """Blocks that hold any of the ids, and the places of those ids."""
        order = np.argsort(block.astype(np.int16) if len(self._before) < 1 << 15 else block, kind="stable")
        ends = np.flatnonzero(np.diff(block[order], append=-1)) + 1
        for begin, end in zip([0, *ends], ends):
            yield int(block[order[begin]]), order[begin:end]

    def part(self, ids: Ids) -> Int32Array:
        """int32 [n], the owner of each global id."""
        return self._owners(_in_range(ids, self.num_nodes))

    def local(self, ids: Ids) -> IdArray:
        """int64 [n], the local id of each global id."""
        ids = _in_range(ids, self.num_nodes).astype(np.int64, copy=False)
        local = np.empty(len(ids), np.int64)
        for b, places in self._in_blocks(ids // self._block):
            order, starts = self._by_part(b)
            within = np.empty(len(order), np.int64)
            within[order] = np.arange(len(order)) + np.repeat(self._before[b] - starts[:-1], np.diff(starts))
            local[places] = within[ids[places] - b * self._block]
        return local

    def global_ids(self, part: int | Ids, local: Ids) -> IdArray:
        """int64 [n], the global ids of `local` ids."""
        parts, local = np.broadcast_arrays(part, local)
        block = np.empty(len(local), np.int64)
        for p in np.unique(parts):
            mine = parts == p
            block[mine] = np.searchsorted(self._before[1:, p], local[mine], side="right")
        ids = np.empty(len(local), np.int64)
        for b, places in self._in_blocks(block):
            order, starts = self._by_part(b)
            of = parts[places]
            ids[places] = b * self._block + order[starts[of] + local[places] - self._before[b, of]]
        return ids

    def owned(self, part: int) -> IdArray:
        """int64 [N], ascending."""
        p = _known_part(part, self.num_parts)
        ids = (self._ids(b) for b in range(-(-self.num_nodes // self._block)))
        return np.concatenate([np.empty(0, np.int64), *(block[self._owners(block) == p] for block in ids)])

    def sizes(self) -> IdArray:
        """int64 [P]."""
        return self._before[-1].copy()

    def check(self) -> "HashBook":
        """Check the invariants. Raises InputError otherwise."""
        if not 1 <= self.num_parts < 1 << 31 or self.num_nodes < 0 or not 0 <= self.key < 1 << 64 or self.block < 0:
            raise InputError(f"{self} is not a partition book; expected at least 1 part, 0 nodes, and a key of 64 bits")
        return self


Book = RangeBook | TableBook | HashBook
"""Books that can be stored."""


def order_digest(book: PartitionBook) -> str:
    """Digest of the order of nodes that goes through the parts one after the other, 64 hex digits; empty for ranges,
    which keep the order of ids."""
    digest, keeps, first = ArrayDigest(np.int64, (book.num_nodes,)), True, 0
    for part in range(book.num_parts):
        ids = book.owned(part)
        keeps = keeps and bool((ids == np.arange(first, first + len(ids))).all())
        first += len(ids)
        digest.update(ids)
    return "" if keeps else digest.hexdigest()


def write_book(path: Path, book: Book, *, fingerprint: dict[str, str] | None = None) -> Store:
    """Write a partition book as a committed store.

    Args:
        path: the folder to make.
        book: what to write.
        fingerprint: what the book was made from, e.g. the graph's digest, the method and the seed.
    """
    array: AnyArray
    if isinstance(book, HashBook):
        form, array = "hash", np.array([book.key], np.uint64)
    else:
        form, array = ("range", book.offsets) if isinstance(book, RangeBook) else ("table", book.part_of)
    meta = {"form": form, "num_parts": book.num_parts, "num_nodes": book.num_nodes}
    return write_store(Path(path), KIND, fingerprint=fingerprint or {}, meta=meta, arrays={"book": array})


def open_book(path: Path, *, fingerprint: dict[str, str] | None = None) -> Book:
    """Open a partition book; refuse it if `fingerprint` is given and differs.

    Raises:
        StoreError: absent, damaged, of an unknown form, or made from something else.
    """
    store = open_store(Path(path), KIND, fingerprint=fingerprint)
    array, form = store.read("book"), store.value("form", str)
    if form not in ("range", "table", "hash"):
        raise StoreError(f"{path} holds a partition book of form '{form[:80]}'; expected 'range', 'table' or 'hash'")
    parts, nodes = store.value("num_parts", int), store.value("num_nodes", int)
    with proving(path):
        if form == "range":
            book = RangeBook(array).check()
        elif form == "table":
            book = TableBook(array, parts).check()
        else:
            require_vector(array, np.uint64, 1, "the key")
            book = HashBook(int(array[0]), nodes, parts).check()
        require(
            (book.num_parts, book.num_nodes) == (parts, nodes), f"the book is not of {parts} parts and {nodes} nodes"
        )
        # The counts of nodes by part have an entry for each part.
        require(parts < 1 << 31, f"the book has {parts} parts; expected less than 2**31")
    return book
