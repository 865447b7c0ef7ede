"""Numbers of nodes that have ids of their own: integers with gaps, or text. The map lies in files, which tasks map."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from ...storage.array_kinds import IdArray
from ...storage.graph import starts_of
from ...storage.node_names import NodeNames
from ..datasets.cleaning.node_ids import as_ids, check_every_id, given_ids, renumbered, repeated, with_gaps
from ..datasets.cleaning.options import ReadOptions
from ..datasets.cleaning.raw import AnyArray
from ..datasets.readers.csv_file import is_text_read
from .source import Table

Kind = Literal["rows", "gaps", "text"]
PIECE = 1 << 20
"""Entries handled at a time."""


def file_of(folder: Path, what: str) -> Path:
    """File with an array of a table's nodes, in the order of their numbers."""
    return folder / f"{what}.npy"


@dataclass(frozen=True)
class NodeMap:
    """From ids to the numbers of nodes."""

    kind: Kind
    """rows: ids are absent, or 0 to V - 1 in any order; gaps: other integers; text."""
    folder: Path
    num_nodes: int

    def numbers(self, column: pa.ChunkedArray, what: str) -> AnyArray:
        """Numbers of the nodes with the ids in the column `what`; below 0 or from V where they are no node's."""
        if self.kind == "text":
            return self._of_text(column)
        ids = as_ids(column, text=False, what=what).to_numpy()
        if self.kind != "gaps":
            return ids
        order, at = np.argsort(ids), np.empty(len(ids), np.int64)  # neighbours in the map lie on one page
        at[order] = renumbered(_mapped(self.folder / "ids.npy"), ids[order])
        return at

    def ids(self) -> AnyArray | None:
        """[num_nodes], integer ids with gaps, in the order of the nodes; None if there are none."""
        return np.array(_mapped(self.folder / "ids.npy")) if self.kind == "gaps" else None

    @property
    def moved(self) -> AnyArray | None:
        """[num_nodes], numbers of the nodes by their rows; None: they are those of the rows."""
        path = self.folder / "numbers.npy"
        return _mapped(path) if path.exists() else None

    def ordered(self, values: AnyArray) -> AnyArray:
        """Values of the rows, in the order of the nodes' numbers."""
        if (numbers := self.moved) is None:
            return values
        out = np.empty_like(values)
        out[numbers] = values
        return out

    def _of_text(self, column: pa.ChunkedArray) -> IdArray:
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


def number_nodes(folder: Path, table: Table, key: str, text: bool, options: ReadOptions, rows: int) -> dict[str, Any]:
    """Write what numbers the nodes with the ids in the column `key` of their table, which are read so many at a time;
    return the kind of ids, and notes. Raises InputError: an id is null, two nodes have one, or ids have gaps where that
    is an error."""
    what = f"nodes.{key}"

    def columns() -> Iterator[pa.ChunkedArray]:
        nulls = 0
        for batch in table.pieces((key,), rows):
            column = given_ids(batch[key])
            nulls += column.null_count
            if not nulls:
                yield column
        check_every_id(what, nulls, is_text_read(table.source, key))

    if text:
        _index_names(folder, columns(), what)
        return {"kind": "text", "notes": []}
    ids, notes = np.concatenate([as_ids(column, text=False, what=what).to_numpy() for column in columns()]), list[str]()
    order, by_row = np.argsort(ids, kind="stable"), np.arange(len(ids))
    if (gaps := with_gaps(ids[order], options, notes, what)) is not None:
        np.save(folder / "ids.npy", gaps)
    if not np.array_equal(order, by_row):
        numbers = np.empty_like(order)
        numbers[order] = by_row
        np.save(folder / "numbers.npy", numbers)
    return {"kind": "rows" if gaps is None else "gaps", "notes": notes}


def _index_names(folder: Path, columns: Iterator[pa.ChunkedArray], what: str) -> None:
    """Join names in one file, and sort an index of their hashes."""
    hashes, lengths = list[AnyArray](), list[AnyArray]()
    with open(folder / "names.text", "wb") as file:
        for column in columns:
            names = NodeNames.of_arrow(column)
            file.write(names.text.data)
            hashes.append(_hashes(names))
            lengths.append(np.diff(names.starts))
    np.save(folder / "starts.npy", starts_of(np.concatenate(lengths)))
    total = sum(map(len, hashes))
    mask = _mask(total)
    index = (np.concatenate(hashes) & ~mask) | np.arange(total, dtype=np.uint64)
    index.sort()
    np.save(folder / "index.npy", index)
    again = min(_repeated_rows(index, mask, node_names(folder)), default=None)
    if again is not None:
        raise repeated(f"'{node_names(folder)[again]}'", what)


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
