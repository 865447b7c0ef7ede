"""LADIES and FastGCN in plain SciPy, a minibatch at a time, without any step that costs O(V).

Rows are sliced from W = D^-1 (A + I) for the frontier only, and columns are numbered within the slice. Blocks have the
authors'
weights: W / p, rows scaled to sum to 1. What depends on the graph alone (W, FastGCN's q) is made once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layer:
    """One hop's block, with global ids."""

    dst: Ids
    """[n]."""
    src: Ids
    """[m]; the destinations first where they join."""
    block: sp.csr_array
    """float [n, m]; W's loops are entries like others."""


class LayerwiseScipy:
    """Both samplers on one graph.

    Args:
        indptr: int64 [V+1], in-neighbour lists.
        indices: int32 [E].
        sizes: nodes drawn per layer, nearest the seeds first.
        join: drawn nodes join the rows, so that every destination is a source too (Millrace's blocks). False: the drawn
            nodes alone are the next layer's rows (the authors' code), which leaves far fewer rows to slice.
    """

    def __init__(self, indptr: Ids, indices: npt.NDArray[np.int32], sizes: tuple[int, ...], *, join: bool) -> None:
        V = len(indptr) - 1
        self.sizes, self.join, self._rng = sizes, join, np.random.default_rng(0)
        W = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(V, V)) + sp.eye_array(
            V, format="csr", dtype=np.float32
        )
        W.data /= np.repeat(np.diff(W.indptr).astype(np.float32), np.diff(W.indptr))
        self._W = W
        q = np.bincount(W.indices, W.data * W.data, minlength=V)
        self._q, self._running = q / q.sum(), np.cumsum(q)

    def ladies(self, seeds: Ids) -> list[Layer]:
        """One minibatch, the seeds' layer first."""
        rows, layers = seeds, []
        for s in self.sizes:
            U = self._W[rows]
            columns, place = np.unique(U.indices, return_inverse=True)
            p = np.bincount(place, U.data * U.data)
            p /= p.sum()
            drawn = self._rng.choice(len(columns), min(s, np.count_nonzero(p)), replace=False, p=p, shuffle=False)
            # W has a loop in every row, so the rows are among the columns.
            known = np.searchsorted(columns, rows) if self.join else np.empty(0, np.int64)
            at = np.concatenate([known, np.setdiff1d(drawn, known)])
            local = np.full(len(columns), -1)
            local[at] = np.arange(len(at))
            layers.append(self._layer(rows, columns[at], U, local[place], p[at]))
            rows = layers[-1].src
        return layers

    def fastgcn(self, seeds: Ids) -> list[Layer]:
        """One minibatch, the seeds' layer first."""
        rows, layers = seeds, []
        for s in self.sizes:
            U = self._W[rows]
            drawn = self._distinct(min(s, len(self._q)))
            src = np.concatenate([rows, np.setdiff1d(drawn, rows)]) if self.join else drawn
            order = np.argsort(src)
            place = np.minimum(np.searchsorted(src, U.indices, sorter=order), len(src) - 1)
            local = np.where(src[order[place]] == U.indices, order[place], -1)
            layers.append(self._layer(rows, src, U, local, self._q[src]))
            rows = src
        return layers

    def _distinct(self, s: int) -> Ids:
        """The first s distinct nodes of a sequence of draws in proportion to q."""
        found = np.empty(0, np.int64)
        while len(found) < s:
            darts = np.searchsorted(self._running, self._rng.random(s) * self._running[-1], side="right")
            found = np.concatenate([found, darts])
            found = found[np.sort(np.unique(found, return_index=True)[1])]
        return found[:s]

    def _layer(self, rows: Ids, src: Ids, U: sp.csr_array, local: Ids, p: npt.NDArray[np.float64]) -> Layer:
        """The columns `src` of U, debiased; `local` [e]: where each entry's column is in `src`, or -1."""
        keep = local >= 0
        row, column = np.repeat(np.arange(len(rows)), np.diff(U.indptr))[keep], local[keep]
        value = U.data[keep] / p[column]
        value /= np.bincount(row, value, minlength=len(rows))[row]
        ends = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(rows)))])
        return Layer(rows, src.astype(np.int64), sp.csr_array((value, column, ends), shape=(len(rows), len(src))))
