"""One rank's share of the whole graph for full-batch training: its nodes, and their in-edges by source rank.

SAR (Mostafa, MLSys 2022) keeps the edges of a part as one *edge shard* for each part that sources lie in. Here rows are
in the order in which layers need them, so that a layer needs the beginning of every array: with labelled seeds first,
then the nodes one hop away from them, and so on (the pruning of SAR's ``construct_mfgs``, without a second copy of any
edge).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.array_checks import pieces
from ...storage.array_kinds import Float64Array, IdArray, Int32Array, IntArray
from ...storage.graph import row_ranges, starts_of
from ...storage.optional import present, taken, when_present
from ...storage.partition.edge_shards import EdgeShards
from ...storage.store.scratch import Empty, in_memory
from ..comm.base import Group
from ..kernels.aggregation.attention_args import EdgeNumbers
from ..kernels.aggregation.lists import InLists, WeightedLists, on_device
from ..self_loops import degree_rows
from .loops import agreed, degrees_alone

RowIds = Int32Array | Tensor
"""Numbers of rows, in the memory of the rows."""
FAR = 255
"""Hops of a node that no layer needs."""


@dataclass(frozen=True, eq=False)
class Shard:
    """Edges from the rows of one rank, S of which they read, to n rows of this one."""

    lists: InLists
    """n lists over S sources."""
    rows: Int32Array | None
    """int32 [n], the row that each list belongs to, ascending; None: list i belongs to row i (the rank's own shard)."""
    edge: IntArray
    """[e], position of each edge among all edges of the rank, in the order of its part."""
    weight: Tensor | None
    """float32 [e]."""

    @property
    def is_own(self) -> bool:
        """True if list i belongs to row i, whose sources are the rank's own."""
        return self.rows is None

    @property
    def num_remote(self) -> int:
        """Rows of another rank that it reads."""
        return 0 if self.is_own else self.lists.num_src

    @property
    def targets(self) -> slice | Int32Array:
        """Index of the rows that the lists belong to."""
        return slice(None) if self.rows is None else self.rows

    def rows_of(self, first: int, stop: int) -> Int32Array:
        """The row of each of lists [first, stop)."""
        return np.arange(first, stop, dtype=np.int32) if self.rows is None else self.rows[first:stop]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}

    @cached_property
    def _numbers(self) -> dict[int, EdgeNumbers]:
        return {}

    def weight_on(self, device: torch.device) -> Tensor | None:
        """`weight` in the memory of `device`; copied once."""
        if self.weight is None or device.type == "cpu":
            return self.weight
        if device not in self._copies:
            self._copies[device] = self.weight.to(device)
        return self._copies[device]

    def weighted(self, device: torch.device, scale: Tensor | None) -> WeightedLists:
        """The edges with their weights, and factors of rows [N], on a device."""
        return WeightedLists(self.lists, self.weight_on(device), scale, self.rows)

    @property
    def unweighted(self) -> WeightedLists:
        """The edges as maxima take them."""
        return WeightedLists(self.lists, rows=self.rows, edge=self.edge)

    def numbers(self, batch: EdgeNumbers) -> EdgeNumbers:
        """Keys of the edges for dropout, from those of all edges of the rank: made once, as are their copies on a
        device."""
        if id(batch.first) not in self._numbers:
            self._numbers[id(batch.first)] = EdgeNumbers(batch.first, batch.own, self.edge)
        return self._numbers[id(batch.first)]

    def head(self, num_lists: int, num_src: int) -> "Shard":
        """The first lists; they read the first sources only."""
        if num_lists == self.lists.num_dst and num_src == self.lists.num_src:
            return self
        edges = int(self.lists.indptr[num_lists])
        lists = InLists.from_arrays(
            self.lists.indptr[: num_lists + 1], self.lists.indices[:edges], num_src, self.lists.empty
        )
        return Shard(lists, taken(self.rows, slice(num_lists)), self.edge[:edges], taken(self.weight, slice(edges)))


