"""Exact ranks of pairs: how a decoder orders them, from the rows of all nodes.

A positive pair (u, v) is ranked among the pairs (u, w) of all nodes w but u that are not known to be linked to u (the
*filtered* ranking of Bordes et al., NeurIPS 2013), or among the given negatives of its set. In a graph with types, w is
of the type of v, and linked is what the pair's relation links. Its rank is 1, plus the number of negatives with a
larger score, plus half of those with the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import AnyArray, IntArray, Mask
from ...storage.dataset import IdArray
from ...storage.graph import Graph
from ...storage.links.pairs import (
    POSITIVE,
    PairArray,
    contains,
    is_symmetric,
    keys_of,
    keys_of_pairs,
    node_ranges,
    of_pairs,
)
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..kernels.runtime.threads import side_by_side
from ..links.decoders import FEW
from ..random import Purpose, branches, draw_word, stream

HITS = (1, 3, 10, 50, 100)
LINK_METRICS = ("mrr", "auc", "average_precision", *(f"hits@{k}" for k in HITS))
ALWAYS = ("mrr", "auc", "average_precision", "hits@10")
"""Metrics that every evaluation has."""
CHUNK_BYTES = 64 << 20
"""Bytes of rows that are held at once to score pairs."""
OWN_BYTES = 4 << 20
"""Bytes of rows that a thread gives at once to a decoder that has no products of its own."""
PAIRS, NODES = 256, 1024
"""Pairs and nodes whose scores a thread holds at once to rank: 1 MiB of float32."""
PAIRS_THERE, NODES_THERE = 1024, 16384
"""The same on a device, where launches are dear: 64 MiB."""
SLAB = 32
"""Blocks of nodes for which known pairs are looked up at once."""
TRIES = 100


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """Pairs of nodes that are linked: edges of the graph and positive pairs of all sets."""

    num_nodes: int
    keys: PairArray
    """Ascending `keys_of` directed pairs. Of a symmetric graph, both directions."""
    ends: tuple[range, range] | None = field(default=None, kw_only=True)
    """See `storage.links.pairs.node_ranges`; None: all nodes."""

    @classmethod
    def from_graph(
        cls, graph: Graph, labels: AnyArray, edges: Mask | None = None, types: GraphTypes = SINGLE
    ) -> "KnownPairs":
        """Known pairs of the `edges`, a mask [E], or of all, and of `labels` of one relation (see
        `storage.links.pairs`): that of `types`, if not of the graph's."""
        pairs, types = labels[labels[:, 2] == POSITIVE, :2], graph.types if types.is_single else types
        both = np.concatenate([pairs, pairs[:, ::-1]]) if is_symmetric(graph, types) else pairs
        linked = keys_of_pairs(graph, types)
        linked = linked if edges is None else linked[edges[of_pairs(graph, types=types)]]
        keys = [linked, keys_of(both[:, 0], both[:, 1], graph.num_nodes)]
        return cls(graph.num_nodes, np.unique(np.concatenate(keys)), ends=node_ranges(types, graph.num_nodes))

    @property
    def turned(self) -> "KnownPairs":
        """The same with each pair reversed, to rank sources as destinations are."""
        source, destination = self.keys // self.num_nodes, self.keys % self.num_nodes
        ends = None if self.ends is None else self.ends[::-1]
        return KnownPairs(self.num_nodes, np.sort(keys_of(destination, source, self.num_nodes)), ends=ends)

    @property
    def candidates(self) -> range:
        """Nodes that a destination is ranked among."""
        return range(self.num_nodes) if self.ends is None else self.ends[1]

    def destinations(self, sources: IdArray) -> tuple[IdArray, IdArray]:
        """Positions in `sources` [n], and the known destinations of each, [e] both."""
        return self.between(*[np.searchsorted(self.keys, (sources + i) * self.num_nodes) for i in (0, 1)])

    def between(self, begin: IdArray, end: IdArray) -> tuple[IdArray, IdArray]:
        """Positions in `begin` [n], and the destinations of the keys from each of `begin` to before `end`, [e] both."""
        counts = end - begin
        rows = np.repeat(np.arange(len(counts)), counts)
        at = np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        return rows, self.keys[at] % self.num_nodes

    def unknown(self, count: int, name: str) -> PairArray:
        """int64 [n, 2], at most `count` uniform pairs of different nodes that are not known to be linked; fewer, if
        hardly any are there. The same in every call and run."""
        return unknown_pairs(self.num_nodes, count, name, partial(contains, self.keys), self.ends)


