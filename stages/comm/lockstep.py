"""Thread that does numbered pieces of work together with the same thread of other ranks, ahead of their consumer."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ...storage.errors import MillraceError, RunError
from .base import Group

T = TypeVar("T")
LOOK_S = 1.0
"""Interval at which a waiting thread polls, in case no notification came."""
JOIN_S = 60.0


class Lockstep(Generic[T]):
    """All ranks do the same pieces in the same order; each begins one when it has room for it.

    A rank must eventually find room for a piece even if no rank has done it; otherwise ranks deadlock in a ring.
    """

    def __init__(
        self,
        name: str,
        group: Group,
        pieces: Iterator[T],
        has_room: Callable[[T], bool],
        do: Callable[[T], None],
        failed: Callable[[], None],
        prepare: Callable[[T], None] = lambda piece: None,
    ) -> None:
        """
        Args:
            name: name of the thread.
            group: for this thread alone.
            pieces: of work, the same on every rank.
            has_room: true if this rank may begin a piece; called again after each `notify`.
            do: does a piece; may use the group.
            failed: called when the thread has ended by an error.
            prepare: called before a rank joins a piece; may wait, without the group, until `close`, and then raise.
        """
        self._group, self._pieces, self._has_room, self._do, self._failed = group, pieces, has_room, do, failed
        self._prepare = prepare
        self._changed = threading.Condition()
        self.is_closing = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def notify(self) -> None:
        """Check again for room."""
        with self._changed:
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error that ended the thread, if any; its type tells a lost peer from a local fault."""
        e = self.error
        if isinstance(e, MillraceError):
            raise type(e)(*e.args) from e
        if e is not None:
            raise RunError(f"{self._thread.name} failed: {type(e).__name__}: {e}") from e

    @property
    def is_over(self) -> bool:
        """True if the thread has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def stop(self) -> None:
        """Do no more pieces. Errors that `prepare` raises from now on are ignored."""
        with self._changed:
            self.is_closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread. All ranks do, after the same piece; a rank that ends by an error waits for nobody. May be
        called twice."""
        self.stop()
        if sys.exception() is None and hasattr(self, "_pieces"):
            if self._thread.ident is not None:
                self._thread.join(JOIN_S)
            if self._thread.is_alive():
                raise RunError(f"{self._thread.name} did not stop within {JOIN_S:g} s")
            # The thread and its user refer to each other: what they hold would stay until the garbage collector finds
            # the cycle.
            del self._pieces, self._has_room, self._do, self._failed, self._prepare

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                with self._changed:
                    while not self.is_closing and not self._has_room(piece):
                        self._changed.wait(LOOK_S)
                try:
                    if not self.is_closing:
                        self._prepare(piece)
                except Exception:
                    if not self.is_closing:
                        raise
                # A rank that ends must not leave the others waiting in the next piece.
                if self._group.any(self.is_closing):
                    return
                self._do(piece)
        except BaseException as e:
            self.error = e
            self._failed()
