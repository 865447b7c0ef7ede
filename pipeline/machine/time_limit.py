"""Calls that may never return."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_time(seconds: float, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """The result of a call that may never return, such as most of Dask's.

    Raises:
        TimeoutError: it did not return within `seconds`; a thread is left waiting for it.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call(*args, **options))
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=work, name="in-time", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]
