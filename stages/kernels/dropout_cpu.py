"""Dropout by counters: element i is kept iff its 32 bits of the stream `key` reach a threshold.

Nothing but the key decides the mask, so backward replays it (no mask is stored), and neither the number of threads nor the order
of the work shows. About ten times faster than drawing from a sequential generator.
"""

import numpy as np
from numba import njit
from torch import Tensor

from ..arena import empty
from ..random import NODE as _NODE
from ..rows import base_and_ids
from .cut import even_parts
from .lists import IntArray, at
from .threads import get_num_threads, parallel

_JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
_U = np.uint64
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
PIECE = 1 << 16
"""Elements below which a second thread does not pay."""


@njit(inline="always")
def _word(key, w):
    z = key + _U(w) * _NODE
    z = (z ^ (z >> _U(30))) * _M1
    z = (z ^ (z >> _U(27))) * _M2
    return z ^ (z >> _U(31))


@njit(**_JIT)
def _scale_kept(first, last, x, out, key, threshold, scale):
    """Words first..last-1: word w decides elements 2w (its low half) and 2w+1 (its high half)."""
    n = len(x)
    zero = x.dtype.type(0)
    for w in range(first, min(last, n >> 1)):
        z = _word(key, w)
        i = w << 1
        out[i] = x[i] * scale if (z & _LOW) >= threshold else zero
        out[i + 1] = x[i + 1] * scale if (z >> _U(32)) >= threshold else zero
    if (n & 1) and first <= (n >> 1) < last:
        z = _word(key, n >> 1)
        out[n - 1] = x[n - 1] * scale if (z & _LOW) >= threshold else zero


@njit(**_JIT)
def _scale_kept_rows(base, ids, names, out, key, threshold, scale, lo, hi):
    """Rows lo..hi-1 of the result, each read where it lies and dropped by its name."""
    F = base.shape[1]
    zero = base.dtype.type(0)
    for r in range(lo, hi):
        x, o = base[at(ids, r)], out[_U(r)]
        first = (r if names is None else names[r]) * F
        k = first & 1
        if k:  # the row begins with the second element of a word
            o[0] = x[0] * scale if (_word(key, first >> 1) >> _U(32)) >= threshold else zero
        word = (first + k) >> 1
        pairs = (F - k) >> 1
        for p in range(pairs):
            z = _word(key, word + p)
            i = k + (p << 1)
            o[i] = x[i] * scale if (z & _LOW) >= threshold else zero
            o[i + 1] = x[i + 1] * scale if (z >> _U(32)) >= threshold else zero
        if (F - k) & 1:
            o[F - 1] = x[F - 1] * scale if (_word(key, word + pairs) & _LOW) >= threshold else zero


def scale_kept(x: Tensor, key: int, p: float, names: IntArray | None = None) -> Tensor:
    """x / (1 - p) where kept, 0 elsewhere; each element is dropped with probability p (to 2**-32).

    Element (row, column) of x as [rows, F] has the counter ``names[row] * F + column``, so that a row of one name is dropped alike
    wherever it lies.

    Args:
        x: contiguous, any shape; float32 or float64. Rows that are only named (`stages.rows`) are read where they lie.
        key: uint64, the stream.
        p: in (0, 1).
        names: int64 [rows], at least 0; the rows' own numbers when absent.
    """
    out = empty(x.shape, x.dtype)
    base, ids = base_and_ids(x)
    decision = np.uint64(key), np.uint64(round(p * 2**32)), base.dtype.type(1.0 / (1.0 - p))
    if ids is not None or names is not None:
        rows, width = len(x), x.shape[1:].numel()
        args = (base.reshape(len(base), width), ids, names, out.numpy().reshape(rows, width), *decision)
        parallel(_scale_kept_rows, [(*args, a, b) for a, b in even_parts(rows, width)])
        return out
    flat, flat_out = base.reshape(-1), out.numpy().reshape(-1)
    words = (len(flat) + 1) >> 1
    parts = max(1, min(get_num_threads(), words // (PIECE >> 1)))
    cuts = [words * t // parts for t in range(parts + 1)]
    parallel(_scale_kept, [(a, b, flat, flat_out, *decision) for a, b in zip(cuts, cuts[1:])])
    return out
