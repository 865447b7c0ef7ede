"""Block rows of graph and features on a process grid (Tripathy, Yelick, Buluc, MLSys 2024, section on partitioned
graphs).

P ranks are a grid of P/c rows and c columns: rank r is at (r // c, r % c). Nodes are cut into P/c blocks by any
partitioner, and block i, with the in-edges, features and labels of its nodes, lies on the c ranks of grid row i. So
each grid column holds everything once, and a rank fetches rows from its own column.

Nodes are renumbered block by block, in their old order within each, so that a block is a range of ids: P/c + 1 offsets
say who owns what. See `storage.partition.reorder`. Blocks that are ranges already keep their ids.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...storage.array_checks import pieces
from ...storage.array_kinds import IdArray, IntArray
from ...storage.dataset import Split
from ...storage.errors import InputError
from ...storage.features import ReorderedFeatures
from ...storage.graph import Graph, index_dtype, row_ranges, starts_of
from ...storage.links.pairs import Pairs
from ...storage.optional import present
from ...storage.partition.book import RangeBook
from ...storage.partition.edge_shards import EdgeShards
from ...storage.partition.reorder import ascending
from ...storage.store.scratch import Empty, in_memory
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..comm.base import Group
from ..messages import Part, Phase, Placement, RankJob
from ..neighbourhood.loops import agreed
from ..neighbourhood.relations import EdgeTypes
from ..partition.base import Partitioner
from ..partition.contiguous import Contiguous
from ..self_loops import with_loops
from .base import PartitionPolicy


@dataclass(frozen=True)
class Grid:
    """P ranks in P/c rows and c columns."""

    ranks: int
    """P."""
    replication: int
    """c, number of ranks that hold each block."""

    def __post_init__(self) -> None:
        p, c = self.ranks, self.replication
        if c < 1 or p % c:
            valid = [d for d in range(1, p + 1) if p % d == 0]
            near = sorted(sorted(valid, key=lambda d: abs(d - c))[:3])
            message = ", ".join(map(str, near))
            raise InputError(f"bulk.replication is {c}, which does not divide {p} ranks; nearest are {message}")

    @property
    def blocks(self) -> int:
        """P/c."""
        return self.ranks // self.replication

    def block(self, rank: int) -> int:
        """Block that a rank holds."""
        return rank // self.replication

    def stages(self, column: int) -> range:
        """The block rows whose part of a 1.5D product a grid column forms: ceil((P/c)/c) or one fewer."""
        return range(column * self.blocks // self.replication, (column + 1) * self.blocks // self.replication)

    def row(self, rank: int) -> list[int]:
        """The ranks of a rank's grid row, which hold the same block; the j-th is in column j."""
        return list(range(self.block(rank) * self.replication, (self.block(rank) + 1) * self.replication))

    def column(self, rank: int) -> list[int]:
        """The ranks of a rank's grid column; the i-th holds block i."""
        return list(range(rank % self.replication, self.ranks, self.replication))

    def subgroup(self, group: Group, name: str, same_thread: bool = False) -> Group:
        """Group of this rank's column (see `Group.sub`); all ranks call this at the same time."""
        column = self.column(group.rank)
        return group.sub(f"{name}-{column[0]}", column, same_thread)

    def across(self, group: Group, name: str, same_thread: bool = False) -> Group:
        """Group of this rank's grid row (see `Group.sub`); all ranks call this at the same time."""
        row = self.row(group.rank)
        return group.sub(f"{name}-{row[0]}", row, same_thread)


