"""Protocols of communication: groups of ranks, and messages under way."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

TAGS = 1 << 30
"""Number of tags that `Group.swap` accepts."""


Overlap = Callable[[], None]
"""Work to do while numbers of other ranks are on their way."""


def nothing() -> None:
    """The empty `Overlap`."""


class Group(Protocol):
    """Ranks that train together.

    All ranks call the same methods in the same order, from one thread. Payload bytes that this rank sends are counted
    in its ledger, channel ``network``, under the `kind` that the caller names. A method raises PeerLostError when a
    peer is gone.
    """

    @property
    def rank(self) -> int:
        """This process, in [0, size)."""

    @property
    def size(self) -> int:
        """P, the number of ranks."""

    @property
    def present(self) -> Sequence[int]:
        """Ranks that took part in the last sum, ascending: all of them, except in a group that survives losses
        (`comm.survivors`)."""

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> "Group":
        """Separate group of some of these ranks, for another thread or a smaller circle.

        Exactly those ranks call this, at the same time. It counts in the same ledger, and closes with this group.

        Args:
            name: distinguishes groups of the same ranks.
            ranks: ascending, this one among them.
            same_thread: true if one thread uses both groups, on every rank in the same order.
        """

    def counting(self, channel: str) -> AbstractContextManager[None]:
        """Context in which bytes are counted under this channel of the ledger."""

    def all_reduce(self, flat: Tensor, kind: str, overlap: Overlap = nothing) -> None:
        """Sum a contiguous tensor over the ranks, in place: the same bits on every rank.

        Args:
            flat: of the same size and dtype on all ranks.
            kind: its kind in the ledger.
            overlap: called at most once, while this rank's numbers are on their way: work that does not involve other
                ranks.
        """

    def any(self, flag: bool) -> bool:
        """True on every rank if `flag` is true on some rank. Counted as ``control``."""

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        """Overwrite a contiguous tensor with that of rank `source`."""

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        """Send part r to rank r, and return the parts that the other ranks have for this one.

        Args:
            parts: P tensors, [n_r] or [n_r, F], of one dtype and one F on all ranks; any n_r, also 0.
            kind: kind of the parts in the ledger. Sizes that ranks exchange first count as ``control``.
            into: P tensors that fit what will arrive, for a caller who knows the sizes: nothing is allocated and no
                sizes travel. All ranks pass it, or none. Cut from one tensor (``Tensor.split``), with no rows for this
                rank.

        Returns:
            P tensors in the order of ranks; this rank's own is ``parts[rank]`` itself.
        """

    def matches_by_order(self, device: torch.device) -> bool:
        """True if `swap` matches messages of tensors on this device by the order in which both sides begin them, not
        by their tags."""

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> "Swap":
        """Start to send `part` to rank `to` and to receive `into` from rank `source`; returns at once.

        Both sides know all sizes: an empty tensor neither travels nor is waited for. Ranks need not be in step: the tag
        matches messages. Except where `matches_by_order`: there a swap begins when those before it have ended, and all
        ranks begin the same rounds of swaps in the same order; in a round each sends at most one message and receives
        at most one.

        Args:
            part: contiguous; not to be changed until it is sent.
            to: another rank, unless `part` is empty.
            into: contiguous; not to be read until it has been received.
            source: another rank, unless `into` is empty.
            tag: in [0, `TAGS`); the same on both sides, and no other message of these two under way has it.
            kind: kind of `part` in the ledger.
        """


class Swap(Protocol):
    """One outgoing and one incoming message under way. `what` describes the wait in error messages. Where the group
    `matches_by_order`, the device's current stream waits, not the caller."""

    def received(self, what: str) -> None:
        """Wait for the incoming message. Raises PeerLostError if the peer is gone."""

    def sent(self, what: str) -> None:
        """Wait until the outgoing part may be changed. Raises PeerLostError if the peer is gone."""
