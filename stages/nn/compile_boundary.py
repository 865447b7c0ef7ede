"""What `torch.compile` is not to look into: it breaks its graph there and calls it as it is."""

from collections.abc import Callable
from typing import Any

import torch


def outside(call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``; within a compiled module, once `hide` was called, without the compiler's looking into it."""
    return _call(call, *args)


def _plain(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


_call = _plain


def hide() -> None:
    """Tell the compiler, which this loads: nobody else need wait for that."""
    global _call
    if _call is _plain:
        _call = torch.compiler.disable(_plain)
