"""Random words of `stages.random` in Triton, the device of its kernels, the size and alignment of their programs."""

import math
from typing import Any

import torch
import triton
import triton.language as tl

from ....storage.errors import InputError

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
NODE = tl.constexpr(0xD1342543DE82EF95)
_M1, _M2 = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)


@triton.jit
def mixed(z):
    """See `random.mix`; uint64."""
    z = (z ^ (z >> 30)) * _M1
    z = (z ^ (z >> 27)) * _M2
    return z ^ (z >> 31)


@triton.jit
def node_word(key, v):
    """See `random.node_words`; the key is int64, as torch holds it."""
    return mixed(key.to(tl.uint64) + v.to(tl.uint64) * NODE)


@triton.jit
def draw_word(word, i):
    return mixed(word + (i + 1).to(tl.uint64) * GOLDEN)


@triton.jit
def elements(n, BLOCK: tl.constexpr):
    """A program's elements, int64, of n, and which of them there are."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return i, i < n


@triton.jit
def tile_of_rows(nodes, owner, num_rows, ROWS: tl.constexpr):
    """A program's rows of a bulk: the number of each, whether there are so many, its node and its minibatch."""
    f, live = elements(num_rows, ROWS)
    v = tl.load(nodes + f, mask=live, other=0).to(tl.int64)
    return f, live, v, tl.load(owner + f, mask=live, other=0).to(tl.int64)


@triton.jit
def row_at(indptr, nodes, owner, f):
    """Row f of a bulk: its node, first edge, degree and minibatch; int64, the degree int32."""
    v = tl.load(nodes + f).to(tl.int64)
    start = tl.load(indptr + v)
    return v, start, (tl.load(indptr + v + 1) - start).to(tl.int32), tl.load(owner + f).to(tl.int64)


@triton.jit
def row_of(ends, num_rows, e, steps):
    """Row of edge e, where row f's edges end at ends[f + 1]: int64; `steps` are the bits of `num_rows`."""
    low, high = e * 0, e * 0 + num_rows
    for _ in range(steps):
        middle = (low + high) >> 1
        here = tl.load(ends + middle) <= e
        low, high = tl.where(here, middle, low), tl.where(here, high, middle)
    return low


INTERPRETED = not isinstance(mixed, triton.JITFunction)
"""True if Triton's interpreter runs the kernels, in host memory: decided by TRITON_INTERPRET when Triton was
imported."""
TILE = 1 << 11 if INTERPRETED else 1 << 10
"""Elements of one program. The interpreter's time depends on the number of programs, up to about a thousand
elements."""


def device() -> torch.device:
    """Device that the kernels run on.

    Raises:
        InputError: there is no GPU, and Triton's interpreter is not on.
    """
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            'kernel is "cuda", but torch sees no GPU here; run on a machine with one and its driver, or leave kernel '
            "out"
        )
    return torch.device("cuda")


def aligned(*widths: int) -> int:
    """Largest of 4, 2, 1 that divides all of these numbers of columns, and rows' distances.

    A kernel gets them divided by it: the compiler sees that rows begin at multiples of 16 bytes then, and reads 16 at a
    time. By itself it looks for multiples of 16 numbers only.
    """
    return math.gcd(4, *widths)


def programs(n: int, block: int) -> int:
    """Number of programs of `block` elements that cover n; at least one, since an empty grid cannot be launched."""
    return max(1, -(-n // block))


def launch(kernel: Any, *grid: int) -> Any:
    """``kernel[grid]``, typed as callable: type checkers take a kernel for the Python function that it looks like."""
    return kernel[grid]
