"""Ranks by the machine they run on, for work that one process does with all of a machine's threads."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...stages.comm.base import Group
from ...stages.kernels.runtime.threads import get_num_threads, own_cores, set_num_threads

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_number() -> int:
    """A number in [0, 2^52) that processes of one machine have in common, and others do not."""
    boot = BOOT_ID.read_text() if BOOT_ID.exists() else ""
    return int.from_bytes(hashlib.sha256(f"{socket.gethostname()} {boot}".encode()).digest()[:8]) >> 12


def ranks_by_host(group: Group, machine: int) -> list[list[int]]:
    """Ranks of each machine, ascending, in the order of their first ranks. All ranks call this.

    Args:
        group: the ranks.
        machine: the `machine_number` of this one.
    """
    numbers = torch.zeros(group.size, dtype=torch.float64)
    numbers[group.rank] = machine
    group.all_reduce(numbers, "control")
    by_number: dict[int, list[int]] = {}
    for rank, number in enumerate(numbers.tolist()):
        by_number.setdefault(int(number), []).append(rank)
    return list(by_number.values())


@contextmanager
def threads_of(ranks: int) -> Iterator[None]:
    """Context in which kernels use the threads of so many ranks of this machine, which are waiting: at most a thread
    for each core."""
    own = get_num_threads()
    if (most := max(own, min(own * ranks, own_cores()))) == own:
        yield
        return
    set_num_threads(most)
    try:
        yield
    finally:
        set_num_threads(own)
