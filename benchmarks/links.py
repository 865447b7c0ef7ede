"""Ranks that are connected by links of limited rate: each in a network namespace of its own, all on one switch."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUBNET = "10.77.0"
HOST = f"{SUBNET}.254"
"""Address of the process that starts the ranks."""


@contextmanager
def links(size: int, mbit: float) -> Iterator[list[tuple[Path, str]]]:
    """Context with `size` network namespaces and their addresses, joined by a bridge that has the address `HOST`. Each
    sends and receives at most so many megabits a second. Needs root.

    Raises:
        CalledProcessError: a command of iproute2 failed.
    """
    bridge, spaces = f"mr{os.getpid()}", [f"mr{os.getpid()}-{i}" for i in range(size)]
    limit = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{HOST}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for i, space in enumerate(spaces):
            port = f"{bridge}p{i}"
            _ip("netns", "add", space)
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", port, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{SUBNET}.{i + 1}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            subprocess.run(["tc", "qdisc", "add", "dev", port, *limit], check=True)
            subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "eth0", *limit], check=True)
        yield [(Path("/run/netns", space), f"{SUBNET}.{i + 1}") for i, space in enumerate(spaces)]
    finally:
        # Its veth pairs end with a namespace.
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", bridge], check=False, stderr=subprocess.DEVNULL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
