"""Kills the driver, a worker or a rank in each stage: the same command completes it, bit for bit.

    python benchmarks/killed_stages.py --only convert,alone,csv,typed,into,parts,sample,owners,sar,bulk,evaluate,predict

Each command runs undisturbed once, which shows its stages. Then for every stage: the process that has done the work of
a task of it, and has not said so yet, is held there by `kill_points/sitecustomize.py`. The command itself gets SIGKILL,
nothing is to be seen at its output that is not whole, and it is given again (a run: with ``--resume``); or that process
gets SIGKILL, or a worker if the command itself was held, and the command goes on. Files, parameters or measures must be
those of the undisturbed command. A line for each kill, then a table. All processes are forked from one that has
imported what they need, which saves most of the time.

``convert``   of Parquet whose ids are text, by two workers; ``alone`` in one process; ``csv`` and ``typed`` likewise by
              two workers, of CSV and of tables of two types.
``into``, ``parts``  ``partition --into`` and ``--out`` of its store, by ``metis-streamed`` and two workers.
``sample``, ``owners``  ``sample`` on a cluster that is there, by tasks, and by two ranks with a block of rows each.
``sar``, ``bulk``  ``run`` with two ranks on parts, and with two ranks that other workers sample for.
``evaluate``, ``predict``  of that run, by two workers.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from distributed import LocalCluster

from millrace.tests.contracts.forked_cluster import forked_cluster
from millrace.tests.contracts.forked_command import ForkedCommand

TIMES_S = 300.0
WIDTH = 1024
"""Features of a node: so many that tasks of the least memory share them."""
HERE = Path(__file__).resolve().parent
DASK = ("--set", "executor=dask", "--set", "cluster.producers=2", "--set", "cluster.dashboard_port=0")
CONVERT = (
    "--set", "read.direction=undirected", "--set", "read.missing_ids=compact", "--memory", "680MiB",
    "--set", "read.normalize_features=standard",
)  # fmt: skip
RUN = ("--epochs", "2", "--hidden", "8", "--layers", "2", "--ranks", "2", "--set", "cluster.dashboard_port=0")
WHOLE_FROM = {
    "convert": ("committed",), "alone": ("committed",), "csv": ("committed",), "typed": ("committed",),
    "into": ("committed",), "predict": ("written",), "sar": ("ended",), "bulk": ("ended",),
}  # fmt: skip
"""By command, stages after which its output is there."""


@dataclass(frozen=True)
class Case:
    """A command whose last word is its output."""

    words: tuple[str, ...]
    result: str
    """The last thing to be written: a file in the output, or nothing: the output itself."""
    is_run: bool = False
    elsewhere: bool = False
    """Its workers are those of this process's cluster."""