@dataclass(frozen=True, eq=False)
class View:
    """Part of a `FullBatch` that one layer needs: rows [0, num_dst) from rows [0, num_src)."""

    num_dst: int
    num_src: int
    shards: tuple[Shard, ...]
    """By source rank."""
    wanted: tuple[Int32Array, ...]
    """By rank: rows of this rank that it reads, in the order in which it expects them. Empty for this rank."""

    @cached_property
    def _copies(self) -> dict[tuple[int | None, torch.device], Tensor]:
        return {}

    def wanted_on(self, device: torch.device, rank: int | None = None) -> RowIds:
        """`wanted` of a rank, or of all in turn, in the memory of `device`; copied there once."""
        if device.type == "cpu":
            return np.concatenate(self.wanted) if rank is None else self.wanted[rank]
        if (rank, device) not in self._copies:
            ids = np.concatenate(self.wanted) if rank is None else self.wanted[rank]
            self._copies[rank, device] = on_device(ids, device)
        return self._copies[rank, device]

    @property
    def num_edges(self) -> int:
        """Edges of all shards."""
        return sum(s.lists.num_edges for s in self.shards)

    @property
    def counts(self) -> list[int]:
        """Rows of each other rank that this layer reads."""
        return [s.num_remote for s in self.shards]

    @property
    def remote_rows(self) -> int:
        """B, rows of other ranks that this layer reads."""
        return sum(self.counts)

    @cached_property
    def kept(self) -> IdArray:
        """int64 [num_dst], edges of each row over all shards."""
        kept = np.zeros(self.num_dst, np.int64)
        for s in self.shards:
            kept[s.targets] += s.lists.kept
        return kept

    @cached_property
    def weights(self) -> Float64Array | None:
        """[num_dst], sum of the edge weights of each row; None without weights."""
        weights = present(s.weight for s in self.shards)
        total = np.zeros(self.num_dst)
        for s, weight in zip(self.shards, weights):
            total[s.targets] += np.bincount(s.lists.rows, weight.numpy(), minlength=s.lists.num_dst)
        return total if weights else None


@dataclass(frozen=True, eq=False)
class FullBatch:
    """N rows of one rank. Row i is the node `names[i]`; the loss is over the first `num_seeds` rows."""

    rank: int
    names: IdArray
    """int64 [N], global ids."""
    order: IdArray
    """int64 [N], local id of each row in its part."""
    num_seeds: int
    numbers: EdgeNumbers
    """Keys of edges for dropout."""
    whole: View
    """All rows and all edges."""
    layers: tuple[View, ...]
    """For each layer, from the input on, the part that the seeds' results need; `whole` without pruning."""
    degree_rows: Tensor
    """float64 [N] or [N, 3], `degree` with the self loops of the whole graph beside it if it has any and the model
    reads them."""
    epoch: int = 0

    @property
    def degree(self) -> Tensor:
        """float64 [N], in-degree in the whole graph (weighted: the sum of its in-edges' weights), whatever edges are
        pruned."""
        return degrees_alone(self.degree_rows)

    @property
    def seeds(self) -> IdArray:
        """int64 [num_seeds], local ids of the seeds in the rank's part."""
        return self.order[: self.num_seeds]

    @property
    def num_edges(self) -> int:
        """Edges that the first layer reads."""
        return self.layers[0].num_edges

    @property
    def nbytes(self) -> int:
        """Bytes of the edges (and of their transposes, which training makes), and of the arrays with an entry per
        row."""
        edges = sum(2 * (s.lists.indices.nbytes + s.edge.nbytes) for s in self.whole.shards)
        weights = sum(weight.nbytes for weight in present(s.weight for s in self.whole.shards))
        lists = sum(s.lists.indptr.nbytes + 8 * (s.lists.num_src + 1) for s in self.whole.shards)
        arrays = (self.names, self.order, self.numbers.first, self.numbers.own, *self.whole.wanted)
        rows = sum(a.nbytes for a in (*arrays, *present(s.rows for s in self.whole.shards)))
        return edges + weights + lists + rows

    def check(self) -> "FullBatch":
        """Check the invariants. Violations are bugs, hence assert."""
        n = len(self.names)
        assert len(np.unique(self.names)) == n and sorted(self.order) == list(range(n)) and 0 <= self.num_seeds <= n
        below = self.num_seeds
        for view in reversed(self.layers):
            assert below <= view.num_dst <= view.num_src <= n
            below = view.num_src
        for view in {id(v): v for v in (self.whole, *self.layers)}.values():
            for q, shard in enumerate(view.shards):
                assert shard.is_own == (q == self.rank)
                assert not shard.lists.num_edges or int(shard.lists.indices.max()) < shard.lists.num_src
                if shard.rows is None:
                    assert shard.lists.num_dst == view.num_dst and shard.lists.num_src == view.num_src
                else:
                    assert (np.diff(shard.rows) > 0).all() and (not len(shard.rows) or shard.rows[-1] < view.num_dst)
                    assert len(np.unique(shard.lists.indices)) == shard.lists.num_src, "a source that no edge reads"
            for wanted in view.wanted:
                assert len(np.unique(wanted)) == len(wanted) and (not len(wanted) or wanted.max() < view.num_src)
        return self


