"""Machine instructions against NumPy."""

import numpy as np
from numba import njit

from millrace.stages.kernels.runtime.intrinsics import LANES, below, ones, trailing_zeros


@njit
def below_at(numbers, index, bound):
    return below(numbers, index, bound)


@njit
def counts(word):
    return ones(word), trailing_zeros(word)


def test_numbers_below_a_bound_are_bits():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2**64, 3 * LANES, np.uint64)
    numbers[:3] = 0, 2**64 - 1, 2**63
    for bound in (0, 1, 2**40, 2**63, int(numbers[7]), int(numbers[7]) + 1, 2**64 - 1):
        for index in (0, 1, 37, 2 * LANES):
            wanted = sum(1 << i for i in range(LANES) if int(numbers[index + i]) < bound)
            assert int(below_at(numbers, index, np.uint64(bound))) == wanted


def test_bits_are_counted():
    for word in (1, 2, 3, 2**63, 2**64 - 1, 0xF0F0):
        assert counts(np.uint64(word)) == (word.bit_count(), (word & -word).bit_length() - 1)
