"""Compilation of the kernels that a job by default needs, in processes beside one that is still importing torch.

Run as a module, this is such a process: it imports numba and the kernels, neither torch nor the data. Processes share
the work by the locks of the cache (`runtime.jit`), and whoever needs a kernel first waits for it, or compiles it. A
marker beside the cache says that all is there, so that later runs start none of them.
"""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .threads import own_cores

PACKAGE = __package__.rpartition(".")[0] if __package__ else ""
MOST = 3
"""Processes: more would each import numba to find everything taken."""
I64, I32, U64, U32, F32 = "int64[::1]", "int32[::1]", "uint64[::1]", "uint32[::1]", "float32[::1]"
I64S, I32S, U64S, F32S = "int64[:,::1]", "int32[:,::1]", "uint64[:,::1]", "float32[:,::1]"
DRAW, NUMBER = "sampling.cpu.draw", "sampling.cpu.bulk"
KEEP, SUM = "aggregation.cpu.scale_kept_rows", "aggregation.cpu.spmm_rows"
EVALUATE = "aggregation.cpu.destinations"
KERNELS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (DRAW, "sample_uniform",
     ("int64", "int64", I64, I32, I32S, I64, I64, "int64", "boolean", U64, I64S, I32S, I64S, "boolean", I64,
      "boolean", "none", "none")),
    (NUMBER, "_start", ("int64", "int64", I64, I64, I32S, U64S, "int64")),
    (NUMBER, "_number", ("int64", "int64", I32S, I64, I32S, I64, I64, U64S, U64, I32, I32, "int64", I32S)),
    (NUMBER, "_copy_out", (I64, "int64", I32, "int64")),
    (NUMBER, "_copy_out", (I32, "int64", I32, "int64")),
    (SUM, "spmm_rows", (I64, I32, "none", F32, F32S, "int64", F32, "int64", F32, "int64", F32S, "int64", "int64")),
    (KEEP, "scale_kept_rows", (F32S, I32, I64, U32, F32S, "uint64", "uint32", "float32", "int64", "int64")),
    ("runtime.transpose", "transpose", (I64, I32, I64, I32, I32)),
    (EVALUATE, "_sums", (I64, U32, F32, U32, F32S, "int64", "int64", F32, "boolean", F32S)),
    (EVALUATE, "_mark", (I64, I32, I64, "boolean[::1]", "int64", "int64")),
    (EVALUATE, "_flatten", (I64, I32, I32, F32, F32, I64, F32, I64, "int64", "int64", I64, U32, F32, U32)),
)  # fmt: skip
"""Module below `stages.kernels`, function, and types of its arguments: all that the job without a flag compiles, about
in the order in which it needs them, but the longest first."""


def is_of_use(table: Mapping[str, Any]) -> bool:
    """True if a job with these keys, not yet checked, trains `sage` on sampled neighbours with these kernels, as far as
    model, sampler, device and dtype tell."""

    def name_of(section: str) -> object:
        value = table.get(section)
        return value.get("name") if isinstance(value, Mapping) else value

    expected = {"device": (None, "cpu"), "dtype": (None, "float32"), "kernel": (None, "cpu")}
    named = name_of("model") in (None, "sage") and name_of("sampler") in (None, "neighbor")
    return named and all(table.get(key) in values for key, values in expected.items())


def start() -> list[subprocess.Popen[bytes]]:
    """Start the processes, one for each core but this process's own, unless everything is compiled. They end by
    themselves, or soon after this process."""
    try:
        if own_cores() < 2 or marker().exists():
            return []
        return [
            subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.precompile", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(min(MOST, own_cores() - 1))
        ]
    except OSError:
        return []  # the kernels are compiled when they are first called


def marker() -> Path:
    """The file that says that this machine has all of `KERNELS`, in their present sources, in its cache."""
    here = Path(__file__)
    sources = sorted({here.parents[1].joinpath(*module.split(".")).with_suffix(".py") for module, _, _ in KERNELS})
    numba = find_spec("numba")
    stats = [path.stat() for path in (here, *sources, Path(numba.origin if numba and numba.origin else here))]
    facts = [sys.version, platform.machine(), _processor(), *((s.st_mtime_ns, s.st_size) for s in stats)]
    name = f"compiled-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(folder, name)
    beside = here.parent / "__pycache__"
    if os.access(beside if beside.exists() else here.parent, os.W_OK):
        return beside / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "millrace", name)


def _processor() -> str:
    """Name and features of the processor, for which code is compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def compile_all(parent: int | None = None) -> None:
    """Compile, or wait for, all of `KERNELS`; then write the marker.

    Args:
        parent: process for which this is done; once it has ended, nothing else is begun.
    """
    from importlib import import_module

    from numba.core import sigutils

    waiting = [
        (getattr(import_module(f"{PACKAGE}.{module}"), name), sigutils.normalize_signature(f"({', '.join(types)},)")[0])
        for module, name, types in KERNELS
    ]
    for patient in (False, True):
        left = []
        for function, types in waiting:
            if parent is not None and os.getppid() != parent:
                return
            if patient or not function._cache.is_being_compiled():
                function.compile(types)
            else:
                left.append((function, types))
        waiting = left
    path = marker()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def main() -> None:
    """One of the processes of `start`; its argument is the process that started it."""
    compile_all(int(sys.argv[1]))


if __name__ == "__main__":
    main()
