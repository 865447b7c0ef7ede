"""Each rank sees its own chunks of the graph and, for a while, another rank's beside them: training without messages
between nodes.

Grappa (Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872): the nodes are divided into chunks, one or more for each
rank. A rank trains on the seeds of its *base* chunks, and sees *variable* chunks beside them, which change from
super-epoch to super-epoch (`chunk_schedule.ChunkSchedule`). It sees no other nodes.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...storage.array_checks import pieces
from ...storage.array_kinds import Float32Array, Float64Array, FloatArray, IdArray, Int32Array
from ...storage.dataset import SPLITS, Split
from ...storage.features import ArrayFeatures, FeatureStore
from ...storage.graph import Graph, index_dtype, starts_of
from ...storage.ledger import Ledger
from ...storage.links.pairs import SeenPairs
from ...storage.optional import when_present
from ...storage.partition.edge_shards import EdgeShards
from ...storage.store.scratch import Arrays, Empty
from ..kernels.partition import join
from ..messages import Part, Phase, Placement, RankJob
from ..partition.base import Partitioner
from ..partition.metis import MetisWork
from ..random import Purpose, draw, node_words, stream
from ..self_loops import COLUMNS, degree_rows, has_loops
from .base import PartitionPolicy, PartTraffic
from .chunk_schedule import ChunkSchedule, Rotation

Numbers = tuple[int, ...]
"""Numbers of chunks."""
Lists = tuple[Int32Array, Int32Array, Int32Array, IdArray, int]
"""Rows of a shard, edges of each, their sources' positions, each source's node, and the first node of the chunk."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """A chunk: a part of the graph."""

    shards: EdgeShards
    features: FeatureStore
    """[N, F]; if it was visible before, a view of the joined features."""
    labels: Tensor
    degree: IdArray
    """int64 [N], in-degree in the whole graph."""
    weighted_degree: Float64Array
    """[N], sum of the weights of all in-edges; [N, 3] with self loops beside it, if the model reads them."""
    split: Split
    edge_features: FeatureStore | None = None
    """See `Part.edge_features`."""
    owned: IdArray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [N], global ids."""

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.degree)


@dataclass(frozen=True, eq=False)
class Visible:
    """Some chunks, and the nodes around them that are visible too."""

    chunks: dict[int, Chunk]
    """By number, in the order of their nodes."""
    around: dict[int, dict[int, IdArray]]
    """Of each, names of its visible sources outside, by owner."""

    @cached_property
    def starts(self) -> dict[int, int]:
        """First node of each chunk."""
        sizes = [chunk.num_nodes for chunk in self.chunks.values()]
        return dict(zip(self.chunks, accumulate(sizes, initial=0)))

    @cached_property
    def halo(self) -> IdArray:
        """Names of all nodes outside, ascending; their nodes follow the chunks'."""
        names = (each for of in self.around.values() for each in of.values())
        return np.unique(np.concatenate([np.empty(0, np.int64), *names]))

    @cached_property
    def num_owned(self) -> int:
        """Nodes of all chunks."""
        return sum(chunk.num_nodes for chunk in self.chunks.values())

    def places(self) -> Iterator[tuple[int, int, IdArray]]:
        """Shards that are present, each as its chunk, its number, and the node of each of its sources, or -1."""
        starts, halo = self.starts, self.halo
        for c, chunk in self.chunks.items():
            for s in range(chunk.shards.num_parts):
                if s in starts:
                    place = starts[s] + (np.arange(chunk.num_nodes) if s == c else sources_of(chunk.shards, s))
                elif s in self.around[c]:
                    names = (s << 40) + sources_of(chunk.shards, s)
                    at = np.searchsorted(halo, names)
                    there = halo[np.minimum(at, len(halo) - 1)] == names if len(halo) else np.zeros(len(names), bool)
                    place = np.where(there, self.num_owned + at, -1)
                else:
                    continue
                yield c, s, place


