"""Ranks that are connected by links of limited rate: each in a network namespace of its own, all on one switch."""

import ctypes
import os
import pickle
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from millrace.stages.comm.gloo import Gloo
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.forked_cluster import fork_server
from millrace.tests.contracts.process_ranks import _collect, _load

NET = 0x40000000
"""CLONE_NEWNET of setns(2)."""
SUBNET = "10.77.0"


@contextmanager
def links(size: int, mbit: float) -> Iterator[list[tuple[str, str]]]:
    """Namespaces, and the address of each, joined by a bridge; what each sends and what each receives passes at most so
    many megabits a second. Needs root. The bridge has address `SUBNET`.254.

    Raises:
        CalledProcessError: a command of iproute2 failed.
    """
    bridge, spaces = f"mr{os.getpid()}", [f"mr{os.getpid()}-{i}" for i in range(size)]
    limit = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{SUBNET}.254/24", "dev", bridge)
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
        yield [(space, f"{SUBNET}.{i + 1}") for i, space in enumerate(spaces)]
    finally:
        # Its veth pairs end with a namespace.
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", bridge], check=False, stderr=subprocess.DEVNULL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def run_over_links(fn: Callable[..., Any], size: int, mbit: float, *args: Any, timeout_s: float = 900.0) -> list[Any]:
    """See `process_ranks.run_ranks`; over `links`."""
    context, work = fork_server(), (str(Path(fn.__code__.co_filename).resolve()), fn.__name__, pickle.dumps(args))
    with links(size, mbit) as places:
        store = TCPStore(f"{SUBNET}.254", 0, is_master=True, wait_for_workers=False)
        processes, pipes = [], []
        try:
            for rank, place in enumerate(places):
                ours, theirs = context.Pipe(duplex=False)
                processes.append(
                    context.Process(target=_rank, args=(theirs, work, rank, size, store.port, place), daemon=True)
                )
                processes[-1].start()
                theirs.close()
                pipes.append(ours)
            return _collect(pipes, (), time.monotonic() + timeout_s, timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _rank(pipe: Any, work: tuple[str, str, bytes], rank: int, size: int, port: int, place: tuple[str, str]) -> None:
    torch.set_num_threads(1)
    try:
        space, address = place
        with Path(f"/run/netns/{space}").open() as handle:
            # Threads that this one starts, gloo's too, are there as well.
            if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), NET):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace {space}")
        store = TCPStore(f"{SUBNET}.254", port, is_master=False)
        group = Gloo(PrefixStore("ranks", store), rank, size, Ledger(), timeout_s=600.0, host=address)
        file, name, args = work
        value = getattr(_load(Path(file)), name)(group, *pickle.loads(args))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
        raise
    pipe.send_bytes(pickle.dumps((True, value)))
    group.close()
