"""Random words of `stages.random` for compiled kernels, and their reduction to a bounded number."""

import numpy as np

from ...runtime.jit import njit

_U = np.uint64
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)


@njit(inline="always")
def mixed(z):
    z = (z ^ (z >> _U(30))) * _M1
    z = (z ^ (z >> _U(27))) * _M2
    return z ^ (z >> _U(31))


@njit(inline="always")
def below(bits, bound):
    """floor(bits * bound / 2**64) for 64 random bits: an int64 in [0, bound)."""
    a, b = bits >> _U(32), bits & _LOW
    c, d = _U(bound) >> _U(32), _U(bound) & _LOW
    u = a * d + (b * d >> _U(32))
    v = b * c + (u & _LOW)
    return np.int64(a * c + (u >> _U(32)) + (v >> _U(32)))
