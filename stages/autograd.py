"""torch's `once_differentiable` with a type: it keeps the signature of the backward pass that it decorates."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch.autograd.function import once_differentiable as _once_differentiable

Backward = TypeVar("Backward", bound=Callable[..., Any])


def once_differentiable(backward: Backward) -> Backward:
    """Mark a backward pass that cannot be differentiated itself: doing so raises an error."""
    wrapped: Any = _once_differentiable(backward)
    return wrapped