class GivenRows(NamedTuple):
    """What layers of a full batch know of the features."""

    dtype: torch.dtype
    edges: Tensor | None = None
    """[e, D] on the device, features of all edges of the rank, in the order of its part; None: they have none."""
    device: torch.device | None = None
    """Where they lie; None: on the host."""


class WantedRows(NamedTuple):
    """What layers of a full batch are for."""

    seeds: IdArray
    """Local ids that the loss is over."""
    num_layers: int
    prune: bool = False
    """Leave out rows and edges of each layer that the seeds' results do not depend on."""


def arrange(
    shards: EdgeShards, owned: IdArray, of: WantedRows, group: Group, reads_loops: bool, empty: Empty = in_memory
) -> FullBatch:
    """Order a rank's rows and edges as layers need them, and agree with the other ranks on the rows that travel.

    All ranks call this at the same time. Messages count as ``graph``.

    Args:
        shards: N rows.
        owned: int64 [N], their global ids.
        of: what the layers are for.
        group: the ranks, one for each part.
        reads_loops: the model reads the self loops of the whole graph.
        empty: makes the arrays of edges, those of their transposes too.
    """
    (seeds, num_layers, prune), num_rows, rank = of, len(owned), group.rank
    hops = np.full(num_rows, FAR, np.uint8)
    hops[seeds] = 0
    if prune:
        _spread(shards, hops, num_layers, group)
    order = np.argsort(hops, kind="stable")
    place = np.empty(num_rows, np.int32)
    place[order] = np.arange(num_rows, dtype=np.int32)
    hops = hops[order]
    # Level k holds the nodes at most k hops away; the last one holds all.
    levels = num_layers + 1 if prune else 0
    row_ends = [int(np.searchsorted(hops, k, side="right")) for k in range(levels)] + [num_rows]
    own_ends = [*row_ends[1:], num_rows]

    arranged, list_ends, asked, ends = [], [], [], []
    for q in range(group.size):
        shard, near = _arranged(shards, q, place, hops, empty)
        if q == rank:
            shard = _spelt_out(shard, num_rows)
            asked.append(np.empty(0, np.int64))
            list_ends.append(row_ends)
            ends.append(own_ends)
        else:
            # Sources that nearer rows read come first.
            by_need = np.argsort(near, kind="stable")
            turned = np.empty(len(near), np.int32)
            turned[by_need] = np.arange(len(near), dtype=np.int32)
            for edges in pieces(0, shard.lists.num_edges):
                shard.lists.indices[edges] = turned[shard.lists.indices[edges]]
            asked.append(
                shards.sources[shards.source_splits[q] : shards.source_splits[q + 1]].astype(np.int64)[by_need]
            )
            list_ends.append([int(np.searchsorted(shard.rows_of(0, shard.lists.num_dst), end)) for end in row_ends])
            ends.append([int(np.searchsorted(near[by_need], k, side="right")) for k in range(levels)] + [len(near)])
        arranged.append(shard)
    message = group.all_to_all([torch.from_numpy(a) for a in asked], "graph")
    told_ends = group.all_to_all([torch.tensor(e) for e in ends], "graph")
    wanted = [place[ids.numpy()] for ids in message]

    def view(k: int) -> View:
        heads = tuple(s.head(n[k], e[k]) for s, n, e in zip(arranged, list_ends, ends))
        mine = tuple(w[: int(e[k])] for w, e in zip(wanted, told_ends))
        return View(row_ends[k], own_ends[k], heads, mine)

    whole = view(levels)
    layers = tuple(view(num_layers - 1 - i) if prune else whole for i in range(num_layers))
    numbers = EdgeNumbers(
        first=(shards.first_edge - _part_indptr(shards, num_rows))[order],
        own=(shards.total_edges + owned)[order],
        edge=None,
    )
    degree = whole.kept.astype(np.float64) if whole.weights is None else whole.weights
    rows = agreed(_loops_beside(degree, whole.shards[rank]), group) if reads_loops else torch.from_numpy(degree)
    return FullBatch(rank, owned[order], order, len(seeds), numbers, whole, layers=layers, degree_rows=rows)


def _loops_beside(degree: Float64Array, own: Shard) -> Float64Array:
    """float64 [N, 3], see `stages.self_loops`; `own` are the edges between the rank's rows."""
    loops = np.flatnonzero(own.lists.indices == own.lists.rows)
    # In the order of the part, of which the last loop stays.
    loops = loops[np.argsort(own.edge[loops], kind="stable")]
    return degree_rows(degree, own.lists.rows[loops], when_present(lambda weight: weight.numpy()[loops], own.weight))


