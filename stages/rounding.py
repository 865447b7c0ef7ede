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

    ``int8`` divides a row by its scale, the 127th part of its largest magnitude in float32; beyond half precision's range ``fp16`` keeps
    its largest number.
    """
    if payload == "full":
        return h.contiguous().view(torch.uint8)
    if payload == "fp16":
        return h.clamp(-LARGEST_HALF, LARGEST_HALF).to(torch.float16).contiguous().view(torch.uint8)
    scale = (h.abs().amax(1, keepdim=True) if h.shape[1] else h.new_zeros((len(h), 1))).to(torch.float32) / 127
    steps = torch.where(scale > 0, h / scale.to(h.dtype), 0).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([steps.view(torch.uint8), scale.contiguous().view(torch.uint8)], dim=1)


def decode(rows: Tensor, payload: Payload, dtype: torch.dtype) -> Tensor:
    """uint8 [n, `row_bytes`] -> [n, D] of `dtype`: what `encode` was given, rounded."""
    if payload == "full":
        return rows.contiguous().view(dtype)
    if payload == "fp16":
        return rows.contiguous().view(torch.float16).to(dtype)
    # A copy even where the bytes lie in one piece: they may begin anywhere.
    steps, scale = rows[:, :-SCALE_BYTES], rows[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return steps.contiguous().view(torch.int8).to(dtype) * scale.to(dtype)


def rounded(h: Tensor, payload: Payload) -> Tensor:
    """What readers of these rows see; `h` itself where nothing is rounded."""
    return h if payload == "full" else decode(encode(h, payload), payload, h.dtype)
