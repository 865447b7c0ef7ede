"""Rows that ranks hold, read and send under a partitioning, counted from the graph before any part is written."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...storage.array_kinds import IdArray
from ...storage.graph import Graph, run_starts
from ...storage.partition.book import PartitionBook

ID_BYTES = 8
"""Bytes of an id, or of a size, that is sent."""


@dataclass(frozen=True, eq=False)
class CutCounts:
    """Counts of P parts. A *row* of another part is read once by each part, however many of its edges come from it."""

    book: PartitionBook
    nodes: IdArray
    """int64 [P], owned."""
    edges: IdArray
    """int64 [P], in-edges of these."""
    train: IdArray
    """int64 [P], owned train nodes."""
    lists: IdArray
    """int64 [P], pairs of an owned node and a part with in-edges to it."""
    rows: IdArray
    """int64 [L + 1, P, P]: ``rows[i, p, q]`` rows of part q that part p reads in layer i of full-batch training, from
    the input on, if layers leave out rows that no train node's result depends on; at the end, sources of all in-edges
    of p."""

    @property
    def size(self) -> int:
        """P."""
        return len(self.nodes)

    @property
    def boundary(self) -> int:
        """B, rows of other parts that are read, over all parts and all edges."""
        return int(self.rows[-1].sum())

    def held(self, part: int) -> int:
        """Nodes of a part and the rows that it reads of others."""
        return int(self.nodes[part] + self.rows[-1, part].sum())

    @property
    def most_held(self) -> int:
        """`held` of the part that holds most."""
        return max(self.held(p) for p in range(self.size))

    def arrange_bytes(self, pruned_layers: int = 0) -> tuple[int, int]:
        """Bytes that all parts send to arrange full batches: of the rows that each reads from others, and how many of
        them in which layers; and of the sizes that travel before these messages.

        Args:
            pruned_layers: L if layers leave out rows that no train node's result depends on; else 0.
        """
        pairs, levels = self.size * (self.size - 1), pruned_layers + 2 if pruned_layers else 1
        ids = self.boundary + (int(self.rows[0].sum()) if pruned_layers else 0)
        return ID_BYTES * (ids + pairs * levels), ID_BYTES * pairs * (2 + pruned_layers)

    def shard_bytes(self, part: int, weighted: bool) -> int:
        """Bytes of a part's `EdgeShards`: three splits, a row and a count for each list, two numbers an edge, the
        sources, the first edges."""
        edges, sources = int(self.edges[part]), int(self.rows[-1, part].sum())
        per_edge = 4 + (4 if edges < 2**31 else 8) + (4 if weighted else 0)
        of_lists = 24 * (self.size + 1) + 8 * int(self.lists[part])
        return of_lists + per_edge * edges + 4 * sources + 8 * int(self.nodes[part])

    @property
    def work(self) -> float:
        """Share of all nodes and edges in the part with most of them; both count the same."""
        return float((self.nodes / max(1, self.nodes.sum()) + (self.edges / max(1, self.edges.sum()))).max() / 2)


def count_cut(graph: Graph, book: PartitionBook, train: IdArray, num_layers: int) -> CutCounts:
    """Counts as `stages.neighbourhood.full_batch.arrange` would find them, in about 40 bytes per cut edge, and 16 per
    other edge.

    Args:
        graph: V nodes.
        book: owners of the nodes.
        train: nodes that the loss is over.
        num_layers: L.
    """
    size, num_nodes = book.num_parts, graph.num_nodes
    owner = book.part(np.arange(num_nodes)).astype(np.int64)
    degree = np.diff(graph.indptr)
    row = np.repeat(np.arange(num_nodes), degree)
    hops = _hops(graph, row, train, num_layers)
    reader, source = owner[row], owner[graph.indices]
    pair = np.unique(row * size + source)
    cut = reader != source
    # The nearest of the rows that read a source decides which layers need it.
    key = reader[cut] * num_nodes + graph.indices[cut]
    order = np.lexsort((hops[row[cut]], key))
    key = key[order]
    first = run_starts(key)
    key, near = key[first], hops[row[cut]][order][first]
    place = key // num_nodes * size + owner[key % num_nodes]
    reach = [*range(num_layers - 1, -1, -1), num_layers + 1]
    rows = [np.bincount(place[near <= k], minlength=size * size).reshape(size, size) for k in reach]
    return CutCounts(
        book=book,
        nodes=np.bincount(owner, minlength=size),
        edges=np.bincount(owner, degree, minlength=size).astype(np.int64),
        train=np.bincount(owner[train], minlength=size),
        lists=np.bincount(owner[pair // size], minlength=size),
        rows=np.stack(rows),
    )


def halo_counts(graph: Graph, book: PartitionBook, chunks: Sequence[int]) -> tuple[int, int]:
    """Sources outside some parts of in-edges of nodes in them, and the number of these edges."""
    inside = np.isin(book.part(np.arange(graph.num_nodes)), np.asarray(chunks))
    sources = graph.indices[np.repeat(inside, np.diff(graph.indptr))]
    outside = sources[~inside[sources]]
    return len(np.unique(outside)), len(outside)


def _hops(graph: Graph, row: IdArray, train: IdArray, num_layers: int) -> IdArray:
    """int64 [V], distance to the nearest train node against the edges; L + 1 if it is more than L."""
    hops = np.full(graph.num_nodes, num_layers + 1)
    hops[train] = 0
    for k in range(num_layers):
        near = graph.indices[hops[row] == k]
        hops[near] = np.minimum(hops[near], k + 1)
    return hops
