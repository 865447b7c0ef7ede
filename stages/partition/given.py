"""Parts given by the user."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...storage.array_kinds import IntArray
from ...storage.errors import InputError, StoreError, first_line
from ...storage.fingerprint import digest_arrays
from ...storage.graph import Graph
from ...storage.partition.book import TableBook, open_book
from ...storage.store.regular import opened_file
from .base import check_parts


@dataclass(frozen=True)
class Given:
    """An owner for each node, as given: departments, hospitals, countries, or the result of another program."""

    owners: IntArray = field(repr=False, compare=False)
    """int [V], parts in [0, P)."""
    digest: str = ""
    """Digest of the owners; computed by default."""

    name = "given"

    def __post_init__(self) -> None:
        if not isinstance(self.owners, np.ndarray) or self.owners.ndim != 1 or self.owners.dtype.kind not in "iu":
            shown = (
                f"{self.owners.dtype}{list(self.owners.shape)}"
                if isinstance(self.owners, np.ndarray)
                else type(self.owners).__name__
            )
            raise InputError(f"owners are {shown}; expected a vector of whole numbers, an owner for each node")
        object.__setattr__(self, "digest", self.digest or digest_arrays(owners=self.owners))

    @classmethod
    def read(cls, path: Path) -> "Given":
        """Read the owners from a file that ``numpy.save`` wrote, or from a folder of parts.

        Raises:
            InputError: it cannot be read, or does not hold integers.
        """
        if path.is_dir():
            return cls._of_parts(path)
        try:
            with opened_file(path) as file:
                owners = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as e:  # for a damaged header, NumPy passes on whatever Python's parser raises
            raise InputError(
                f"partition.owners: {path} cannot be read ({first_line(e)}); expected a file by numpy.save with an "
                "owner for each node"
            ) from None
        try:
            return cls(owners)
        except InputError as e:
            raise InputError(f"partition.owners: {path}: {e}") from None

    @classmethod
    def _of_parts(cls, folder: Path) -> "Given":
        try:
            book = open_book(folder / "book")
        except StoreError as e:
            raise InputError(
                f"partition.owners: {folder} holds no parts ({first_line(e)}); expected a folder that `millrace "
                "partition --out` wrote, or a file by numpy.save"
            ) from None
        return cls(book.part(np.arange(book.num_nodes)))

    def assign(self, graph: Graph, parts: int, seed: int) -> TableBook:
        """See `Partitioner.assign`.

        Raises:
            InputError: the number of owners differs from that of nodes, or an owner is not a part.
        """
        parts = check_parts(parts)
        if len(self.owners) != graph.num_nodes:
            raise InputError(f"{len(self.owners)} owners are given for {graph.num_nodes} nodes; give one for each")
        if len(self.owners) and (self.owners.min() < 0 or self.owners.max() >= parts):
            seen = f"[{self.owners.min()}, {self.owners.max()}]"
            raise InputError(
                f"owners lie in {seen}, but there are {parts} parts, from 0 on: give as many ranks or clients"
            )
        return TableBook(self.owners.astype(np.int32), parts)
