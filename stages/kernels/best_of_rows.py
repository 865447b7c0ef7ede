"""The k best columns of each row of a table that is seen block by block, from left to right."""

import numpy as np

from .runtime.jit import JIT, njit

_U = np.uint64
AT_ONCE = 64
"""Columns that are compared at once with the least of the best."""


@njit(**JIT)
def keep_best(scores, skip, first, best, ids):
    """Let the scores of a block into the best so far. Of equal ones the smaller id is better. NaN and -inf never are.

    Args:
        scores: [n, w].
        skip: columns at the left that are not seen.
        first: id of column `skip`; larger than those of all earlier blocks.
        best: [n, k], -inf in the beginning: a heap in each row, the worst of the best at its root.
        ids: int64 [n, k], those of `best`; -1 in the beginning.
    """
    k, width = best.shape[1], scores.shape[1]
    for r in range(len(scores)):
        row, heap, of = scores[r], best[r], ids[r]
        least = heap[0]
        for begin in range(skip, width, AT_ONCE):
            stop, better = min(begin + AT_ONCE, width), np.int32(0)
            # Counted in 32 bits, and without signs, so that it becomes vector code.
            for c in range(_U(begin), _U(stop)):
                better = np.int32(better + np.int32(row[c] > least))
            if better == 0:
                continue
            for c in range(begin, stop):
                score, node = row[c], first + c - skip
                if not score > least:
                    continue
                at = 0
                while True:
                    child = 2 * at + 1
                    if child >= k:
                        break
                    other = child + 1
                    if other < k and (
                        heap[other] < heap[child] or (heap[other] == heap[child] and of[other] > of[child])
                    ):
                        child = other
                    if heap[child] > score or (heap[child] == score and of[child] < node):
                        break
                    heap[at], of[at] = heap[child], of[child]
                    at = child
                heap[at], of[at] = score, node
                least = heap[0]
