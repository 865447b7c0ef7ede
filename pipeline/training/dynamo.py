"""Keep torch's compiler out of the processes that Millrace starts, as long as they compile nothing."""

import functools
import sys
from typing import Any

OF_OPTIMIZERS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def leave_compiler_out() -> None:
    """Let torch's optimisers work without loading `torch._dynamo`.

    As torch 2.13 has it, the first optimiser of a process loads it only to have it look away from these methods, and
    the first step only to tell it where its graph would break: as much processor time as importing torch itself, in
    every rank. The methods ask once and keep what they are handed; here they find themselves. A model can still be
    compiled (`compiled`), which loads it. Not for processes of a user's, who may compile an optimiser too. Where torch
    does it otherwise, nothing changes.
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
    """As `torch.optim.optimizer._use_grad_for_differentiable` has it, but for the breaks in the graph."""
    import torch

    @functools.wraps(step)
    def with_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return with_grad
