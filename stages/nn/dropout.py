"""Dropout under autograd, drawn from counters (see `kernels.aggregation.cpu.dropout`)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..kernels import dropout_on
from ..kernels.aggregation.lists import IntArray
from ..memory.lazy_rows import LazyRows
from .compile_boundary import untraced

KeySource = Callable[[], int | Tensor]
"""Returns the key of one dropout after the other."""
_keys = threading.local()


def draw_key() -> int:
    """uint64, one number from torch's CPU generator."""
    return int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)) & 0xFFFF_FFFF_FFFF_FFFF


@contextmanager
def keys_from(source: KeySource) -> Iterator[None]:
    """Context in which dropouts of this thread take their keys from `source`."""
    before = getattr(_keys, "source", None)
    _keys.source = source
    try:
        yield
    finally:
        _keys.source = before


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, key: int | Tensor, p: float, names: IntArray | Tensor | None) -> Tensor:
        ctx.rule = key, p, names
        return dropout_on(h.device).scale_kept(h.detach().contiguous(), *ctx.rule)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return dropout_on(grads[0].device).scale_kept(grads[0].contiguous(), *ctx.rule), None, None, None


def dropout(h: Tensor, p: float, training: bool, names: IntArray | Tensor | None = None) -> Tensor:
    """`h` with each element dropped with probability p and the others divided by 1 - p; `h` itself outside training.

    One number from torch's CPU generator is the key of the mask, so `torch.manual_seed` governs it, and the mask is the
    same on every device. Lazy rows are gathered and dropped in one pass.

    Args:
        h: [rows, ...], float32 or float64, on the CPU or a CUDA device.
        p: in [0, 1).
        training: drop elements; False returns `h`.
        names: int64 [rows], at least 0: under one key, rows of one name lose the same elements, in whatever matrix they
            lie. Their own numbers when absent. On the host, or, for rows on a device, there.
    """
    if not training or p == 0.0:
        return h
    return untraced(_dropped, h, p, names)


def _dropped(h: Tensor, p: float, names: IntArray | Tensor | None) -> Tensor:
    taken: KeySource | None = getattr(_keys, "source", None)
    key = draw_key() if taken is None else taken()
    # Constants need no gradient, and autograd would have to ask for one.
    return (
        dropout_on(h.device).scale_kept(h, key, p, names)
        if isinstance(h, LazyRows)
        else _Dropout.apply(h, key, p, names)
    )
