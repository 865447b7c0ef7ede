"""Dropout by counters: an element is kept iff its 32 bits of the stream `key` reach a threshold.

The mask depends only on the key, the row's name and the column, so backward recomputes it (no mask is stored), and
neither the number of threads nor the order of the work matters. A row has a word of 64 bits (`random.node_words`); its
halves enter a mixing function of 32-bit words, one for each column, which processors compute for eight columns at a
time: six to twelve times as fast as 64-bit words for each pair of elements, and some hundred times as fast as a
sequential generator.
"""

import numpy as np
from torch import Tensor

from ....memory.arena import empty
from ....memory.lazy_rows import base_and_ids
from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch
from ...runtime.jit import njit
from ...runtime.threads import parallel
from ..lists import IntArray
from .lists import at
from .prefetch import AHEAD
from .row_ranges import even_parts

_JIT = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
_U, _W = np.uint64, np.uint32
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_COLUMN, _A, _B = np.uint32(0x9E3779B9), np.uint32(0x21F0AAAD), np.uint32(0x735A2D97)
"""The last two, and the shifts that go with them, are from C. Wellons' hash prospector (least bias of two rounds)."""


@njit(**_JIT)
def _scale_kept(base, ids, names, columns, out, key, threshold, scale, lo, hi):
    """Rows lo..hi-1 of the result, each read in place and dropped by its name.

    Every step is cast to 32 bits: numba would continue in 64, which halves the elements of a vector register.
    """
    F = base.shape[1]
    zero, flat, line = base.dtype.type(0), base.reshape(-1), max(64 // base.itemsize, 1)
    for r in range(lo, hi):
        if ids is not None and r + AHEAD < hi:
            first = np.int64(ids[_U(r + AHEAD)]) * F
            for c in range(0, F, line):
                prefetch(flat, first + c)
        z = key + _U(r if names is None else names[_U(r)]) * _NODE
        z = (z ^ (z >> _U(30))) * _M1
        z = (z ^ (z >> _U(27))) * _M2
        z = z ^ (z >> _U(31))
        low, high = _W(z), _W(z >> _U(32))
        x, o = base[at(ids, r)], out[_U(r)]
        for c in range(F):
            w = _W(columns[c] + low)
            w = _W(_W(w ^ _W(w >> _W(16))) * _A)
            w = _W(w + high)
            w = _W(_W(w ^ _W(w >> _W(15))) * _B)
            w = _W(w ^ _W(w >> _W(15)))
            kept = x[c] * scale
            o[c] = kept if w >= threshold else zero


def scale_kept(x: Tensor, key: int, p: float, names: IntArray | None = None) -> Tensor:
    """x / (1 - p) where kept, 0 elsewhere; each element is dropped with probability p (to 2**-32).

    Rows of one name are dropped alike, whatever their position.

    Args:
        x: [rows, ...], contiguous; float32 or float64. Lazy rows (`stages.memory.lazy_rows`) are read in place.
        key: uint64, the stream.
        p: in (0, 1).
        names: int64 [rows], at least 0; the rows' own numbers when absent.
    """
    out = empty(x.shape, x.dtype)
    base, ids = base_and_ids(x)
    rows, width = len(x), x.shape[1:].numel()
    decision = np.uint64(key), np.uint32(min(round(p * 2**32), 2**32 - 1)), base.dtype.type(1.0 / (1.0 - p))
    columns = np.arange(width, dtype=np.uint32) * _COLUMN
    args = (base.reshape(len(base), width), ids, names, columns, out.numpy().reshape(rows, width), *decision)
    parallel(_scale_kept, [(*args, a, b) for a, b in even_parts(rows, width)])
    return out
