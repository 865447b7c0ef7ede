"""Every rank sees its own chunks of the graph and, for a while, another rank's beside them: training without messages between nodes.

Grappa (Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872): the nodes are cut into chunks, one or more for each rank. A rank trains on
the seeds of its *base* chunks, and sees *variable* chunks beside them, which change from super-epoch to super-epoch (`deal.Deal`). The
rest is not there.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

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
from ..random import Purpose, draw, node_words, stream
from .base import Partitioner
from .deal import Deal, Sweep
from .metis import MetisWork

IdArray = npt.NDArray[np.int64]


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
    """What a rank sees: nodes of the base chunks, then of the variable ones, then halo nodes, which have features and no in-edges."""

    num_base: int = 0
    num_visible: int = 0
    """Nodes of all its chunks."""
    in_edges: Tensor | None = None
    """float64 [V], each node's in-edges in the whole graph; self loops do not count, and those of a halo node count as one. None: all
    are here."""
    coverage: Tensor = field(default_factory=lambda: torch.empty(0))
    """float64 [V], the share of these that is here; a node without any is covered."""
    comes_with: IdArray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [V], nodes of one number are here together or not at all; those of number 0 always are."""
    inclusion: float = 1.0
    """The chance to see a node with another number than 0, where one with yet another number is here."""
    halo_inclusion: float = 1.0
    """The chance to see a halo node, where a chunk is here that it has an edge into."""
    base: tuple[int, ...] = ()
    variable: tuple[int, ...] = ()
    """Numbers of the chunks."""
    kept: Mapping[int, Chunk] = field(default_factory=dict)
    """By number, chunks that the next super-epoch sees too, where nothing has been started for it; their features are views of these."""
    following: "Future[Isolated] | None" = None
    """What is seen in the next super-epoch, on its way."""


