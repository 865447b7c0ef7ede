"""Parts with few cut edges of a graph that is read row by row: METIS on its clusters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse

from ...storage.array_kinds import IdArray, Int32Array, IntArray
from ...storage.errors import InputError, whole_number
from ...storage.graph import index_dtype
from ...storage.partition.book import PartitionBook, TableBook
from ..kernels.partition.propagate import add_loads, cluster, collect_edges, refine
from ..random import Purpose, stream
from .base import check_parts, check_slack
from .contiguous import Contiguous
from .metis import metis
from .packing import lay_out, pack
from .rows import Passes, RowSource, in_degrees

CLUSTERS = 16
"""A cluster weighs at most a part over this."""
KEYS = 1 << 22
"""Edges between clusters that are kept, or half the nodes if that is more."""
MOST_WEIGHT = 1 << 30
"""All nodes together weigh at most about this: METIS counts in 32 bits."""


@dataclass(frozen=True)
class MetisStreamed:
    """Semi-external multilevel partitioning (Akhremtsev, Sanders, Schulz, ALENEX 2015, arXiv 1404.4887), with `Metis`
    in the middle.

    The rows of the graph are read `passes` times, and are never in memory together. The first passes find clusters of
    at most a 16th of a part, by label propagation: each node joins the cluster with most of its in-neighbours. One pass
    collects the edges between clusters. METIS cuts the graph of clusters, and the last passes move nodes to the parts
    with most of their in-neighbours, within `slack`.

    Memory beside the book is about 24 bytes a node, and 60 for each edge between clusters that is kept: 4 million, or
    half as many as nodes if that is more; of further ones, every second, fourth, ... is kept. Time is O(E) a pass. A
    node sees its in-neighbours: of a directed graph, where a node is only a source, nothing but its clusters' edges.
    """

    balance: Literal["nodes", "edges", "train"] = "nodes"
    """Quantity that parts share evenly: nodes; nodes + in-edges (the work of sampling and aggregation); or nodes, and
    train nodes too."""
    passes: int = 8
    """Times that all rows are read, at least 3."""
    slack: float = 1.05
    """The largest part over the mean part."""

    name = "metis-streamed"
    reads_rows = True

    def __post_init__(self) -> None:
        if self.balance not in ("nodes", "edges", "train"):
            raise InputError(f"balance is {self.balance!r}; expected 'nodes', 'edges' or 'train'")
        whole_number("passes", self.passes, 3)  # to find clusters, to join them, and to improve parts
        check_slack(self.slack)

    def assign(
        self,
        graph: RowSource,
        parts: int,
        seed: int,
        *,
        train: IdArray | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> PartitionBook:
        """See `base.InPasses.assign`. A graph without edges, or with no more nodes than parts, is cut into ranges.

        Raises:
            InputError: balance is "train", and there are no train nodes.
        """
        parts = check_parts(parts)
        if self.balance == "train" and (train is None or not len(train)):
            raise InputError(
                "balance is 'train', but there are no train nodes; give train=, or balance 'nodes' or 'edges'"
            )
        if not graph.num_edges or graph.num_nodes <= parts:
            return Contiguous("nodes").assign(graph, parts, seed)
        if parts == 1:
            return TableBook(np.zeros(graph.num_nodes, np.int32), 1)
        rows, key = Passes(graph, self.passes, on_progress), stream(seed, Purpose.PARTITION)
        weight = self._weights(graph, train)
        cluster_of = self._clusters(rows, weight, parts, key)
        part_of = self._cut_clusters(rows, cluster_of, weight, parts, key)
        self._refine(rows, part_of, weight, parts)
        return TableBook(part_of, parts)

    def _weights(self, graph: RowSource, train: IdArray | None) -> Int32Array:
        """int32 [V, K], of each node in each quantity that is balanced."""
        weight = np.ones((graph.num_nodes, 2 if self.balance == "train" else 1), np.int32)
        if self.balance == "edges":
            in_degrees(graph, weight[:, 0])
        if self.balance == "train":
            weight[:, 1] = 0
            weight[train, 1] = 1
        return weight

    def _clusters(self, rows: Passes, weight: Int32Array, parts: int, key: int) -> IntArray:
        """Int [V], the cluster of each node, numbered from 0; more clusters than parts."""
        nodes, single = len(weight), _single(weight, parts)
        load, most = single.astype(np.int64), max(1, int(single.sum(dtype=np.int64)) // (CLUSTERS * parts))
        count, cluster_of = np.zeros(nodes, np.int32), np.arange(nodes, dtype=index_dtype(nodes))
        for k in range((self.passes - 1) // 2):
            ranks = np.uint64(stream(key, Purpose.PARTITION, k))
            for first, piece in rows.read():
                cluster(piece.indptr, piece.indices, first, single, cluster_of, load, count, most, ranks)
        names = np.flatnonzero(load)
        if len(names) <= parts:
            return np.arange(nodes, dtype=cluster_of.dtype)
        number = np.empty(nodes, cluster_of.dtype)
        number[names] = np.arange(len(names))
        return number[cluster_of]

    def _cut_clusters(self, rows: Passes, cluster_of: IntArray, weight: Int32Array, parts: int, key: int) -> Int32Array:
        """int32 [V], the part of each node, by that of its cluster."""
        clusters = int(cluster_of.max()) + 1
        keys, state = np.empty(max(KEYS, len(weight) // 2) // 2 * 2, np.int64), np.array([0, 1, 0])
        for first, piece in rows.read():
            collect_edges(piece.indptr, piece.indices, first, cluster_of, clusters, keys, state)
        load = np.zeros((clusters, 1), np.int64)
        add_loads(cluster_of, _single(weight, parts)[:, None], load)
        load = load[:, 0]
        adjacency = _adjacency(keys[: state[2]], clusters)
        del keys
        return _parts_of_clusters(adjacency, load, parts, key)[cluster_of]

    def _refine(self, rows: Passes, part_of: Int32Array, weight: Int32Array, parts: int) -> None:
        """Improve the parts in all passes that are left. Each may do more harm than the one before to bring them within
        `slack`."""
        total = weight.sum(axis=0, dtype=np.int64)
        limit = np.maximum(-(-total // parts), (self.slack * total / parts).astype(np.int64)).clip(1)
        load, count = np.zeros((parts, len(total)), np.int64), np.zeros(parts, np.int32)
        add_loads(part_of, weight, load)
        passes = rows.left
        while rows.left:
            loss = (passes - rows.left + 1) / passes
            for first, piece in rows.read():
                refine(piece.indptr, piece.indices, first, weight, part_of, load, limit, count, loss)


def _single(weight: Int32Array, parts: int) -> Int32Array:
    """int32 [V], one weight for each node: of two quantities both count the same in total, unless a few nodes would
    then weigh as much as a part."""
    if weight.shape[1] == 1:
        return weight[:, 0]
    share = len(weight) // max(CLUSTERS * parts, int(weight[:, 1].sum(dtype=np.int64)))
    return weight[:, 0] + np.int32(share) * weight[:, 1]


def _parts_of_clusters(adjacency: scipy.sparse.csr_array, load: IdArray, parts: int, key: int) -> Int32Array:
    """int32 [C], the part of each cluster: by METIS of those with edges, and of the others so that all stay even."""
    degree = np.diff(adjacency.indptr)
    linked, alone = np.flatnonzero(degree), np.flatnonzero(degree == 0)
    total = int(load[linked].sum())
    if len(linked) <= parts or int(load[linked].max()) * parts > total:
        # METIS wants more clusters than parts, and each to fit into a part.
        return pack(np.arange(len(load)), load, parts)
    part_of = np.empty(len(load), np.int32)
    same = np.zeros(len(alone), np.int8)
    part_of[alone] = lay_out(same, same, load[alone], parts)
    number = np.empty(len(load), adjacency.indices.dtype)
    number[linked] = np.arange(len(linked))
    starts = np.append(adjacency.indptr[linked], adjacency.indptr[-1])
    among = scipy.sparse.csr_array((adjacency.data, number[adjacency.indices], starts), shape=(len(linked),) * 2)
    part_of[linked] = metis(among, parts, key, np.maximum(1, load[linked] // -(-total // MOST_WEIGHT)))
    return part_of


def _adjacency(keys: IdArray, clusters: int) -> scipy.sparse.csr_array:
    """[C, C], the number of edges between two clusters. The keys are sorted in place."""
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    pairs, number = keys[first], np.diff(first, append=len(keys)).astype(np.int32)
    dtype = index_dtype(max(clusters, 2 * len(pairs)))
    low, high = (pairs // clusters).astype(dtype), (pairs % clusters).astype(dtype)
    upper = scipy.sparse.coo_array((number, (low, high)), shape=(clusters, clusters)).tocsr()
    return scipy.sparse.csr_array(upper + upper.T)