@dataclass(frozen=True, eq=False)
class Turned:
    """A decoder of pairs whose ends have changed places."""

    decoder: Any
    """See `links.decoders.Decoder`."""

    def __call__(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """[n], scores of the pairs (destination, source)."""
        return self.decoder(destinations, sources)

    def against(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """[n, m], scores of all pairs (destination, source), which the caller may overwrite."""
        return scores_against(self.decoder, destinations, sources).T.contiguous()


def unknown_pairs(
    num_nodes: int, count: int, name: str, known: Callable[[PairArray], Mask], ends: tuple[range, range] | None = None
) -> PairArray:
    """See `KnownPairs.unknown`; `known` says which keys are those of linked pairs."""
    ends = ends or (range(num_nodes), range(num_nodes))
    found = np.empty((0, 2), np.int64)
    for attempt in range(TRIES):
        key = stream(attempt, Purpose.NEGATIVE, *name.encode())
        words = branches(key, np.arange(count))
        x = [(draw_word(words, i) >> np.uint64(11)).astype(np.float64) * 2.0**-53 for i in (0, 1)]
        pairs = np.stack([r.start + (part * len(r)).astype(np.int64) for part, r in zip(x, ends)], axis=1)
        linked = known(keys_of(pairs[:, 0], pairs[:, 1], num_nodes))
        found = np.concatenate([found, pairs[~linked & (pairs[:, 0] != pairs[:, 1])]])
        if len(found) >= count:
            break
    return found[:count]


def score_pairs(decoder: Any, rows: Tensor, pairs: PairArray) -> Tensor:
    """[n], scores of pairs [n, 2], in pieces."""
    step = max(1, CHUNK_BYTES // max(1, 2 * rows.shape[1] * rows.element_size()))
    ends = _on_device(pairs, rows)
    found = [decoder(rows[piece[:, 0]], rows[piece[:, 1]]) for piece in ends.split(step)] if len(pairs) else []
    return torch.cat([*found, rows.new_zeros(0)])


def _on_device(ids: IntArray, rows: Tensor) -> Tensor:
    """Copy of some ids on the device of the rows; the same memory, if that is the host."""
    return torch.from_numpy(np.ascontiguousarray(ids)).to(rows.device)


def ranks_among(positive: Tensor, negative: Tensor) -> Tensor:
    """float64 [n], rank of each positive score among the negative ones [m]."""
    ordered = negative.sort().values
    below, upto = (torch.searchsorted(ordered, positive, right=right).double() for right in (False, True))
    return 1 + (len(ordered) - upto) + (upto - below) / 2


def filtered_ranks(decoder: Any, rows: Tensor, pairs: PairArray, known: KnownPairs) -> Tensor:
    """float64 [n], rank of each pair (u, v) among all (u, w), w not u and of `known.candidates`, that are not known.

    Pairs are taken `PAIRS` at a time against `NODES` nodes, whose scores fit the cache, on all threads, or more of both
    on the device of the rows. All these products have the same shape, so that equal rows have equal scores wherever
    they stand.
    """
    on_host = rows.device.type == "cpu"
    most, width = (PAIRS, NODES) if on_host else (PAIRS_THERE, NODES_THERE)
    ranks, size = torch.zeros(len(pairs), dtype=torch.float64), max(1, min(most, len(pairs)))
    # A product with one row has kernels of its own, which need not give equal rows the same score.
    padded = max(FEW, size)

    def rank(first: int) -> None:
        chunk = pairs[np.arange(first, first + padded) % len(pairs)]
        with torch.no_grad():
            found = _ranks_of(decoder, rows, chunk, known, width)
        ranks[first : first + size] = found[: len(pairs) - first][:size]

    chunks = [(first,) for first in range(0, len(pairs), size)]
    if on_host:
        side_by_side(rank, chunks)
    else:
        for (first,) in chunks:
            rank(first)
    return ranks


def _ranks_of(decoder: Any, rows: Tensor, pairs: PairArray, known: KnownPairs, width: int) -> Tensor:
    """float64 [n] on the host, `filtered_ranks` of a few pairs against `width` nodes at a time."""
    among = known.candidates
    size, width = len(pairs), min(len(among), width)
    sources = rows[_on_device(pairs[:, 0], rows)]
    own = _own_scores(decoder, sources, rows, pairs[:, 1], width)
    # 1 for each node with a larger score, -1 for each with a smaller one, 0 for the same and for those left out.
    balance = torch.zeros(size, dtype=torch.float64, device=rows.device)
    left_out = np.zeros(size, np.int64)
    for block in blocks_of_candidates(pairs[:, 0], known, width):
        signs = scores_against(decoder, sources, rows[block.start : block.start + width]).sub_(own).sign_()
        block.leave_out(signs, 0)
        balance += signs[:, block.first - block.start :].sum(1)
        left_out += np.bincount(block.at, minlength=size)
    return 1 + (torch.from_numpy(len(among) - left_out) + balance.cpu()) / 2


@dataclass(frozen=True, eq=False)
class CandidateBlock:
    """Candidates whose scores are computed together."""

    start: int
    """The first of the nodes. All blocks have as many."""
    first: int
    """The first that no earlier block has."""
    at: IdArray
    """int64 [e], positions of sources."""
    columns: IdArray
    """int64 [e], each a node of the block that is left out for that source, from 0; none is there twice."""

    def leave_out(self, scores: Tensor, value: float) -> None:
        """Write `value` in place of the scores [n, w] of nodes that are left out."""
        if scores.is_cuda:
            scores[_on_device(self.at, scores), _on_device(self.columns, scores)] = value
        else:
            scores.numpy()[self.at, self.columns] = value


def blocks_of_candidates(sources: IdArray, known: KnownPairs, width: int) -> Iterator[CandidateBlock]:
    """All candidates in order, `width` at a time, without each source itself and its known destinations. The last
    block begins among the nodes of the one before it."""
    among, keys = known.candidates, sources * known.num_nodes
    own = np.flatnonzero((among.start <= sources) & (sources < among.stop))
    own = own[~contains(known.keys, keys[own] + sources[own])]
    begin = np.searchsorted(known.keys, keys + among.start)
    # Known pairs of so few blocks take little memory.
    for slab in among[:: SLAB * width]:
        tiles = range(slab, min(slab + SLAB * width, among.stop), width)
        end = np.searchsorted(known.keys, keys + tiles.stop)
        itself = own[(tiles.start <= sources[own]) & (sources[own] < tiles.stop)]
        at, out = (np.concatenate(a) for a in zip(known.between(begin, end), (itself, sources[itself])))
        order = np.argsort(out, kind="stable")
        splits = np.searchsorted(out[order], [*tiles, tiles.stop])
        at, out = at[order], out[order]
        for number, first in enumerate(tiles):
            start, here = min(first, among.stop - width), slice(*splits[number : number + 2])
            yield CandidateBlock(start, first, at[here], out[here] - start)
        begin = end


def scores_against(decoder: Any, sources: Tensor, destinations: Tensor) -> Tensor:
    """Scores of all pairs, [n, D] and [m, D] -> [n, m], a tensor that the caller may overwrite. A decoder of a user
    that has no `against` (see `links.decoders.Decoder`) gets pairs."""
    if hasattr(decoder, "against"):
        return decoder.against(sources, destinations)
    count = len(destinations)
    few = max(1, OWN_BYTES // max(1, 2 * count * sources.shape[1] * sources.element_size()))
    found = (decoder(s.repeat_interleave(count, 0), destinations.repeat(len(s), 1)) for s in sources.split(few))
    return torch.cat([scores.reshape(-1, count) for scores in found])


def _own_scores(decoder: Any, sources: Tensor, rows: Tensor, destinations: IdArray, width: int) -> Tensor:
    """[n, 1], scores of pairs by products of the shape [n, width] that all scores come from."""
    found = []
    for first in range(0, len(destinations), width):
        columns = np.arange(first, first + width) % len(destinations)
        scores = scores_against(decoder, sources, rows[_on_device(destinations[columns], rows)])
        found.append(scores.diagonal(-first) if first else scores.diagonal())
    return torch.cat(found)[: len(destinations), None]