@dataclass(frozen=True)
class Chunks:
    """So many chunks for each rank, and another rank's beside them, that change from phase to phase."""

    partitioner: Partitioner = field(default_factory=MetisWork)
    sweep: Sweep = "sweep"
    halo: float = 1
    """The share of nodes one hop outside that are seen too, drawn anew for each super-epoch. 1: nodes of all chunks here have all their
    in-edges."""
    per_rank: int = 1
    moved: float = 0.0
    """See `Deal`."""
    ahead: bool = field(default=True, repr=False)
    """What the next super-epoch will see is read and put together while the one before it trains, and is in memory beside it. No part of
    what this is told by (a run's fingerprint): it decides nothing."""

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> Isolated:
        """See `PartitionPolicy.place`. What it reads is counted in the channel ``store``: nothing comes over the network."""
        if isinstance(data, Placement):
            v = data.graph.num_nodes
            whole = {name: getattr(data, name) for name in ("graph", "features", "labels", "degree", "split")}
            return Isolated(
                **whole,
                num_base=v,
                num_visible=v,
                coverage=torch.ones(v, dtype=torch.float64),
                comes_with=np.zeros(v, np.int64),
            )
        rank, t = job.group.rank, phase.number
        deal = Deal(job.seed, job.group.size, self.per_rank, self.moved, self.sweep)
        held = before if isinstance(before, Isolated) else None
        seen = held.following.result() if held is not None and held.following is not None else None
        if seen is None or (seen.base, seen.variable) != (deal.base(rank, t), deal.variable(rank, t)):
            seen = self._seen(deal, t, held, data, job)
        if phase.last_epoch >= job.epochs:
            return replace(seen, kept={}, following=None)
        stay = {*deal.base(rank, t + 1), *deal.variable(rank, t + 1)}
        seen = replace(seen, kept={c: chunk for c, chunk in seen.kept.items() if c in stay}, following=None)
        if not self.ahead:
            return seen
        return replace(seen, kept={}, following=_in_a_thread(lambda: self._seen(deal, t + 1, seen, data, job)))

    def _seen(self, deal: Deal, t: int, held: Isolated | None, data: Part, job: RankJob) -> Isolated:
        """What is seen in super-epoch t, with all its chunks in `kept`; those that `held` keeps are not read again."""
        base, variable = deal.base(job.group.rank, t), deal.variable(job.group.rank, t)
        if held is not None and (held.base, held.variable) == (base, variable) and self.halo in (0, 1):
            return held
        kept = held.kept if held is not None else {}
        chunks = {c: kept[c] if c in kept else load(_part(data, c), job) for c in (*base, *variable)}
        halo_key = stream(job.seed, Purpose.HALO, t, job.group.rank)
        return self._joined(chunks, base, variable, deal.inclusion, halo_key, data, job)

    def _joined(
        self,
        chunks: dict[int, Chunk],
        base: tuple[int, ...],
        variable: tuple[int, ...],
        inclusion: float,
        halo_key: int,
        data: Part,
        job: RankJob,
    ) -> Isolated:
        """The graph of these chunks, in their order, with what the policy sees around them."""
        starts, visible = {}, 0
        for c, chunk in chunks.items():
            starts[c], visible = visible, visible + chunk.num_nodes
        rows, sources, weights, outside = [], [], [], []
        for c, chunk in chunks.items():
            for s in range(chunk.shards.num_parts):
                if s not in chunks and not self.halo:
                    continue
                row, local, weight = edges_of(chunk.shards, s)
                if s not in chunks and self.halo < 1:
                    seen = draw(node_words(halo_key, (s << 40) + local), 0) < self.halo * 2**32
                    row, local, weight = row[seen], local[seen], None if weight is None else weight[seen]
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

        halo_features, halo_degree = self._halo_rows(halo, data, job, chunks[base[0]].features)
        features = np.concatenate([*(c.features for c in chunks.values()), halo_features])
        degree = np.concatenate([*(c.weighted_degree for c in chunks.values()), halo_degree])
        labels = torch.cat([c.labels for c in chunks.values()])
        labels = torch.cat([labels, labels.new_zeros((len(halo), *labels.shape[1:]))])
        # Of the in-edges of halo nodes none is here.
        count = np.concatenate([*(c.degree for c in chunks.values()), (halo_degree > 0).astype(np.int64)])
        loops = np.bincount(row[row == source], minlength=nodes)
        present, all_in = graph.in_degree - loops, count - loops
        coverage = np.where(all_in > 0, present / np.maximum(all_in, 1), 1.0)
        of_base = [chunks[c] for c in base]
        # Where chunks come and go, a node is seen with its chunk, or without it as one of the halo; else in one of these ways only.
        either = inclusion + (1 - inclusion) * self.halo
        # Without moves, a rank's base chunks never leave it, and the variable ones come and go as one.
        number = {c: c + 1 if self.moved else int(c in variable) for c in chunks}
        comes_with = np.repeat([*number.values(), 0], [*(c.num_nodes for c in chunks.values()), len(halo)])
        return Isolated(
            graph,
            MemoryFeatures(features),
            labels,
            torch.from_numpy(degree).to(job.dtype),
            Split(*(np.concatenate([getattr(c.split, s) + starts[n] for n, c in zip(base, of_base)]) for s in ("train", "val", "test"))),
            num_base=sum(c.num_nodes for c in of_base),
            num_visible=visible,
            in_edges=torch.from_numpy(all_in).double(),
            coverage=torch.from_numpy(coverage),
            comes_with=comes_with,
            inclusion=either,
            halo_inclusion=1.0 if not self.halo else either if inclusion < 1 else float(self.halo),
            base=base,
            variable=variable,
            kept={c: replace(chunk, features=features[starts[c] : starts[c] + chunk.num_nodes]) for c, chunk in chunks.items()},
        )

    def _halo_rows(
        self, halo: IdArray, data: Part, job: RankJob, like: npt.NDArray[np.floating]
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.float64]]:
        """Features, of the width and type of others, and degrees of nodes outside, from the stores of their owners."""
        features = np.empty((len(halo), like.shape[1]), like.dtype)
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


def edges_of(shards: EdgeShards, s: int) -> tuple[IdArray, IdArray, npt.NDArray[np.float32] | None]:
    """Row and source of each edge of shard s, both as local ids at their owners, and weights."""
    of = slice(int(shards.row_splits[s]), int(shards.row_splits[s + 1]))
    edges = slice(int(shards.edge_splits[s]), int(shards.edge_splits[s + 1]))
    rows = np.repeat(shards.rows[of].astype(np.int64), shards.counts[of])
    sources = shards.indices[edges].astype(np.int64)
    if s != shards.part:
        sources = shards.sources[int(shards.source_splits[s]) : int(shards.source_splits[s + 1])].astype(np.int64)[sources]
    return rows, sources, None if shards.edge_weight is None else shards.edge_weight[edges]


def _part(data: Part, number: int) -> Part:
    """A chunk's part: the one that the rank has opened, or another."""
    if number == data.shards.part:
        return data
    assert data.peers is not None
    return data.peers.part(number)


def _in_a_thread(make: Callable[[], Isolated]) -> "Future[Isolated]":
    """What `make` returns, while others go on."""
    pool = ThreadPoolExecutor(1, "millrace-chunk")
    try:
        return pool.submit(make)
    finally:
        pool.shutdown(wait=False)
