"""What steps say about themselves, told once the device has said it: the loop goes on meanwhile."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 64
"""Steps whose losses may be on their way: further ahead of the device the host does not run."""


@dataclass(frozen=True, eq=False)
class _Waiting:
    loss: Tensor
    arrived: torch.cuda.Event
    then: Callable[[float], None]


class StepLosses:
    """Sums of losses on their way from the device, in the order of the steps."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def add(self, loss: float | Tensor, then: Callable[[float], None]) -> None:
        """Call ``then(loss)``: at once where the number is known, else when it has come and somebody looks."""
        if not isinstance(loss, Tensor):
            then(loss)
            return
        here = torch.empty((), dtype=loss.dtype, pin_memory=True)
        here.copy_(loss, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._waiting.append(_Waiting(here, arrived, then))

    def look(self) -> None:
        """Tell of what has come, and wait while too much is on its way."""
        self._tell(lambda x: len(self._waiting) > MOST or x.arrived.query())

    def wait(self) -> None:
        """Tell of everything."""
        self._tell(lambda _: True)

    def _tell(self, while_: Callable[[_Waiting], bool]) -> None:
        while self._waiting and while_(self._waiting[0]):
            first = self._waiting.popleft()
            first.arrived.synchronize()
            first.then(float(first.loss))
