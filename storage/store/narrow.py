"""Rows of float32 as a store may keep them: in half the bytes or a quarter, and widened again when they are read.

``float16`` and ``bfloat16`` round each number to the nearest; ``int8`` divides a row by its scale, the 127th part of
its largest magnitude, and keeps the scale behind the row. Numbers beyond the range become the largest ones. A row that
was widened is narrowed to the same bytes again: the scale has 16 significant bits, so that its products are exact.
"""

from typing import Any, Literal, get_args

import numpy as np

from ..array_kinds import AnyArray, Float32Array, FloatArray, ValueArray

FeatureDtype = Literal["float32", "float16", "bfloat16", "int8"]
FEATURE_DTYPES: tuple[FeatureDtype, ...] = get_args(FeatureDtype)
SCALE_BYTES = 4
_STORED = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16), "int8": np.dtype(np.uint8)}
_LARGEST_HALF = 65504.0
_LARGEST_BRAIN = np.array(0x7F7F0000, np.uint32).view(np.float32)


def stored_dtype(kind: FeatureDtype) -> np.dtype[Any]:
    """Dtype of the array that keeps rows of a kind; bfloat16, which NumPy lacks, as its bits."""
    return _STORED.get(kind, np.dtype(np.float32))


def stored_width(kind: FeatureDtype, width: int) -> int:
    """Columns of that array for rows of so many numbers; none for none."""
    return width + SCALE_BYTES if kind == "int8" and width else width


def row_width(kind: FeatureDtype, columns: int) -> int:
    """Numbers of a row that takes so many columns."""
    return max(0, columns - SCALE_BYTES) if kind == "int8" else columns


def narrow(rows: FloatArray, kind: FeatureDtype) -> AnyArray:
    """Rows [n, F] as they are kept, [n, `stored_width`]."""
    x = np.asarray(rows, np.float32)
    if kind == "float32":
        return x
    if not x.shape[1]:
        return np.empty(x.shape, stored_dtype(kind))
    if kind == "float16":
        return np.clip(x, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    if kind == "bfloat16":
        bits = np.ascontiguousarray(np.clip(x, -_LARGEST_BRAIN, _LARGEST_BRAIN)).view(np.uint32)
        # To the nearest, ties to even.
        return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    x = np.clip(x, np.finfo(np.float32).min / 2, np.finfo(np.float32).max / 2)
    scale = _rounded_up(np.abs(x).max(axis=1, initial=0) / np.float32(127))
    steps = np.rint(np.divide(x, scale[:, None], out=np.zeros_like(x), where=scale[:, None] > 0))
    out = np.empty((len(x), x.shape[1] + SCALE_BYTES), np.uint8)
    out[:, : x.shape[1]] = steps.astype(np.int8).view(np.uint8)
    out[:, x.shape[1] :] = scale[:, None].view(np.uint8)
    return out


def _rounded_up(scale: Float32Array) -> Float32Array:
    """Scales with at most 16 significant bits, none smaller; 0 for those too small to divide by."""
    bits = np.where(scale < 2.0**-100, np.float32(0), scale).view(np.uint32)
    return ((bits + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)


def widen(kept: ValueArray, kind: FeatureDtype, out: Float32Array | None = None) -> Float32Array:
    """Rows [n, F] of float32 from those that `narrow` made."""
    width = row_width(kind, kept.shape[1])
    if out is None:
        out = np.empty((len(kept), width), np.float32)
    if kind == "bfloat16":
        np.left_shift(kept, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
    elif kind == "int8":
        scale = np.ascontiguousarray(kept[:, width:]).view(np.float32)
        np.multiply(kept[:, :width].view(np.int8), scale, out=out)
    elif kind == "float16" and out.size:
        import torch  # four times as fast as NumPy

        torch.from_numpy(out).copy_(torch.from_numpy(np.require(kept, requirements="W")))
    else:
        out[...] = kept
    return out
