"""Sampling as sparse matrix products in plain SciPy, one minibatch at a time: P = Q A, s random columns of each row of
P.

Only newly found nodes are expanded. One thread, whatever is asked.
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from serve import Engine, Hop, Job, serve


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    V = len(job.indptr) - 1
    A = sp.csr_array((np.ones(len(job.indices), np.float32), job.indices, job.indptr), shape=(V, V))
    rng = np.random.default_rng(0)

    def draw(nodes: np.ndarray, s: int) -> tuple[np.ndarray, np.ndarray]:
        Q = sp.csr_array((np.ones(len(nodes), np.float32), nodes, np.arange(len(nodes) + 1)), shape=(len(nodes), V))
        P = sp.csr_array(Q @ A)
        row = np.repeat(np.arange(len(nodes)), np.diff(P.indptr))
        order = np.lexsort((rng.random(P.nnz, np.float32), row))
        rank = np.arange(P.nnz) - np.repeat(P.indptr[:-1], np.diff(P.indptr))
        kept = order[rank < s]
        return P.indices[kept], row[kept]

    def minibatch(seeds: np.ndarray) -> tuple[np.ndarray, list[Hop], list[np.ndarray]]:
        nodes, frontier, hops, local = seeds, seeds, [], []
        for s in job.fanout:
            src, row = draw(frontier, s)
            hops.append(Hop(frontier, src, frontier[row]))
            frontier = np.setdiff1d(src, nodes)
            nodes = np.concatenate([nodes, frontier])
        order = np.argsort(nodes)
        for hop in hops:
            local += [order[np.searchsorted(nodes, ids, sorter=order)] for ids in (hop.src, hop.dst)]
        return nodes, hops, local

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        for i in range(minibatches):
            nodes, hops, _ = minibatch(job.seeds[i * job.batch_size : (i + 1) * job.batch_size])
            yield sum(len(h.src) for h in hops), len(nodes)

    def one() -> tuple[np.ndarray, list[Hop]]:
        seeds = job.seeds[: job.batch_size]
        return seeds, minibatch(seeds)[1]

    return Engine(epoch, one)


if __name__ == "__main__":
    serve(start)
