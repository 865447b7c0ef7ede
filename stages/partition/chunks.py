"""Every rank sees its own chunk of the graph and, for a while, one chunk of another's: training without messages between nodes.

Grappa (Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872): the nodes are cut into one chunk for each rank. A rank trains on the seeds
of its *base* chunk, and sees a *variable* chunk beside it, which changes from super-epoch to super-epoch. The rest is not there.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.dataset import Split
from ...storage.edge_shards import EdgeShards
from ...storage.features import MemoryFeatures
from ...storage.graph import Graph, index_dtype
from ...storage.ledger import Ledger
from ..base import Part, Phase, Placement, RankJob
from .base import Partitioner
from .metis import MetisWork

IdArray = npt.NDArray[np.int64]
Sweep = Literal["sweep", "fixed", "none"]
"""Which chunk lies beside the base chunk: each other one in turn; always the next; none."""


def variable_chunk(sweep: Sweep, rank: int, ranks: int, super_epoch: int) -> int | None:
    """The chunk that a rank sees beside its own: a pure function. In P - 1 super-epochs a sweep brings every rank every other chunk once.

    Args:
        sweep: how it changes.
        rank: p, whose base chunk is p.
        ranks: P.
        super_epoch: t, from 0 on.
    """
    if sweep == "none" or ranks == 1:
        return None
    return (rank + 1 + (super_epoch % (ranks - 1) if sweep == "sweep" else 0)) % ranks


@dataclass(frozen=True, eq=False)
class Chunk:
    """A part in memory."""

    shards: EdgeShards
    features: npt.NDArray[np.floating]
    """[N, F]."""
    labels: Tensor
    degree: IdArray
    """int64 [N], in-degree in the whole graph."""
    weighted_degree: npt.NDArray[np.float64]
    """[N], sum of the weights of all in-edges."""
    split: Split

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.degree)


@dataclass(frozen=True, eq=False)
class Isolated(Placement):
    """What a rank sees: nodes of the base chunk, then of the variable one, then halo nodes, which have features and no in-edges."""

    num_base: int = 0
    num_visible: int = 0
    """Nodes of both chunks."""
    coverage: Tensor = field(default_factory=lambda: torch.empty(0))
    """float64 [V], the share of each node's in-edges that is here; self loops do not count, and a node without others is covered."""
    inclusion: float = 1.0
    """Of a node of the variable chunk, given the base chunk, over a sweep."""
    base: Chunk | None = None
    variable: int | None = None
    """The number of the other chunk that is seen."""
    ahead: "Future[Chunk] | None" = None
    """The variable chunk of the next super-epoch, on its way."""
    ahead_of: int | None = None


