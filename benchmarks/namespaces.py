"""Runs of a cluster whose workers are in network namespaces, so that ranks are connected by real slow links."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 300.0
RUN_S = 900.0


def run_in(
    addresses: Sequence[str], spaces: Sequence[str] | None, words: Sequence[str], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[int]]:
    """One ``millrace run``, a rank at each address.

    Args:
        addresses: of the workers; the driver and the scheduler share the first.
        spaces: the namespace of each, which exists; None: this one, that is, loopback.
        words: of the command line.
        settings: keys of the configuration.

    Returns: The record of the run, with the seconds of training and evaluation in ``seconds.trained``, and the bytes
        that each namespace sent.
    """
    with tempfile.TemporaryDirectory() as name, cluster(addresses, spaces, Path(name)) as scheduler:
        out = Path(name) / "run"
        before = [sent_bytes(space) for space in spaces or ()]
        settings = {"checkpoint.every_s": 1e9, "cluster.insecure": "true", **settings}
        command = within(
            spaces[0] if spaces else None,
            *("-m", "millrace.pipeline", "run", *words, "--ranks", str(len(addresses)), "--out", str(out)),
            *("--scheduler", scheduler, "--host", addresses[0]),
            *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
        if done.returncode:
            raise SystemExit(f"the run ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        record = json.loads((out / "result.json").read_text())
        record["seconds"]["trained"] = trained_s(out / "metrics.jsonl")
        return record, [sent_bytes(s) - b for s, b in zip(spaces or (), before)]


@contextmanager
def linked(*addresses: str) -> Iterator[list[str]]:
    """Two namespaces with a cable between them, which have the addresses; needs root and the command `ip`."""
    spaces = [f"mr{os.getpid()}{letter}" for letter in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for space in spaces:
            ip("netns", "add", space)
        ip("link", "add", "name", "link0", "netns", spaces[0], "type", "veth", "peer", "link0", "netns", spaces[1])
        for address, space in zip(addresses, spaces, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "link0")
            for device in ("lo", "link0"):
                ip("-n", space, "link", "set", device, "up")
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@contextmanager
def cluster(
    addresses: Sequence[str],
    spaces: Sequence[str] | None,
    folder: Path,
    *,
    data_bytes: int | None = None,
    threads: int = 1,
) -> Iterator[str]:
    """A scheduler and as many workers, each in its namespace if there are some; the address of the scheduler.

    Args:
        addresses: of the workers; the scheduler has the first.
        spaces: the namespace of each.
        folder: of logs and of the workers' files.
        data_bytes: `RLIMIT_DATA` of each worker, and of each process that it starts.
        threads: of a worker: it holds so many ranks or tasks.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    scheduler = f"tcp://{addresses[0]}:{port}"
    running: list[subprocess.Popen[bytes]] = []

    def start(n: int, *words: str, limit: int | None = None) -> Path:
        log, command = folder / f"log-{len(running)}", within(spaces[n] if spaces else None, "-m", "dask", *words)
        command = [*limited(limit), *command, "--no-dashboard"]
        with log.open("w") as f:
            running.append(subprocess.Popen(command, stdout=f, stderr=f))
        return log

    try:
        start(0, "scheduler", "--host", addresses[0], "--port", str(port))
        words = ("worker", scheduler, "--nthreads", str(threads), "--local-directory", str(folder))
        logs = [start(n, *words, "--host", address, limit=data_bytes) for n, address in enumerate(addresses)]
        end = time.monotonic() + START_S
        while not all("Registered to" in log.read_text() for log in logs):
            if time.monotonic() > end:
                raise SystemExit(
                    "no cluster came up:\n" + "".join(log.read_text()[-1000:] for log in sorted(folder.glob("log-*")))
                )
            time.sleep(0.1)
        yield scheduler
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def limited(data_bytes: int | None) -> list[str]:
    """The words before a command that limit its memory, `RLIMIT_DATA`: what is private and can be written. Stacks of
    threads, which count as a whole, are of 1 MiB."""
    return [] if data_bytes is None else ["prlimit", f"--data={data_bytes}", f"--stack={1 << 20}"]


def within(space: str | None, *words: str) -> list[str]:
    """The command line that runs Python in a namespace."""
    return [*(["ip", "netns", "exec", space] if space else []), sys.executable, *words]


def sent_bytes(space: str) -> int:
    """By the devices of a namespace, with all headers, but for what it says to itself."""
    shown = subprocess.run(["ip", "-n", space, "-s", "-j", "link", "show"], check=True, capture_output=True, text=True)
    return sum(link["stats64"]["tx"]["bytes"] for link in json.loads(shown.stdout) if link["ifname"] != "lo")


def trained_s(metrics: Path) -> float:
    """Seconds of training and evaluation, without the start of the processes, which takes longest on a busy machine."""
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    return sum(e["seconds"] for e in events if e["event"] == "StageEnded" and e["stage"] in ("train", "evaluate"))