@dataclass(frozen=True, eq=False)
class Isolated(Placement):
    """A rank's view: nodes of the base chunks, then of the variable ones, then halo nodes, which have features and no
    in-edges."""

    num_base: int = 0
    num_visible: int = 0
    """Nodes of all its chunks."""
    coverage: Tensor = field(default_factory=lambda: torch.empty(0))
    """float64 [V], the share of each node's in-edges in the whole graph that is present. Self loops do not count, those
    of a halo node count as one, and a node without any is covered."""
    base: Numbers = ()
    variable: Numbers = ()
    kept: Mapping[int, Chunk] = field(default_factory=dict)
    """By number, chunks that are also visible in the next super-epoch, if it is not being prepared yet; their features
    are views of these."""
    following: "Future[Isolated] | None" = None
    """View of the next super-epoch, in preparation."""
    seen: SeenPairs | None = None
    """Pairs between nodes of the chunks, of which `split` has the positions of those to train on; None: nodes are
    labelled."""

    def described(self, num_chunks: int, rotation: Rotation) -> str:
        """A sentence on how much of the graph the rank sees, of so many chunks."""
        chunks, around = len(self.base) + len(self.variable), self.graph.num_nodes - self.num_visible
        if chunks == num_chunks:
            return (
                f"each rank sees every node: with grappa.rotation={rotation} two ranks show each other all they have; "
                "for isolation take 3 ranks or more, or grappa.rotation=none"
            )
        halo = f", and {around:,} nodes around them (on rank 0; grappa.halo)" if around else ""
        return (
            f"each rank sees {chunks} of {num_chunks} parts of the graph at a time, {chunks / num_chunks:.0%} of the "
            f"nodes where parts are even{halo}"
        )