@dataclass(frozen=True)
class Chunks:
    """One chunk for each rank, and another beside it that changes from phase to phase."""

    partitioner: Partitioner = field(default_factory=MetisWork)
    sweep: Sweep = "sweep"
    halo: int = 1
    """1: nodes one hop outside are seen too, so that nodes of both chunks have all their in-edges; 0: not so."""

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> Isolated:
        """See `PartitionPolicy.place`. What it reads is counted in the channel ``store``: nothing comes over the network."""
        if isinstance(data, Placement):
            v = data.graph.num_nodes
            whole = {name: getattr(data, name) for name in ("graph", "features", "labels", "degree", "split")}
            return Isolated(**whole, num_base=v, num_visible=v, coverage=torch.ones(v, dtype=torch.float64))
        assert data.peers is not None
        rank, ranks = job.group.rank, job.group.size
        other = variable_chunk(self.sweep, rank, ranks, phase.number)
        if isinstance(before, Isolated) and before.base is not None and before.variable == other:
            return before
        base = before.base if isinstance(before, Isolated) and before.base is not None else load(data, job)
        chunks = {rank: base}
        if other is not None:
            ahead = before.ahead if isinstance(before, Isolated) and before.ahead_of == other else None
            chunks[other] = ahead.result() if ahead is not None else load(data.peers.part(other), job)
        following = variable_chunk(self.sweep, rank, ranks, phase.number + 1)
        ahead = None
        if following is not None and following != other and phase.last_epoch < job.epochs:
            ahead = _in_a_thread(lambda: load(data.peers.part(following), job))  # pyright: ignore[reportOptionalMemberAccess]
        return self._joined(chunks, data, job, base, other, ahead, following)

    def _joined(
        self,
        chunks: dict[int, Chunk],
        data: Part,
        job: RankJob,
        base: Chunk,
        other: int | None,
        ahead: "Future[Chunk] | None",
        following: int | None,
    ) -> Isolated:
        """The graph of these chunks, base first, with what the policy sees around them."""
        starts, visible = {}, 0
        for c, chunk in chunks.items():
            starts[c], visible = visible, visible + chunk.num_nodes
        rows, sources, weights, outside = [], [], [], []
        for c, chunk in chunks.items():
            for s in range(chunk.shards.num_parts):
                if s not in chunks and not self.halo:
                    continue
                row, local, weight = _edges(chunk.shards, s)
                rows.append(row + starts[c])
                # Nodes outside are named by owner and local id until it is known which there are.
                sources.append(local + starts[s] if s in chunks else -1 - local - (s << 40))
                weights.append(weight)
                if s not in chunks:
                    outside.append((s << 40) + local)
        halo = np.unique(np.concatenate(outside)) if outside else np.empty(0, np.int64)
        row, source = np.concatenate([np.empty(0, np.int64), *rows]), np.concatenate([np.empty(0, np.int64), *sources])
        far = source < 0
        source[far] = visible + np.searchsorted(halo, -1 - source[far])
        nodes = visible + len(halo)
        order = np.argsort(row, kind="stable")
        indptr = np.zeros(nodes + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=nodes), out=indptr[1:])
        weight = None if not weights or weights[0] is None else np.concatenate(weights)[order]
        graph = Graph(indptr, source[order].astype(index_dtype(nodes)), weight)

        halo_features, halo_degree = self._halo_rows(halo, data, job, base)
        features = np.concatenate([*(c.features for c in chunks.values()), halo_features])
        degree = np.concatenate([*(c.weighted_degree for c in chunks.values()), halo_degree])
        labels = torch.cat([c.labels for c in chunks.values()])
        labels = torch.cat([labels, labels.new_zeros((len(halo), *labels.shape[1:]))])
        # Of the in-edges of halo nodes none is here.
        count = np.concatenate([*(c.degree for c in chunks.values()), (halo_degree > 0).astype(np.int64)])
        loops = np.bincount(row[row == source], minlength=nodes)
        present, all_in = graph.in_degree - loops, count - loops
        coverage = np.where(all_in > 0, present / np.maximum(all_in, 1), 1.0)
        return Isolated(
            graph,
            MemoryFeatures(features),
            labels,
            torch.from_numpy(degree).to(job.dtype),
            base.split,
            num_base=base.num_nodes,
            num_visible=visible,
            coverage=torch.from_numpy(coverage),
            inclusion=1.0 / max(1, job.group.size - 1) if self.sweep == "sweep" and not self.halo else 1.0,
            base=base,
            variable=other,
            ahead=ahead,
            ahead_of=following,
        )

    def _halo_rows(self, halo: IdArray, data: Part, job: RankJob, base: Chunk) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.float64]]:
        """Features and degrees of nodes outside, from the stores of their owners."""
        features = np.empty((len(halo), base.features.shape[1]), base.features.dtype)
        degree = np.empty(len(halo))
        owner = halo >> 40
        assert data.peers is not None
        for s in np.unique(owner):
            at = np.flatnonzero(owner == s)
            local = halo[at] - (int(s) << 40)
            store, degrees = data.peers.rows(int(s))
            features[at], degree[at] = store.gather(local), degrees[local]
        job.ledger.add("store", "features", features.nbytes)
        return features, degree


def load(part: Part, job: RankJob) -> Chunk:
    """A part's edges and rows in memory."""
    shards, n = part.shards, part.shards.num_owned
    degree = np.bincount(shards.rows, shards.counts, minlength=n).astype(np.int64)
    weighted = degree.astype(np.float64)
    if shards.edge_weight is not None:
        weighted = np.bincount(np.repeat(shards.rows, shards.counts), shards.edge_weight.astype(np.float64), minlength=n).astype(np.float64)
    features = part.features.gather(np.arange(n))
    count(job.ledger, shards.nbytes, features.nbytes)
    return Chunk(shards, features, part.labels, degree, weighted, part.split)


def count(ledger: Ledger, graph_bytes: int, features_bytes: int) -> None:
    """What was read from stores."""
    ledger.add("store", "graph", graph_bytes)
    ledger.add("store", "features", features_bytes)


def _edges(shards: EdgeShards, s: int) -> tuple[IdArray, IdArray, npt.NDArray[np.float32] | None]:
    """Row and source of each edge of shard s, both as local ids at their owners, and weights."""
    of = slice(int(shards.row_splits[s]), int(shards.row_splits[s + 1]))
    edges = slice(int(shards.edge_splits[s]), int(shards.edge_splits[s + 1]))
    rows = np.repeat(shards.rows[of].astype(np.int64), shards.counts[of])
    sources = shards.indices[edges].astype(np.int64)
    if s != shards.part:
        sources = shards.sources[int(shards.source_splits[s]) : int(shards.source_splits[s + 1])].astype(np.int64)[sources]
    return rows, sources, None if shards.edge_weight is None else shards.edge_weight[edges]


def _in_a_thread(work: Callable[[], Chunk]) -> "Future[Chunk]":
    pool = ThreadPoolExecutor(1, "millrace-chunk")
    try:
        return pool.submit(work)
    finally:
        pool.shutdown(wait=False)
