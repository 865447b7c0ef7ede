"""Kills the driver or a worker in each stage before training: the same command completes it, bit for bit.

    python benchmarks/killed_stages.py --only convert,into,parts,sample

Each command runs undisturbed once, with two workers (``sample``: of a cluster that is there). Then for every stage: as
soon as a first task of it is done, the command itself gets SIGKILL, nothing is to be seen at its output, and it is
given again; or a worker gets SIGKILL, and the command goes on. The files must be those of the undisturbed command. A
line for each kill.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import LocalCluster

TIMES_S = 300.0
DASK = ("--set", "executor=dask", "--set", "cluster.producers=2", "--set", "cluster.dashboard_port=0")
CONVERTED = ("scan", "number", "name", "labels", "spill", "sort", "features", "gather", "seams", "arrays")
RENUMBERED = (
    "assign", "spill", "groups", "sort", "labels", "unpack", "name", "features", "gather", "seams", "arrays", "count"
)  # fmt: skip


def tables(folder: Path) -> None:
    """A graph of 4,000 nodes whose ids are text."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = np.array([f"{i:05x}-{rng.integers(1 << 60):x}" for i in range(4000)], object)
    for n in range(4):
        ends = names[rng.integers(0, len(names), (2, 40_000))]
        table = pa.table({"src": ends[0], "dst": ends[1], "weight": rng.random(40_000)})
        pq.write_table(table, folder / f"edges-{n}.parquet", row_group_size=5000)
    x = rng.normal(size=(len(names), 8)).astype("f4")
    nodes = {"id": names, "label": rng.integers(0, 3, len(names)), "features": x.tolist()}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet", row_group_size=500)


def cases(folder: Path, scheduler: str) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Words of each command, without its output, and a pattern of files that are there once a stage is under way;
    ``OUT`` and ``NAME`` stand for the output."""
    store, done = str(folder / "store"), ".ingest-NAME/done"
    given = ("--set", "read.direction=undirected", "--memory", "700MiB", "--workers", "2")
    drawn = ("--epochs", "2", "--fanout", "5,5", "--batch-size", "16", "--set", "queue.bulk_size=2")
    return {
        "convert": (
            ("convert", str(folder / "graph"), *given, "--out"),
            {stage: f"{done}/{stage}-*.json" for stage in CONVERTED},
        ),
        "into": (
            ("partition", store, "--parts", "3", "--memory", "1500MiB", *DASK, "--into"),
            {stage: f"{done}/{stage}*.json" for stage in RENUMBERED},
        ),
        "parts": (
            ("partition", store, "--parts", "3", *DASK, "--out"),
            {"book": "OUT/book/manifest.json", "deal": "OUT/.writing-dealt-*/*", "write": "OUT/part-0000*"},
        ),
        "sample": (
            ("sample", "--dataset", store, *drawn, "--set", f"cluster.scheduler={scheduler}", "--out"),
            {"first": "OUT/epoch-0/bulk-*", "second": "OUT/epoch-1/bulk-*"},
        ),
    }


def contents(folder: Path) -> dict[str, bytes]:
    """All files by name, but for locks."""
    files = (f for f in sorted(folder.rglob("*")) if f.is_file())
    return {str(f.relative_to(folder)): f.read_bytes() for f in files if not f.name.startswith(".lock")}


def started(words: tuple[str, ...], out: Path) -> subprocess.Popen[str]:
    """The command, under way."""
    command = [sys.executable, "-m", "millrace", *words, str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    """Its exit code if that is not 0, and the last line that it printed."""
    _, said = process.communicate(timeout=TIMES_S)
    return "" if process.returncode == 0 else f"exit code {process.returncode}: {said.strip().splitlines()[-1]}"


def workers(parent: int) -> list[psutil.Process]:
    """Dask's workers that a process has started."""
    children = psutil.Process(parent).children(recursive=True)
    return [p for p in children if p.is_running() and "spawn_main" in " ".join(p.cmdline())]


def killed(words: tuple[str, ...], out: Path, pattern: str, victim: str, wanted: dict[str, bytes]) -> str:
    """Kill once; what came of it."""
    pattern = pattern.replace("OUT", out.name).replace("NAME", out.name)
    process, until = started(words, out), time.monotonic() + TIMES_S
    while process.poll() is None and not any(out.parent.glob(pattern)) and time.monotonic() < until:
        time.sleep(0.001)
    if process.poll() is not None:
        why = finished(process)
        return why or "ended before it could be killed"
    if victim == "driver":
        process.kill()
        process.communicate()
        if (words[0] == "convert" or words[-1] == "--into") and (out / "manifest.json").exists():
            return "WRONG: half of it can be seen"
        process = started(words, out)
    elif not (found := workers(os.getpid() if words[0] == "sample" else process.pid)):
        process.kill()
        process.communicate()
        return "no worker was there"
    else:
        os.kill(found[0].pid, signal.SIGKILL)
    if why := finished(process):
        return f"WRONG: {why}"
    got = contents(out)
    if got != wanted:
        apart = sorted(name for name in got.keys() | wanted.keys() if got.get(name) != wanted.get(name))
        return f"WRONG: {len(apart)} files differ, such as {apart[0]}"
    left = sorted(p.name for p in out.parent.iterdir() if p.name.startswith("."))
    return f"WRONG: {left} is left" if left else "the same files"


def main() -> int:
    """Entry point; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="convert,into,parts,sample")
    parser.add_argument("--victims", default="driver,worker")
    args, wrong = parser.parse_args(), 0
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with tempfile.TemporaryDirectory() as name, LocalCluster(**options) as there:
        folder = Path(name)
        tables(folder / "graph")
        all_cases = cases(folder, there.scheduler_address)
        if why := finished(started(all_cases["convert"][0], folder / "store")):
            sys.exit(why)
        for case in args.only.split(","):
            words, stages = all_cases[case]
            (folder / case).mkdir()
            out = folder / case / "got"
            if why := finished(started(words, out)):
                sys.exit(why)
            wanted = contents(out)
            for stage, pattern in stages.items():
                for victim in args.victims.split(","):
                    shutil.rmtree(folder / case)
                    (folder / case).mkdir()
                    found = killed(words, out, pattern, victim, wanted)
                    wrong += found.startswith("WRONG")
                    print(f"{case}, {stage}, {victim}: {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
