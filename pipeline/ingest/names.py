"""Numbers of nodes that have ids of their own: integers with gaps, or text. The map lies in files, which tasks map."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from ...storage.node_names import NodeNames
from ...storage.store.full_disk import new_npy
from ..datasets.cleaning.node_ids import as_ids, repeated
from ..datasets.cleaning.raw import AnyArray
from .scan import file_of

Kind = Literal["rows", "dense", "gaps", "text"]
Ranges = Sequence[tuple[int, int]]
"""First row and number of rows of each span."""
PIECE = 1 << 20
"""Entries handled at a time."""


@dataclass(frozen=True)
class NodeMap:
    """From ids to the numbers of nodes."""

    kind: Kind
    """rows: ids are absent, or the numbers of the rows; dense: 0 to V - 1, in another order; gaps: integers; text."""
    folder: Path
    num_nodes: int

    def numbers(self, column: pa.ChunkedArray, what: str) -> AnyArray:
        """Numbers of the nodes with the ids in the column `what`; below 0 or from V where they are no node's."""
        if self.kind == "text":
            return self._of_text(column)
        ids = as_ids(column, text=False, what=what).to_numpy()
        if self.kind != "gaps":
            return ids
        known = _mapped(self.folder / "ids.npy")
        order = np.argsort(ids)  # neighbours in the map lie on one page
        at = np.empty(len(ids), np.int64)
        at[order] = np.minimum(np.searchsorted(known, ids[order]), len(known) - 1)
        return np.where(known[at] == ids, at, -1)

    def ids(self) -> AnyArray | None:
        """[num_nodes], integer ids with gaps, in the order of the nodes; None if there are none."""
        return np.array(_mapped(self.folder / "ids.npy")) if self.kind == "gaps" else None

    def positions(self, number: int, first: int, rows: int) -> npt.NDArray[np.int64] | slice:
        """Numbers of the nodes in a span that was scanned."""
        path = file_of(self.folder, "id", number)
        if self.kind in ("rows", "text") or (self.kind == "dense" and not path.exists()):
            return slice(first, first + rows)
        ids = np.load(path) if path.exists() else np.arange(first, first + rows)
        return ids.astype(np.int64) if self.kind == "dense" else np.searchsorted(_mapped(self.folder / "ids.npy"), ids)

    def gathered(self, what: str, spans: Ranges, tables: Sequence[AnyArray] = ()) -> AnyArray:
        """An array of the nodes that were scanned, in the order of their numbers; where there are `tables`, one of each
        span, what these have at its values."""
        pieces = [np.load(file_of(self.folder, what, k)) for k in range(len(spans))]
        pieces = [table[piece] for table, piece in zip(tables, pieces)] if tables else pieces
        out = np.empty((self.num_nodes, *pieces[0].shape[1:]), np.result_type(*pieces))
        for k, (piece, span) in enumerate(zip(pieces, spans)):
            out[self.positions(k, *span)] = piece
        return out

    def _of_text(self, column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
        from ...stages.kernels.names.text import find_texts

        ends = NodeNames.of_arrow(column)
        index, mask = _mapped(self.folder / "index.npy"), _mask(self.num_nodes)
        hashes = _hashes(ends)
        least = hashes & ~mask
        order = np.argsort(least)
        at = np.empty(len(ends), np.int64)
        at[order] = np.searchsorted(index, least[order])
        known = node_names(self.folder)
        out = np.empty(len(ends), np.int64)
        find_texts(index, at, mask, known.text, known.starts, ends.text, ends.starts, hashes, out)
        return out


def _mask(num_nodes: int) -> np.uint64:
    return np.uint64((1 << max(1, num_nodes - 1).bit_length()) - 1)


def _hashes(names: NodeNames) -> npt.NDArray[np.uint64]:
    from ...stages.kernels.names.text import hash_texts

    out = np.empty(len(names), np.uint64)
    hash_texts(names.text, names.starts, out)
    return out


def _mapped(path: Path) -> AnyArray:
    return np.load(path, mmap_mode="r")


def node_names(folder: Path) -> NodeNames:
    """The nodes' names, mapped."""
    text = folder / "names.text"
    letters = np.memmap(text, np.uint8, "r") if text.stat().st_size else np.empty(0, np.uint8)
    return NodeNames(letters, _mapped(folder / "starts.npy"))


def sort_ids(folder: Path, spans: Sequence[tuple[int, int]], what: str) -> dict[str, Any]:
    """Sort the integer ids of a column, called `what`, into a file. `spans` are first rows and numbers of rows.

    Raises:
        InputError: two nodes have one id.
    """
    pieces = []
    for number, (first, rows) in enumerate(spans):
        path = file_of(folder, "id", number)
        pieces.append(np.load(path, mmap_mode="r") if path.exists() else np.arange(first, first + rows))
    total, kind = sum(len(p) for p in pieces), np.result_type(*pieces)
    ids = new_npy(folder / "ids.npy", kind, (total,))
    at = 0
    for piece in pieces:
        ids[at : at + len(piece)] = piece
        at += len(piece)
    ids.sort()
    for first in range(0, total, PIECE):
        piece = ids[first : first + PIECE + 1]
        again = piece[1:] == piece[:-1]
        if again.any():
            raise repeated(str(piece[np.argmax(again)]), what)
    return {"least": int(ids[0]), "largest": int(ids[-1])}


def index_names(folder: Path, spans: int, what: str) -> dict[str, Any]:
    """Join the names of all spans in one file, and sort an index of their hashes.

    Raises:
        InputError: two nodes have one name.
    """
    lengths = [np.load(file_of(folder, "length", k), mmap_mode="r") for k in range(spans)]
    total = sum(len(n) for n in lengths)
    starts = new_npy(folder / "starts.npy", np.int64, (total + 1,))
    index = new_npy(folder / "index.npy", np.uint64, (total,))
    mask, at, byte = _mask(total), 0, 0
    with open(folder / "names.text", "wb") as file:
        for k, of_span in enumerate(lengths):
            text = np.load(file_of(folder, "text", k), mmap_mode="r")
            file.write(text.data)
            ends = np.cumsum(of_span)
            local = np.concatenate([[0], ends])
            index[at : at + len(of_span)] = (_hashes(NodeNames(text, local)) & ~mask) | np.arange(
                at, at + len(of_span), dtype=np.uint64
            )
            starts[at + 1 : at + 1 + len(of_span)] = byte + ends
            at, byte = at + len(of_span), byte + int(local[-1])
    index.sort()
    again = min(_repeated_rows(index, mask, node_names(folder)), default=None)
    if again is not None:
        raise repeated(f"'{node_names(folder)[again]}'", what)
    return {"bytes": byte}


def _repeated_rows(index: AnyArray, mask: np.uint64, names: NodeNames) -> Iterator[int]:
    """First row of each name that several rows have."""
    seen: dict[str, int] = {}
    for first in range(0, len(index), PIECE):
        entries = index[first : first + PIECE + 1]
        again = np.flatnonzero(np.diff(entries & ~mask) == 0)
        rows = (entries[np.union1d(again, again + 1)] & mask).astype(np.int64)
        for row, name in zip(rows.tolist(), names.take(rows)):
            if seen.setdefault(name, row) != row:
                yield seen[name]
        # Only the last names may be met again behind this piece: hashes ascend.
        last = np.flatnonzero((entries & ~mask) == (entries[-1] & ~mask))
        kept = {*(entries[last] & mask).astype(np.int64).tolist()}
        seen = {name: row for name, row in seen.items() if row in kept}


def name_ids(nodes: NodeMap, number: int, first: int, stop: int) -> dict[str, Any]:
    """Write the names of some nodes that are called by integers: ids with gaps, or their own numbers."""
    gaps = nodes.kind == "gaps"
    ids = np.array(_mapped(nodes.folder / "ids.npy")[first:stop]) if gaps else np.arange(first, stop)
    names = NodeNames.of_integers(ids)
    names.text.tofile(nodes.folder / f"names-{number:06d}.text")
    names.starts[1:].tofile(nodes.folder / f"names-{number:06d}.starts")
    return {"rows": stop - first, "bytes": len(names.text)}