@dataclass(frozen=True, eq=False)
class BlockRows(Placement):
    """One block: `graph` has its N rows, with global sources; features, labels and degrees are of the same N.
    `split.train` holds global ids of all nodes; there are no other splits."""

    book: RangeBook = field(default_factory=lambda: RangeBook(np.zeros(2, np.int64)))
    """Maps nodes to blocks."""
    block: int = 0
    """Number of this block."""
    first_edge: int = 0
    """Position of row 0's first edge in the whole graph's edge arrays."""
    heaviest: float = 1.0
    """The largest edge weight of the whole graph."""
    train_labels: Tensor | None = None
    """Labels of ``split.train``, in its order, if `labels` covers the block only."""
    row: Group | None = None
    """Ranks that hold this block, in the order of their columns; only for 1.5D products."""
    edge_book: RangeBook = field(default_factory=lambda: RangeBook(np.zeros(2, np.int64)))
    """Maps edges of the whole graph to blocks."""

    @property
    def first(self) -> int:
        """Global id of row 0."""
        return int(self.book.offsets[self.block])

    def owners_of_rows(self, owners: int) -> tuple[RangeBook, bool]:
        return self.book, True

    def owners_of_edges(self, num_edges: int, owners: int) -> tuple[RangeBook, bool]:
        return self.edge_book, True

    def relations_on_device(self, edges: Tensor, all_edges: Callable[[], Tensor]) -> Tensor:
        return edges % self.graph.types.num_relations

    def labels_on_device(self, device: torch.device) -> Tensor | None:
        """See `Placement.labels_on_device`: labels of the train nodes are looked up on the host, by id."""
        return None

    def labels_of(self, seeds: IntArray) -> Tensor:
        if self.train_labels is None:
            return super().labels_of(seeds)
        return self.train_labels[torch.from_numpy(np.searchsorted(self.split.train, seeds))]

    def types_of(self, positions: Any) -> EdgeTypes | None:
        """See `Placement.types_of`. Edges of other ranks name their relations: see `sample.remote_nodewise`."""
        types = self.graph.types
        if types.is_single:
            return None
        return EdgeTypes(types, lambda: positions % types.num_relations)

    def with_own_weights(self, links: Any) -> object:
        own = links.own_weights(self.first)
        # Each entry comes from the owner of the edge's destination: nothing is rounded.
        self.owners.all_reduce(torch.from_numpy(own).view(-1), "graph")
        return replace(links, own=own)

    def positions_of(self, edges: Any) -> Any:
        return edges if self.graph.types.is_single else edges // self.graph.types.num_relations

    @property
    def num_nodes(self) -> int:
        """V."""
        return self.book.num_nodes


@dataclass(frozen=True)
class Blocks(PartitionPolicy):
    """Each rank opens only its block: c/P of graph, features and labels, and the ids of all train nodes."""

    replication: int = 1
    """c."""
    has_blocks: ClassVar[bool] = True
    partitioner: Partitioner = field(default_factory=Contiguous)
    rows_meet: bool = False
    """True if the ranks of a grid row are to talk to each other."""

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: object = None) -> BlockRows:
        """See `PartitionPolicy.place`. All ranks call this at the same time."""
        grid = Grid(job.group.size, self.replication)
        # On a device the training thread speaks to them.
        column = grid.subgroup(job.group, "column", same_thread=not job.on_host)
        row = grid.across(job.group, "row", same_thread=not job.on_host) if self.rows_meet else None
        more: dict[str, Any] = {"column": column, "row": row}
        if isinstance(data, Placement):
            if grid.blocks > 1:
                raise InputError(
                    f"{grid.blocks} blocks are to be held, but each rank got the whole graph; cut it into parts first"
                )
            names = ("graph", "features", "labels", "degree", "edge_features", "pairs")
            more |= {name: getattr(data, name) for name in names} | {"heaviest": _heaviest(data.graph)}
            book, edge_book = (RangeBook(np.array([0, n])) for n in (data.graph.num_nodes, data.graph.num_edges))
            return BlockRows(split=_only_train(data.split.train), book=book, edge_book=edge_book, **more)
        shards = data.shards
        sizes = np.zeros((4, grid.blocks))
        lowest = data.owned[0] if shards.num_owned else -1
        sizes[:, column.rank] = shards.num_owned, shards.num_edges, _heaviest(shards), lowest
        # Each entry comes from one rank: nothing is rounded.
        column.all_reduce(torch.from_numpy(sizes.reshape(-1)), "control")
        book, edge_book = (RangeBook(starts_of(each.astype(np.int64))) for each in sizes[:2])
        # If every block's first node is where ranges of these sizes begin, blocks are ranges: no id below it has
        # another owner.
        ranges = bool((sizes[3] == book.offsets[:-1])[sizes[0] > 0].all())
        edges = data.edge_features
        types = _types_of(data, column)
        graph, order = rows_of(shards, book, ranges, edges is not None, types, job.arrays.graph)
        if edges is not None and order is not None:
            edges = ReorderedFeatures(edges, order)
        pairs, first = data.pairs, int(book.offsets[shards.part])
        if pairs is not None and not ranges:
            pairs = _renumbered(pairs, data, book, column)
        degree = agreed(with_loops(graph, first), column) if job.reads_loops else torch.from_numpy(graph.degree)
        # Blocks ascend, and so do the ids of each: the whole does too.
        train = torch.from_numpy(np.sort(data.split.train))
        message = column.all_to_all([train + int(book.offsets[shards.part])] * grid.blocks, "graph")
        labels = column.all_to_all([data.labels[train]] * grid.blocks, "graph")
        return BlockRows(
            graph,
            data.features,
            data.labels,
            degree.to(job.dtype),
            _only_train(torch.cat(message).numpy() if pairs is None else pairs.sets["train"]),
            book=book,
            block=shards.part,
            first_edge=int(edge_book.offsets[column.rank]),
            heaviest=float(sizes[2].max(initial=0.0)),
            train_labels=torch.cat(labels),
            edge_book=edge_book,
            edge_features=edges,
            pairs=pairs,
            **more,
        )


