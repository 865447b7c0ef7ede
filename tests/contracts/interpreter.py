"""Triton's interpreter in processes that launch kernels from several threads."""

import threading


def take_turns() -> None:
    """Run one kernel at a time: the interpreter keeps the grid of the running kernel in one place for all threads."""
    from triton.runtime.interpreter import GridExecutor

    one_kernel, launch = threading.RLock(), GridExecutor.__call__

    def one_at_a_time(self: GridExecutor, *args: object, **kwargs: object) -> None:
        with one_kernel:
            launch(self, *args, **kwargs)

    GridExecutor.__call__ = one_at_a_time
