"""Batch normalisation on several ranks, equal to that of one rank with every row: running statistics only, or all of
it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...storage.errors import InputError
from ..autograd import once_differentiable
from ..comm.base import Group
from ..nn.lone_rows import by_running_statistics, set_forward

BLOCK_ELEMENTS = 1 << 16
"""Elements that are normalised at a time."""


class RunningStatistics:
    """Keeps the running means and variances of a model's batch normalisations equal on all ranks.

    With momentum m, a module that sees the statistics s_0 .. s_{M-1} of a step's minibatches one after the other ends
    with (1-m)^M r + sum_i m (1-m)^(M-1-i) s_i. That sum is linear, so ranks can add up their own terms and reduce them
    once a step. The term of a minibatch is read off the module itself, which starts it from statistics of zero: in
    training they take no part in the forward pass.

    Modules in evaluation mode, and those that track nothing, are left alone. A module may be called several times in a
    minibatch if it is called equally often in each. With one rank, or without such modules, nothing is done and nothing
    travels. Equal to the sequential result up to rounding: terms are added in float64, in another order.
    """

    def __init__(self, module: nn.Module, group: Group) -> None:
        """
        Args:
            module: the trained module. Its batch normalisations must stay the same ones.
            group: the ranks; all make one of these, of the same model.

        Raises:
            InputError: several ranks, and a module averages over all minibatches so far (``momentum=None``).
        """
        self._group = group
        self._tracked: list[_Tracked] = []
        for name, norm in module.named_modules() if group.size > 1 else ():
            if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
                continue
            if norm.momentum is None:
                raise InputError(
                    f"batch normalisation '{name}' has momentum=None, an average over all minibatches, which several "
                    "ranks cannot "
                    "keep; expected a number: give it one, such as momentum=0.1, or train with one rank"
                )
            self._tracked.append(_Tracked(name, norm))

    @contextmanager
    def minibatch(self, position: int, of: int) -> Iterator[None]:
        """Context of forward and backward of one of this rank's minibatches, `position` in [0, of) of the step."""
        assert 0 <= position < of
        training = [t for t in self._tracked if t.norm.training]
        before = [t.get() for t in training]
        for t in training:
            t.set(torch.zeros_like(t.added))
        try:
            yield
            for t in training:
                term = t.get()
                term[1:] *= t.kept(term[0] * (of - 1 - position))
                t.added += term
        finally:
            for t, statistics in zip(training, before):
                t.set(statistics)

    def finish(self, of: int) -> None:
        """End a step of `of` minibatches on every rank: the sums over all of them become the running statistics.

        Raises:
            InputError: a module was called in some of the minibatches only.
        """
        if not self._tracked:
            return
        flat = torch.cat([t.added for t in self._tracked])
        self._group.all_reduce(flat, "gradients")
        terms = flat.split([len(t.added) for t in self._tracked])
        # On a device, read all at once.
        for t, term, calls in zip(self._tracked, terms, torch.stack([term[0] for term in terms]).tolist()):
            if calls % of:
                raise InputError(
                    f"batch normalisation '{t.name}' was called {calls:g} times in {of} minibatches; expected equally "
                    "often in each, or "
                    "its running statistics depend on the number of ranks: call it in every minibatch, or train with "
                    "one rank"
                )
            if calls:
                statistics = t.get()
                statistics[1:] *= t.kept(term[0])
                t.set(statistics + term)
            t.added.zero_()


class _Tracked:
    """One module's statistics of the step on this rank: float64 [1 + 2C], calls, means and variances."""

    def __init__(self, name: str, norm: _BatchNorm) -> None:
        self.name, self.norm = name, norm
        self.added = torch.zeros_like(self.get())

    def get(self) -> Tensor:
        """Copy of the module's statistics."""
        return torch.cat([b.double().view(-1) for b in self._buffers()])

    def set(self, statistics: Tensor) -> None:
        """Set the module's statistics."""
        for buffer, new in zip(self._buffers(), statistics.split([1, self.norm.num_features, self.norm.num_features])):
            buffer.copy_(new.view_as(buffer))

    def kept(self, calls: Tensor) -> Tensor:
        """Remaining share of a running statistic after so many calls, float64 []."""
        assert self.norm.momentum is not None
        return (1.0 - self.norm.momentum) ** calls

    def _buffers(self) -> list[Tensor]:
        return [self.norm.get_buffer(name) for name in ("num_batches_tracked", "running_mean", "running_var")]


