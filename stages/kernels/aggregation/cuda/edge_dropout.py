"""Dropout of attention coefficients in Triton: random words by edge and head, the same as in `cpu.softmax`."""

import triton
import triton.language as tl

from ...runtime.triton_rng import draw_word, node_word


@triton.jit
def survives(key, name, h, THRESHOLD: tl.constexpr):
    """True if the coefficient of edge `name` and head h is kept: see `AttentionRule.key`."""
    return (draw_word(node_word(key, name), h) >> 32) >= THRESHOLD


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