@dataclass(frozen=True)
class Chunks(PartitionPolicy):
    """Chunks of each rank, and another rank's beside them, that change from phase to phase."""

    changes: ClassVar[bool] = True
    partitioner: Partitioner = field(default_factory=MetisWork)
    rotation: Rotation = "sweep"
    halo: float = 1
    """Share of nodes one hop outside that are visible too, drawn for each super-epoch. 1: nodes of all chunks here have
    all their in-edges."""
    per_rank: int = 1
    reshuffle_fraction: float = 0.0
    """See `ChunkSchedule`."""
    ahead: bool = field(default=True, repr=False)
    """Read and join the next super-epoch's view while the current one trains, in memory beside it. Left out of repr (a
    run's fingerprint), since it changes no result."""

    def schedule(self, seed: int, ranks: int) -> ChunkSchedule:
        return ChunkSchedule(seed, ranks, self.per_rank, self.reshuffle_fraction, self.rotation)

    def count(self, traffic: PartTraffic) -> None:
        traffic.views(self.halo)

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Isolated | None = None) -> Isolated:
        """See `PartitionPolicy.place`. Reads count in the channel ``store``: nothing comes over the network."""
        if isinstance(data, Placement):
            v = data.graph.num_nodes
            names = ("graph", "features", "labels", "degree", "split", "edge_features")
            whole = {name: getattr(data, name) for name in names}
            return Isolated(
                **whole,
                num_base=v,
                num_visible=v,
                coverage=torch.ones(v, dtype=torch.float64),
                seen=when_present(SeenPairs.all, data.pairs),
            )
        rank, t = job.group.rank, phase.number
        deal = self.schedule(job.seed, job.group.size)
        held = before
        seen = held.following.result() if held is not None and held.following is not None else None
        if seen is None or (seen.base, seen.variable) != (deal.base(rank, t), deal.variable(rank, t)):
            seen = self._seen(deal, t, held, data, job)
        if held is None and rank == 0:
            job.tell(seen.described(deal.num_chunks, self.rotation))
        if phase.last_epoch >= job.epochs:
            return replace(seen, kept={}, following=None)
        stay = {*deal.base(rank, t + 1), *deal.variable(rank, t + 1)}
        seen = replace(seen, kept={c: chunk for c, chunk in seen.kept.items() if c in stay}, following=None)
        if not self.ahead:
            return seen
        return replace(seen, kept={}, following=_in_a_thread(lambda: self._seen(deal, t + 1, seen, data, job)))

    def _seen(self, deal: ChunkSchedule, t: int, held: Isolated | None, data: Part, job: RankJob) -> Isolated:
        """View of super-epoch t, with all its chunks in `kept`; chunks that `held` keeps are not read again."""
        base, variable = deal.base(job.group.rank, t), deal.variable(job.group.rank, t)
        if held is not None and (held.base, held.variable) == (base, variable) and self.halo in (0, 1):
            return held
        kept = held.kept if held is not None else {}
        chunks = {c: kept[c] if c in kept else load(_part(data, c), job) for c in (*base, *variable)}
        return self._joined(chunks, base, variable, stream(job.seed, Purpose.HALO, t, job.group.rank), data, job)

    def _joined(
        self, chunks: dict[int, Chunk], base: Numbers, variable: Numbers, halo_key: int, data: Part, job: RankJob
    ) -> Isolated:
        """Graph of these chunks, in their order, with the halo that the policy adds."""
        # Nodes outside are named by owner and local id until all are known.
        around = {c: self._around(chunk.shards, [*chunks], halo_key) for c, chunk in chunks.items()}
        of = Visible(chunks, around)
        starts, visible, halo = of.starts, of.num_owned, of.halo
        graph, present, loops = _join_graph(of, job.arrays.graph)
        edges = None
        if chunks[base[0]].edge_features is not None:
            rows = _join_edge_rows(of, graph.indptr, job.arrays)
            edges = ArrayFeatures(rows)
            job.ledger.add("store", "features", rows.nbytes)
        like = chunks[base[0]].features
        features = job.arrays.features((visible + len(halo), like.num_features), like.dtype)
        rows_of = {c: features[starts[c] : starts[c] + chunk.num_nodes] for c, chunk in chunks.items()}
        for c, chunk in chunks.items():
            chunk.features.gather(np.arange(chunk.num_nodes), out=rows_of[c])
        halo_degree = self._halo_rows(halo, data, job, features[visible:])
        degree = np.concatenate([*(c.weighted_degree for c in chunks.values()), halo_degree])
        if degree.ndim > 1 and not has_loops(degree):
            degree = degree[:, 0].copy()
        labels = torch.cat([c.labels for c in chunks.values()])
        labels = torch.cat([labels, labels.new_zeros((len(halo), *labels.shape[1:]))])
        # No in-edges of halo nodes are present.
        of_halo = halo_degree if halo_degree.ndim == 1 else halo_degree[:, 0]
        count = np.concatenate([*(c.degree for c in chunks.values()), (of_halo > 0).astype(np.int64)])
        present, all_in = present - loops, count - loops
        coverage = np.where(all_in > 0, present / np.maximum(all_in, 1), 1.0)
        of_base = [chunks[c] for c in base]
        num_base, seen = sum(c.num_nodes for c in of_base), None
        sets = [np.concatenate([getattr(c.split, s) + starts[n] for n, c in zip(base, of_base)]) for s in SPLITS]
        if data.pairs is not None:
            seen = SeenPairs.from_pairs(data.pairs, np.concatenate([c.owned for c in chunks.values()]), num_base)
            sets[0] = np.arange(len(seen.pairs))
        return Isolated(
            graph,
            ArrayFeatures(features),
            labels,
            torch.from_numpy(degree).to(job.dtype),
            Split(*sets),
            num_base=num_base,
            num_visible=visible,
            coverage=torch.from_numpy(coverage),
            base=base,
            variable=variable,
            edge_features=edges,
            kept={c: replace(chunk, features=ArrayFeatures(rows_of[c])) for c, chunk in chunks.items()},
            seen=seen,
        )

    def _around(self, shards: EdgeShards, here: list[int], halo_key: int) -> dict[int, IdArray]:
        """Names of a chunk's visible sources outside, by owner."""
        names = {}
        for s in range(shards.num_parts) if self.halo else ():
            if s in here:
                continue
            names[s] = (s << 40) + sources_of(shards, s)
            if self.halo < 1:
                names[s] = names[s][draw(node_words(halo_key, names[s]), 0) < self.halo * 2**32]
        return names

    def _halo_rows(self, halo: IdArray, data: Part, job: RankJob, out: FloatArray) -> Float64Array:
        """Write features of nodes outside, from the stores of their owners. Returns their degrees."""
        degree = np.empty((len(halo), COLUMNS) if job.reads_loops else len(halo))
        owner = halo >> 40
        bounds = np.flatnonzero(np.diff(owner, prepend=-1, append=-1)) if len(halo) else ()
        for begin, end in zip(bounds, bounds[1:]):
            s = int(owner[begin])
            local = halo[begin:end] - (s << 40)
            store, degrees = data.others.rows(s, job.reads_loops)
            store.gather(local, out=out[begin:end])
            degree[begin:end] = degrees[local]
        job.ledger.add("store", "features", out.nbytes)
        return degree


def load(part: Part, job: RankJob) -> Chunk:
    """A part's edges, and its rows if they are stored."""
    shards, n = part.shards, part.shards.num_owned
    degree = np.bincount(shards.rows, shards.counts, minlength=n).astype(np.int64)
    weighted = degree.astype(np.float64)
    if shards.edge_weight is not None:
        of_edges, weight = np.repeat(shards.rows, shards.counts), shards.edge_weight.astype(np.float64)
        weighted = np.bincount(of_edges, weight, minlength=n).astype(np.float64)
    if job.reads_loops:
        rows, counts, indices, weight = lists_of(shards, shards.part)
        of_edges = np.repeat(rows, counts)
        loops = np.flatnonzero(indices == of_edges)
        of_loops = np.ones(len(loops)) if shards.edge_weight is None else weight[loops]
        weighted = degree_rows(weighted, of_edges[loops], of_loops)
    count(job.ledger, shards.nbytes, n * part.features.num_features * part.features.dtype.itemsize)
    features, labels, edges, owned = part.features, part.labels, part.edge_features, part.owned
    return Chunk(shards, features, labels, degree, weighted, part.split, edge_features=edges, owned=owned)