class GlobalBatchNorm:
    """Batch normalisation over the rows of all ranks, for full-batch training, in which ranks hold different rows of
    one batch.

    Statistics are two-pass sums in float64 (sum and count, then squares of what is centred), so that a mean far from
    zero costs no precision; every rank gets the same bits, also in its running statistics, which are torch's: unbiased
    variances, `momentum` None too. The loss is the *sum* of the ranks' losses: the backward pass adds up the gradients
    of the shared statistics over ranks; the gradients of weight and bias are those of this rank's rows, to be summed
    with all others. Bytes count as ``activations``: (1 + 2C) numbers forward and 2C backward for C channels.

    Modules in evaluation mode are left alone. With one rank, or without batch normalisations, nothing is done and
    nothing travels.
    """

    def __init__(self, module: nn.Module, group: Group) -> None:
        """
        Args:
            module: the trained module. Its batch normalisations must stay the same ones.
            group: the ranks; all make one of these, of the same model.
        """
        self._group = group
        self._norms = [m for m in module.modules() if isinstance(m, _BatchNorm)] if group.size > 1 else []

    @contextmanager
    def minibatch(self, position: int, of: int) -> Iterator[None]:
        """Context of forward and backward, on every rank and of the same model: a rank without rows takes part with
        none.

        Raises:
            InputError: inside, on every rank: a module was called with another number of channels, or with a single row
                in total and keeps no running statistics, by which that row is normalised.
        """
        assert 0 <= position < of
        with ExitStack() as restored:
            for norm in self._norms:
                if norm.training:
                    restored.callback(set_forward, norm, vars(norm).get("forward"))
                    set_forward(norm, partial(_normalise, norm, self._group))
            yield

    def finish(self, of: int) -> None:
        """End a step: no effect, since every forward pass has updated the running statistics of all ranks."""


def _normalise(norm: _BatchNorm, group: Group, input: Tensor) -> Tensor:
    """Apply `norm` over the rows of all ranks, for those of this rank, [n, C] or [n, C, ...]."""
    norm._check_input_dim(input)
    if input.shape[1] != norm.num_features:
        raise InputError(
            f"batch normalisation got {input.shape[1]} channels; expected {norm.num_features}: make it for what comes "
            "in"
        )
    last = input.movedim(1, -1)
    rows = last.flatten(0, -2)
    with torch.no_grad():
        sums = torch.zeros(norm.num_features + 1, dtype=torch.float64, device=rows.device)
        sums[-1] = len(rows)
        for b in _blocks(rows):
            sums[:-1] += b.double().sum(0)
        group.all_reduce(sums, "activations")
        count = int(sums[-1])
    if count == 1:
        return by_running_statistics(norm, input)
    with torch.no_grad():
        mean = sums[:-1] / max(1, count)
        squares = torch.zeros_like(mean)
        for b in _blocks(rows):
            squares += (b.double() - mean).square_().sum(0)
        group.all_reduce(squares, "activations")
        _update_running(norm, mean, squares, count)
        inv_std = (squares / max(1, count) + norm.eps).rsqrt()
    y: Any = _Normalise.apply(rows, norm.weight, norm.bias, (mean, inv_std, count), group)
    return y.view(last.shape).movedim(-1, 1)


def _update_running(norm: _BatchNorm, mean: Tensor, squares: Tensor, count: int) -> None:
    """Update running statistics as torch does, with the unbiased variance."""
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    share = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if share is None:
            share = 1.0 / float(norm.num_batches_tracked)
    if count and share is not None:
        for running, new in ((norm.running_mean, mean), (norm.running_var, squares / (count - 1))):
            running.copy_((1.0 - share) * running.double() + share * new)


class _Normalise(torch.autograd.Function):
    """y = (x - mean) * inv_std * weight + bias, where `mean` and `inv_std` are functions of all ranks' x; the backward
    pass accounts for that.

    With z = (x - mean) * inv_std and g = dL/dy * weight, dL/dx = inv_std * (g - mean(g) - z * mean(g * z)), means over
    all ranks' rows (Ioffe, Szegedy, ICML 2015, section 3). z is computed again: only x is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: tuple[Tensor, Tensor, int],
        group: Group,
    ) -> Tensor:
        mean, inv_std, count = statistics
        ctx.save_for_backward(x, weight, bias, mean, inv_std)
        ctx.count, ctx.group = count, group
        y = torch.empty_like(x)
        for b, out in zip(_blocks(x), _blocks(y)):
            z = (b.double() - mean) * inv_std
            if weight is not None:
                z *= weight
            if bias is not None:
                z += bias
            out.copy_(z)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inv_std = ctx.saved_tensors
        (dy,) = grads
        own = torch.zeros(2, len(mean), dtype=torch.float64, device=x.device)
        for b, d in zip(_blocks(x), _blocks(dy)):
            d = d.double()
            own[0] += d.sum(0)
            own[1] += (b.double() - mean).mul_(inv_std).mul_(d).sum(0)
        # Also if x needs no gradient: whether this travels must not depend on one rank's x.
        total = own.clone()
        ctx.group.all_reduce(total, "activations")
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            mean_d, mean_dz = total / max(1, ctx.count)
            scale = inv_std if weight is None else inv_std * weight
            for b, d, out in zip(_blocks(x), _blocks(dy), _blocks(dx)):
                z = (b.double() - mean) * inv_std
                out.copy_((d.double() - mean_d - z * mean_dz) * scale)
        return (
            dx,
            None if weight is None else own[1].to(weight.dtype),
            None if bias is None else own[0].to(bias.dtype),
            None,
            None,
        )


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Ranges of rows that fit into a cache in float64, so that no second copy of an activation is ever complete."""
    return rows.split(max(1, BLOCK_ELEMENTS // max(1, rows.shape[1])))
