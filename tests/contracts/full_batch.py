"""Graphs cut into parts for full-batch training, small but with all defects of real ones, and each rank's share of
them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millrace.stages.comm.base import Group
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.messages import Part, Phase, RankJob
from millrace.stages.placement.sharded import Sharded, Share
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, edges_of_rows, from_edges
from millrace.storage.ledger import Ledger
from millrace.storage.partition.book import TableBook
from millrace.storage.partition.edge_shards import shard_edges
from millrace.storage.partition.partition import extract_partition

IdArray = npt.NDArray[np.int64]
F, C = 5, 3
"""Features and classes of a case."""


@dataclass(frozen=True, eq=False)
class Case:
    """A graph with features, labels and splits, and the part of each node."""

    graph: Graph
    part_of: IdArray
    parts: int
    split: Split
    x: npt.NDArray[np.float64]
    labels: Tensor

    @cached_property
    def book(self) -> TableBook:
        return TableBook(self.part_of.astype(np.int32), self.parts).check()

    def near(self, hops: int) -> npt.NDArray[np.bool_]:
        """[V] True for nodes at most `hops` away from a train node, against the edges."""
        reached = np.zeros(self.graph.num_nodes, bool)
        reached[self.split.train] = True
        dst = np.repeat(np.arange(self.graph.num_nodes), self.graph.in_degree)
        for _ in range(hops):
            reached[self.graph.indices[reached[dst]]] = True
        return reached

    def remote_rows(self, rows: npt.NDArray[np.bool_]) -> int:
        """B over all parts: rows from other parts read by these rows' in-edges."""
        dst = np.repeat(np.arange(self.graph.num_nodes), self.graph.in_degree)
        pairs = {(self.part_of[v], u) for u, v in zip(self.graph.indices.tolist(), dst.tolist()) if rows[v]}
        return sum(1 for p, u in pairs if self.part_of[u] != p)

    def part(self, p: int) -> Part:
        partition = extract_partition(self.graph, self.book, p)
        shards = shard_edges(partition, self.book, self.graph.indptr[partition.owned], self.graph.num_edges)
        owned = partition.owned
        of = {name: np.flatnonzero(np.isin(owned, ids)) for name, ids in vars(self.split).items()}
        rows, edges = self.graph.edge_features, None
        if rows is not None:
            at = edges_of_rows(self.graph.indptr[owned], self.graph.in_degree[owned])[1]
            edges = ArrayFeatures(rows.gather(at))
        labels = self.labels[torch.from_numpy(owned)]
        rows = ArrayFeatures(self.x[owned]), labels, Split(**of)
        return Part(shards.check(), owned, *rows, edge_features=edges, types=self.graph.types)

    def share(self, group: Group, layers: int, prune: bool, needs_all_rows: bool = False) -> Share:
        """The share that the rank trains on; all ranks call this at the same time."""
        share = Sharded(prune=prune).place(self.part(group.rank), Phase(0, 0, 1), job(group, layers, needs_all_rows))
        share.graph.check()
        return share


def job(group: Group, layers: int, needs_all_rows: bool = False) -> RankJob:
    return RankJob(
        seed=3,
        batch_size=1,
        bulk_size=1,
        epochs=1,
        dtype=torch.float64,
        kernel=cpu,
        group=group,
        ledger=Ledger(),
        minibatches_per_step=group.size,
        num_layers=layers,
        reads_loops=True,
        needs_all_rows=needs_all_rows,
    )


def make_case(seed: int, parts: int, multilabel: bool = False) -> Case:
    """A case whose graph depends on `seed` only.

    Of every eight seeds one is a single node with loops, one has no edges, one is dense, one has all nodes in one part,
    one has all train nodes in one part, and one has no train nodes; the others have loops, multi-edges, isolated nodes
    and few train nodes. Every other seed has weights, some of them zero. Parts may be empty, and more than the nodes.
    """
    rng = np.random.default_rng(seed)
    kind = seed % 8
    n = 1 if kind == 1 else int(rng.integers(2, 15))
    edges = {1: 3, 2: 0, 3: 6 * n}.get(kind, int(rng.integers(1, 3 * n)))
    src, dst = rng.integers(0, n, edges), rng.integers(0, max(1, n - n // 4), edges)
    # Multi-edges, more than by chance.
    src, dst = np.r_[src, src[: edges // 4]], np.r_[dst, dst[: edges // 4]]
    weight = rng.choice([0.0, 0.25, 1.0, 3.0], len(src)) if seed % 2 else None
    graph = from_edges(src, dst, n, edge_weight=weight)
    role = rng.choice(4, n, p=[0.3, 0.2, 0.2, 0.3])
    role[rng.integers(n)] = 0
    x = rng.normal(size=(n, F))
    labels = (
        torch.from_numpy(rng.integers(0, C, n))
        if not multilabel
        else torch.from_numpy(rng.integers(0, 2, (n, C))).double()
    )
    part_of = rng.permutation(np.arange(n)) % parts if kind == 3 else rng.integers(0, parts, n)
    if kind == 4:
        part_of[:] = parts - 1
    if kind == 5:
        role[part_of != part_of[np.flatnonzero(role == 0)[0]]] = 3
    if kind == 6:
        role[role == 0] = 3
    split = Split(*(np.flatnonzero(role == r) for r in range(3)))
    return Case(graph, part_of, parts, split, x, labels)
