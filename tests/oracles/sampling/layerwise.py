"""Layer-wise sampling (LADIES, FastGCN) by the skeleton of `reference.skeleton`, in SciPy: slow and simple, the oracle
of `cpu.layerwise`.

LADIES: Zou et al., NeurIPS 2019, algorithm 1. FastGCN: Chen, Ma, Xiao, ICLR 2018. In bulk: MLSys 2024.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from millrace.stages.kernels.sampling.draws import LayerDraws
from millrace.stages.kernels.sampling.layerwise import (
    Drawn,
    LayerSample,
    factors,
    fraction_bits,
    integers,
    same_scale,
    squares,
    weight_scale,
)
from millrace.storage.graph import Graph
from millrace.tests.oracles.sampling.skeleton import edges_of, extract, normalise, sample, select


@dataclass(frozen=True, eq=False)
class SquaredWeights:
    """W o W in fixed point, edge by edge: entry e of row v, then the row's own loop."""

    edge: npt.NDArray[np.int64]
    """int64 [E]."""
    loop: npt.NDArray[np.int64]
    """int64 [V]."""
    matrix: sp.csr_array
    """int64 [V, V]: entries with the same row and column stand side by side (their sum counts)."""

    @classmethod
    def of(cls, graph: Graph) -> "SquaredWeights":
        """Build from the edge weights, or ones."""
        V, E = graph.num_nodes, graph.num_edges
        scale = 1.0 if graph.edge_weight is None else weight_scale(float(graph.edge_weight.max(initial=0.0)))
        a = np.ones(E, np.int64) if graph.edge_weight is None else integers(graph.edge_weight, scale)
        own = integers(np.ones(V), scale)
        row = np.repeat(np.arange(V), graph.in_degree)
        degree = own.copy()
        np.add.at(degree, row, a)
        edge, loop = squares(a, degree[row], fraction_bits(V)), squares(own, degree, fraction_bits(V))
        at = np.arange(E) + row
        columns, data = np.empty(E + V, np.int64), np.empty(E + V, np.int64)
        ends = graph.indptr[1:] + np.arange(V)
        columns[at], columns[ends] = graph.indices, np.arange(V)
        data[at], data[ends] = edge, loop
        indptr = graph.indptr + np.arange(V + 1)
        return cls(edge, loop, sp.csr_array((data, columns, indptr), shape=(V, V)))

    def terms(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Terms that Q (W o W) adds up for these rows, and their columns."""
        m = self.matrix
        at = np.concatenate([np.empty(0, np.int64), *[np.arange(int(m.indptr[v]), int(m.indptr[v + 1])) for v in rows]])
        return np.asarray(m.data[at], np.int64), np.asarray(m.indices[at], np.int64)


def layers(graph: Graph, asked: LayerDraws) -> list[LayerSample]:
    """See `cpu.layerwise.layers`: the same arguments, the same bits."""
    seeds, keys, debias, every_row = asked.seeds, asked.keys, asked.debias, asked.every_row
    V, k = graph.num_nodes, len(seeds)
    A, squared = edges_of(graph), SquaredWeights.of(graph)
    nodes = [np.asarray(s, np.int64) for s in seeds]
    ends = [[len(s)] for s in nodes]
    blocks: list[list[tuple[Any, ...]]] = [[] for _ in range(k)]
    for h, s in enumerate(asked.sizes):
        rows = [np.arange(V)] * k if every_row else nodes
        Q = select(rows, V)
        P = sp.csr_array(Q @ squared.matrix)
        p = normalise(P)
        for q in range(k):
            # Drawn from the exact integers: FastGCN's one row of P as it is, LADIES' row before its terms are added up.
            # pyrefly: ignore[missing-attribute]
            terms = (P[[q]].toarray().ravel(), np.arange(V)) if every_row else squared.terms(nodes[q])
            drawn = sample(int(keys[q, h]), s, *terms, debias)
            dst, new = nodes[q], np.setdiff1d(drawn.nodes, nodes[q])
            nodes[q] = np.concatenate([dst, new])
            ends[q].append(len(nodes[q]))
            indptr, indices, positions = extract(graph, A, dst, nodes[q])
            # pyrefly: ignore[missing-attribute]
            weight = _debias(graph, debias, dst, nodes[q], indptr, indices, positions, p[[q]].toarray().ravel(), drawn)
            blocks[q].append((indptr, indices, weight, positions))
    return [
        LayerSample(
            nodes[q].astype(graph.indices.dtype),
            tuple(ends[q]),
            tuple(b[0] for b in blocks[q]),
            tuple(b[1] for b in blocks[q]),
            None
            if debias == "none" and graph.edge_weight is None
            else tuple(b[2] for b in blocks[q] if b[2] is not None),
            tuple(b[3] for b in blocks[q]) if asked.keep_positions else None,
        )
        for q in range(k)
    ]


def _debias(
    graph: Graph,
    debias: str,
    dst: npt.NDArray[np.int64],
    src: npt.NDArray[np.int64],
    indptr: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    p: npt.NDArray[np.float64],
    drawn: Drawn,
) -> npt.NDArray[np.float32] | None:
    if debias == "none" and graph.edge_weight is None:
        return None
    a = np.ones(len(indices)) if graph.edge_weight is None else graph.edge_weight[positions].astype(np.float64)
    c = a * factors(debias, p[src], src, len(dst), drawn)[indices]
    if same_scale(debias):
        row = np.repeat(np.arange(len(dst)), np.diff(indptr))
        sums = np.bincount(row, c, minlength=len(dst))
        edge_row = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
        whole = np.bincount(edge_row, graph.edge_weight, minlength=graph.num_nodes)[dst]
        c *= np.divide(whole, sums, out=np.zeros(len(dst)), where=sums > 0)[row]
    return c.astype(np.float32)


__all__ = ["SquaredWeights", "layers"]