def _part_indptr(shards: EdgeShards, num_rows: int) -> IdArray:
    """int64 [N], position of each row's first edge in the order of the part."""
    kept = np.zeros(num_rows, np.int64)
    np.add.at(kept, shards.rows, shards.counts)
    return np.cumsum(kept) - kept


def _lists(shards: EdgeShards, q: int) -> tuple[Int32Array, Int32Array, slice]:
    """Rows of shard q, edges of each, and positions of the edges."""
    of = slice(int(shards.row_splits[q]), int(shards.row_splits[q + 1]))
    return shards.rows[of], shards.counts[of], slice(int(shards.edge_splits[q]), int(shards.edge_splits[q + 1]))


def _spread(shards: EdgeShards, hops: npt.NDArray[np.uint8], num_layers: int, group: Group) -> None:
    """Set `hops` to each node's distance to the nearest seed, against the edges, up to `num_layers`."""
    asked = [np.zeros(int(n), bool) for n in np.diff(shards.source_splits)]
    for hop in range(1, num_layers + 1):
        own, parts = np.zeros(len(hops), bool), []
        for q in range(group.size):
            rows, counts, edges = _lists(shards, q)
            new = own if q == group.rank else np.zeros(len(asked[q]), bool)
            for first, stop, part in _runs(counts, edges.start):
                new[shards.indices[part][np.repeat(hops[rows[first:stop]] == hop - 1, counts[first:stop])]] = True
            if q == group.rank:
                own &= hops == FAR
                parts.append(np.empty(0, np.int64))
                continue
            new &= ~asked[q]
            asked[q] |= new
            first = int(shards.source_splits[q])
            parts.append(shards.sources[first + np.flatnonzero(new)].astype(np.int64))
        message = group.all_to_all([torch.from_numpy(p) for p in parts], "graph")
        # Only now, so that the nodes found in this hop do not join its own frontier.
        hops[own] = hop
        for ids in message:
            ids = ids.numpy()
            hops[ids[hops[ids] == FAR]] = hop


def _runs(counts: IntArray, begin: int = 0) -> Iterator[tuple[int, int, slice]]:
    """Runs of lists with so many edges each: first list, stop, and their edges, which begin at `begin`."""
    indptr = starts_of(counts)
    for first, stop in row_ranges(indptr):
        yield first, stop, slice(begin + int(indptr[first]), begin + int(indptr[stop]))


def _arranged(
    shards: EdgeShards, q: int, place: Int32Array, hops: npt.NDArray[np.uint8], empty: Empty
) -> tuple[Shard, npt.NDArray[np.uint8]]:
    """Shard q with its lists in the new order of rows, and for each source the level of the nearest row that reads
    it."""
    rows, counts, of = _lists(shards, q)
    rows = place[rows]
    turn = np.argsort(rows)
    starts, counts, rows = (np.cumsum(counts) - counts)[turn] + of.start, counts[turn], rows[turn]
    indptr = starts_of(counts)
    own, num_edges = q == shards.part, int(indptr[-1])
    indices, edge = empty(num_edges, np.int32), empty(num_edges, shards.edge.dtype)
    weight = None if shards.edge_weight is None else empty(num_edges, np.float32)
    near = np.full(0 if own else int(shards.source_splits[q + 1] - shards.source_splits[q]), FAR, np.uint8)
    # Of several assignments to one element the last one stays, and the nearest rows come first.
    for first, stop, edges in reversed([*_runs(counts)]):
        at = np.repeat(starts[first:stop] - indptr[first:stop], counts[first:stop])
        at += np.arange(edges.start, edges.stop)
        sources = shards.indices[at]
        if not own:
            near[sources[::-1]] = np.repeat(hops[rows[first:stop]], counts[first:stop])[::-1]
        indices[edges], edge[edges] = place[sources] if own else sources, shards.edge[at]
        if weight is not None and shards.edge_weight is not None:
            weight[edges] = shards.edge_weight[at]
    lists = InLists.from_arrays(indptr, indices, len(place) if own else len(near), empty)
    return Shard(lists, rows, edge, when_present(torch.from_numpy, weight)), near


def _spelt_out(shard: Shard, num_rows: int) -> Shard:
    """A list for every row: the rank's own shard."""
    kept = np.zeros(num_rows, np.int64)
    kept[shard.targets] = shard.lists.kept
    indptr = starts_of(kept)
    lists = InLists.from_arrays(indptr, shard.lists.indices, num_rows, shard.lists.empty)
    return Shard(lists, None, shard.edge, shard.weight)
