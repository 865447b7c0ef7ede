"""Numba's compiler as the CPU kernels use it: `njit` with a cache on disk that several processes share.

Numba's own cache lets two processes compile the same function twice, and even take the code of one specialisation for
that of another if they save at the same time: an index is read, the next free number taken, and index and code are
written one after the other. Here a process that finds nothing in the cache locks the function, looks again, compiles
and saves: others wait for it in place of compiling too.
"""

import functools
import gc
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None

WAIT_S, POLL_S = 120.0, 0.005
"""Longest wait of a process for another one that compiles the same function, and the time between its checks."""

JIT: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
"""Options of a kernel: it holds no lock, and divides and reads arrays without checks."""

CONTRACTED = JIT | {"fastmath": {"contract"}}
"""Options of a kernel that may multiply and add in one step, but adds in no other order. NaN and infinity keep their
meaning, here and below."""

REASSOCIATED = JIT | {"fastmath": {"reassoc", "contract"}}
"""Options of a kernel whose sums may have another order too: dot products use vectors."""


def njit(*, cache: bool = True, inline: str = "never", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` for kernels: no wrapper for C, which nobody calls, and the shared cache.

    Args:
        cache: keep compiled code on disk; functions that are inlined by numba have none.
        inline: see `numba.njit`.
        options: others of `numba.njit`.
    """

    def decorate(function: Callable[..., object]) -> object:
        # Numba types only some of its options.
        compiler: Any = numba.njit
        dispatcher = compiler(inline=inline, no_cfunc_wrapper=True, **options)(function)
        if cache and inline == "never":
            dispatcher._cache = shared = SharedCache(function)
            compiled = dispatcher.compile

            def compile_and_unlock(signature: object) -> object:
                # What cannot be compiled is never saved, and others must not wait for it.
                try:
                    with _without_collections():
                        return compiled(signature)
                finally:
                    shared._unlock()

            dispatcher.compile = compile_and_unlock
        return dispatcher

    return decorate


def prepare_numba() -> None:
    """Let numba register the types and functions that it registers at a first call, before processes are forked."""
    from numba.core.registry import cpu_target

    target: Any = cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: looking through the compiler's own objects takes a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


KERNELS = Path(__file__).resolve().parents[1]
"""Folder of all kernels."""


@functools.cache
def sources_digest(folder: Path) -> str:
    """SHA-256 of all source files below a folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class SharedCache(FunctionCache):
    """Numba's cache of one function, in numba's folder and format, for processes that compile at the same time.

    Numba looks only at the function's own file, but compiled code also holds what the function calls and the constants
    of other modules: here any change of any kernel's source makes all of it stale.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), sources_digest(KERNELS)
        self._cache_file = _DataFirst(self._cache_path, self._impl.filename_base, stamp)
        self._lock_path = Path(self._cache_path, f"{self._impl.filename_base}.lock")
        self._locked: int | None = None

    def load_overload(self, sig: object, target_context: object) -> object:
        """The stored specialisation `sig`, or None: the caller then compiles and calls `save_overload`."""
        found = super().load_overload(sig, target_context)
        if found is None and self._enabled:
            self._lock()
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._unlock()
        return found

    def save_overload(self, sig: object, data: object) -> None:
        """Keep a compiled specialisation."""
        try:
            super().save_overload(sig, data)
        finally:
            self._unlock()

    def is_being_compiled(self) -> bool:
        """True while another process holds the function's lock."""
        try:
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(handle)
        return False

    def _lock(self) -> None:
        """Hold the function's lock. After `WAIT_S`, or where there are no locks, go on without: two processes then
        compile the same."""
        if fcntl is None or self._locked is not None:
            return
        try:
            self._impl.locator.ensure_cache_path()
            handle = os.open(self._lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        until = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(POLL_S)
                    continue
                os.close(handle)
            except OSError:
                os.close(handle)
            else:
                self._locked = handle
            return

    def _unlock(self) -> None:
        if self._locked is not None:
            with suppress(OSError):
                os.close(self._locked)
            self._locked = None


class _DataFirst(IndexDataCacheFile):
    """An index never names code that is not written yet, nor that of an older source."""

    def save(self, key: Any, data: Any) -> None:
        overloads = self._load_index()
        name = overloads.get(key)
        if name is None:
            taken = set(overloads.values())
            name = next(n for i in itertools.count(1) if (n := self._data_name(i)) not in taken)
        self._save_data(name, data)
        if overloads.get(key) != name:
            self._save_index({**overloads, key: name})
