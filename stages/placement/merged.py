"""Merges several parts into one: a rank's chunks as the single part that distributed evaluation expects."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ...storage.array_kinds import Float32Array, IdArray
from ...storage.dataset import SPLITS, Split
from ...storage.features import ArrayFeatures
from ...storage.graph import index_dtype, run_starts
from ...storage.partition.edge_shards import EdgeShards
from ..messages import Part
from .chunks import lists_of, sources_of


def merged(parts: Sequence[Part], sizes: IdArray) -> Part:
    """The parts m r to m r + m - 1 of Q as part r of Q / m, row after row; features are in memory.

    Rows ascend within each of the parts only. O(e log e + N F) for e edges and N rows.

    Args:
        parts: m of them, in order; the first one's number is a multiple of m.
        sizes: int64 [Q], the rows of each of all parts.
    """
    m = len(parts)
    rank, rest = divmod(parts[0].shards.part, m)
    assert not rest and [p.shards.part for p in parts] == list(range(rank * m, rank * m + m))
    # First row of each part among the rows that it is merged with.
    starts = (np.cumsum(sizes.reshape(-1, m), 1) - sizes.reshape(-1, m)).reshape(-1)
    rows, owners, sources, places, weights, edges = [], [], [], [], [], 0
    for part in parts:
        shards = part.shards
        for s in range(shards.num_parts):
            row, source, weight = edges_of(shards, s)
            rows.append(row + starts[shards.part])
            owners.append(np.full(len(row), s // m))
            sources.append(source + starts[s])
            places.append(shards.edge[shards.edge_splits[s] : shards.edge_splits[s + 1]].astype(np.int64) + edges)
            weights.append(weight)
        edges += shards.num_edges
    row, owner, source, place = (np.concatenate(a) for a in (rows, owners, sources, places))
    order = np.lexsort((place, owner))
    row, owner, source, place = row[order], owner[order], source[order], place[order]
    ranks = np.arange(len(sizes) // m + 1)

    far = owner != rank
    asked, at = np.unique((owner[far] << 40) + source[far], return_inverse=True)
    source_splits = np.searchsorted(asked >> 40, ranks)
    source[far] = at - source_splits[owner[far]]
    lists = np.flatnonzero(run_starts(row, owner))
    shards = EdgeShards(
        rank,
        row_splits=np.searchsorted(owner[lists], ranks).astype(np.int64),
        rows=row[lists].astype(np.int32),
        counts=np.diff(lists, append=edges).astype(np.int32),
        edge_splits=np.searchsorted(owner, ranks).astype(np.int64),
        indices=source.astype(np.int32),
        edge=place.astype(index_dtype(edges)),
        source_splits=source_splits.astype(np.int64),
        sources=(asked & ((1 << 40) - 1)).astype(np.int32),
        first_edge=np.concatenate([p.shards.first_edge for p in parts]),
        total_edges=parts[0].shards.total_edges,
        edge_weight=None if weights[0] is None else np.concatenate(weights)[order],
    )
    stores = [p.edge_features for p in parts if p.edge_features is not None]
    of_edges = [s.gather(np.arange(s.num_rows)) for s in stores]
    split = {name: np.concatenate([getattr(p.split, name) + starts[p.shards.part] for p in parts]) for name in SPLITS}
    return replace(
        parts[0],
        shards=shards,
        owned=np.concatenate([p.owned for p in parts]),
        features=ArrayFeatures(np.concatenate([p.features.gather(np.arange(len(p.owned))) for p in parts])),
        labels=torch.cat([p.labels for p in parts]),
        split=Split(**split),
        edge_features=ArrayFeatures(np.concatenate(of_edges)) if of_edges else None,
    )


def edges_of(shards: EdgeShards, s: int) -> tuple[IdArray, IdArray, Float32Array | None]:
    """Row and source of each edge of shard s, both as local ids at their owners, and weights."""
    rows, counts, indices, weight = lists_of(shards, s)
    sources = indices.astype(np.int64) if s == shards.part else sources_of(shards, s)[indices]
    return np.repeat(rows.astype(np.int64), counts), sources, None if shards.edge_weight is None else weight
