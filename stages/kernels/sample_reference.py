"""Bulk sampling as the paper writes it: sparse matrix products in SciPy. Slow, obvious, the oracle of every other kernel.

The skeleton (Tripathy, Yelick, Buluc, MLSys 2024), for every hop of the whole bulk at once:

    select      Q   one row per frontier node, a single one in its column
    multiply    P = Q A
    normalise   P   rows divided by their sums
    sample      S   at most s distinct columns of each row of P
    extract     B   the sampled edges, columns renumbered within their minibatch

A is taken edge by edge, V x E (row v has a one at each of its in-edges), so that parallel edges stay apart and an edge keeps its
place; edge e's source is `graph.indices[e]`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ...storage.graph import Graph
from ..random import draw, node_words
from .sampled import NeighborSample


def _select(frontier: npt.NDArray[np.int64], num_nodes: int) -> sp.csr_array:
    rows = len(frontier)
    return sp.csr_array((np.ones(rows), frontier, np.arange(rows + 1)), shape=(rows, num_nodes))


def _normalise(P: sp.csr_array) -> sp.csr_array:
    total = np.asarray(P.sum(axis=1)).ravel()
    return sp.csr_array(sp.diags_array(1.0 / np.maximum(total, 1e-300)) @ P)


def _sample_uniform(P: sp.csr_array, words: npt.NDArray[np.uint64], s: int) -> list[npt.NDArray[np.int64]]:
    """At most s distinct columns of each row, each set equally likely: Floyd's algorithm on the row's positions."""
    P.sort_indices()
    sampled = []
    for r in range(len(words)):
        columns = P.indices[P.indptr[r] : P.indptr[r + 1]].astype(np.int64)
        assert np.allclose(P.data[P.indptr[r] : P.indptr[r + 1]], 1.0 / max(len(columns), 1)), "uniform rows only"
        degree = len(columns)
        if s < 0 or degree <= s:
            sampled.append(columns)
            continue
        picks: list[int] = []
        for i in range(s):
            last = degree - s + i
            pick = int(draw(words[r : r + 1], i)[0]) * (last + 1) >> 32
            picks.append(last if pick in picks else pick)
        sampled.append(columns[picks])
    return sampled


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    keep_positions: bool = False,
    workspace: object = None,
) -> list[NeighborSample]:
    """Sample k minibatches node by node, without replacement, every set of min(fanout, degree) in-edges equally likely.

    Only newly found nodes are expanded in the next hop.

    Args:
        graph: in-neighbour lists.
        seeds: k vectors of distinct node ids.
        keys: uint64 [k, L], the stream of each minibatch and hop.
        fanout: L numbers, nearest the seeds first; -1 takes every in-edge.
        keep_positions: also return where in the graph's edge arrays each edge lies.
        workspace: buffers to reuse (compiled kernels only).

    Returns:
        k samples.
    """
    V, E = graph.num_nodes, graph.num_edges
    A = sp.csr_array((np.ones(E), np.arange(E), graph.indptr), shape=(V, E))
    k = len(seeds)
    nodes = [np.asarray(s, np.int64) for s in seeds]
    begin = [0] * k
    node_ends = [[len(s)] for s in nodes]
    rows: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(k)]
    for h, s in enumerate(fanout):
        frontiers = [nodes[q][begin[q] :] for q in range(k)]
        Q = _select(np.concatenate(frontiers) if k else np.empty(0, np.int64), V)
        P = _normalise(Q @ A)
        words = np.concatenate([node_words(int(keys[q, h]), frontiers[q]) for q in range(k)])
        S = _sample_uniform(P, words, s)
        at = 0
        for q in range(k):
            mine = S[at : at + len(frontiers[q])]
            at += len(frontiers[q])
            rows[q].extend(mine)
            sources = graph.indices[np.concatenate(mine)] if mine else np.empty(0, np.int64)
            new = np.setdiff1d(sources, nodes[q])
            begin[q] = len(nodes[q])
            nodes[q] = np.concatenate([nodes[q], new.astype(np.int64)])
            node_ends[q].append(len(nodes[q]))
    return [_extract(graph, nodes[q], node_ends[q], rows[q], keep_positions) for q in range(k)]


def _extract(
    graph: Graph, nodes: npt.NDArray[np.int64], node_ends: list[int], rows: list[npt.NDArray[np.int64]], keep_positions: bool
) -> NeighborSample:
    positions = np.concatenate(rows) if rows else np.empty(0, np.int64)
    local = np.full(graph.num_nodes, -1, np.int32)
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    return NeighborSample(
        nodes.astype(graph.indices.dtype),
        tuple(node_ends),
        np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int32),
        local[graph.indices[positions]],
        positions.astype(np.int64) if keep_positions else None,
    )
