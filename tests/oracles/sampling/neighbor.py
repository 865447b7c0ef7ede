"""Bulk sampling as the paper writes it: sparse matrix products in SciPy, slow and simple, the oracle of every other
kernel.

The skeleton (Tripathy, Yelick, Buluc, MLSys 2024), for every hop of the whole bulk at once:

    select      Q   one row per frontier node, a single one in its column
    multiply    P = Q A
    normalise   P   rows divided by their sums
    sample      S   at most s distinct columns of each row of P
    extract     B   the sampled edges, columns renumbered within their minibatch

A is taken edge by edge, V x E (row v has a one at each of its in-edges), so that parallel edges stay apart and an edge
keeps its position; edge e's source is `graph.indices[e]`.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from millrace.stages.kernels.sampling.alias import AliasTable
from millrace.stages.kernels.sampling.draws import NeighborDraws
from millrace.stages.kernels.sampling.samples import EdgeList, NeighborSample
from millrace.stages.random import branches, draw, node_words
from millrace.storage.graph import Graph
from millrace.tests.oracles.sampling import alias
from millrace.tests.oracles.sampling.skeleton import edges_of, normalise, select


def _columns(P: sp.csr_array, r: int) -> npt.NDArray[np.int64]:
    return P.indices[P.indptr[r] : P.indptr[r + 1]].astype(np.int64)


def _sample_uniform(degree: int, word: npt.NDArray[np.uint64], s: int) -> list[int]:
    """s distinct positions below `degree`, each set equally likely: Floyd's algorithm."""
    picks: list[int] = []
    for i in range(s):
        last = degree - s + i
        pick = int(draw(word, i)[0]) * (last + 1) >> 32
        picks.append(last if pick in picks else pick)
    return picks


def _sample_row(
    columns: npt.NDArray[np.int64],
    table: AliasTable | None,
    word: npt.NDArray[np.uint64],
    s: int,
    replace: bool,
) -> npt.NDArray[np.int64]:
    """Columns of one row of P, in the order of the draws."""
    degree = len(columns)
    if s < 0 or not degree:
        return columns
    if table is None:
        if replace:
            return columns[[int(draw(word, i)[0]) * degree >> 32 for i in range(s)]]
        return columns if degree <= s else columns[_sample_uniform(degree, word, s)]
    slots = table.slots[columns]
    if not replace:
        return columns[alias.successive(slots, table.weight[columns], word, s)]
    return columns[[alias.pick(slots, word, i) for i in range(s)]] if slots.any() else columns[:0]


def neighbor(graph: Graph, asked: NeighborDraws) -> list[NeighborSample]:
    """See `cpu.neighbor.neighbor`: the same arguments, the same bits."""
    seeds, keys, fanout, expand, replace = asked.seeds, asked.keys, asked.fanout, asked.expand, asked.replace
    keep_positions, table = asked.keep_positions or not graph.types.is_single, asked.table
    A = edges_of(graph)
    k = len(seeds)
    nodes = [np.asarray(s, np.int64) for s in seeds]
    begin = [0] * k
    node_ends = [[len(s)] for s in nodes]
    rows: list[list[list[npt.NDArray[np.int64]]]] = [[] for _ in range(k)]
    for h, s in enumerate(fanout):
        frontiers = [nodes[q][begin[q] :] for q in range(k)]
        Q = select([np.array([v]) for frontier in frontiers for v in frontier], graph.num_nodes)
        P = normalise(Q @ A)
        P.sort_indices()
        words = (
            np.concatenate([node_words(int(keys[q, h]), frontiers[q]) for q in range(k)])
            if k
            else np.empty(0, np.uint64)
        )
        if graph.types.is_single:
            S = [_sample_row(_columns(P, r), table, words[r : r + 1], s, replace) for r in range(len(words))]
        else:
            streams = np.repeat(keys[:, h], [len(f) for f in frontiers])
            rows_ = zip(streams, np.concatenate(frontiers) if k else ())
            S = [_sample_relations(graph, _columns(P, r), key, v, s, replace) for r, (key, v) in enumerate(rows_)]
        at = 0
        for q in range(k):
            mine = S[at : at + len(frontiers[q])]
            at += len(frontiers[q])
            rows[q].append(mine)
            sources = graph.indices[np.concatenate(mine)] if mine else np.empty(0, np.int64)
            new = np.setdiff1d(sources, nodes[q])
            begin[q] = len(nodes[q]) if expand == "new" else 0
            nodes[q] = np.concatenate([nodes[q], new.astype(np.int64)])
            node_ends[q].append(len(nodes[q]))
    samples = []
    for q in range(k):
        lists = [[r for hop in rows[q] for r in hop]] if expand == "new" else rows[q]
        samples.append(
            NeighborSample(
                nodes[q].astype(graph.indices.dtype),
                tuple(node_ends[q]),
                tuple(extract_rows(graph, nodes[q], rows_, keep_positions, asked.keep_weights) for rows_ in lists),
            )
        )
    return samples if graph.types.is_single else [_with_weights(graph, s) for s in samples]


def _sample_relations(
    graph: Graph, columns: npt.NDArray[np.int64], key: np.uint64, v: int, fanout: npt.NDArray[np.int64], replace: bool
) -> npt.NDArray[np.int64]:
    """`_sample_row` of each relation of row v, one after the other, in a stream of the relation."""
    assert graph.edge_type is not None
    kinds = graph.edge_type[columns]
    picks = [
        _sample_row(columns[kinds == r], None, node_words(int(branches(int(key), [r])[0]), np.array([v])), s, replace)
        for r, s in enumerate(fanout.tolist())
    ]
    return np.concatenate([columns[:0], *picks])


def _with_weights(graph: Graph, sample: NeighborSample) -> NeighborSample:
    """Edges with the number of their row's edges in their relation divided by the number kept."""
    kinds = graph.edge_type
    assert kinds is not None

    def with_weights(e: EdgeList) -> EdgeList:
        assert e.positions is not None
        weight = np.empty(len(e.positions), np.float32)
        for i, v in enumerate(sample.nodes[: len(e.indptr) - 1]):
            kept, all_of_row = slice(e.indptr[i], e.indptr[i + 1]), kinds[graph.indptr[v] : graph.indptr[v + 1]]
            own = kinds[e.positions[kept]]
            weight[kept] = [np.sum(all_of_row == r) / np.sum(own == r) for r in own]
        return dataclasses.replace(e, weight=weight)

    return dataclasses.replace(sample, lists=tuple(map(with_weights, sample.lists)))


def extract_rows(
    graph: Graph,
    nodes: npt.NDArray[np.int64],
    rows: list[npt.NDArray[np.int64]],
    keep_positions: bool,
    keep_weights: bool = False,
) -> EdgeList:
    """Edges at positions in the graph, row by row, with the places of their sources among `nodes`."""
    positions = np.concatenate(rows) if rows else np.empty(0, np.int64)
    local = np.full(graph.num_nodes, -1, np.int32)
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    return EdgeList(
        np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int32),
        local[graph.indices[positions]],
        positions.astype(np.int64) if keep_positions else None,
        graph.edge_weight[positions] if keep_weights and graph.edge_weight is not None else None,
    )
