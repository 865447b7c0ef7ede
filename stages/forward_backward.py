"""Training stage: adds the gradient of one piece of work."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..storage.dataset import Task
from ..storage.errors import InputError
from .losses import LOSSES, NamedLoss
from .messages import Begun, Fetched, Loss, WorkDone
from .nn.lone_rows import lone_rows
from .random import Purpose, stream, torch_seed


def of_each_seed(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """[B], a user's loss of each seed.

    Raises:
        InputError: the loss is not one floating-point number for each seed.
    """
    losses: Any = loss(logits, y)
    if not isinstance(losses, Tensor) or losses.shape != (len(y),) or not losses.is_floating_point():
        seen = f"{losses.dtype} {list(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise InputError(
            f"the loss gave {seen} for {len(y)} seeds; expected a floating-point tensor [{len(y)}], one value for each "
            'seed: torch\'s losses give that with reduction="none"'
        )
    return losses


def summed_loss(
    logits: Tensor,
    y: Tensor,
    task: Task,
    weights: Tensor | None = None,
    loss: Loss | None = None,
) -> Tensor:
    """A loss summed over seeds, times the weights [B] of those if there are any.

    Without one: cross entropy (multi-class, y int64 [B]), binary cross entropy averaged over classes (binary, y int64
    [B]; multi-label, y [B, C]), or the squared error averaged over targets (regression, y [B, C]).
    """
    if loss is None and task not in ("multiclass", "multilabel"):
        loss = NamedLoss(task, LOSSES[task][0])
    if loss is not None:
        losses = of_each_seed(loss, logits, y)
        return losses.sum() if weights is None else losses @ weights.to(losses.dtype)
    if weights is not None:
        if task == "multiclass":
            losses = F.cross_entropy(logits, y, reduction="none")
        else:
            losses = F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none").mean(1)
        return losses @ weights.to(losses.dtype)
    if task == "multiclass":
        return F.cross_entropy(logits, y, reduction="sum")
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="sum") / max(1, y.shape[1])


def forward_backward(
    model: nn.Module,
    fetched: Fetched,
    seed: int,
    task: Task,
    weight: float,
    matmul_precision: Literal["float32", "bfloat16"] = "float32",
    weights: Tensor | None = None,
    loss: Loss | None = None,
) -> WorkDone:
    """Run the model on one piece of work and add the gradient of its weighted summed loss to the parameters.

    With products in bfloat16 the forward pass runs under torch's autocast; aggregations and the loss stay in float32.

    Dropout is a function of (seed, epoch, index): torch's generator is set from them here, so neither the order of the
    work nor an interruption can change it.
    """
    if fetched.begun is None:
        _seed_generators(fetched, seed)
    else:
        torch.default_generator.set_state(fetched.begun.generator)
    total, logits = loss_of(model, fetched, task, matmul_precision, weights, loss)
    (total * weight if weight != 1.0 else total).backward()
    loss_sum = (total if weights is None else summed_loss(logits.detach(), fetched.y, task, loss=loss)).detach()
    return WorkDone(loss_sum if loss_sum.is_cuda else float(loss_sum), len(fetched.y))


def begin(
    model: nn.Module, fetched: Fetched, seed: int, matmul_precision: Literal["float32", "bfloat16"] = "float32"
) -> Fetched:
    """Compute the part of the forward pass that needs no parameters, for a model with ``enter(neighbourhood, h)``.
    `forward_backward` on the result does the rest, with the same bits. CPU only."""
    enter = getattr(model, "enter", None)
    if enter is None:
        return fetched
    _seed_generators(fetched, seed)
    with _precision(fetched, matmul_precision):
        # pyrefly: ignore[not-callable]
        entered = enter(fetched.neighbourhoods[0], fetched.h)
    return replace(fetched, begun=Begun(entered, torch.default_generator.get_state()))


def _seed_generators(fetched: Fetched, seed: int) -> None:
    # Not torch.manual_seed: without a GPU it also queues a call, with a stack trace, for every device that might appear
    # later.
    torch.default_generator.manual_seed(torch_seed(stream(seed, Purpose.DROPOUT, fetched.epoch, fetched.index)))
    if fetched.y.is_cuda:
        # Random numbers that the user's module draws come from that state too.
        torch.cuda.default_generators[fetched.y.device.index].manual_seed(torch.default_generator.initial_seed())


def _precision(fetched: Fetched, matmul_precision: Literal["float32", "bfloat16"]) -> AbstractContextManager[object]:
    return torch.autocast(fetched.y.device.type, torch.bfloat16) if matmul_precision == "bfloat16" else nullcontext()


def loss_of(
    model: nn.Module,
    fetched: Fetched,
    task: Task,
    matmul_precision: Literal["float32", "bfloat16"],
    weights: Tensor | None = None,
    loss: Loss | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss of one piece of work, and the logits of its seeds, [B, C], in float32 or wider."""
    with _precision(fetched, matmul_precision), lone_rows(model, [n.num_dst for n in fetched.neighbourhoods]):
        logits = model(fetched.neighbourhoods, fetched.h, *([] if fetched.begun is None else [fetched.begun.entered]))
    if fetched.links is not None:
        logits = fetched.links.scores(logits.float() if logits.dtype == torch.bfloat16 else logits)
    logits = logits[: len(fetched.y)]
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return summed_loss(logits, fetched.y, task, weights, loss), logits
