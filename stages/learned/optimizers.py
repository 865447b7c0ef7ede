"""Optimisers of a table's rows that change those with a gradient and no others: torch's `SGD`, `Adagrad` and
`SparseAdam` with their default options, in one pass over the rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import row_steps
from ..kernels.runtime.threads import get_num_threads, parallel

ROWS = 4096
"""Least number of rows of a thread."""
EPS = {"adagrad": 1e-10, "adam": 1e-8}
BETAS = 0.9, 0.999


class RowOptimizer(ABC):
    """Steps of the rows of a table."""

    moments: ClassVar[Sequence[str]]
    """Names of the arrays that it keeps, as torch names them."""

    def __init__(self, rows: Tensor, lr: float) -> None:
        """
        Args:
            rows: [N, D], changed in place.
            lr: learning rate.
        """
        self.rows, self.lr, self.steps = rows, lr, 0
        self.state = {name: torch.zeros_like(rows) for name in self.moments}

    def step(self, ids: Tensor, grads: Tensor, factor: float, rate: float) -> None:
        """Step along ``grads * factor`` of the rows `ids`, int64 [n] and distinct, with `rate` times the learning
        rate."""
        self.steps += 1
        if self.rows.device.type != "cpu":
            self._step_on_device(ids, grads * factor, self.lr * rate)
            return
        arrays = [x.numpy() for x in (self.rows, *self.state.values(), ids, grads)]
        kernel, numbers = self._kernel(self.lr * rate)
        # Numbers in the rows' dtype: numba would compute in float64.
        given = (*arrays, *map(arrays[0].dtype.type, (factor, *numbers)))
        size = max(ROWS, -(-len(ids) // get_num_threads()))
        parallel(kernel, [(*given, at, min(at + size, len(ids))) for at in range(0, len(ids), size)])

    @abstractmethod
    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        """The kernel, and its numbers after the gradients' factor."""

    @abstractmethod
    def _step_on_device(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        """The same step by torch's operations, on a device."""

    def _moved(self, name: str, ids: Tensor, to: Tensor, weight: float) -> Tensor:
        """Rows of a moment, moved by `weight` of the way to `to`."""
        moment = self.state[name].index_select(0, ids).lerp_(to, weight)
        self.state[name].index_copy_(0, ids, moment)
        return moment


class SGD(RowOptimizer):
    """`torch.optim.SGD`."""

    moments = ()

    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return row_steps.sgd, (lr,)

    def _step_on_device(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        self.rows.index_add_(0, ids, grads, alpha=-lr)


class Adagrad(RowOptimizer):
    """`torch.optim.Adagrad`."""

    moments = ("sum",)

    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return row_steps.adagrad, (lr, EPS["adagrad"])

    def _step_on_device(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        total = self.state["sum"].index_select(0, ids).addcmul_(grads, grads)
        self.state["sum"].index_copy_(0, ids, total)
        self.rows.index_add_(0, ids, grads / total.sqrt_().add_(EPS["adagrad"]), alpha=-lr)


class Adam(RowOptimizer):
    """`torch.optim.SparseAdam`."""

    moments = ("exp_avg", "exp_avg_sq")

    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return row_steps.adam, (self._corrected(lr), *(1 - beta for beta in BETAS), EPS["adam"])

    def _step_on_device(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        mean = self._moved("exp_avg", ids, grads, 1 - BETAS[0])
        square = self._moved("exp_avg_sq", ids, grads * grads, 1 - BETAS[1])
        self.rows.index_add_(0, ids, mean / square.sqrt_().add_(EPS["adam"]), alpha=-self._corrected(lr))

    def _corrected(self, lr: float) -> float:
        """The rate, corrected for moments that start at zero."""
        first, second = (1 - beta**self.steps for beta in BETAS)
        return lr * math.sqrt(second) / first


OPTIMIZERS: dict[str, type[RowOptimizer]] = {"adagrad": Adagrad, "adam": Adam, "sgd": SGD}
"""By the names that ``learned.optimizer`` has for them."""
