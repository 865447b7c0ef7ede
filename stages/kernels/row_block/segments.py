"""Drawing from segments of rows, compiled: uniformly, with or without replacement, or all."""

import numpy as np

from ....storage.array_kinds import IdArray, NumberArray, WordArray
from ...random import GOLDEN as _GOLDEN
from ..runtime.jit import JIT, njit
from ..runtime.threads import parallel, spans_of_threads
from ..sampling.cpu.rng import mixed

_U = np.uint64


@njit(**JIT)
def _ends(first, last, indptr, time, rows, moments, end):
    for r in range(first, last):
        low, high, moment = indptr[rows[r]], indptr[rows[r] + 1], moments[r]
        while low < high:
            middle = (low + high) >> 1
            if time[middle] <= moment:
                low = middle + 1
            else:
                high = middle
        end[r] = low


@njit(**JIT)
def _draw(first, last, begin, end, words, fanout, replace, at, positions):
    for r in range(first, last):
        start, degree, e = begin[r], end[r] - begin[r], at[r]
        if fanout < 0 or (not replace and degree <= fanout):
            for i in range(degree):
                positions[e + i] = start + i
        elif degree > 0:
            for i in range(fanout):
                bits = mixed(words[r] + _U(i + 1) * _GOLDEN) >> _U(32)
                # Without replacement: Floyd's algorithm, see `sampling.cpu.draw`.
                bound = degree if replace else degree - fanout + i + 1
                pick = start + np.int64((bits * _U(bound)) >> _U(32))
                if not replace:
                    for j in range(i):
                        if positions[e + j] == pick:
                            pick = start + degree - fanout + i
                            break
                positions[e + i] = pick


def ends_until(indptr: IdArray, time: NumberArray, rows: IdArray, moments: NumberArray) -> IdArray:
    """End of each row's edges whose time is at most its moment, int64 [n].

    Args:
        indptr: int64 [V+1].
        time: [E], ascending in each row.
        rows: int64 [n].
        moments: [n], of the dtype of `time`.
    """
    end = np.empty(len(rows), np.int64)
    parallel(_ends, [(a, b, indptr, time, rows, moments, end) for a, b in spans_of_threads(len(rows))])
    return end


def draw_segments(
    begin: IdArray, end: IdArray, words: WordArray, fanout: int, replace: bool
) -> tuple[IdArray, IdArray]:
    """Draw from [begin[r], end[r]) for each r: the number kept, int64 [n], and the positions drawn, int64 [e].

    A segment that is a whole row gives the picks of `draw.draw_rows`.

    Args:
        begin: int64 [n].
        end: int64 [n].
        words: uint64 [n], the random word of each segment; see `random.node_words`.
        fanout: most positions of a segment; -1: all.
        replace: draw independently.
    """
    degree = end - begin
    kept = degree if fanout < 0 else np.where(degree > 0, fanout, 0) if replace else np.minimum(degree, fanout)
    at = np.cumsum(kept) - kept
    positions = np.empty(int(kept.sum()), np.int64)
    parallel(
        _draw, [(a, b, begin, end, words, fanout, replace, at, positions) for a, b in spans_of_threads(len(begin))]
    )
    return kept, positions
