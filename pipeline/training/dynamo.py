"""Keeps torch's compiler out of processes that compile nothing."""

import functools
import sys
from typing import Any

OF_OPTIMIZERS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def leave_compiler_out() -> None:
    """Let torch's optimisers work without loading `torch._dynamo`.

    In torch 2.13 the first optimiser of a process imports it only to exempt these methods from compilation, and the
    first step only to mark graph breaks. That takes as much processor time as importing torch, in every rank. The
    methods look up their exempted version once and keep it; here they find themselves. A model can still be compiled
    (`compiled`), which imports it. Not for a user's own process, where an optimiser may be compiled too. With a torch
    that does this otherwise, nothing changes.
    """
    import torch

    if "torch._dynamo" in sys.modules:
        return
    for name in OF_OPTIMIZERS:
        eager = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if eager is not None:
            setattr(eager, "__dynamo_disable", eager)
    for kind in (torch.optim.Adam, torch.optim.SGD):
        step = vars(kind)["step"]
        if getattr(step, "__name__", "") == "step" and step.__code__.co_name == "_use_grad":
            kind.step = _uncompiled(step.__wrapped__)


def _uncompiled(step: Any) -> Any:
    """`torch.optim.optimizer._use_grad_for_differentiable` without its graph breaks."""
    import torch

    @functools.wraps(step)
    def with_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return with_grad
