"""Allocator settings of a rank's process."""

import os


def allocator(keep_bytes: int) -> dict[str, str]:
    """Environment variables that let a rank reuse freed memory: fresh pages for the tensors of every step cost up to
    half of its time.

    Large blocks then come from the heap, in huge pages, and the heap shrinks only by free memory beyond `keep_bytes` at
    its end.
    """
    if not keep_bytes or "GLIBC_TUNABLES" in os.environ:
        return {}
    settings = {"hugetlb": 1, "mmap_max": 0, "trim_threshold": keep_bytes}
    return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in settings.items())}
