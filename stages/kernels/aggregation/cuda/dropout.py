"""Dropout by counters in a device's memory: same names, arguments and bits as `cpu.dropout`.

A program has a tile of rows x columns. A row's word of 64 bits is computed once for the tile; each element then takes
two multiplications of 32 bits, less than its memory traffic.
"""

import triton
import triton.language as tl
from torch import Tensor

from ....memory.lazy_rows import device_base_and_ids
from ...runtime.triton_rng import launch, node_word
from ..lists import IntArray, on_device
from .sums import tile

_COLUMN, _A, _B = tl.constexpr(0x9E3779B9), tl.constexpr(0x21F0AAAD), tl.constexpr(0x735A2D97)


# The key is signed: as unsigned, half of all keys would have another type and need a kernel of their own.
@triton.jit(do_not_specialize=["n", "key"])
def _scale_kept_rows(
    base, ids, names, key_at, out, n, F, key, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, BR: tl.constexpr,
    BF: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BF + tl.arange(0, BF)
    inside, columns = i < n, k < F
    both = inside[:, None] & columns[None, :]
    row, at, name = i.to(tl.int64), i.to(tl.int64), i.to(tl.int64)
    if ids is not None:
        at = tl.load(ids + i, inside, 0).to(tl.int64)
    if names is not None:
        name = tl.load(names + i, inside, 0).to(tl.int64)
    key = key.to(tl.int64)
    if key_at is not None:
        key = tl.load(key_at)
    word = node_word(key, name)
    low, high = word.to(tl.uint32), (word >> 32).to(tl.uint32)
    w = (k.to(tl.uint32) * _COLUMN)[None, :] + low[:, None]
    w = (w ^ (w >> 16)) * _A + high[:, None]
    w = (w ^ (w >> 15)) * _B
    w = w ^ (w >> 15)
    x = tl.load(base + at[:, None] * F + k[None, :], both, 0)
    # Not `x * SCALE`: a float64 factor must not be rounded to float32 first.
    kept = x * tl.full([1, 1], SCALE, x.dtype)
    threshold = tl.full([1, 1], THRESHOLD, tl.uint32)
    tl.store(out + row[:, None] * F + k[None, :], tl.where(w >= threshold, kept, tl.zeros_like(kept)), both)


def scale_kept(x: Tensor, key: int | Tensor, p: float, names: IntArray | Tensor | None = None) -> Tensor:
    """See `cpu.dropout.scale_kept`. The host does not wait.

    Args:
        x: [rows, ...], contiguous; float32 or float64. Lazy rows (`stages.memory.lazy_rows`) are read in place.
        key: uint64, the stream; or int64 [1] on the device of x, its bits.
        p: in (0, 1).
        names: int64 [rows], at least 0, on the device of x or on the host; the rows' own numbers when absent.
    """
    base, ids = device_base_and_ids(x)
    rows, width = len(x), x.shape[1:].numel()
    out = base.new_empty(x.shape)
    if not isinstance(names, Tensor | None):
        names = on_device(names, base.device)
    if rows and width:
        rows_per, columns = tile(width)
        at, key = (key, 0) if isinstance(key, Tensor) else (None, key)
        signed = key - 2**64 if key >= 2**63 else key
        threshold = min(round(p * 2**32), 2**32 - 1)
        constants = {"THRESHOLD": threshold, "SCALE": 1.0 / (1.0 - p), "BR": rows_per, "BF": columns}
        grid = -(-rows // rows_per), -(-width // columns)
        launch(_scale_kept_rows, *grid)(base, ids, names, at, out, rows, width, signed, **constants)
    return out