def tables(folder: Path) -> None:
    """A graph of 4,000 nodes: as Parquet with ids that are text, as CSV with numbers in any order, and in two types."""
    rng, count = np.random.default_rng(0), 4000
    names = np.array([f"{i:05x}-{rng.integers(1 << 60):x}" for i in range(count)], object)
    numbers = 7 * rng.permutation(count) + 5
    labels, x = rng.integers(0, 3, count), rng.normal(size=(count, WIDTH)).astype("f4")
    for name in ("graph", "csv", "typed"):
        (folder / name).mkdir()
    for n in range(4):
        src, dst = rng.integers(0, count, (2, 20_000))
        table = pa.table({"src": names[src], "dst": names[dst], "weight": rng.random(len(src))})
        pq.write_table(table, folder / f"graph/edges-{n}.parquet", row_group_size=5000)
        rows = slice(n * count // 4, (n + 1) * count // 4)
        table = pa.table({"id": names[rows], "label": labels[rows], "features": x[rows].tolist()})
        pq.write_table(table, folder / f"graph/nodes-{n}.parquet", row_group_size=500)
    pc.write_csv(pa.table({"src": numbers[src], "dst": numbers[dst]}), folder / "csv/edges.csv")
    columns = {f"x{k}": x[:, k] for k in range(8)}
    pc.write_csv(pa.table({"id": numbers, "label": labels, **columns}), folder / "csv/nodes.csv")
    papers = {"id": numbers, "label": labels, "features": x[:, :8].tolist()}
    pq.write_table(pa.table(papers), folder / "typed/nodes-paper.parquet", row_group_size=500)
    pq.write_table(pa.table({"id": names, "features": x[:, :4].tolist()}), folder / "typed/nodes-author.parquet")
    for relation, start in (("paper-cites-paper", numbers), ("author-writes-paper", names)):
        table = pa.table({"src": start[src], "dst": numbers[dst]})
        pq.write_table(table, folder / f"typed/edges-{relation}.parquet", row_group_size=5000)


def cases(folder: Path, scheduler: str) -> dict[str, Case]:
    """All commands."""
    store, run = str(folder / "store" / "store"), str(folder / "run" / "run")
    two, there = ("--workers", "2"), f"cluster.scheduler={scheduler}"
    drawn = ("--epochs", "2", "--fanout", "5,5", "--batch-size", "16", "--set", "queue.bulk_size=2")
    blocks = ("--set", "bulk.topology=partitioned", "--set", "partition.method=contiguous", "--set", "ranks=2")
    cut = ("--parts", "3", "--method", "metis-streamed", *DASK)
    minibatches = ("--fanout", "5,5", "--batch-size", "512", "--set", "queue.bulk_size=2")
    return {
        "convert": Case(("convert", str(folder / "graph"), *CONVERT, *two, "--out"), "manifest.json"),
        "alone": Case(("convert", str(folder / "graph"), *CONVERT, "--out"), "manifest.json"),
        "csv": Case(("convert", str(folder / "csv"), *CONVERT, *two, "--out"), "manifest.json"),
        "typed": Case(("convert", str(folder / "typed"), *CONVERT, *two, "--out"), "manifest.json"),
        "into": Case(("partition", store, *cut, "--memory", "680MiB", "--into"), "manifest.json"),
        "parts": Case(("partition", store, *cut, "--out"), "manifest.json"),
        "sample": Case(
            ("sample", "--dataset", store, *drawn, "--set", there, "--out"), "manifest.json", elsewhere=True
        ),
        "owners": Case(
            ("sample", "--dataset", store, *drawn, *blocks, "--set", there, "--out"), "manifest.json", elsewhere=True
        ),
        "sar": Case(
            ("run", "--dataset", store, *RUN, "--system", "sar", "--set", "partition.method=hash", "--out"),
            "result.json",
            is_run=True,
        ),
        "bulk": Case(
            ("run", "--dataset", store, *RUN, *minibatches, "--set", "queue.kind=zarr", "--out"),
            "result.json",
            is_run=True,
        ),
        "evaluate": Case(("evaluate", run, *two, "--json"), ""),
        "predict": Case(("predict", run, *two, "--out"), ""),
    }


def contents(case: Case, out: Path, printed: str) -> dict[str, bytes]:
    """Contents that must be equal: all files by name but for locks; of a run its parameters and what it measured."""
    if case.words[0] == "evaluate":
        record = json.loads(printed)
        return {key: json.dumps(record[key]).encode() for key in ("accuracy", "metrics") if key in record}
    if case.is_run:
        import torch

        record, found = json.loads((out / "result.json").read_text()), dict[str, bytes]()
        for name, value in torch.load(out / "model.pt", weights_only=True).items():
            found[name] = value.numpy().tobytes()
        kept = ("parameters_sha256", "epochs", "train_loss", "val_accuracy", "test_accuracy", "status")
        return found | {"record": json.dumps([record[k] for k in kept]).encode()}
    files = [out] if out.is_file() else [f for f in sorted(out.rglob("*")) if f.is_file()]
    return {str(f.relative_to(out)): f.read_bytes() for f in files if not f.name.startswith(".lock")}


def started(case: Case, out: Path, again: bool = False, stuck_by: Path | None = None) -> ForkedCommand:
    """The command, under way; what it prints goes to files beside the folder of its output. See `ForkedCommand`."""
    words = (*case.words, *(() if case.words[0] == "evaluate" else (out,)))
    printed = [out.parent.with_suffix(suffix) for suffix in (".out", ".err")]
    for file in printed:
        file.write_text("")
    words = (*words, *(("--resume",) if again and case.is_run else ()))
    return ForkedCommand(*words, out=printed[0], err=printed[1], stuck_by=stuck_by)


def finished(process: ForkedCommand, out: Path) -> tuple[str, str]:
    """Its exit code if that is not 0 and the last line that it said; and what it printed."""
    code = process.wait(TIMES_S)
    printed, said = (out.parent.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
    return ("" if code == 0 else f"exit code {code}: {(said.strip().splitlines() or ['nothing'])[-1]}"), printed


def workers(parent: int) -> list[int]:
    """Dask's workers that a process has started."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and "spawn_main" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


class Points:
    """The folder of `kill_points`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "seen").touch()

    def stages(self) -> list[str]:
        """Stages reached since the last call, in their order."""
        found = list(dict.fromkeys((self.folder / "seen").read_text().splitlines()))
        (self.folder / "seen").write_text("")
        return found

    @contextmanager
    def held(self, stage: str, process: ForkedCommand) -> Iterator[int]:
        """Context in which a process is held in a stage; its id, or 0 if the command ends without it."""
        aside = self.folder / ".armed"
        aside.write_text(stage)
        aside.rename(self.folder / "armed")
        until, found = time.monotonic() + TIMES_S, list[Path]()
        try:
            while not found and process.poll() is None and time.monotonic() < until:
                time.sleep(0.005)
                found = [*self.folder.glob("hit-*")]
            yield int(found[0].name.removeprefix("hit-")) if found else 0
        finally:
            for file in (self.folder / "armed", *self.folder.glob("hit-*")):
                file.unlink(missing_ok=True)


def killed(case: Case, name: str, out: Path, points: Points, stage: str, kind: str, wanted: dict[str, bytes]) -> str:
    """Kill a process in a stage; what came of it."""
    # A folder of its own: tasks of a command that was killed before may still write.
    out = out.parent.with_name(uuid.uuid4().hex) / out.name
    out.parent.mkdir()
    process = started(case, out)
    try:
        with points.held(stage, process) as holder:
            if not holder:
                return f"WRONG: never reached: {finished(process, out)[0]}"
            dask = workers(os.getpid() if case.elsewhere else process.pid)
            of_kind = {"driver": [process.pid], "worker": [holder] if holder in dask else dask}
            of_kind["rank"] = [] if holder in (process.pid, *dask) else [holder]
            if not (victims := of_kind[kind]):
                process.kill()
                return "-"
            os.kill(victims[0], signal.SIGKILL)
            if kind == "driver":
                process.wait(TIMES_S)
        whole = any(s == stage for s in WHOLE_FROM.get(name, ()))
        if kind == "driver":
            seen = case.words[0] != "evaluate" and out.exists() and (out / case.result).exists()
            if seen and not whole and case.words[0] != "sample":
                return "WRONG: half of it can be seen"
            process = started(case, out, again=True)
        why, printed = finished(process, out)
        if why and not (whole and kind == "driver" and "exist" in why):
            return f"WRONG: {why}"
        got = contents(case, out, printed)
        if got != wanted:
            apart = sorted(name for name in got.keys() | wanted.keys() if got.get(name) != wanted.get(name))
            return f"WRONG: {len(apart)} differ, such as {apart[0]}"
        left = sorted(p.name for p in out.parent.iterdir() if p.name.startswith("."))
        return f"WRONG: {left} is left" if left else "same"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(TIMES_S)


def main() -> int:
    """Entry point; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases, separated by commas; all by default")
    parser.add_argument("--stages", help="of these stages alone")
    parser.add_argument("--victims", default="driver,worker,rank")
    args, kinds = parser.parse_args(), []
    options: dict[str, Any] = {
        "n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": ":0"
    }  # fmt: skip
    rows = list[tuple[str, str, list[str]]]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "points").mkdir()
        os.environ["MILLRACE_KILL"] = str(folder / "points")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "kill_points"), os.environ.get("PYTHONPATH", "")])
        points, kinds = Points(folder / "points"), args.victims.split(",")
        tables(folder)
        every = cases(folder, "")
        names = args.only.split(",") if args.only else list(every)
        needed = {"alone": "store"} | ({"bulk": "run"} if {"evaluate", "predict"} & {*names} else {})
        with forked_cluster():
            for name, out in needed.items():
                (folder / out).mkdir()
                if why := finished(started(every[name], folder / out / out), folder / out / out)[0]:
                    sys.exit(why)
            for name in names:
                with LocalCluster(**options) if every[name].elsewhere else nullcontext() as there:
                    case = cases(folder, there.scheduler_address if there else "")[name]
                    out = folder / f"out-{name}" / ("got.parquet" if name == "predict" else "got")
                    out.parent.mkdir()
                    points.stages()
                    why, printed = finished(started(case, out), out)
                    if why:
                        sys.exit(f"{name}: {why}")
                    wanted = contents(case, out, printed)
                    for stage in points.stages():
                        if args.stages and stage not in args.stages.split(","):
                            continue
                        found = [killed(case, name, out, points, stage, kind, wanted) for kind in kinds]
                        rows.append((name, stage, found))
                        print(f"{name}, {stage}: {', '.join(f'{k} {f}' for k, f in zip(kinds, found))}", flush=True)
    print(f"\n{'':>10}{'stage':>16}" + "".join(f"{kind:>10}" for kind in kinds))
    for name, stage, found in rows:
        print(f"{name:>10}{stage:>16}" + "".join(f"{text.split(':')[0]:>10}" for text in found))
    return 1 if any(text.startswith("WRONG") for *_, found in rows for text in found) else 0


if __name__ == "__main__":
    sys.exit(main())
