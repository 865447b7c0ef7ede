"""Ranks that need only sums of each other: if some are lost, the others go on summing among themselves."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from ...storage.errors import PeerLostError
from .base import Group, Overlap, Swap, nothing

ORDER_S = 15.0
"""Time within which the process that starts the ranks reports who is left, after the others have noticed a loss."""
POLL_S = 0.02
LOOK_S, HANG_S = 0.25, 2.0
"""Interval at which a rank that waits in a sum looks for an order, and time after which one that is there ends the
wait."""

Meet = Callable[[Store, int, int], "Closing"]
"""Makes a group from a store that no other group has used, this rank's place in it, and the number of ranks."""


class Closing(Group, Protocol):
    """A `Group` that can be closed."""

    def close(self) -> None:
        """Close the connections; ranks that still talk to this one get an error. May be called twice."""


class Survivors:
    """A `Group` that survives the loss of members. Rank and size stay what they were; `present` lists those left.

    While `bears` is set, a lost rank costs the others only its own contribution: the sum under way is repeated over
    those left, with the same bits on all of them. No sum completes on a rank before all have begun it. So when one
    breaks, some ranks may have its result, the others still want that same sum, and none is further on. If some have
    the result they hand it on; otherwise all add up again. No parameters travel, nothing else is repeated, and a rank
    that arrives late from a long computation finds the others where it left them.

    Gloo may wait for ever for a rank that dies at the wrong instant: before it has connected, or between its offer to
    receive and the answer. Nothing interrupts such a wait, so meetings and sums are called from a thread of their own,
    which is left behind when an order says that somebody is gone.

    The process that starts the ranks decides who is left, in the store: ``members/k`` is the k-th order, the ranks as
    JSON, and rank r sets ``here/k/r`` when it is ready to meet by that order. No rank is excluded for being slow.

    Everything but sums (`all_reduce`, `any`) needs all ranks, and so does a sum while `bears` is not set: a loss is
    then raised.
    """

    def __init__(self, store: Store, rank: int, size: int, meet: Meet) -> None:
        """
        Args:
            store: for orders and meetings; not shared with anything else, so wrap it in a ``PrefixStore``.
            rank: this process, in [0, size).
            size: P.
            meet: makes the group of all ranks, and those of fewer.

        Raises:
            PeerLostError: the others did not come in time.
        """
        self.rank, self.size = rank, size
        self.present: tuple[int, ...] = tuple(range(size))
        """Ranks whose parts are in the last completed sum: the same on all ranks after every sum, whenever they learn
        of a loss."""
        self._members = self.present
        """Ranks that the next sum is over."""
        self.bears = False
        """True if sums make sense without lost ranks; the same on all ranks in every sum."""
        self._store, self._meet = store, meet
        self._order = 0
        self._sums = 0
        """Completed sums while `bears` was set."""
        self._last = torch.empty(0), "control"
        """Result of the last of them, and its kind."""
        self._left_behind: list[Closing] = []
        """Groups in which a thread waits. They are kept, since the end of one waits for that thread."""
        self._caller = _Caller()
        self._group = self._met(rank, size)

    @contextmanager
    def counting(self, channel: str) -> Iterator[None]:
        """See `Group.counting`. Separate counting means evaluation, which needs the rows of all ranks and tolerates no
        loss."""
        bears, self.bears = self.bears, False
        try:
            with self._group.counting(channel):
                yield
        finally:
            self.bears = bears

    def all_reduce(self, flat: Tensor, kind: str, overlap: Overlap = nothing) -> None:
        """See `Group.all_reduce`; over the ranks left."""
        if flat.numel():
            self._sum(flat, kind, lambda mine: self._group.all_reduce(mine, kind), overlap)

    def any(self, flag: bool) -> bool:
        """See `Group.any`; over the ranks left."""
        heard = torch.tensor([flag], dtype=torch.uint8)
        self._sum(heard, "control", lambda mine: mine.fill_(self._group.any(flag)))
        return bool(heard)

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> Group:
        return self._whole().sub(name, ranks, same_thread)

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        self._whole().broadcast(flat, source, kind)

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        return self._whole().all_to_all(parts, kind, into)

    def matches_by_order(self, device: torch.device) -> bool:
        return self._group.matches_by_order(device)

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        return self._whole().swap(part, to, into, source, tag, kind)

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._close_group()
        self._caller.end()

    def _close_group(self) -> None:
        if self._group not in self._left_behind:
            self._group.close()

    def _whole(self) -> Group:
        assert len(self.present) == self.size, f"only ranks {self.present} of {self.size} are left, and this needs all"
        return self._group

    def _met(self, place: int, size: int) -> Closing:
        """The group of the newest order."""
        # On its own connection, since a wait for peers blocks the other one.
        # pyrefly: ignore[missing-attribute]
        store = PrefixStore(f"meeting/{self._order}", self._store.clone())
        met = self._caller.call(lambda: self._meet(store, place, size), lambda group: group.close())
        return self._ended(met, POLL_S, 0.0)

    def _ended(self, call: Future[Any], look_s: float, patience_s: float) -> Any:
        """Wait for a call, and return its result. Raises PeerLostError, and leaves the call's thread behind, once a
        newer order has been there for `patience_s`, for which it looks every `look_s`."""
        seen = math.inf
        while True:
            try:
                return call.result(timeout=look_s)
            except TimeoutError:
                if self._store.check([_members(self._order + 1)]):
                    seen = min(seen, time.monotonic())
                if time.monotonic() - seen >= patience_s and call.cancel():
                    self._caller.end()  # should the call return after all
                    self._caller = _Caller()
                    raise PeerLostError(f"rank {self.rank} waited for a rank that is gone") from None

    def _sum(self, flat: Tensor, kind: str, add: Callable[[Tensor], object], overlap: Overlap = nothing) -> None:
        while True:
            # A sum that breaks leaves partial sums in its tensor. On the host, since a thread has its own stream.
            mine = flat.to("cpu", copy=True)
            self.present = self._members
            try:
                self._added(partial(add, mine), overlap)
                flat.copy_(mine)
                result = mine
                break
            except PeerLostError as lost:
                if not self.bears:
                    raise
                # Lost ranks have a part in a result that was handed on, so they are missing from the next sum on.
                if self._regroup(lost, flat, kind):
                    result = flat.to("cpu", copy=True)
                    break
            overlap = nothing
        if self.bears:
            self._sums += 1
            self._last = result, kind

    def _added(self, add: Callable[[], object], overlap: Overlap = nothing) -> None:
        call = self._caller.call(add)
        overlap()
        group = self._group
        try:
            self._ended(call, LOOK_S, HANG_S)
        except PeerLostError:
            if call.cancelled():
                self._left_behind.append(group)
            raise

    def _regroup(self, lost: PeerLostError, flat: Tensor, kind: str) -> bool:
        """Meet the ranks left. True if one of them had the result of this sum, which is then in `flat`."""
        while True:
            # Ranks that wait for this one, rather than for the lost one, learn of the loss by this.
            self._close_group()
            members = self._ordered(lost)
            place = members.index(self.rank)
            try:
                group = self._group = self._met(place, len(members))
                done = torch.zeros(len(members), dtype=torch.int64)
                done[place] = self._sums
                self._added(partial(group.all_reduce, done, "control"))
                behind = int(done.max()) > self._sums
                if int(done.max()) > int(done.min()):
                    result, of = (torch.empty_like(flat, device="cpu"), kind) if behind else self._last
                    self._added(partial(group.broadcast, result, int(done.argmax()), of))
                    if behind:
                        flat.copy_(result)
            except PeerLostError as again:
                lost = again
                continue
            self._members = members
            return behind

    def _ordered(self, lost: PeerLostError) -> tuple[int, ...]:
        """Ranks left by the newest order, once all of them are here. Raises `lost` if no rank is reported to have
        ended."""
        until = time.monotonic() + ORDER_S
        members: tuple[int, ...] = ()
        while True:
            before = self._order
            while self._store.check([_members(self._order + 1)]):
                self._order += 1
            if self._order > before:
                members = tuple(json.loads(self._store.get(_members(self._order))))
                if self.rank not in members:
                    raise lost
                self._store.set(f"here/{self._order}/{self.rank}", "")
            if members and self._store.check(here(self._order, members)):
                return members
            if not members and time.monotonic() > until:
                raise lost
            time.sleep(POLL_S)


class _Caller:
    """A thread that calls what may never return."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[tuple[Future[Any], Callable[[], Any], Callable[[Any], object]] | None]()
        Thread(target=self._run, daemon=True).start()

    def call(self, what: Callable[[], Any], drop: Callable[[Any], object] = lambda result: None) -> Future[Any]:
        """Call `what` in the thread. Returns a future; a result that comes after it was cancelled goes to `drop`."""
        future = Future[Any]()
        self._calls.put((future, what, drop))
        return future

    def end(self) -> None:
        """End the thread, after the calls that it has."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _make(*call)
            del call  # connections are open while anything refers to them


def _make(future: Future[Any], what: Callable[[], Any], drop: Callable[[Any], object]) -> None:
    try:
        result = what()
    except BaseException as e:
        if future.set_running_or_notify_cancel():
            future.set_exception(e)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)
        else:
            drop(result)


def _members(order: int) -> str:
    return f"members/{order}"


def here(order: int, members: Sequence[int]) -> list[str]:
    """Keys that are set once all members are ready to meet by an order."""
    return [f"here/{order}/{r}" for r in members]
