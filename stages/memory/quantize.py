"""Rounding of rows before they travel: none, half precision, or eight-bit integers with a scale for each row.

The owner of a row rounds it once and uses the rounded row itself, so its value does not depend on the reader.
"""

from typing import Literal

import torch
from torch import Tensor

Payload = Literal["full", "fp16", "int8"]
"""``full``: the dtype of the run."""
LARGEST_HALF = 65504.0
SCALE_BYTES = 4


def row_bytes(width: int, payload: Payload, dtype: torch.dtype) -> int:
    """Bytes of a row with so many elements."""
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
    """uint8 [n, `row_bytes`] -> [n, D] of `dtype`: the argument of `encode`, rounded."""
    if payload == "full":
        return _viewed(rows, dtype)
    if payload == "fp16":
        return _viewed(rows, torch.float16).to(dtype)
    # A copy even if the bytes are contiguous: they may begin at any address.
    scale = rows[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
    return _viewed(rows[:, :-SCALE_BYTES], torch.int8).to(dtype) * _viewed(scale, torch.float32).to(dtype)


def rounded(h: Tensor, payload: Payload) -> Tensor:
    """The rows as their readers see them; `h` itself if nothing is rounded."""
    return h if payload == "full" else decode(encode(h, payload), payload, h.dtype)


def _viewed(h: Tensor, dtype: torch.dtype) -> Tensor:
    if h.numel():
        return h.contiguous().view(dtype)
    # torch makes no such view of an empty array with strides of zero.
    return h.new_empty((len(h), h.shape[1] * h.element_size() // dtype.itemsize), dtype=dtype)