def count(ledger: Ledger, graph_bytes: int, features_bytes: int) -> None:
    """Count bytes read from stores."""
    ledger.add("store", "graph", graph_bytes)
    ledger.add("store", "features", features_bytes)


def lists_of(shards: EdgeShards, s: int) -> tuple[Int32Array, Int32Array, Int32Array, Float32Array]:
    """Rows of shard s, edges of each, their sources' positions in the shard, and weights (empty: there are none)."""
    of = slice(int(shards.row_splits[s]), int(shards.row_splits[s + 1]))
    edges = slice(int(shards.edge_splits[s]), int(shards.edge_splits[s + 1]))
    weight = np.empty(0, np.float32) if shards.edge_weight is None else shards.edge_weight[edges]
    return shards.rows[of], shards.counts[of], shards.indices[edges], weight


def sources_of(shards: EdgeShards, s: int) -> IdArray:
    """Local ids, at their owner, of the sources of shard s; not for the part's own."""
    return shards.sources[int(shards.source_splits[s]) : int(shards.source_splits[s + 1])].astype(np.int64)


def _join_graph(of: Visible, empty: Empty) -> tuple[Graph, IdArray, IdArray]:
    """The graph of some chunks and their halo, in arrays that `empty` makes, and two int64 [nodes]: in-edges of each
    node with its loops, and loops."""
    nodes = of.num_owned + len(of.halo)

    def shards() -> Iterator[tuple[Lists, Float32Array]]:
        for c, s, place in of.places():
            rows, counts, indices, weight = lists_of(of.chunks[c].shards, s)
            yield (rows, counts, indices, place, of.starts[c]), weight

    present, loops = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    for shard, _ in shards():
        join.count_edges(*shard, present)
    indptr = starts_of(present)
    cursor, sources = indptr[:-1].copy(), empty(int(indptr[-1]), index_dtype(nodes))
    weighted = next(iter(of.chunks.values())).shards.edge_weight is not None
    weights = empty(len(sources) if weighted else 0, np.float32)
    for shard, weight in shards():
        join.join_edges(*shard, weight, cursor, sources, weights, loops)
    return Graph(indptr, sources, weights if weighted else None), present, loops


def _join_edge_rows(of: Visible, indptr: IdArray, arrays: Arrays) -> FloatArray:
    """Features of the edges of the graph that `_join_graph` makes, in its order; `indptr` is that graph's."""
    like = next(iter(of.chunks.values())).edge_features
    assert like is not None
    cursor, out = indptr[:-1].copy(), arrays.features((int(indptr[-1]), like.num_features), like.dtype)
    for c, shards_of in groupby(of.places(), lambda found: found[0]):
        shards, store = of.chunks[c].shards, of.chunks[c].edge_features
        assert store is not None
        # Where each of the chunk's edges lies in the result: edges of a row come in the order of the shards.
        where = arrays.graph(shards.num_edges, np.int64)
        where[...] = -1
        for _, s, place in shards_of:
            rows, counts, indices, _ = lists_of(shards, s)
            ends, at = np.cumsum(counts, dtype=np.int64), shards.edge[int(shards.edge_splits[s]) :]
            for some in pieces(0, len(indices)):
                present = some.start + np.flatnonzero(place[indices[some]] >= 0)
                row = of.starts[c] + rows[np.searchsorted(ends, present, side="right")].astype(np.int64)
                first = np.flatnonzero(np.diff(row, prepend=-1))
                count = np.diff(first, append=len(row))
                where[at[present]] = cursor[row] + np.arange(len(row)) - np.repeat(first, count)
                cursor[row[first]] += count
        for some in pieces(0, shards.num_edges):
            present = np.flatnonzero(where[some] >= 0)
            out[where[some][present]] = store.gather(some.start + present)
    return out


def _part(data: Part, number: int) -> Part:
    """A chunk's part: the one that the rank has opened, or another."""
    return data if number == data.shards.part else data.others.part(number)


def _in_a_thread(make: Callable[[], Isolated]) -> "Future[Isolated]":
    """Run `make` in a thread; returns its future result."""
    pool = ThreadPoolExecutor(1, "millrace-chunk")
    try:
        return pool.submit(make)
    finally:
        pool.shutdown(wait=False)
