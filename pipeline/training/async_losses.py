"""Losses of steps that are read from the device later, while the loop goes on."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 64
"""Most steps that the host runs ahead of the device."""


@dataclass(frozen=True, eq=False)
class _Waiting:
    loss: Tensor
    arrived: torch.cuda.Event
    then: Callable[[float], None]


class StepLosses:
    """Sums of losses that are being copied from the device, in the order of the steps."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def add(self, loss: float | Tensor, then: Callable[[float], None]) -> None:
        """Call ``then(loss)``: at once for a number, or in a later `poll` once the tensor has been copied."""
        if not isinstance(loss, Tensor):
            then(loss)
            return
        here = torch.empty((), dtype=loss.dtype, pin_memory=True)
        here.copy_(loss, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._waiting.append(_Waiting(here, arrived, then))

    def poll(self) -> None:
        """Report the losses that have arrived, and wait while too many are on their way."""
        self._report(lambda x: len(self._waiting) > MOST or x.arrived.query())

    def wait(self) -> None:
        """Wait for all losses and report them."""
        self._report(lambda _: True)

    def _report(self, while_: Callable[[_Waiting], bool]) -> None:
        while self._waiting and while_(self._waiting[0]):
            first = self._waiting.popleft()
            first.arrived.synchronize()
            first.then(float(first.loss))
