"""Optimisers of a table's rows that change those with a gradient and no others: torch's `SGD`, `Adagrad` and
`SparseAdam` with their default options, in one pass over the rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
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

    def step(self, ids: npt.NDArray[np.int64], grads: npt.NDArray[Any], factor: float, rate: float) -> None:
        """Step along ``grads * factor`` of the rows `ids`, which are distinct, with `rate` times the learning rate."""
        self.steps += 1
        arrays = [self.rows.numpy(), *(self.state[name].numpy() for name in self.moments)]
        kernel, numbers = self._kernel(self.lr * rate)
        # Numbers in the rows' dtype: numba would compute in float64.
        number = self.rows.numpy().dtype.type
        given = (*arrays, ids, grads, number(factor), *map(number, numbers))
        size = max(ROWS, -(-len(ids) // get_num_threads()))
        parallel(kernel, [(*given, at, min(at + size, len(ids))) for at in range(0, len(ids), size)])

    @abstractmethod
    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        """The kernel, and its numbers after the gradients' factor."""


class SGD(RowOptimizer):
    """`torch.optim.SGD`."""

    moments = ()

    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return row_steps.sgd, (lr,)


class Adagrad(RowOptimizer):
    """`torch.optim.Adagrad`."""

    moments = ("sum",)

    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return row_steps.adagrad, (lr, EPS["adagrad"])


class Adam(RowOptimizer):
    """`torch.optim.SparseAdam`."""

    moments = ("exp_avg", "exp_avg_sq")

    def _kernel(self, lr: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        first, second = (1 - beta**self.steps for beta in BETAS)
        return row_steps.adam, (lr * math.sqrt(second) / first, *(1 - beta for beta in BETAS), EPS["adam"])


OPTIMIZERS: dict[str, type[RowOptimizer]] = {"adagrad": Adagrad, "adam": Adam, "sgd": SGD}
"""By the names that ``learned.optimizer`` has for them."""
