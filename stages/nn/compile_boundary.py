"""Boundary of `torch.compile`: functions that it calls without tracing them."""

from collections.abc import Callable
from typing import Any

import torch


def untraced(call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``; within a compiled module, once `hide` was called, untraced."""
    return _call(call, *args)


def _plain(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


_call = _plain


def hide() -> None:
    """Register the boundary with the compiler, which this loads: other users need not wait for that."""
    global _call
    if _call is _plain:
        _call = torch.compiler.disable(_plain)
