"""Memory that this process may still take: the least of what the host, its control groups and its limits leave."""

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from ..errors import StoreError

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""A control group of version 1 without a limit says a number beyond this."""
V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
V2 = "memory.max", "memory.current", "inactive_file", "active_file"
"""Of each version: the files of a group's limit and use, and the names in ``memory.stat`` of cached pages of files,
which the system takes back before it ends a process."""


def bytes_left() -> int:
    """Bytes that this process can still take before the host has no more, a control group ends it, or an allocation
    fails."""
    left = [most - used for most, used in (*_of_groups(), *_own_limits())]
    return max(0, min([psutil.virtual_memory().available, *left]))


def bytes_at_most(processes: int = 1) -> int:
    """Most bytes that each of some processes here can take: its share of what the host and this process's control
    groups have for all of them, within its own limits."""
    shared = min([psutil.virtual_memory().total, *(most for most, _ in _of_groups())])
    return min([shared // processes, *(most for most, _ in _own_limits())])


def fits_in_memory(num_bytes: int) -> bool:
    """True if this is at most half of the bytes left."""
    return num_bytes <= bytes_left() // 2


def require_memory(num_bytes: int, what: str, instead: str) -> None:
    """Raise StoreError if more bytes are needed than are left; `instead` says what to do."""
    if num_bytes > (left := bytes_left()):
        sizes = f"{num_bytes / 2**20:,.0f} MiB of memory, where {left / 2**20:,.0f} MiB are left"
        raise StoreError(f"{what} takes {sizes}; {instead}")


def _of_groups() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, if it has one, and the bytes that the group has taken
    for good."""
    for folder in _folders():
        for limit, use, *cached in (V1, V2):
            most, used = _number(folder / limit), _number(folder / use)
            if most is not None and used is not None and most < NO_LIMIT:
                yield most, max(0, used - _cached(folder / "memory.stat", cached))


def _folders() -> Iterator[Path]:
    """Folders of this process's control groups and those around them, as far as they are seen from here."""
    for line in _lines(PROC / "self/cgroup"):
        number, _, name = line.partition(":")
        controllers, _, path = name.partition(":")
        if "memory" in controllers.split(","):
            mounts = (GROUPS / "memory",)
        elif number == "0" and not controllers:
            mounts = (GROUPS, GROUPS / "unified")
        else:
            continue
        inner = Path(path.lstrip("/"))
        # In a container the path may be the host's: then the container's own group is what is mounted.
        for mount in mounts:
            yield from (mount / inside for inside in (inner, *inner.parents))


def _own_limits() -> Iterator[tuple[int, int]]:
    """This process's limits of address space and of data, if it has any, each with the bytes that it has taken."""
    lines = _lines(PROC / "self/statm")
    pages = [int(n) for n in lines[0].split()] if lines else [0] * 6
    for kind, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit, used * resource.getpagesize()


def _cached(stat: Path, names: Sequence[str]) -> int:
    """Sum of some numbers of a group's ``memory.stat``."""
    pairs = (line.split() for line in _lines(stat))
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)


def _number(file: Path) -> int | None:
    """The number in a file; None if there is none, or it says "max"."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
