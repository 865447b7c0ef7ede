"""A device that is not there: tensors that say they lie on a GPU, while their values lie on the host.

In Triton's interpreter "cuda" is the host, where a tensor of the host that meets one of the device goes unnoticed. Here
it raises, as on a GPU.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

COPIES = {torch.ops.aten._to_copy.default}
BETWEEN = {torch.ops.aten.copy_.default}
"""Operations that take tensors of both."""


class OnDevice(Tensor):
    """A tensor on the pretended device.

    Args:
        held: its values.
    """

    held: Tensor

    @staticmethod
    def __new__(cls: type, held: Tensor) -> "OnDevice":
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("cuda", 0),
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held.detach()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        options = dict(kwargs or {})
        to = torch.device(options.pop("device", None) or "cuda")
        tensors = [t for t in tree_leaves((args, options)) if isinstance(t, Tensor)]
        if func not in BETWEEN and any(not isinstance(t, OnDevice) and t.dim() for t in tensors):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")
        result = func(*tree_map(_held, args), **tree_map(_held, options))
        if func in COPIES:
            return result if to.type == "cpu" else OnDevice(result)
        return return_and_correct_aliasing(func, args, kwargs or {}, tree_map(_on_device, result))


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _on_device(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, Tensor) and not isinstance(value, OnDevice) else value


def on_pretended_device(module: nn.Module) -> nn.Module:
    """Move the parameters and buffers of a module to the pretended device, in place."""
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                child._parameters[name] = nn.Parameter(OnDevice(parameter.detach()), parameter.requires_grad)
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = OnDevice(buffer)
    return module
