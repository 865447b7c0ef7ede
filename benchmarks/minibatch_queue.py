"""Cost of the queue between sampling tasks and ranks: waiting, the store, the driver's time, memory.

    python benchmarks/minibatch_queue.py --json minibatch_queue.json

All on a local Dask cluster: two ranks, and a worker that samples. GraphSAGE (hidden 64), batch 1024, fanout 15, 10, 5,
bulks of 8, a thread for each process.

Waiting: how much of the time in steps the ranks wait for minibatches, from the first bulk on (the first rank's clock,
as checkpoints hold it), with the Zarr queue and with queues in the memory of each rank. What the store costs is the
difference of their seconds an epoch; where there are fewer cores than processes, the worker that samples takes its
share of the ranks' time in both.

Load: CPU seconds of this process, which is the driver and holds the scheduler, in a run of 1000 bulks of one small
minibatch; and in the same run with queues in memory, which asks for none.

Memory: resident bytes of every process at the end of each of 20 epochs, the last against the fifth.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import millrace as mr
from millrace.pipeline.telemetry.events import EpochDone
from millrace.storage.checkpoint import STATE_FILE

DATASET, SMALL = "sbm:nodes=200000,degree=20", "sbm:nodes=20000,degree=10"
STEP_PARTS = ("queue_wait", "fetch", "forward_backward", "reduce")
BULK, BULKS, EPOCHS, LONG = 8, 1000, 3, 20
BASE: dict[str, Any] = {"ranks": 2, "threads": 1, "executor": "dask", "cluster": {"dashboard_port": 0}}


def clocks(run: Path) -> list[dict[str, float]]:
    """The first rank's seconds at each checkpoint, oldest first."""
    import torch

    folders = sorted((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name.split("-")[2]))
    return [torch.load(f / STATE_FILE, weights_only=True)["seconds"] for f in folders]


def waiting(dataset: mr.Dataset, folder: Path, kind: str, batch: int) -> dict[str, Any]:
    """Figures of one run: the share of waiting after the first bulk, and seconds an epoch."""
    result = mr.run(
        dataset, out=folder / f"wait-{kind}", epochs=EPOCHS, fanout=(15, 10, 5), batch_size=batch, hidden=64,
        train={"evaluate_every": 0},
        queue={"kind": kind, "bulk_size": BULK}, checkpoint={"every_steps": BULK // 2, "keep": 10000}, **BASE,
    )  # fmt: skip
    first, *_, last = clocks(folder / f"wait-{kind}")
    parts = {name: last[name] - first[name] for name in STEP_PARTS}
    return {
        "queue_wait_share": parts["queue_wait"] / sum(parts.values()),
        "parts_s": parts,
        "per_epoch_s": result.seconds["per_epoch"],
        "first_bulk_wait_s": first["queue_wait"],
        "sample_s": result.seconds["sample"],
        "minibatches": result.minibatches,
        "parameters_sha256": result.parameters_sha256,
    }


def load(dataset: mr.Dataset, folder: Path, kind: str, bulks: int) -> dict[str, float]:
    """CPU and wall seconds of the driver over a run of that many bulks."""
    process = psutil.Process()
    batch = max(1, len(dataset.split.train) // (bulks // 2))
    cpu, wall = sum(process.cpu_times()[:2]), time.perf_counter()
    result = mr.run(
        dataset, out=folder / f"load-{kind}", epochs=2, fanout=(3, 3), batch_size=batch, hidden=8,
        train={"evaluate_every": 0},
        queue={"kind": kind, "bulk_size": 1}, **BASE,
    )  # fmt: skip
    return {
        "driver_cpu_s": sum(process.cpu_times()[:2]) - cpu,
        "wall_s": time.perf_counter() - wall,
        "epochs_s": sum(result.seconds["per_epoch"]),
        "bulks": result.minibatches,
    }


def name_of(process: psutil.Process) -> str | None:
    """Role of a process in the run; None: not part of it."""
    command = " ".join(process.cmdline())
    return "rank" if "cluster.rank_main" in command else "worker" if "spawn_main" in command else None


def memory(dataset: mr.Dataset, folder: Path, epochs: int) -> dict[str, Any]:
    """Resident bytes of each process by epoch."""
    seen: dict[str, list[int]] = {}

    def listen(event: Any) -> None:
        if isinstance(event, EpochDone):
            me = psutil.Process()
            seen.setdefault("driver", []).append(me.memory_info().rss)
            for child in me.children(recursive=True):
                try:
                    name = name_of(child)
                    if name:
                        seen.setdefault(f"{name} {child.pid}", []).append(child.memory_info().rss)
                except psutil.Error:
                    continue

    mr.run(
        dataset, out=folder / "epochs", epochs=epochs, fanout=(10, 5), batch_size=256, hidden=32, emit=listen,
        queue={"kind": "zarr", "bulk_size": 4}, **BASE,
    )  # fmt: skip
    fifth = min(5, epochs) - 1
    return {
        name: {"fifth": rss[fifth], "last": rss[-1], "growth": rss[-1] / rss[fifth] - 1}
        for name, rss in seen.items()
        if len(rss) > fifth
    }


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"\n{'queue':10}{'waiting':>9}{'first bulk, s':>15}   seconds an epoch")
    for kind, r in report["waiting"].items():
        epochs = ", ".join(f"{s:.2f}" for s in r["per_epoch_s"])
        print(f"{kind:10}{100 * r['queue_wait_share']:>8.1f}%{r['first_bulk_wait_s']:>15.2f}   {epochs}")
    print(f"\n{'queue':10}{'bulks':>7}{'CPU s, driver':>15}{'s of the run':>14}{'s in epochs':>13}")
    for kind, r in report["load"].items():
        print(f"{kind:10}{r['bulks']:>7}{r['driver_cpu_s']:>15.2f}{r['wall_s']:>14.2f}{r['epochs_s']:>13.2f}")
    print(f"\n{'process':16}{'MB, 5th epoch':>15}{'MB, last':>10}{'growth':>9}")
    for name, r in report["memory"].items():
        print(f"{name:16}{r['fifth'] / 1e6:>15.1f}{r['last'] / 1e6:>10.1f}{100 * r['growth']:>8.1f}%")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="The queue between sampling tasks and ranks: waiting, load, memory.")
    parser.add_argument("--small", action="store_true", help="a tenth of everything or less, to see whether it works")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    load_before = os.getloadavg()
    if load_before[0] > 0.5:
        print(f"the load average is {load_before[0]:.1f}: other work distorts this")
    small = mr.open_dataset(SMALL)
    dataset = small if args.small else mr.open_dataset(DATASET)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        report: dict[str, Any] = {
            "dataset": SMALL if args.small else DATASET,
            "waiting": {kind: waiting(dataset, at, kind, 64 if args.small else 1024) for kind in ("zarr", "memory")},
            "load": {kind: load(small, at, kind, BULKS // 10 if args.small else BULKS) for kind in ("zarr", "memory")},
            "memory": memory(small, at, 6 if args.small else LONG),
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cpus": os.cpu_count(),
                "load_before": load_before,
            },
        }
    show(report)
    if len({r["parameters_sha256"] for r in report["waiting"].values()}) != 1:
        raise SystemExit("both queues should end with the same parameters; they differ")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {args.json}")


if __name__ == "__main__":
    main()
