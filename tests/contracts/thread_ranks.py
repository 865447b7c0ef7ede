"""Ranks as threads of one process, for testing their computations on more and smaller cases than processes allow."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from millrace.stages.comm.base import Overlap, nothing
from millrace.storage.ledger import Ledger

LONG_S = 120.0
"""Longest time between two meetings of ranks: on a busy machine, compiling kernels takes half a minute."""


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=LONG_S)
        self.slots: list[Any] = [None] * size
        self.boxes: dict[tuple[int, int, int], queue.Queue[Tensor]] = {}
        self.lock = threading.Lock()
        self.circles: dict[tuple[int, ...], _Meeting] = {}

    def circle(self, ranks: Sequence[int]) -> "_Meeting":
        """The place where these ranks alone meet."""
        with self.lock:
            return self.circles.setdefault(tuple(ranks), _Meeting(len(ranks)))

    def all(self) -> "list[_Meeting]":
        """This meeting, and those of all smaller circles."""
        with self.lock:
            return [self, *(m for circle in self.circles.values() for m in circle.all())]

    def box(self, source: int, to: int, tag: int) -> "queue.Queue[Tensor]":
        with self.lock:
            return self.boxes.setdefault((source, to, tag), queue.Queue())


class ThreadGroup:
    """A `Group` in memory. Counts what `Gloo` counts for `all_to_all` and `swap`, and nothing else.

    Threads share torch's generator: if several draw from it, as initial parameters and dropout do, the results are
    arbitrary. Models are made before the threads, and whole runs are for processes.
    """

    def __init__(self, rank: int, size: int, meeting: _Meeting, ledger: Ledger | None = None) -> None:
        self.rank, self.size = rank, size
        self.present = range(size)
        self._meeting = meeting
        self._channel = "network"
        self.ledger = ledger or Ledger()

    @contextmanager
    def counting(self, channel: str) -> Iterator[None]:
        before, self._channel = self._channel, channel
        try:
            yield
        finally:
            self._channel = before

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> "ThreadGroup":
        if list(ranks) == list(range(self.size)):
            return self
        return ThreadGroup(list(ranks).index(self.rank), len(ranks), self._meeting.circle(ranks), self.ledger)

    def all(self, mine: Any) -> list[Any]:
        """Values of all ranks."""
        _settle()
        self._meeting.barrier.wait()
        self._meeting.slots[self.rank] = mine
        self._meeting.barrier.wait()
        return list(self._meeting.slots)

    def all_reduce(self, flat: Tensor, kind: str, overlap: Overlap = nothing) -> None:
        assert flat.is_contiguous()
        overlap()
        flat.copy_(torch.stack(self.all(flat.clone())).sum(0))

    def any(self, flag: bool) -> bool:
        return any(self.all(flag))

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        flat.copy_(self.all(flat.clone())[source])

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        assert len(parts) == self.size
        self.ledger.add(self._channel, kind, sum(p.nbytes for r, p in enumerate(parts) if r != self.rank))
        got = [row[self.rank] for row in self.all([p.clone() for p in parts])]
        for mine, heard in zip(into or (), got):
            if len(mine):
                mine.copy_(heard)
        _settle()
        return [parts[r] if r == self.rank else (got if into is None else into)[r] for r in range(self.size)]

    def matches_by_order(self, device: torch.device) -> bool:
        return False

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> "_Swap":
        assert part.is_contiguous() and into.is_contiguous() and 0 <= tag < 1 << 31
        self.ledger.add(self._channel, kind, part.nbytes)
        if part.numel():
            assert to != self.rank
            sent = part.clone()
            _settle()
            self._meeting.box(self.rank, to, tag).put(sent)
        return _Swap(self._meeting, self._meeting.box(source, self.rank, tag) if into.numel() else None, into)


def _settle() -> None:
    """Wait until a GPU, if there is one, has done what this thread asked for: another thread reads it by another
    stream, and frees what this one has read."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


class _Swap:
    def __init__(self, meeting: _Meeting, box: "queue.Queue[Tensor] | None", into: Tensor) -> None:
        self._meeting, self._box, self._into = meeting, box, into

    def received(self, what: str) -> None:
        until = time.monotonic() + LONG_S
        while self._box is not None:
            try:
                heard = self._box.get(timeout=0.1)
            except queue.Empty:
                assert not self._meeting.barrier.broken and time.monotonic() < until, f"nothing came: {what}"
                continue
            assert heard.shape == self._into.shape and heard.dtype == self._into.dtype, (
                f"{heard.shape} for {self._into.shape}: {what}"
            )
            self._into.copy_(heard)
            _settle()
            self._box = None
        # Like gloo's: received rows belong to the caller.
        del self._into

    def sent(self, what: str) -> None:
        pass


def run_threads(fn: Callable[[ThreadGroup], Any], size: int) -> list[Any]:
    """Results of ``fn(group)`` on each of `size` ranks.

    Raises:
        Exception: the error of the first rank that failed; the others stop waiting.
    """
    meeting = _Meeting(size)
    errors: list[BaseException] = []

    def rank(r: int) -> Any:
        try:
            return fn(ThreadGroup(r, size, meeting))
        except BaseException as e:
            errors.append(e)
            for circle in meeting.all():
                circle.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(rank, r) for r in range(size)]
    if errors:
        raise errors[0]
    left = [key for circle in meeting.all() for key, box in circle.boxes.items() if not box.empty()]
    assert not left, f"messages that nobody took: {left}"
    return [f.result() for f in futures]
