"""Starting of engines by drivers: one process at a time, each with the allocator, threads and memory that the driver
names."""

import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

TUNED = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"
"""glibc keeps freed memory for the next step."""
JEMALLOC = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"
"""jemalloc does."""


def allocator(name: str, jemalloc: Path | None = None) -> dict[str, str]:
    """Environment variables for ``default``, ``tuned`` or ``jemalloc``, the library of which is given."""
    if name == "jemalloc":
        return {"LD_PRELOAD": str(jemalloc), "MALLOC_CONF": JEMALLOC}
    return {"GLIBC_TUNABLES": TUNED} if name == "tuned" else {}


def call(
    python: str | Path, script: Path, task: dict[str, Any], threads: int, variables: dict[str, str], limit: int
) -> dict[str, Any]:
    """The process's answer in its last line, or ``{"failed": why}``. `limit` is in bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [python, script, "--task", json.dumps(task)],
            env={k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
            | {
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "PYTHONWARNINGS": "ignore",
                "TMPDIR": scratch,
            }
            | {"DGLBACKEND": "pytorch"}
            | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # A step that needs more fails by itself, before the system kills whatever it likes.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    words = [line for line in done.stderr.splitlines() if line.strip()][-12:]
    print("\n".join([f"  {script.name} ended with exit code {done.returncode}:", *words]), flush=True)
    return {"failed": f"exit code {done.returncode}: {words[-1][:200] if words else 'no words'}"}


def default_limit_gib() -> float:
    """Most of this machine's memory."""
    return 0.85 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
