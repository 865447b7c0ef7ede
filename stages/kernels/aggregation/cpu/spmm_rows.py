"""The compiled loop of `backend.spmm` and its gradient. It is apart from torch, so that it can be compiled without."""

import numpy as np

from ...runtime.jit import CONTRACTED, njit
from .lists import of_row, row_at
from .prefetch import prefetch_rows

_U = np.uint64
NOTHING, ADDED, BESIDE, FROM_BESIDE = range(4)
"""Addition to a row of the result beside its neighbours: none; its own row, times a factor; its own row, in columns
[F, 2F); or, in the gradient of that, columns [F, 2F) of its own row."""


@njit(**CONTRACTED)
def spmm_rows(indptr, indices, ids, coef, x, F, scale, kind, own, own_rows, out, lo, hi):
    flat = x.reshape(-1)
    # Checked at run time: a version of its own for lists without coefficients takes half a second to compile.
    end, weighted = indptr[hi], len(coef) > 0
    for i in range(lo, hi):
        j, e = indptr[i], indptr[i + 1]
        prefetch_rows(indices, ids, j, e, end, flat, x.shape[1], F)
        o = out[_U(i)]
        if j == e:
            for k in range(F):
                o[k] = 0
        else:
            s = of_row(scale, i, x)
            # The remainder comes first, so that the first group stores and the others add.
            first = (e - j) & 3
            w0 = s * coef[_U(j)] if weighted else s
            a = x[row_at(ids, indices[j])]
            if first == 1:
                for k in range(F):
                    o[k] = w0 * a[k]
            else:
                w1 = s * coef[_U(j + 1)] if weighted else s
                b = x[row_at(ids, indices[j + 1])]
                if first == 2:
                    for k in range(F):
                        o[k] = w0 * a[k] + w1 * b[k]
                else:
                    w2 = s * coef[_U(j + 2)] if weighted else s
                    c = x[row_at(ids, indices[j + 2])]
                    if first == 3:
                        for k in range(F):
                            o[k] = (w0 * a[k] + w1 * b[k]) + w2 * c[k]
                    else:
                        first = 4
                        w3 = s * coef[_U(j + 3)] if weighted else s
                        d = x[row_at(ids, indices[j + 3])]
                        for k in range(F):
                            o[k] = (w0 * a[k] + w1 * b[k]) + (w2 * c[k] + w3 * d[k])
            for q in range(j + first, e, 4):
                w0, w1, w2, w3 = (
                    s * coef[_U(q)] if weighted else s,
                    s * coef[_U(q + 1)] if weighted else s,
                    s * coef[_U(q + 2)] if weighted else s,
                    s * coef[_U(q + 3)] if weighted else s,
                )
                a, b = x[row_at(ids, indices[q])], x[row_at(ids, indices[q + 1])]
                c, d = x[row_at(ids, indices[q + 2])], x[row_at(ids, indices[q + 3])]
                for k in range(F):
                    o[k] += (w0 * a[k] + w1 * b[k]) + (w2 * c[k] + w3 * d[k])
        if i < own_rows:
            a = x[row_at(ids, i)]
            if kind == ADDED:
                s = own[i]
                for k in range(F):
                    o[k] += s * a[k]
            elif kind == BESIDE:
                for k in range(F):
                    o[F + k] = a[k]
            elif kind == FROM_BESIDE:
                for k in range(F):
                    o[k] += a[F + k]
