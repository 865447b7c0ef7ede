"""Gathers rows of a matrix from a device's memory, from page-locked host memory, or from both."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..runtime.triton_rng import launch

TILE, WIDEST = 2048, 1024
"""Numbers of a program, several of each thread under way at once; maximum number of columns."""


@triton.jit(do_not_specialize=["n"])
def _gather_rows(
    base, cache, slot, ids, out, n, F: tl.constexpr, STRIDE: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr
):
    # Widths as constants: otherwise the compiler cannot tell that rows begin at multiples of 16 bytes, and reads number
    # by number.
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = i < n
    both = inside[:, None] & (k < F)[None, :]
    u = tl.load(ids + i, inside, 0).to(tl.int64)
    if slot is not None:
        s = tl.load(slot + u, inside, -1).to(tl.int64)
        near = (s >= 0)[:, None]
        x = tl.load(cache + s[:, None] * F + k[None, :], both & near, 0)
        x = tl.where(near, x, tl.load(base + u[:, None] * STRIDE + k[None, :], both & (near == 0), 0))
    else:
        x = tl.load(base + u[:, None] * STRIDE + k[None, :], both, 0)
    tl.store(out + i[:, None] * F + k[None, :], x, both)


class Cache:
    """Some rows of a matrix in host memory, copied to the device."""

    def __init__(self, base: Tensor, rows: Tensor) -> None:
        """
        Args:
            base: [V, F], in locked memory.
            rows: int64 [m], distinct, on the device.
        """
        self.slot = torch.full((len(base),), -1, dtype=torch.int32, device=rows.device)
        self.slot[rows] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        self.rows = gather_rows(base, rows)


def gather_rows(base: Tensor, ids: Tensor, cache: Cache | None = None, out: Tensor | None = None) -> Tensor:
    """``base[ids]``, [n, F], on the device of `ids`, without a wait.

    Args:
        base: [V, F], with contiguous rows; on that device or in locked memory of the host.
        ids: int32 or int64 [n], in range.
        cache: rows that are read from the cache instead.
        out: [n, F], contiguous, to write into; made when absent.
    """
    n, width = len(ids), base.shape[1]
    out = torch.empty((n, width), dtype=base.dtype, device=ids.device) if out is None else out
    columns = min(1 << (width - 1).bit_length(), WIDEST)
    rows = TILE // columns
    if n and width:
        kept, slot = (None, None) if cache is None else (cache.rows, cache.slot)
        shape = {"F": width, "STRIDE": base.stride(0), "BR": rows, "BF": columns}
        launch(_gather_rows, -(-n // rows), -(-width // columns))(base, kept, slot, ids, out, n, **shape)
    return out