def numbered(part: Part, group: Group, empty: Empty = in_memory) -> BlockRows:
    """The in-edges of a part of a link task, in arrays that `empty` makes, and all pairs, by numbers that go through
    the parts of all ranks one after the other. All ranks call this at the same time."""
    sizes = np.zeros(group.size)
    sizes[group.rank] = len(part.owned)
    group.all_reduce(torch.from_numpy(sizes), "control")
    book = RangeBook(starts_of(sizes.astype(np.int64)))
    graph, _ = rows_of(part.shards, book, types=_types_of(part, group), empty=empty)
    assert part.pairs is not None
    pairs, degree = _renumbered(part.pairs, part, book, group), torch.from_numpy(graph.degree)
    split = _only_train(pairs.sets["train"])
    return BlockRows(graph, part.features, part.labels, degree, split, book=book, block=group.rank, pairs=pairs)


def _renumbered(pairs: Pairs, part: Part, book: RangeBook, group: Group) -> Pairs:
    old = group.all_to_all([torch.from_numpy(part.owned)] * group.size, "graph")
    new = np.empty(book.num_nodes, np.int64)
    new[torch.cat(old).numpy()] = np.arange(book.num_nodes)
    return pairs.renumbered(new)


def _heaviest(edges: Graph | EdgeShards) -> float:
    """The largest weight of some edges."""
    return 1.0 if edges.edge_weight is None else float(edges.edge_weight.max(initial=0.0))


def _only_train(ids: Any) -> Split:
    none = np.empty(0, np.int64)
    return Split(ids, none, none)


def _types_of(part: Part, column: Group) -> GraphTypes:
    """Types of the graph as its nodes are renumbered: those of a part ascend, and so do their types."""
    types = part.types
    if types.is_single:
        return types
    counts = torch.zeros(column.size, len(types.node_types), dtype=torch.int64)
    counts[column.rank] = torch.from_numpy(np.bincount(types.types_of(part.owned), minlength=counts.shape[1]))
    column.all_reduce(counts.view(-1), "control")
    return replace(types, offsets=(0, *counts.view(-1).cumsum(0).tolist()))


def rows_of(
    shards: EdgeShards,
    book: RangeBook,
    ranges: bool = True,
    with_order: bool = False,
    types: GraphTypes = SINGLE,
    empty: Empty = in_memory,
) -> tuple[Graph, IdArray | None]:
    """In-edges of a part, with sources as `book` numbers them; and the position of each in the part, if edges do not
    keep their order and `with_order` asks for it.

    Args:
        shards: the part's edges.
        book: ranges of the new numbers.
        ranges: the parts were ranges before: edges keep their order. Otherwise they are sorted by source, as `reorder`
            sorts them.
        with_order: see above.
        types: of the graph, as `book` numbers its nodes.
        empty: makes the arrays of edges.
    """
    n = shards.num_owned
    degree = np.zeros(n, np.int64)
    np.add.at(degree, shards.rows, shards.counts)
    indptr = starts_of(degree)
    indices = empty(shards.num_edges, index_dtype(book.num_nodes))
    weight = None if shards.edge_weight is None else empty(shards.num_edges, shards.edge_weight.dtype)
    for q in range(shards.num_parts):
        names = shards.sources[int(shards.source_splits[q]) : int(shards.source_splits[q + 1])]
        for edges in pieces(int(shards.edge_splits[q]), int(shards.edge_splits[q + 1])):
            sources = shards.indices[edges]
            if q != shards.part:
                sources = names[sources]
            indices[shards.edge[edges]] = sources + book.offsets[q]
            if weight is not None and shards.edge_weight is not None:
                weight[shards.edge[edges]] = shards.edge_weight[edges]
    kinds = None if types.is_single else shards.edge_type
    typed = {"types": types, "edge_type": kinds}
    if ranges:
        return Graph(indptr, indices, weight, **typed), None
    lists = indptr
    if kinds is not None:  # each relation of a row is a list
        lists = np.unique(np.concatenate([indptr, np.flatnonzero(np.diff(kinds)) + 1]))
    order = empty(len(indices), np.int64) if with_order else None
    for first, stop in row_ranges(lists):
        begin, end = int(lists[first]), int(lists[stop])
        if order is not None:
            order[begin:end] = np.arange(begin, end)
        of_edges = present((indices, weight, order))
        for array, turned in zip(
            of_edges, ascending(lists[first : stop + 1] - begin, *(a[begin:end] for a in of_edges))
        ):
            array[begin:end] = turned
    return Graph(indptr, indices, weight, **typed), order
