"""Times of the exponential race (`exponential_race`), for compiled kernels."""

import numpy as np

from ...runtime.jit import njit
from ..exponential_race import FRACTION_BITS, TABLE_BITS


@njit(inline="always")
def _length(x):
    """Index of the highest bit of x >= 1."""
    n = 0
    for step in (32, 16, 8, 4, 2, 1):
        if x >> (n + step):
            n += step
    return n


@njit(inline="always")
def inserted(best, place, first, count, most, key, at):
    """Put `key` with its place `at` among the ascending ones from `first` to `count`, of which `most` are kept; returns
    their number then."""
    count = min(count + 1, most)
    j = count - 1
    while j > first and best[j - 1] > key:
        best[j], place[j] = best[j - 1], place[j - 1]
        j -= 1
    best[j], place[j] = key, at
    return count


@njit(inline="always")
def exponential(bits, table):
    """-log2((bits + 1) / 2**32) with 32 fractional bits, for 32 uniform bits: an int64 in [0, 32 * 2**32]."""
    x = np.int64(bits) + np.int64(1)
    top = _length(x)
    mantissa = (x << (32 - top)) - (np.int64(1) << 32)
    cell = mantissa >> (32 - TABLE_BITS)
    rest = mantissa & ((np.int64(1) << (32 - TABLE_BITS)) - 1)
    # At the very top of the table (x = 2**32) the mantissa is 0 and top is 32: log2 is exact.
    below = table[cell]
    log = below + (((table[min(cell + 1, np.int64(1) << TABLE_BITS)] - below) * rest) >> (32 - TABLE_BITS))
    return (np.int64(32 - top) << FRACTION_BITS) - log
