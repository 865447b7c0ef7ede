"""The exponential race in exact arithmetic: draws without replacement in proportion to weights, the same bits
everywhere.

Candidate i with weight w_i gets the key E_i / w_i with E_i = -log2(u_i); the s smallest keys are a sample
without replacement in proportion to the weights (successive sampling; Efraimidis and Spirakis, IPL 97(5), 2006). E is
an integer from a table that is itself made with integers (library logarithms differ between compilers and devices),
both numbers are exact in float64, and IEEE division rounds the same way on every machine. Ties go to the earlier
candidate.
"""

from functools import lru_cache

import numpy as np

from ....storage.array_kinds import Float64Array, IdArray, NumberArray, WordArray

FRACTION_BITS = 32
TABLE_BITS = 12
WEIGHT_BITS = 26
"""Maximum bits of integer weights (`layerwise.integers`)."""


@lru_cache(maxsize=1)
def log2_table() -> IdArray:
    """int64 [2**12 + 1]: log2(1 + i / 2**12) with 32 fractional bits, rounded down. By repeated squaring of
    integers."""
    guard = 80
    table = np.empty((1 << TABLE_BITS) + 1, np.int64)
    for i in range(1 << TABLE_BITS):
        x = ((1 << TABLE_BITS) + i) << (guard - TABLE_BITS)
        bits = 0
        for _ in range(FRACTION_BITS):
            x = x * x >> guard
            bits <<= 1
            if x >> (guard + 1):
                x >>= 1
                bits |= 1
        table[i] = bits
    table[-1] = 1 << FRACTION_BITS
    return table


def exponentials(bits: WordArray) -> IdArray:
    """-log2((bits + 1) / 2**32) with 32 fractional bits, for 32 uniform bits each: int64 in [0, 32 * 2**32]. Defines
    the values of all backends."""
    x = bits.astype(np.int64) + 1
    top = np.zeros(len(x), np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        top += np.where(x >> (top + step) != 0, step, 0)
    mantissa = (x << (32 - top)) - (1 << 32)
    table = log2_table()
    cell, rest = mantissa >> (32 - TABLE_BITS), mantissa & ((1 << (32 - TABLE_BITS)) - 1)
    below = table[cell]
    log = below + (((table[np.minimum(cell + 1, 1 << TABLE_BITS)] - below) * rest) >> (32 - TABLE_BITS))
    return ((32 - top) << FRACTION_BITS) - log


def keys(bits: WordArray, weights: NumberArray) -> Float64Array:
    """Race keys, float64; infinite if the weight is zero (such a candidate never wins)."""
    out = np.full(len(bits), np.inf)
    np.divide(exponentials(bits).astype(np.float64), weights.astype(np.float64), out=out, where=weights > 0)
    return out
