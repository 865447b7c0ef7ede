"""Products with weights under autograd, with their bias and activation, in memory that the next step uses again.

`dense_cpu` multiplies rows in host memory, `dense_cuda` rows in a GPU's; both export the same names.
"""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional as F

from ..memory.lazy_rows import LazyRows
from . import dense_cpu, dense_cuda
from .compile_boundary import untraced

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "elu": F.elu, "none": lambda y: y}
"""Activations for the compiler, which fuses them itself."""
FUSED = ("none", "relu", "elu")
"""Activations that a product can apply."""


def _in_bfloat16(x: Tensor) -> bool:
    device = x.device.type
    return (
        x.dtype == torch.float32
        and torch.is_autocast_enabled(device)
        and torch.get_autocast_dtype(device) == torch.bfloat16
    )


def _products_on(device: torch.device) -> ModuleType:
    """Module that multiplies tensors on `device`."""
    return dense_cpu if device.type == "cpu" else dense_cuda


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """``activation(x weight^T + bias)``, [n, D_in] -> [n, D_out].

    Under ``torch.autocast(device, torch.bfloat16)`` float32 operands are multiplied in bfloat16; what goes in and comes
    out, bias and activation stay in float32. All operands lie on one device, the CPU or a CUDA device.

    Args:
        x: [n, D_in].
        weight: [D_out, D_in].
        bias: [D_out] or None.
        activation: one of `FUSED`.
    """
    if is_compiling() and not isinstance(x, LazyRows) and not _in_bfloat16(x):
        return _ACTIVATIONS[activation](F.linear(x, weight, bias))
    return untraced(_linear, x, weight, bias, activation)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    x = x.gathered() if isinstance(x, LazyRows) else x
    return _products_on(x.device).Linear.apply(x, weight, bias, activation, _in_bfloat16(x))


def per_head(x: Tensor, weight: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Each head's rows by that head's weight, side by side: ``activation(concat_h(x[:, h] weight[h]^T) + bias)``; see
    `linear`.

    Args:
        x: [n, H, D_in].
        weight: [H, D_out, D_in].
        bias: [H * D_out].
        activation: one of `FUSED`.

    Returns:
        [n, H * D_out].
    """
    if is_compiling() and not _in_bfloat16(x):
        return _ACTIVATIONS[activation](torch.einsum("nhf,hdf->nhd", x, weight).flatten(1) + bias)
    return untraced(_per_head, x, weight, bias, activation)


def _per_head(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    return _products_on(x.device).PerHead.apply(x, weight, bias, activation, _in_bfloat16(x))


def activate(x: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """``activation(x + bias)``, [n, D], [D] -> [n, D], in one pass; the gradient too. See `linear`."""
    if is_compiling():
        return _ACTIVATIONS[activation](x + bias)
    return _products_on(x.device).Activate.apply(x, bias, activation)
