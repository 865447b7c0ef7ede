"""Triton's interpreter as tests use it: from several threads, and without work that only a first launch needs."""

import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def prepare() -> None:
    """Run one kernel at a time, patch the language once, and let integers overflow unchecked as on a GPU.

    The interpreter keeps the grid of the running kernel in one place for all threads. It patches the language for
    every call of a function inside a kernel, and computes the check of each sum that it then does not make: a third
    of the time of a launch.
    """
    from triton.runtime import interpreter

    one_kernel, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def one_at_a_time(self: Any, *args: object, **kwargs: object) -> None:
        with one_kernel:
            launch(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = one_at_a_time  # pyright: ignore[reportAttributeAccessIssue]
    interpreter._patch_lang = _once(interpreter._patch_lang, interpreter._LangPatchScope)
    builder: Any = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _once(patch: Callable[[Any], object], nothing: Callable[[], object]) -> Callable[[Any], object]:
    """`patch` for functions whose modules name other parts of the language than those before; it stays patched."""
    from triton import language

    seen: set[int] = set()
    patched: set[int] = set()

    def patch_new(function: Any) -> object:
        names = function.__globals__
        if id(names) not in seen:
            parts = {id(v) for v in names.values() if inspect.ismodule(v) and v in (language, language.core)}
            if not parts or not parts <= patched:
                patch(function)
            patched.update(parts)
            seen.add(id(names))
        # What the caller restores.
        return nothing()

    return patch_new
