"""Packs a bulk into one int32 matrix [k, cap]: a row per minibatch, a header and then its arrays back to back.

Row: MAGIC, VERSION, words used, epoch, index, flags, L, number of nodes; then (num_dst, num_src, num_edges) of each
block, outermost first; then the sections, each on an even word so that int64 arrays lie aligned:

* nodes, the ids of the outermost block's sources (every other block's sources are the leading ones of them);
* per edge list: indptr, indices, weight (float32 viewed as int32), edge_id (int64 viewed as int32). A nested minibatch
  has one edge list, the outermost block's; otherwise each block has its own.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..array_kinds import ValueArray
from ..errors import StoreError
from ..minibatch import Block, Bulk, MiniBatch, leading_block

Words = npt.NDArray[np.int32]
MAGIC = 0x4D4C5243
VERSION = 1
HEADER_WORDS = 8
NESTED, WEIGHT, EDGE_ID, WIDE_IDS = 1, 2, 4, 8
_LIMIT = 2**31 - 1


def _even(words: int) -> int:
    return words + (words & 1)


def _edge_lists(m: MiniBatch) -> tuple[Block, ...]:
    return m.blocks[:1] if m.nested else m.blocks


def _edge_list_words(num_dst: int, num_edges: int, flags: int) -> tuple[int, int, int, int]:
    """Words of indptr, indices, weight and edge_id."""
    return num_dst + 1, num_edges, num_edges if flags & WEIGHT else 0, 2 * num_edges if flags & EDGE_ID else 0


def _flags(m: MiniBatch) -> int:
    lists = _edge_lists(m)
    first = lists[0]
    for b in lists:
        assert (b.weight is None) == (first.weight is None), "all blocks have weights, or none"
        assert (b.edge_id is None) == (first.edge_id is None), "all blocks have edge ids, or none"
    return (
        (NESTED if m.nested else 0)
        | (WEIGHT if first.weight is not None else 0)
        | (EDGE_ID if first.edge_id is not None else 0)
        | (WIDE_IDS if m.nodes.dtype == np.int64 else 0)
    )


def packed_words(m: MiniBatch) -> int:
    """Words of the row that `m` packs into, without padding to the longest row of its bulk."""
    flags = _flags(m)
    total = _even(HEADER_WORDS + 3 * len(m.blocks)) + _even(len(m.nodes) * (2 if flags & WIDE_IDS else 1))
    for b in _edge_lists(m):
        total += sum(_even(w) for w in _edge_list_words(b.num_dst, b.num_edges, flags))
    assert total <= _LIMIT, "a packed minibatch has at most 2**31 - 1 words"
    return total


def packed_bytes(bulk: Bulk) -> int:
    """Bytes of a bulk's packed rows, which the queue's bound counts."""
    return 4 * sum(packed_words(m) for m in bulk.minibatches)


def _sections(m: MiniBatch) -> Iterator[Words]:
    yield _as_words(m.nodes)
    for b in _edge_lists(m):
        assert not b.num_dst or int(b.indptr[-1]) <= _LIMIT
        yield b.indptr.astype(np.int32)
        yield _as_words(b.indices)
        if b.weight is not None:
            yield _as_words(b.weight)
        if b.edge_id is not None:
            yield _as_words(b.edge_id.astype(np.int64, copy=False))


def _as_words(a: ValueArray) -> Words:
    return np.ascontiguousarray(a).view(np.int32)


def pack_bulk(bulk: Bulk) -> Words:
    """int32 [k, cap], rows padded with zeros to the longest."""
    words = [packed_words(m) for m in bulk.minibatches]
    out = np.zeros((len(words), max(words)), np.int32)
    for row, m, used in zip(out, bulk.minibatches, words):
        row[:HEADER_WORDS] = (MAGIC, VERSION, used, m.epoch, m.index, _flags(m), len(m.blocks), len(m.nodes))
        at = HEADER_WORDS
        for b in m.blocks:
            row[at : at + 3] = (b.num_dst, b.num_src, b.num_edges)
            at += 3
        at = _even(at)
        for section in _sections(m):
            row[at : at + len(section)] = section
            at += _even(len(section))
        assert at == used
    return out


class _Reader:
    """Takes sections off a row, one after the other, and refuses to read past its end."""

    def __init__(self, row: Words, where: str) -> None:
        self.row, self.at, self.where = row, HEADER_WORDS, where

    def require(self, holds: bool | np.bool_, what: str) -> None:
        if not holds:
            raise StoreError(f"{self.where}: {what}; the row is damaged: sample it again")

    def take(self, words: int) -> Words:
        end = self.at + words
        self.require(end <= len(self.row), f"a section ends at word {end} of {len(self.row)}")
        section = self.row[self.at : end]
        self.at += _even(words)
        return section


def unpack_row(row: Words, where: str = "bulk") -> MiniBatch:
    """The minibatch of one row; its arrays are views of the row, `indptr` is int32.

    Args:
        row: int32 [cap].
        where: name of the row in messages.

    Raises:
        StoreError: the magic number, a count or a bound is wrong.
    """
    reader = _Reader(row, where)
    require = reader.require
    require(row.dtype == np.int32 and row.ndim == 1, f"{row.dtype}{list(row.shape)} seen, int32 [cap] expected")
    require(len(row) >= HEADER_WORDS, f"{len(row)} words are too few for a header")
    magic, version, used, epoch, index, flags, num_layers, num_nodes = (int(w) for w in row[:HEADER_WORDS])
    require(magic == MAGIC, f"magic number {magic:#x} seen, {MAGIC:#x} expected (Zarr reads what is missing as zeros)")
    if version != VERSION:
        raise StoreError(
            f"{where} is packed in version {version}; this Millrace reads version {VERSION}: sample it again"
        )
    require(HEADER_WORDS <= used <= len(row), f"{used} words used of {len(row)}")
    require(epoch >= 0 and index >= 0, f"epoch {epoch}, index {index}")
    require(num_layers >= 1 and num_nodes >= 0, f"{num_layers} layers, {num_nodes} nodes")
    reader.row = row[:used]
    counts = reader.take(3 * num_layers).reshape(-1, 3)
    # The header has an even number of words, so padding the counts keeps what follows even.
    require((counts >= 0).all() and (counts[:, 0] <= counts[:, 1]).all(), f"block sizes {counts.tolist()}")
    chained = (counts[1:, 1] == counts[:-1, 0]).all() and counts[0, 1] == num_nodes
    require(chained, f"block sizes {counts.tolist()} do not chain")
    nodes = reader.take(num_nodes * 2).view(np.int64) if flags & WIDE_IDS else reader.take(num_nodes)
    require(not num_nodes or nodes.min() >= 0, "a node's id is negative")
    lists = []
    for num_dst, _, num_edges in counts[: 1 if flags & NESTED else None].tolist():
        words = _edge_list_words(num_dst, num_edges, flags)
        indptr, indices, weight, edge_id = (reader.take(w) for w in words)
        rising = indptr[0] == 0 and indptr[-1] == num_edges and (np.diff(indptr) >= 0).all()
        require(rising, "row pointers do not rise to e")
        weights = weight.view(np.float32) if flags & WEIGHT else None
        require(weights is None or np.isfinite(weights).all(), "an edge's weight is not finite")
        lists.append((indptr, indices, weights, edge_id.view(np.int64) if flags & EDGE_ID else None))
    require(reader.at == used, f"sections end at word {reader.at}, the header says {used}")
    blocks = []
    for i, (num_dst, num_src, num_edges) in enumerate(counts.tolist()):
        own = lists[0 if flags & NESTED else i]
        indptr, indices, _, _ = own
        if flags & NESTED:
            seen = indptr[num_dst]
            require(seen == num_edges, f"block {i} has {num_edges} edges, its rows have {seen}")
        edges = indices[:num_edges]
        in_range = not num_edges or (edges.min() >= 0 and edges.max() < num_src)
        require(in_range, f"an edge's source in block {i} is out of range")
        blocks.append(leading_block(num_dst, nodes[:num_src], num_edges, own))
    return MiniBatch(epoch, index, tuple(blocks), bool(flags & NESTED))
