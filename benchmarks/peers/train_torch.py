"""Training loop of peers: minibatches of a loader, gradients by torch, Adam."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from train_task import LR, Epoch, Parts, Work


class HeadClock:
    """Seconds of what makes outputs of rows, forward and backward. The backward pass begins with the gradient of the
    outputs, and ends with that of the rows."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __call__(self, rows: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """The head's outputs, whose seconds count."""
        start = time.perf_counter()
        outputs = head(rows)
        self.seconds += time.perf_counter() - start
        if outputs.requires_grad:
            outputs.register_hook(self._begin)
            rows.register_hook(self._end)
        return outputs

    def _begin(self, _: Tensor) -> None:
        self._began = time.perf_counter()

    def _end(self, _: Tensor) -> None:
        self.seconds += time.perf_counter() - self._began

    def taken(self) -> float:
        """Seconds since this was last asked."""
        found, self.seconds = self.seconds, 0.0
        return found


def epochs(
    loader: Any,
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    sizes: Callable[[Any], tuple[int, int, int]],
    gather: Callable[[Any], Any] | None = None,
    head: HeadClock | None = None,
    lr: float = LR,
) -> Epoch:
    """
    Args:
        loader: of minibatches, in a new order each time.
        model: whose parameters are trained.
        loss: of a minibatch and what was gathered for it.
        sizes: edges drawn for a minibatch, edges that the layers read, and rows gathered.
        gather: rows of a minibatch; None: the loader has gathered them.
        head: of the model; its seconds are a part of their own.
        lr: of Adam.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def epoch(minibatches: int, parts: Parts) -> Iterator[Work]:
        drawn = islice(loader, minibatches)
        while True:
            with parts.measure("sample" if gather else "sample and gather"):
                minibatch = next(drawn, None)
            if minibatch is None:
                return
            rows = None
            if gather:
                with parts.measure("gather"):
                    rows = gather(minibatch)
            with parts.measure("train"):
                total = loss(minibatch, rows)
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
                value = total.item()
            if head:
                seconds = head.taken()
                parts.seconds["train"] -= seconds
                parts.seconds["head"] += seconds
            yield Work(*sizes(minibatch), value)

    return epoch
