"""The compiled loop of `dropout.scale_kept`. It is apart from torch, so that it can be compiled without."""

import numpy as np

from ....random import NODE as _NODE
from ...runtime.intrinsics import prefetch
from ...runtime.jit import JIT, njit
from .prefetch import AHEAD

_U, _W = np.uint64, np.uint32
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
COLUMN, _A, _B = np.uint32(0x9E3779B9), np.uint32(0x21F0AAAD), np.uint32(0x735A2D97)
"""The last two, and the shifts that go with them, are from C. Wellons' hash prospector (least bias of two rounds)."""


@njit(**JIT)
def scale_kept_rows(base, ids, names, columns, out, key, threshold, scale, lo, hi):
    """Rows lo..hi-1 of the result, each read in place and dropped by its name. `ids` and `names` may be empty: the
    rows' own numbers; once per row that costs nothing, and a compiled version for each case takes seconds.

    Every step is cast to 32 bits: numba would continue in 64, which halves the elements of a vector register.
    """
    F = base.shape[1]
    zero, flat, line = base.dtype.type(0), base.reshape(-1), max(64 // base.itemsize, 1)
    for r in range(lo, hi):
        if len(ids) and r + AHEAD < hi:
            first = np.int64(ids[_U(r + AHEAD)]) * F
            for c in range(0, F, line):
                prefetch(flat, first + c)
        z = key + _U(names[_U(r)] if len(names) else r) * _NODE
        z = (z ^ (z >> _U(30))) * _M1
        z = (z ^ (z >> _U(27))) * _M2
        z = z ^ (z >> _U(31))
        low, high = _W(z), _W(z >> _U(32))
        x, o = base[_U(ids[_U(r)] if len(ids) else r)], out[_U(r)]
        for c in range(F):
            w = _W(columns[c] + low)
            w = _W(_W(w ^ _W(w >> _W(16))) * _A)
            w = _W(w + high)
            w = _W(_W(w ^ _W(w >> _W(15))) * _B)
            w = _W(w ^ _W(w >> _W(15)))
            kept = x[c] * scale
            o[c] = kept if w >= threshold else zero
