"""Ranks as threads that talk through gloo, and may be lost at a chosen instant."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from millrace.stages.comm.base import Overlap, nothing
from millrace.stages.comm.gloo import Contact, Gloo
from millrace.stages.comm.survivors import Survivors
from millrace.storage.errors import PeerLostError
from millrace.storage.ledger import Ledger

TIMEOUT_S = 50.0


class DeadError(Exception):
    """This rank counts as a process that is gone."""


class Line(Gloo):
    """Gloo with sums whose result never arrives, as when a peer dies while it sends the last piece; or that do not even
    end, as when it dies before it takes the last one."""

    deaf = hangs = False

    def all_reduce(self, flat: torch.Tensor, kind: str, overlap: Overlap = nothing) -> None:
        super().all_reduce(flat, kind, overlap)
        self._lose(flat)

    def any(self, flag: bool) -> bool:
        heard = super().any(flag)
        self._lose(torch.empty(1))
        return heard

    def _lose(self, flat: torch.Tensor) -> None:
        if self.deaf:
            self.deaf = False
            flat.fill_(77)
            if self.hangs:
                time.sleep(TIMEOUT_S)
            raise PeerLostError("the result was lost")


class ThreadedRanks:
    """Ranks as threads, and the authority that says who is left."""

    def __init__(self, size: int) -> None:
        self.size, self.store, self.dead = size, dist.HashStore(), set[int]()
        self.lines: dict[int, Line] = {}
        self.ledgers = [Ledger() for _ in range(size)]
        self.lock = threading.Lock()
        self.orders = 0
        self.at_meeting: Callable[[int, int, Any], None] = lambda rank, size, store: None

    def join(self, rank: int) -> Survivors:
        def meet(store: Any, place: int, size: int) -> Line:
            self.at_meeting(rank, size, store)
            self.lines[rank] = Line(store, place, size, self.ledgers[rank], Contact("127.0.0.1", timeout_s=TIMEOUT_S))
            return self.lines[rank]

        group = Survivors(self.store, rank, self.size, meet)
        group.bears = True
        return group

    def die(self, rank: int) -> None:
        """Close the rank's connections, and publish the ranks that are left."""
        self.lines[rank].close()
        with self.lock:
            self.dead.add(rank)
            self.orders += 1
            self.store.set(f"members/{self.orders}", json.dumps([r for r in range(self.size) if r not in self.dead]))

    def run(self, fn: Callable[[Survivors], Any]) -> list[Any]:
        """Result of each rank; None for one that died."""

        def rank(r: int) -> Any:
            group = self.join(r)
            try:
                return fn(group)
            except DeadError:
                self.die(r)
                return None
            except BaseException:
                self.die(r)  # or the others would wait for this one
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return [f.result(timeout=60) for f in [pool.submit(rank, r) for r in range(self.size)]]
