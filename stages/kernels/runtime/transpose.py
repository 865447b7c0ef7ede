"""The transpose of neighbour lists, compiled."""

import numpy as np

from .jit import JIT, njit


@njit(**JIT)
def transpose(indptr, indices, t_indptr, t_dst, t_edge):
    """Fill `OutLists` from `InLists` by counting sort; t_indptr [S+1] holds zeros."""
    n, num_src = len(indptr) - 1, len(t_indptr) - 1
    for j in range(len(indices)):
        t_indptr[np.uint64(indices[j]) + np.uint64(1)] += 1
    for u in range(num_src):
        t_indptr[u + 1] += t_indptr[u]
    for v in range(n):
        for j in range(indptr[v], indptr[v + 1]):
            u = np.uint64(indices[j])
            at = t_indptr[u]
            t_dst[at] = v
            t_edge[at] = j
            t_indptr[u] = at + 1
    for u in range(num_src, 0, -1):
        t_indptr[u] = t_indptr[u - 1]
    t_indptr[0] = 0
