"""Running statistics of batch normalisation, as one rank that saw every minibatch would have them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...storage.errors import InputError
from ..base import Group


class RunningStatistics:
    """Keeps the running means and variances of a model's batch normalisations equal on all ranks.

    With momentum m, a module that sees the statistics s_0 .. s_{M-1} of a step's minibatches one after the other ends with
    (1-m)^M r + sum_i m (1-m)^(M-1-i) s_i. That sum is linear, so ranks can add up their own terms and reduce them once a step. The
    term of a minibatch is read off the module itself, which starts it from statistics of zero: in training they take no part in the
    forward pass.

    Modules in evaluation mode, and those that track nothing, are left alone. A module may be called several times in a minibatch if
    it is called equally often in each. With one rank, or without such modules, nothing is done and nothing travels. Equal to the
    sequential result up to rounding: terms are added in float64, in another order.
    """

    def __init__(self, module: nn.Module, group: Group) -> None:
        """
        Args:
            module: what is trained. Its batch normalisations must stay the same ones.
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
                    f"batch normalisation '{name}' has momentum=None, an average over all minibatches, which several ranks cannot "
                    "keep; expected a number: give it one, such as momentum=0.1, or train with one rank"
                )
            self._tracked.append(_Tracked(name, norm))

    @contextmanager
    def minibatch(self, position: int, of: int) -> Iterator[None]:
        """Around forward and backward of one of this rank's minibatches, `position` in [0, of) of the step."""
        assert 0 <= position < of
        training = [t for t in self._tracked if t.norm.training]
        before = [t.get() for t in training]
        for t in training:
            t.set(torch.zeros_like(t.added))
        try:
            yield
            for t in training:
                term = t.get()
                term[1:] *= t.kept(float(term[0]) * (of - 1 - position))
                t.added += term
        finally:
            for t, statistics in zip(training, before):
                t.set(statistics)

    def finish(self, of: int) -> None:
        """At the end of a step of `of` minibatches, on every rank: the sums over all of them become the running statistics.

        Raises:
            InputError: a module was called in some of the minibatches only.
        """
        if not self._tracked:
            return
        flat = torch.cat([t.added for t in self._tracked])
        self._group.all_reduce(flat, "gradients")
        for t, term in zip(self._tracked, flat.split([len(t.added) for t in self._tracked])):
            calls = float(term[0])
            if calls % of:
                raise InputError(
                    f"batch normalisation '{t.name}' was called {calls:g} times in {of} minibatches; expected equally often in each, or "
                    "its running statistics depend on the number of ranks: call it in every minibatch, or train with one rank"
                )
            if calls:
                statistics = t.get()
                statistics[1:] *= t.kept(calls)
                t.set(statistics + term)
            t.added.zero_()


class _Tracked:
    """One module, and what this rank's minibatches of the step add to it: float64 [1 + 2C], calls, means and variances."""

    def __init__(self, name: str, norm: _BatchNorm) -> None:
        self.name, self.norm = name, norm
        self.added = torch.zeros_like(self.get())

    def get(self) -> Tensor:
        """What the module holds, a copy."""
        return torch.cat([b.double().view(-1) for b in self._buffers()])

    def set(self, statistics: Tensor) -> None:
        """Make the module hold them."""
        for buffer, new in zip(self._buffers(), statistics.split([1, self.norm.num_features, self.norm.num_features])):
            buffer.copy_(new.view_as(buffer))

    def kept(self, calls: float) -> float:
        """What is left of a running statistic after so many calls."""
        assert self.norm.momentum is not None
        return (1.0 - self.norm.momentum) ** calls

    def _buffers(self) -> list[Tensor]:
        return [self.norm.get_buffer(name) for name in ("num_batches_tracked", "running_mean", "running_var")]
