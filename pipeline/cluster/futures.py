"""Results of Dask tasks, while the scheduler answers."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distributed import Future, as_completed

from ...storage.errors import RunError
from ..custom.user_code import unpickled
from .scheduler_watch import SchedulerWatch

LOOK_S = 0.02
"""Interval between looks at the tasks."""
RESULT_S = 2.0
"""Longest wait for the result of a task that is done, if it still exists."""


def result_within(future: Future, seconds: float) -> Any:
    """Result of a task that is done.

    Raises:
        TimeoutError: it does not come; its worker may be gone.
    """
    try:
        return future.result(timeout=seconds)
    except UnboundLocalError as e:
        if future.status == "error":
            raise
        # What Dask raises where its request for the result is cancelled: `distributed.utils.sync` has none to return.
        raise TimeoutError from e


def result_of(watch: SchedulerWatch, future: Future) -> Any:
    """Result of a task that is done, or of the same task done again if its worker is gone."""
    while True:
        try:
            return result_within(future, RESULT_S)
        except TimeoutError:
            if future.status == "error":
                raise
            # Its worker is gone, and the task is done again; or the scheduler does not answer.
            watch.poll()


def completed(watch: SchedulerWatch, futures: list[Future]) -> Iterator[Future]:
    """Futures as they are done, while the scheduler answers."""
    # By default it waits in the event loop of the client that the caller may have open; what is done in that of ours
    # would be seen there only when something else happens, up to seconds later.
    client = futures[0].client if futures else None
    running = as_completed(futures, loop=None if client is None else client.loop)
    while not running.is_empty():
        watch.poll()
        yield from (batch := running.next_batch(block=False))
        if not batch:
            time.sleep(LOOK_S)


def seeing(paths: Sequence[Path], task: Callable[..., Any], *arguments: Any) -> Any:
    """Do a task on a worker which sees `paths`. Raises RunError if it does not."""
    for path in paths:
        if not os.path.exists(path):
            raise RunError(
                f"the worker on {socket.gethostname()} does not see {path}; workers must see the same files under the "
                "same paths: put it on a file system that they share, or leave the scheduler out"
            )
    return task(*arguments)


def unpickled_task(text: str) -> Any:
    """Do a task that came as `pickled` of the function and its arguments."""
    task, *arguments = unpickled(text)
    return task(*arguments)
