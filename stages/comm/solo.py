"""A group of one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from .base import Overlap, Swap, nothing


class Solo:
    """The only rank there is: nothing travels, so nothing is counted. See `Group` for what each call answers."""

    rank = 0
    size = 1
    present = range(1)

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> "Solo":
        """The only rank has no other groups."""
        return self

    def counting(self, channel: str) -> AbstractContextManager[None]:
        """Nothing is counted."""
        return nullcontext()

    def all_reduce(self, flat: Tensor, kind: str, overlap: Overlap = nothing) -> None:
        """A sum over one rank is the tensor itself."""

    def any(self, flag: bool) -> bool:
        """What the only rank says."""
        return flag

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        """The only rank has it already."""

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        """The only rank keeps its own part."""
        return [parts[0]]

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        """The only rank has nobody to talk to."""
        assert not part.numel() and not into.numel()
        return _Nothing()


class _Nothing:
    def received(self, what: str) -> None:
        """Nothing comes."""

    def sent(self, what: str) -> None:
        """Nothing goes."""
