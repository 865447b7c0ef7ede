"""The thread that samples ahead for `NeighborLoader`, and its number of threads and cores."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import torch

from ...stages.kernels.runtime.threads import keep_to
from ...storage.errors import InputError, RunError

WAIT_S = 1.0
"""Seconds between a waiting producer's checks that the interpreter is not shutting down."""
THREAD = "millrace-loader"


class SamplingThreads:
    """Methods of PyG's loaders that configure worker processes, applied to the sampling thread and its helpers."""

    num_workers: int
    _most: int | None = None
    _cores: frozenset[int] = frozenset()

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Iterations begun within the block use as many threads as PyG's workers would in all: ``num_workers *
        worker_threads``, but at most `torch.get_num_threads()`. There are no processes, so the start method does not
        matter.

        Args:
            worker_threads: by default ``torch.get_num_threads() // num_workers``, and at least 1.

        Raises:
            InputError: `num_workers` is 0, or `worker_threads` is not between 1 and `torch.get_num_threads()`.
        """
        self._need_workers("enable_multithreading")
        most = torch.get_num_threads()
        each = max(1, most // self.num_workers) if worker_threads is None else worker_threads
        if not isinstance(each, int) or not 1 <= each <= most:
            raise InputError(f"worker_threads is {worker_threads!r}; expected 1 to {most}, the threads that torch has")
        before, self._most = self._most, min(most, self.num_workers * each)
        try:
            yield
        finally:
            self._most = before

    @contextmanager
    def enable_cpu_affinity(
        self, loader_cores: Sequence[int] | Sequence[Sequence[int]] | None = None
    ) -> Iterator[None]:
        """Iterations begun within the block sample on these cores only (on Linux; elsewhere cores are not chosen).

        Args:
            loader_cores: a core or a list of cores for each of the `num_workers`; the threads share them all. By
                default the first `num_workers` of the cores available to this process.

        Raises:
            InputError: `num_workers` is 0, `loader_cores` has another length, or a core is not available.
        """
        self._need_workers("enable_cpu_affinity")
        there = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
        if not isinstance(loader_cores, Sequence | None):
            raise InputError(f"loader_cores is {loader_cores!r}; expected a list of cores")
        chosen = there[: self.num_workers] if loader_cores is None else list(loader_cores)
        if len(chosen) != self.num_workers:
            raise InputError(f"{len(chosen)} cores for num_workers {self.num_workers}; expected as many loader_cores")
        cores = frozenset(c for core in chosen for c in (core if isinstance(core, Sequence) else (core,)))
        if not cores <= set(there):
            raise InputError(f"loader_cores holds core {min(cores - set(there))}; expected some of {there}")
        before, self._cores = self._cores, cores
        try:
            yield
        finally:
            self._cores = before

    def _need_workers(self, what: str) -> None:
        if self.num_workers < 1:
            raise InputError(f"{what} needs num_workers of 1 or more; it is {self.num_workers}")

    def _settle(self) -> Callable[[], None]:
        """Function that a new sampling thread calls first."""
        most, cores = self._most, self._cores
        return lambda: keep_to(most, cores)


class Prefetcher:
    """A thread that makes results in order, at most `room` of them ahead of the consumer. `get` raises its errors."""

    def __init__(
        self, make: Callable[[int], list[Any]], count: int, room: int, done: Callable[[], None],
        settle: Callable[[], None],
    ) -> None:  # fmt: skip
        self._make, self._count, self._done, self._settle = make, count, done, settle
        self._made: SimpleQueue[list[Any] | BaseException] = SimpleQueue()
        self._room = threading.Semaphore(room)
        self._stopped = threading.Event()
        # Not a daemon: the interpreter must not tear down arrays that a kernel is still writing.
        threading.Thread(target=self._run, name=THREAD).start()

    def _run(self) -> None:
        try:
            self._settle()
            for number in range(self._count):
                while not self._room.acquire(timeout=WAIT_S):
                    if not threading.main_thread().is_alive():
                        raise RunError("the interpreter is ending while minibatches are being sampled")
                if self._stopped.is_set():
                    return
                self._made.put(self._make(number))
        except BaseException as e:
            self._made.put(e)
        finally:
            self._done()

    def get(self) -> list[Any]:
        """The next result."""
        made = self._made.get()
        if isinstance(made, BaseException):
            raise made
        self._room.release()
        return made

    def stop(self) -> None:
        """Make the thread end after its current result, without waiting for it."""
        self._stopped.set()
        self._room.release()
