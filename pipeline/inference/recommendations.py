"""The best destinations of sources, and files with a row for each pair."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.array_kinds import FloatArray, ValueArray
from ...storage.dataset import IdArray
from ...storage.node_names import NodeNames
from .files import PIECE_ROWS, FileRows, check_suffix, write_rows

PIECE_PAIRS = 1 << 20
"""Pairs of a file that are made at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class Recommendations(FileRows):
    """The k best destinations of n sources, the best first. A larger score means a likelier link. Among equal scores,
    the smaller id comes first."""

    sources: IdArray
    """int64 [n], in the order of the request; ids within the type of the relation's source, where a graph has
    several."""
    destinations: IdArray
    """int64 [n, k], ids within the type of the relation's destination; -1 where fewer than k are left."""
    scores: FloatArray
    """[n, k]; -inf where `destinations` is -1."""
    node_names: tuple[NodeNames, NodeNames] | None = None
    """Names of all nodes of the source's and of the destination's type, by id, where the dataset has names."""

    BY_ROW = ("sources", "destinations", "scores")

    def as_array(self) -> IdArray:
        """`destinations`, [n, k], as a file ``.npy`` has them."""
        return self.destinations

    @property
    def source_names(self) -> ValueArray | None:
        """Names of `sources`, [n], text or integers; None if nodes have none."""
        return None if self.node_names is None else np.asarray(self.node_names[0].called(self.sources))

    @property
    def destination_names(self) -> ValueArray | None:
        """Names of `destinations`, [n, k], text or integers, empty or -1 where there are none; None if nodes have
        none."""
        if self.node_names is None:
            return None
        there = self.destinations >= 0
        names = np.asarray(self.node_names[1].called(self.destinations[there]))
        found = np.full(there.shape, -1 if names.dtype.kind == "i" else "", object)
        found[there] = names
        return found.astype(names.dtype if len(names) else np.str_)

    def write(self, path: str | Path) -> None:
        """Write a file: ``.parquet`` or ``.csv`` with a row for each pair and the columns ``src``, ``dst`` (ids or
        names), ``rank`` (from 1) and ``score``; ``.npy`` with `destinations` alone; or ``.zarr`` with arrays ``src``
        [n], ``dst`` and ``score`` [n, k]. An existing file is replaced.

        Raises:
            InputError: another suffix, or it cannot be written.
        """
        pieces = self.pieces(sources_at_once(self.destinations.shape[1]))
        write_rows(path, check_suffix(Path(path)), len(self), pieces)

    def table(self) -> Any:
        """A `pyarrow.Table` as `write` puts it into a file."""
        import pyarrow as pa

        rows, places = np.nonzero(self.destinations >= 0)
        ends = self.sources[rows], self.destinations[rows, places]
        if self.node_names is not None:
            called = [names.called(nodes) for names, nodes in zip(self.node_names, ends)]
            named = [pa.array(names, pa.string() if isinstance(names, list) else pa.int64()) for names in called]
            ends = tuple(named)
        return pa.table({"src": ends[0], "dst": ends[1], "rank": places + 1, "score": self.scores[rows, places]})

    def columns(self) -> dict[str, Any]:
        named = {"src": self.source_names, "dst": self.destination_names}
        plain = {"src": self.sources, "dst": self.destinations}
        return {**(plain if self.node_names is None else named), "score": self.scores}

    def __repr__(self) -> str:
        return f"Recommendations({len(self):,} sources, the {self.destinations.shape[1]:,} best of each)"


def sources_at_once(k: int) -> int:
    """Sources whose k best make a piece of a file: a power of two, so that pieces begin where chunks of arrays do."""
    return min(PIECE_ROWS, 1 << max(0, (PIECE_PAIRS // k).bit_length() - 1))


def counted_in(pieces: Iterable[Recommendations], counts: list[int]) -> Iterator[Recommendations]:
    """The pieces, the number of pairs of each of which is appended to `counts`."""
    for piece in pieces:
        counts.append(int((piece.destinations >= 0).sum()))
        yield piece
