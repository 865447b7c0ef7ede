"""Batch normalisation of a single row, which has no variance: by the running statistics."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ...storage.errors import InputError


@contextmanager
def lone_rows(module: nn.Module, rows: Sequence[int]) -> Iterator[None]:
    """Context of a forward pass in which batch normalisations in training mode take a single row, as a last minibatch
    of one seed without neighbours has it: it is normalised as in evaluation, and leaves the running statistics as they
    are (PyG's ``allow_single_element``).

    Args:
        module: what is trained.
        rows: of each layer. Where all have more than one, nothing is done.

    Raises:
        InputError: inside: a normalisation keeps no running statistics.
    """
    with ExitStack() as restored:
        if 1 in rows:
            for norm in module.modules():
                # One that another context has changed is over the rows of several ranks.
                if isinstance(norm, _BatchNorm) and norm.training and "forward" not in vars(norm):
                    restored.callback(set_forward, norm, None)
                    set_forward(norm, partial(_forward, norm))
        yield


def _forward(norm: _BatchNorm, input: Tensor) -> Tensor:
    if input.shape[1:] == (norm.num_features,) and len(input) == 1:
        return by_running_statistics(norm, input)
    return type(norm).forward(norm, input)


def by_running_statistics(norm: _BatchNorm, input: Tensor) -> Tensor:
    """A single row as in evaluation. Raises InputError if the normalisation keeps no running statistics."""
    mean, variance = norm.running_mean, norm.running_var
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        raise InputError(
            "batch normalisation got a single row, which has no variance, and keeps no running statistics; set another "
            "batch_size, or track_running_stats=True"
        )
    with torch.no_grad():
        mean, variance = mean.clone(), variance.clone()
    return F.batch_norm(input, mean, variance, norm.weight, norm.bias, momentum=0.0, eps=norm.eps)


def set_forward(norm: _BatchNorm, forward: Callable[..., Tensor] | None) -> None:
    """Give this one module its own `forward`; None restores that of its class."""
    if forward is None:
        del norm.forward
    else:
        norm.forward = forward
