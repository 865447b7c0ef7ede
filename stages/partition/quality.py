"""Quality of a partitioning: edges cut, and balance."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ...storage.array_kinds import IdArray
from ...storage.graph import Graph
from ...storage.partition.book import PartitionBook
from ...storage.partition.partition import Partition, extract_partition

SHOWN = 16
"""Parts that the printed table lists before it sums up the rest."""


@dataclass(frozen=True)
class PartCounts:
    """Counts of one part."""

    nodes: int
    """N, owned."""
    train: int
    """Owned training nodes."""
    edges: int
    """In-edges of owned nodes."""
    cut_edges: int
    """In-edges whose source another part owns."""
    halo: int
    """H, distinct sources of cut edges: the rows this part must receive for one full-neighbourhood layer."""


@dataclass(frozen=True)
class PartitionQuality:
    """Counts of all P parts, and the ratios that follow from them. Empty ratios are 0, empty balances 1."""

    parts: tuple[PartCounts, ...]

    def total(self, what: str) -> int:
        """Sum over parts of one of the counts."""
        return sum(getattr(p, what) for p in self.parts)

    def balance(self, what: Literal["nodes", "edges", "train"]) -> float:
        """Largest part over mean part, >= 1; 1 is even."""
        total = self.total(what)
        return max(getattr(p, what) for p in self.parts) * len(self.parts) / total if total else 1.0

    @property
    def cut_share(self) -> float:
        """Cut edges over all edges, in [0, 1]."""
        return self.total("cut_edges") / max(1, self.total("edges"))

    @property
    def halo_share(self) -> float:
        """Halo rows over owned rows, summed over parts; above 1 if nodes are needed in more than one other part."""
        return self.total("halo") / max(1, self.total("nodes"))

    def as_record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "num_parts": len(self.parts),
            "cut_share": self.cut_share,
            "halo_share": self.halo_share,
            "balance": {what: self.balance(what) for what in ("nodes", "edges", "train")},
            "parts": [asdict(p) for p in self.parts],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "PartitionQuality":
        """Quality from the record of `as_record`. Raises KeyError or TypeError if `record` is not one."""
        parts = tuple(PartCounts(**p) for p in record["parts"])
        if any(type(n) is not int or n < 0 for part in parts for n in vars(part).values()):
            raise TypeError("counts of parts are no whole numbers")
        return cls(parts)

    def table(self) -> str:
        """Printable table, in lines of at most 70 characters (while counts stay below 10^9)."""
        lines = [f"{'part':>6} {'nodes':>11} {'train':>11} {'edges':>11} {'cut':>11} {'halo':>11}"]
        for number, p in enumerate(self.parts[:SHOWN]):
            lines.append(f"{number:>6} {p.nodes:>11,} {p.train:>11,} {p.edges:>11,} {p.cut_edges:>11,} {p.halo:>11,}")
        if len(self.parts) > SHOWN:
            lines.append(f"{'':>6} and {len(self.parts) - SHOWN} more")
        lines.append(f"edges cut      {self.cut_share:.1%}")
        lines.append(f"halo rows      {self.halo_share:.1%} of owned rows")
        evenness = ", ".join(f"{what} {self.balance(what):.2f}" for what in ("nodes", "edges", "train"))
        lines.append(f"largest/mean   {evenness}")
        lines.append(f"smallest part  {min((p.nodes for p in self.parts), default=0):,} nodes")
        if empty := [number for number, p in enumerate(self.parts) if not p.nodes]:
            shown = ", ".join(map(str, empty[:SHOWN])) + (", ..." if len(empty) > SHOWN else "")
            lines.append(f"empty parts    {len(empty)}: {shown}")
        return "\n".join(lines)


def count_part(partition: Partition, train: int) -> PartCounts:
    """Counts of one extracted part that owns `train` training nodes."""
    cut = int(np.count_nonzero(partition.indices >= partition.num_owned))
    return PartCounts(partition.num_owned, train, partition.num_edges, cut, partition.num_halo)


def train_per_part(book: PartitionBook, train: IdArray) -> Sequence[int]:
    """[P], training nodes that each part owns."""
    return np.bincount(book.part(train), minlength=book.num_parts).tolist()


def measure(graph: Graph, book: PartitionBook, train: IdArray | None = None) -> PartitionQuality:
    """Measure the quality of a partition book for a graph, part after part, in the memory of the largest part.

    Args:
        graph: V nodes.
        book: for the same V nodes.
        train: int64 training nodes; none by default.

    Raises:
        InputError: the book has another number of nodes.
    """
    per_part = train_per_part(book, np.empty(0, np.int64) if train is None else train)
    return PartitionQuality(
        tuple(count_part(extract_partition(graph, book, p), per_part[p]) for p in range(book.num_parts))
    )
