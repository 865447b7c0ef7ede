"""Dropout by counters: element i is kept iff its 32 bits of the stream `key` reach a threshold.

Nothing but the key decides the mask, so backward replays it (no mask is stored), and neither the number of threads nor the order
of the work shows. About ten times faster than drawing from a sequential generator.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from ..random import NODE as _NODE
from .threads import get_num_threads, parallel

_U = np.uint64
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
PIECE = 1 << 16
"""Elements below which a second thread does not pay."""


@njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")
def _scale_kept(first, last, x, out, key, threshold, scale):
    """Words first..last-1: word w decides elements 2w (its low half) and 2w+1 (its high half)."""
    n = len(x)
    zero = x.dtype.type(0)
    for w in range(first, min(last, n >> 1)):
        z = key + _U(w) * _NODE
        z = (z ^ (z >> _U(30))) * _M1
        z = (z ^ (z >> _U(27))) * _M2
        z ^= z >> _U(31)
        i = w << 1
        out[i] = x[i] * scale if (z & _LOW) >= threshold else zero
        out[i + 1] = x[i + 1] * scale if (z >> _U(32)) >= threshold else zero
    if (n & 1) and first <= (n >> 1) < last:
        z = key + _U(n >> 1) * _NODE
        z = (z ^ (z >> _U(30))) * _M1
        z = (z ^ (z >> _U(27))) * _M2
        z ^= z >> _U(31)
        out[n - 1] = x[n - 1] * scale if (z & _LOW) >= threshold else zero


def scale_kept(x: npt.NDArray[np.floating], key: int, p: float) -> npt.NDArray[np.floating]:
    """x / (1 - p) where kept, 0 elsewhere; each element is dropped with probability p (to 2**-32).

    Args:
        x: contiguous, any shape; float32 or float64.
        key: uint64, the stream.
        p: in (0, 1).
    """
    flat = x.reshape(-1)
    out = np.empty_like(flat)
    words = (len(flat) + 1) >> 1
    parts = max(1, min(get_num_threads(), words // (PIECE >> 1)))
    cuts = [words * t // parts for t in range(parts + 1)]
    threshold, scale = np.uint64(round(p * 2**32)), flat.dtype.type(1.0 / (1.0 - p))
    parallel(_scale_kept, [(a, b, flat, out, np.uint64(key), threshold, scale) for a, b in zip(cuts, cuts[1:])])
    return out.reshape(x.shape)
