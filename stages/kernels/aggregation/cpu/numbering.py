"""Numbering of the sources of a block of destinations of a graph in host memory."""

import numpy as np

from .....storage.array_kinds import AnyArray, IdArray, Int32Array
from ...runtime.jit import JIT, njit

_U = np.uint64
_NEW = -1


@njit(**JIT)
def _distinct(indptr, indices, dst, table, src):
    """Write the in-neighbours that are no destinations behind those, once each; their number with these."""
    n = len(dst)
    for i in range(n):
        src[i] = dst[i]
        table[_U(dst[i])] = i
    for i in range(len(dst)):
        for e in range(indptr[dst[i]], indptr[dst[i] + 1]):
            u = indices[_U(e)]
            if table[_U(u)] == _NEW:
                table[_U(u)] = 0
                src[n] = u
                n += 1
    return n


@njit(**JIT)
def _local(indptr, indices, dst, src, table, out):
    for k in range(len(src)):
        table[_U(src[k])] = k
    q = 0
    for i in range(len(dst)):
        for e in range(indptr[dst[i]], indptr[dst[i] + 1]):
            out[q] = table[_U(indices[_U(e)])]
            q += 1
    for k in range(len(src)):
        table[_U(src[k])] = _NEW


def new_table(num_nodes: int) -> Int32Array:
    """A table for `number_sources`, which leaves it as it was."""
    return np.full(num_nodes, _NEW, np.int32)


def number_sources(indptr: AnyArray, indices: AnyArray, dst: IdArray, table: Int32Array) -> tuple[AnyArray, Int32Array]:
    """Sources of the in-edges of ascending `dst`: those nodes, then the other in-neighbours, ascending.

    Returns:
        [S] nodes; int32 [e], each edge's place among them.
    """
    count = int((indptr[dst + 1] - indptr[dst]).sum())
    src = np.empty(min(len(table), len(dst) + count), indices.dtype)
    found = src[: _distinct(indptr, indices, dst, table, src)]
    found[len(dst) :].sort()
    out = np.empty(count, np.int32)
    _local(indptr, indices, dst, found, table, out)
    return found, out
