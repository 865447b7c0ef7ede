"""Prefetching of the rows that a neighbour list will name next, which the processor cannot predict."""

import numpy as np

from ...runtime.intrinsics import prefetch
from ...runtime.jit import njit

AHEAD = 8
"""Edges between the row that is being used and the row that is being fetched."""


@njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")
def prefetch_rows(indices, ids, begin, end, stop, flat, stride, width):
    """Fetch the first `width` columns of the rows named AHEAD edges after ``indices[begin:end]``, but none from `stop`
    on.

    `flat` is the row-major matrix, [rows * stride]; `ids`, or None, maps indices to its rows.
    """
    line = max(64 // flat.itemsize, 1)
    for q in range(begin + AHEAD, min(end + AHEAD, stop)):
        row = np.int64(indices[q]) if ids is None else np.int64(ids[np.uint64(indices[q])])
        for k in range(0, width, line):
            prefetch(flat, row * stride + k)
