"""`millrace warm`: compile all kernels for this machine."""

import time
from typing import Annotated

import typer

from ...storage.errors import InputError
from .shared.flags import JsonFlag
from .shared.output import say_aside, show

DTYPES = ("float32", "float64")


def warm(
    dtype: Annotated[str, typer.Option(help="float32 | float64: kernels of jobs of this dtype.")] = "float32",
    processes: Annotated[int | None, typer.Option(help="Processes that compile.  [default: one for each core]")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile all CPU kernels for this machine.

    Once after each installation, so that no run compiles anything; what is compiled already is not compiled again. With
    NUMBA_CACHE_DIR set, compiled kernels are kept in that folder.
    """
    from ..warm import cache_folder, trials, warm_up

    if dtype not in DTYPES:
        raise InputError(f"--dtype is '{dtype}'; expected {' or '.join(DTYPES)}")
    if processes is not None and processes < 1:
        raise InputError(f"--processes is {processes}; expected at least 1")
    start, compiled, count = time.perf_counter(), 0, len(trials(dtype))
    for i, done in enumerate(warm_up(dtype, processes)):
        compiled += done.compiled
        say_aside(f"{i + 1} of {count}: {done.name}, {done.compiled} compiled, {done.seconds:.1f} s")
    seconds = time.perf_counter() - start
    record = {"compiled": compiled, "seconds": seconds, "cache": str(cache_folder())}
    show(f"{compiled} kernels compiled in {seconds:.1f} s; the cache is {record['cache']}", record, as_json)
