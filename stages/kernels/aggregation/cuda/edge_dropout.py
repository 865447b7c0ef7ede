"""Dropout of attention coefficients in Triton: random words by edge and head, the same as in `cpu.softmax`."""

import triton
import triton.language as tl

from ....random import GOLDEN, M1, M2, NODE

_GOLDEN, _NODE, _M1, _M2 = (
    tl.constexpr(int(GOLDEN)),
    tl.constexpr(int(NODE)),
    tl.constexpr(int(M1)),
    tl.constexpr(int(M2)),
)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _M1
    z = (z ^ (z >> 27)) * _M2
    return z ^ (z >> 31)


@triton.jit
def survives(key, name, h, THRESHOLD: tl.constexpr):
    """True if the coefficient of edge `name` and head h is kept: see `AttentionRule.key`."""
    word = _mix(name.to(tl.uint64) * _NODE + key.to(tl.uint64))
    draw = tl.zeros_like(word) + (h + 1)
    return (_mix(draw * _GOLDEN + word) >> 32) >= THRESHOLD


@triton.jit
def edge_name(first, edge, q, v, here):
    """Number of edge q of row v for dropout."""
    name = q
    if edge is not None:
        name = tl.load(edge + q, here, 0).to(tl.int64)
    if first is not None:
        name += tl.load(first + v, here, 0)
    return name


@triton.jit
def own_name(own_names, E, v, here):
    """Number of the row's own edge for dropout."""
    name = v + E
    if own_names is not None:
        name = tl.load(own_names + v, here, 0)
    return name
