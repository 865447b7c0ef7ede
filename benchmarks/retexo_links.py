"""What runs would take over slow links, and what they take over a real one: the part of ``benchmarks/retexo.py`` that is about time."""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace.pipeline.links import LINKS, Link, network_seconds, predicted_seconds

START_S = 60.0
RUN_S = 900.0
CHANNELS = ("network", "evaluation")
SYSTEMS = {"RETEXO v3": ("retexo",), "standard (sar halo)": ("sar", "--set", "sar.mode=halo")}


def extrapolated(a: Mapping[str, Any], b: Mapping[str, Any], epochs: int) -> dict[str, Any]:
    """The record of a longer run, from those of two shorter ones: bytes, waits and total seconds on a line through theirs."""
    steps, ahead = b["epochs"] - a["epochs"], epochs - b["epochs"]

    def on_line(first: Any, second: Any) -> Any:
        if isinstance(second, Mapping):
            return {k: on_line(first[k], v) for k, v in second.items()}
        if isinstance(second, list):
            return [on_line(x, y) for x, y in zip(first, second)]
        rise = (second - first) * ahead
        return second + (rise // steps if isinstance(rise, int) and rise % steps == 0 else rise / steps)

    seconds = {"total": on_line(a["seconds"]["total"], b["seconds"]["total"])}
    return {**b, "epochs": epochs, "bytes": on_line(a["bytes"], b["bytes"]), "waits": on_line(a["waits"], b["waits"]), "seconds": seconds}


def over_links(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Seconds that the messages of training take over each of `LINKS`, and in them those of rows alone."""
    print("\nLINKS: seconds of network over typical links, predicted: all messages of training (and rows alone)")
    print(f"{'':<34}" + "".join(f"{name:>24}" for name in LINKS))
    told = []
    for run in runs:
        by_link = {name: network_seconds(run["record"], link) for name, link in LINKS.items()}
        cells = [f"{sum(s.values()):,.1f} ({s['features'] + s['activations']:,.1f})" for s in by_link.values()]
        print(f"{run['name']:<34}" + "".join(f"{c:>24}" for c in cells))
        told.append({"name": run["name"], "seconds": by_link})
    return told


@contextmanager
def cluster(addresses: Sequence[str], spaces: Sequence[str] | None, folder: Path) -> Iterator[str]:
    """A scheduler and as many workers, each in its namespace if there are some; the address of the scheduler."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    scheduler = f"tcp://{addresses[0]}:{port}"
    running: list[subprocess.Popen[bytes]] = []

    def start(n: int, *words: str) -> Path:
        log = folder / f"log-{len(running)}"
        with log.open("w") as f:
            running.append(
                subprocess.Popen(within(spaces[n] if spaces else None, "-m", "dask", *words, "--no-dashboard"), stdout=f, stderr=f)
            )
        return log

    try:
        start(0, "scheduler", "--host", addresses[0], "--port", str(port))
        words = ("worker", scheduler, "--nthreads", "1", "--local-directory", str(folder))
        logs = [start(n, *words, "--host", address) for n, address in enumerate(addresses)]
        end = time.monotonic() + START_S
        while not all("Registered to" in log.read_text() for log in logs):
            if time.monotonic() > end:
                raise SystemExit("no cluster came up:\n" + "".join(log.read_text()[-1000:] for log in sorted(folder.glob("log-*"))))
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


def within(space: str | None, *words: str) -> list[str]:
    """The command line that runs Python in a namespace."""
    return [*(["ip", "netns", "exec", space] if space else []), sys.executable, *words]


def sent_bytes(space: str) -> int:
    """By the devices of a namespace, with all headers, but for what it says to itself."""
    shown = subprocess.run(["ip", "-n", space, "-s", "-j", "link", "show"], check=True, capture_output=True, text=True)
    return sum(link["stats64"]["tx"]["bytes"] for link in json.loads(shown.stdout) if link["ifname"] != "lo")


def trained_s(metrics: Path) -> float:
    """Of training and evaluation, without the start of the processes, which on a machine with other work takes longer than all else."""
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    return sum(e["seconds"] for e in events if e["event"] == "StageEnded" and e["stage"] in ("train", "evaluate"))


def run_over(
    addresses: Sequence[str], spaces: Sequence[str] | None, system: Sequence[str], args: argparse.Namespace
) -> tuple[dict[str, Any], list[int]]:
    """One run: its record, and what each namespace sent."""
    with tempfile.TemporaryDirectory() as name, cluster(addresses, spaces, Path(name)) as scheduler:
        out = Path(name) / "run"
        before = [sent_bytes(space) for space in spaces or ()]
        command = within(
            spaces[0] if spaces else None,
            *("-m", "millrace.pipeline", "run", "--dataset", args.link_dataset, "--system", *system, "--ranks", str(len(addresses))),
            *("--epochs", str(args.link_epochs), "--hidden", "64", "--layers", "2", "--set", "threads=1", "--out", str(out)),
            *("--scheduler", scheduler, "--host", addresses[0], "--set", "cluster.insecure=true", "--set", "partition.method=hash"),
            *("--set", "train.evaluate_every=0", "--set", "checkpoint.every_s=1e9"),
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
        if done.returncode:
            raise SystemExit(f"the run ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        record = json.loads((out / "result.json").read_text())
        record["seconds"]["total"] = trained_s(out / "metrics.jsonl")
        return record, [sent_bytes(s) - b for s, b in zip(spaces or (), before)]


def over_namespaces(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Predicted and measured seconds over the link between namespaces, beyond what the same run takes on one machine."""
    link = Link(args.bandwidth_mbit * 1e6 / 8, args.latency_ms / 1e3)
    here = ["127.0.0.1"] * len(args.namespaces)
    print(f"\nLINKS, measured: {args.link_dataset}, 2 layers of 64, {len(here)} ranks, {args.link_epochs} epochs (RETEXO: of each layer);")
    print(f"{args.bandwidth_mbit:g} Mb/s, {args.latency_ms:g} ms; {args.repeats} runs each, of which the soonest counts;")
    print(
        "seconds of training and evaluation; of network: predicted, and measured beyond the run on loopback; MB sent by the rank that sends"
    )
    print("most: by the ledger, and on the wire with headers and Dask's own")
    print(
        f"{'':<22}{'loopback s':>11}{'over link s':>12}{'predicted s':>12}{'network: pred.':>16}{'meas.':>8}{'ledger MB':>11}{'wire MB':>9}"
    )
    told = []
    for name, system in SYSTEMS.items():
        base, there, wire = [], [], []
        # In turns, so that both see what else goes on here.
        for _ in range(args.repeats):
            base.append(run_over(here, None, system, args)[0])
            record, sent = run_over(args.addresses, args.namespaces, system, args)
            there.append(record)
            wire.append(max(sent))
        loop, over = (min(r["seconds"]["total"] for r in records) for records in (base, there))
        reference = {**there[0], "seconds": {"total": loop}}
        predicted = predicted_seconds(reference, link)
        ledger = max(sum(rank[c][kind] for c in CHANNELS for kind in rank[c]) for rank in there[0]["bytes"]["per_rank"])
        print(
            f"{name:<22}{loop:>11.1f}{over:>12.1f}{predicted:>12.1f}{predicted - loop:>16.2f}{over - loop:>8.2f}"
            f"{ledger / 1e6:>11.2f}{statistics.median(wire) / 1e6:>9.2f}",
            flush=True,
        )
        by_kind = {c: network_seconds(there[0], link, c) for c in CHANNELS}
        told.append(
            {
                "name": name,
                "bandwidth_mbit": args.bandwidth_mbit,
                "latency_ms": args.latency_ms,
                "loopback_s": [r["seconds"]["total"] for r in base],
                "link_s": [r["seconds"]["total"] for r in there],
                "predicted_s": predicted,
                "predicted_network_s": by_kind,
                "measured_network_s": over - loop,
                "ledger_bytes": ledger,
                "wire_bytes": wire,
                "waits": there[0]["waits"],
                "bytes": there[0]["bytes"],
            }
        )
    return told
