"""A group of one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from .base import Overlap, Swap, nothing


class Solo:
    """The only rank. Nothing travels, so nothing is counted. See `Group`."""

    rank = 0
    size = 1
    present = range(1)

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> "Solo":
        """The group itself: a single rank has no other."""
        return self

    def counting(self, channel: str) -> AbstractContextManager[None]:
        """No effect: nothing is counted."""
        return nullcontext()

    def all_reduce(self, flat: Tensor, kind: str, overlap: Overlap = nothing) -> None:
        """No effect: the sum over one rank is the tensor itself."""

    def any(self, flag: bool) -> bool:
        """The flag of the only rank."""
        return flag

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        """No effect: the only rank has the tensor already."""

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        """The only rank's own part."""
        return [parts[0]]

    def matches_by_order(self, device: torch.device) -> bool:
        """False: there is nothing to match."""
        return False

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        """Only empty parts can be swapped: the only rank has no peers."""
        assert not part.numel() and not into.numel()
        return _Nothing()


class _Nothing:
    def received(self, what: str) -> None:
        """No effect."""

    def sent(self, what: str) -> None:
        """No effect."""
