"""Rows as they travel: in full, in half precision, or as eight-bit integers with a scale for each row.

Whoever owns a row rounds it once and uses the rounded one too, so what a row is does not depend on who reads it.
"""

from typing import Literal

import torch
from torch import Tensor

Payload = Literal["full", "fp16", "int8"]
"""``full``: the dtype of the run."""
LARGEST_HALF = 65504.0
SCALE_BYTES = 4


def row_bytes(width: int, payload: Payload, dtype: torch.dtype) -> int:
    """What a row of so many elements takes."""
    return {"full": width * dtype.itemsize, "fp16": 2 * width, "int8": width + SCALE_BYTES}[payload]


def encode(h: Tensor, payload: Payload) -> Tensor:
    """[n, D] floating -> uint8 [n, `row_bytes`].

    ``int8`` divides a row by its scale, the 127th part of its largest magnitude in float32; beyond half precision's
    range ``fp16`` keeps its largest number, and beyond float32's ``int8`` that one's.
    """
    if payload == "full":
        return _viewed(h, torch.uint8)
    if payload == "fp16":
        return _viewed(h.clamp(-LARGEST_HALF, LARGEST_HALF).to(torch.float16), torch.uint8)
    largest = h.abs().amax(1, keepdim=True) if h.shape[1] else h.new_zeros((len(h), 1))
    scale = largest.clamp(max=torch.finfo(torch.float32).max).to(torch.float32) / 127
    steps = torch.where(scale > 0, h / scale.to(h.dtype), 0).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([_viewed(steps, torch.uint8), _viewed(scale, torch.uint8)], dim=1)


def decode(rows: Tensor, payload: Payload, dtype: torch.dtype) -> Tensor:
    """uint8 [n, `row_bytes`] -> [n, D] of `dtype`: what `encode` was given, rounded."""
    if payload == "full":
        return _viewed(rows, dtype)
    if payload == "fp16":
        return _viewed(rows, torch.float16).to(dtype)
    # A copy even where the bytes lie in one piece: they may begin anywhere.
    scale = rows[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
    return _viewed(rows[:, :-SCALE_BYTES], torch.int8).to(dtype) * _viewed(scale, torch.float32).to(dtype)


def rounded(h: Tensor, payload: Payload) -> Tensor:
    """What readers of these rows see; `h` itself where nothing is rounded."""
    return h if payload == "full" else decode(encode(h, payload), payload, h.dtype)


def _viewed(h: Tensor, dtype: torch.dtype) -> Tensor:
    # Torch makes no such view of nothing where NumPy has given it strides of zero.
    return (
        h.contiguous().view(dtype)
        if h.numel()
        else h.new_empty((len(h), h.shape[1] * h.element_size() // dtype.itemsize), dtype=dtype)
    )
