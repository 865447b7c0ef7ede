"""Parallelism of all compiled kernels: GIL-free functions on a shared pool of threads.

Numba's own `prange` is not used: its portable threading layer aborts the process when two Python threads enter it at
once, and producers and trainers do.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from ....storage.errors import InputError

LEAST_PRIORITY = 19
_lock = Lock()
_asked: int | None = None
_pools: dict[tuple[bool, frozenset[int]], tuple[tuple[int, int], ThreadPoolExecutor]] = {}
"""Pools by priority and cores, since threads inherit the priority and the cores of their maker. Each with the process
and the number of threads that it was made for."""
_here = threading.local()


def own_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def get_num_threads() -> int:
    """Threads that one call of `parallel` may use: the number of `set_num_threads`, else `torch.get_num_threads()`; at
    most this thread's number from `keep_to`."""
    most = getattr(_here, "most", None)
    return _of_process() if most is None else min(most, _of_process())


def _of_process() -> int:
    if _asked is not None:
        return _asked
    import torch

    return torch.get_num_threads()


def spans_of_threads(count: int) -> list[tuple[int, int]]:
    """The share of each thread in so many pieces of work, [begin, end); one if there are none."""
    threads = max(1, min(count, get_num_threads()))
    return [(count * t // threads, count * (t + 1) // threads) for t in range(threads)]


def set_num_threads(n: int | None) -> None:
    """Fix the number of threads for the whole process; None follows torch again.

    Raises:
        InputError: n is below 1.
    """
    global _asked
    if n is not None and n < 1:
        raise InputError(f"{n} kernel threads asked for; expected at least 1")
    _asked = n


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Context in which torch's own operations use one thread in this thread; `parallel` is not affected.

    For work with few torch operations of its own: torch's idle threads spin for a while after each operation, on cores
    that kernels or a sampling thread need.
    """
    import torch

    torchs = torch.get_num_threads()
    asked = _asked
    if asked is None:
        set_num_threads(torchs)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torchs)
        if asked is None:
            set_num_threads(None)


@contextmanager
def in_this_thread() -> Iterator[None]:
    """Context in which `parallel` and torch's operations use this thread alone: it is one of several that work side by
    side."""
    import torch

    most, torchs = getattr(_here, "most", None), torch.get_num_threads()
    _here.most = 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _here.most = most
        torch.set_num_threads(torchs)


def side_by_side(run: Callable[..., None], parts: Sequence[tuple[object, ...]]) -> None:
    """`parallel`, with each call alone in its thread: see `in_this_thread`."""
    import torch

    torchs = torch.get_num_threads()

    def alone(*part: Any) -> None:
        with in_this_thread():
            run(*part)

    try:
        parallel(alone, parts)
    finally:
        # The last thread to set it decides how many threads torch takes in those that start later.
        torch.set_num_threads(torchs)


def stand_back() -> None:
    """Lower the priority of this thread, and of those that help it in `parallel`, below the others of the process.

    For work that is done ahead: a thread that waits for its result leaves it a core. On Linux only.
    """
    if sys.platform != "linux":
        return  # priorities are of processes there
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
        _here.stands_back = True


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """Context in which `parallel`, called in this thread, uses at most so many threads; None: as before."""
    before = getattr(_here, "most", None)
    if threads is not None:
        _here.most = threads if before is None else min(before, threads)
    try:
        yield
    finally:
        _here.most = before


def keep_to(threads: int | None, cores: frozenset[int] = frozenset()) -> None:
    """Limit this thread and those that help it in `parallel` to `threads`, and to `cores` if any are given (Linux
    only).

    Raises:
        InputError: the machine has none of the cores.
    """
    _here.most = threads
    if cores and sys.platform == "linux":
        try:
            os.sched_setaffinity(0, cores)
        except OSError:
            raise InputError(
                f"cores {sorted(cores)} cannot be used; expected some of {sorted(os.sched_getaffinity(0))}"
            ) from None
        _here.cores = cores


def _submit(task: Callable[[], None], copies: int) -> list[Future[None]]:
    # Another thread may have lowered the number since `parallel` read it.
    threads = max(_of_process(), copies + 1)
    # A forked child inherits the pool object but not its threads.
    key, aside = (os.getpid(), threads), (getattr(_here, "stands_back", False), getattr(_here, "cores", frozenset()))
    with _lock:
        found, pool = _pools.get(aside, (None, None))
        if pool is None or found != key:
            if pool is not None and found is not None and found[0] == key[0]:
                pool.shutdown(wait=False)
            pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="millrace-kernel")
            _pools[aside] = key, pool
        return [pool.submit(task) for _ in range(copies)]


def parallel(fn: Callable[..., Any], parts: Sequence[tuple[Any, ...]]) -> None:
    """Call ``fn(*part)`` for every part, and return when all are done.

    The parts must be independent, and the division must not affect the results. The calling thread works too and takes
    back parts that no pool thread has begun, so calls from many threads, and from within `fn`, cannot deadlock.

    Raises:
        Exception: the first that a part raised; parts not yet begun are skipped.
    """
    threads = get_num_threads()
    if len(parts) < 2 or threads < 2:
        for part in parts:
            fn(*part)
        return
    waiting = deque(parts)

    def drain() -> None:
        while True:
            try:
                part = waiting.popleft()
            except IndexError:
                return
            try:
                fn(*part)
            except BaseException:
                waiting.clear()
                raise

    others = _submit(drain, min(threads, len(parts)) - 1)
    try:
        drain()
    finally:
        # Also if this thread fails: the others may still be writing into the caller's arrays.
        started = [f for f in others if not f.cancel()]
        errors = [e for f in started if (e := f.exception()) is not None]
    if errors:
        raise errors[0]
