"""Helpers of the compiled attention kernels: logits, dropout by counters, and fixed chunks of rows for reductions."""

from bisect import bisect_left
from typing import Any

import numpy as np
from torch import Tensor

from .....storage.array_kinds import IdArray
from ....memory.arena import empty
from ....random import GOLDEN as _GOLDEN
from ....random import NODE as _NODE
from ...runtime.jit import REASSOCIATED, njit
from ...runtime.threads import parallel
from ...sampling.cpu.rng import mixed
from ..attention_args import AttentionRule, EdgeNumbers
from .lists import row_at
from .row_ranges import even_parts, part_count

CHUNK_ROWS = 1024
"""Rows per partial sum of a reduction over all rows: fixed, so that the order of summation is too."""
_U = np.uint64


@njit(**REASSOCIATED)
def keep(key, threshold, e, h):
    """True if the coefficient of edge e and head h is kept: see `AttentionRule.key`."""
    return mixed(mixed(key + _U(e) * _NODE) + _U(h + 1) * _GOLDEN) >> _U(32) >= threshold


@njit(**REASSOCIATED)
def edge_number(names, q, e, E, v):
    """Number of edge q of row v for dropout. The row's list ends at e, the position of its own edge: see
    `EdgeNumbers`."""
    first, own, edge = names
    # Checked at run time: each kernel of attention would take a second or two to compile without names too.
    if len(first) == 0:
        return np.int64(q) if q < e else np.int64(E + v)
    return first[_U(v)] + np.int64(row_at(edge, q)) if q < e else own[_U(v)]


_OWN_ORDER = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)


def numbering(numbers: EdgeNumbers | None) -> tuple[Any, Any, Any]:
    """`numbers` as the kernels take them: empty arrays for edges that are numbered in their order."""
    return _OWN_ORDER if numbers is None else (numbers.first, numbers.own, numbers.edge)


@njit(**REASSOCIATED)
def leaky(x, slope):
    """The leaky ReLU."""
    return x if x > 0 else slope * x


def constants(rule: AttentionRule, z: Tensor) -> tuple[Any, ...]:
    """Slope, key, threshold and scale of kept coefficients as the kernels take them."""
    real = z.numpy().dtype.type
    return real(rule.slope), _U(rule.key), _U(rule.threshold), real(rule.keep_scale)


@njit(**REASSOCIATED)
def _dot_rows(x, y, out, lo, hi):
    H, D = x.shape[1], x.shape[2]
    for i in range(lo, hi):
        a, b = x[_U(i)], y[_U(i) if len(y) == len(x) else _U(0)]
        for h in range(H):
            p, q = a[h], b[h]
            total = x.dtype.type(0)
            for k in range(D):
                total += p[k] * q[k]
            out[i, h] = total


def dots(x: Tensor, y: Tensor) -> Tensor:
    """<x[i, h], y[i, h]>, [n, H]; y may have one row for all."""
    out = empty(x.shape[:2], x.dtype)
    args = (x.numpy(), y.numpy(), out.numpy())
    parallel(_dot_rows, [(*args, a, b) for a, b in even_parts(len(x), x.shape[1] * x.shape[2])])
    return out


def num_chunks(rows: int) -> int:
    """Chunks of `CHUNK_ROWS` rows."""
    return -(-rows // CHUNK_ROWS)


def chunk_parts(indptr: IdArray, width: int) -> list[tuple[int, int]]:
    """Ranges of whole chunks, [begin, end), with like numbers of edges plus rows; `width` additions for each."""
    ends = np.append(indptr[:-1:CHUNK_ROWS], indptr[-1]) if len(indptr) > 1 else indptr
    ends = ends + np.minimum(np.arange(len(ends)) * CHUNK_ROWS, len(indptr) - 1)
    n, total = len(ends) - 1, int(ends[-1])
    count = part_count(total * width)
    cuts = [bisect_left(ends, total * p // count) for p in range(count)] + [n]
    return [(a, b) for a, b in zip(cuts, cuts[1:]) if a < b]
