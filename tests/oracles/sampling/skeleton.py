"""Skeleton shared by all samplers, as the paper writes it (Tripathy, Yelick, Buluc, MLSys 2024), in SciPy.

For every hop of the whole bulk at once:

    select      Q   ones in the columns of frontier nodes
    multiply    P = Q A, or Q (W o W)
    normalise   P   rows divided by their sums
    sample      S   at most s distinct columns of each row of P
    extract     B   the sampled edges, columns renumbered within their minibatch

Node-wise samplers give Q a row for each frontier node, layer-wise ones a row for each minibatch.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from millrace.stages.kernels.sampling.layerwise import Drawn, budget, clock, complete, dart_word, with_replacement
from millrace.stages.random import GOLDEN, mix
from millrace.storage.graph import Graph


def select(frontiers: Sequence[npt.NDArray[np.integer]], num_nodes: int) -> sp.csr_array:
    """Q [k, V], int64: row q has a one in the column of each node of frontiers[q]."""
    indptr = np.concatenate([[0], np.cumsum([len(f) for f in frontiers])]).astype(np.int64)
    columns = np.concatenate([np.empty(0, np.int64), *frontiers]).astype(np.int64)
    return sp.csr_array((np.ones(len(columns), np.int64), columns, indptr), shape=(len(frontiers), num_nodes))


def normalise(P: sp.csr_array) -> sp.csr_array:
    """Rows divided by their sums; an empty row stays empty."""
    total = np.asarray(P.sum(axis=1)).ravel()
    return sp.csr_array(sp.diags_array(1.0 / np.maximum(total, 1e-300)) @ P)


def edges_of(graph: Graph) -> sp.csr_array:
    """A edge by edge, [V, E] float64 of ones: row v holds its in-edges, so that parallel edges stay apart."""
    E = graph.num_edges
    return sp.csr_array((np.ones(E), np.arange(E), graph.indptr), shape=(graph.num_nodes, E))


def sample(key: int, s: int, values: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], debias: str) -> Drawn:
    """SAMPLE for one row of P: inverse transform sampling, one dart after the other, until s distinct columns are hit.

    That is successive sampling: each next column in proportion to P among those not hit yet.

    Args:
        key: the stream.
        s: columns wanted; all of them if there are fewer.
        values: int64, the terms of the row of P: those with the same column add up to an entry.
        columns: int64, the column of each term.
        debias: "with_replacement" throws s darts and keeps repeats; "bottom_k" also needs the time of the next hit.
    """
    prefix = np.cumsum(values)
    total = int(prefix[-1]) if len(prefix) else 0
    if not total:
        return with_replacement(np.empty(0, np.int64))
    word, limit = dart_word(key), s if debias == "with_replacement" else budget(s)
    hits: list[int] = []
    for j in range(limit):
        with np.errstate(over="ignore"):
            bits = int(mix(np.array([word + np.uint64(j + 1) * GOLDEN]))[0])
        hit = int(columns[np.searchsorted(prefix, bits * total >> 64, side="right")])
        if debias == "with_replacement":
            hits.append(hit)
        elif hit not in hits:
            hits.append(hit)
            if len(hits) == s + 1:
                return Drawn(np.array(hits[:s], np.int64), None, clock(key, j + 1))
    if debias == "with_replacement":
        return with_replacement(np.array(hits))
    candidates, place = np.unique(columns[values > 0], return_inverse=True)
    mass = np.zeros(len(candidates), np.int64)
    np.add.at(mass, place, values[values > 0])
    return complete(key, s, np.array(hits, np.int64), limit, total, candidates, mass)


def extract(
    graph: Graph, A: sp.csr_array, rows: npt.NDArray[np.int64], src: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """EXTRACT for one minibatch: the in-edges of `rows` whose source is in `src`.

    Returns:
        indptr int32 [rows + 1], indices int32 [e] into `src`, and positions int64 [e] in the graph's edge arrays.
    """
    B = sp.csr_array(select([np.array([v]) for v in rows], graph.num_nodes) @ A)
    B.sort_indices()
    local = np.full(graph.num_nodes, -1, np.int32)
    local[src] = np.arange(len(src), dtype=np.int32)
    positions = B.indices.astype(np.int64)
    column = local[graph.indices[positions]]
    kept = column >= 0
    row = np.repeat(np.arange(len(rows)), np.diff(B.indptr))[kept]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(rows)))]).astype(np.int32)
    return indptr, column[kept], positions[kept]
