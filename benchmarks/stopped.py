"""Stops a process of a command, then asks the command to end, by one SIGTERM: it ends in time, nothing of it is left,
and the same command completes it, bit for bit.

    python benchmarks/stopped.py --only convert,parts,sample,owners,sar,bulk,evaluate,predict --clusters here,own

Commands, their stages and what must be equal are those of `killed_stages.py`. In a stage that `--seed` draws (all:
`--stages all`), the process that works is held. A worker, a rank or the scheduler is stopped for good, by SIGSTOP (the
scheduler that a command started is a thread of it, which hangs then), the work goes on elsewhere, and the command gets
SIGTERM. It must end within 10 s with the exit code of an interrupt and no traceback, and its processes with it;
repeated (a run: resumed), it must make what an undisturbed command makes. ``here``: the command starts a cluster of its
own; ``own``: an own `dask scheduler` with two workers. ``--only mapped``: no process is stopped; exact evaluation of a
mapped store gets the signal. ``--only plan``: a process that a plan has started is stopped.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from millrace.benchmarks.killed_stages import Case, Points, cases, contents, finished, started, tables, workers
from millrace.tests.contracts.forked_cluster import forked_cluster
from millrace.tests.contracts.forked_command import ForkedCommand

LIMIT_S, GONE_S, WAIT_S = 10.0, 5.0, 300.0
HERE = Path(__file__).resolve().parent
NAMES = ("convert", "parts", "sample", "owners", "sar", "bulk", "evaluate", "predict")
OF = {"owners": ("rank",), "sar": ("rank",), "bulk": ("rank", "worker", "scheduler")}
"""By command: what can be stopped; of others a worker and the scheduler."""
LATE = ("committed", "file", "written", "ended", "result")
"""Stages after which a command is as good as done."""
OF_RANKS = ("start", "step", "validate", "checkpoint", "test", "model", "put")
"""Beginnings of the names of stages that have ranks."""


@dataclass(frozen=True)
class Cell:
    """A trial: the command, the process that is stopped, and whose cluster it runs on."""

    command: str
    victim: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.command}, {self.victim}, {self.cluster}"


def all_cells() -> list[Cell]:
    """Every cell; `sample` has no cluster of its own in `killed_stages.py`."""
    found = []
    for name in NAMES:
        for victim in OF.get(name, ("worker", "scheduler")):
            clusters = ("own",) if name in ("sample", "owners") else ("here", "own")
            found += [Cell(name, victim, cluster) for cluster in clusters]
    return found


@contextmanager
def own_cluster(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of a `dask scheduler` that has two workers."""
    folder.mkdir()
    told, processes = folder / "scheduler.json", list[ForkedCommand]()

    def start(module: str, *words: str) -> ForkedCommand:
        processes.append(ForkedCommand(*words, "--no-dashboard", program=f"distributed.cli.{module}"))
        return processes[-1]

    try:
        scheduler = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(told))
        until = time.monotonic() + WAIT_S
        while not told.exists() and time.monotonic() < until:
            time.sleep(0.02)
        for _ in range(2):
            start("dask_worker", "--scheduler-file", str(told), "--nthreads", "1", "--local-directory", str(folder))
        yield json.loads(told.read_text())["address"], psutil.Process(scheduler.pid)
    finally:
        for process in processes:
            for p in below(process.pid):
                with suppress(psutil.Error):
                    p.kill()


def below(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    return []


def case_of(name: str, folder: Path, address: str) -> Case:
    """A command, on the cluster at an address if there is one."""
    case = cases(folder, address)[name]
    words = case.words
    if address and name in ("convert", "evaluate", "predict"):
        at = words.index("--workers")
        words = (*words[:at], "--scheduler", address, *words[at + 2 :])
    elif address and name not in ("sample", "owners"):
        # `--out` is the last word: a folder follows it.
        words = (*words[:-1], "--set", f"cluster.scheduler={address}", words[-1])
    return replace(case, words=words)


def matching(processes: list[psutil.Process], mark: str) -> list[psutil.Process]:
    """Processes whose command line holds a word."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if mark in " ".join(process.cmdline()):
                found.append(process)
    return found


def stopped(cell: Cell, stage: str, points: Points, folder: Path, wanted: dict[str, bytes], seed: int) -> str:
    """Stop a process of a command in a stage, and end the command; what came of it."""
    place = folder / uuid.uuid4().hex
    out = place / ("got.parquet" if cell.command == "predict" else "got")
    place.mkdir()
    with own_cluster(place / "dask") if cell.cluster == "own" else nullcontext(("", None)) as (address, scheduler):
        case, stick = case_of(cell.command, folder, address), place / "stick"
        process = started(case, out, stuck_by=stick)
        try:
            with points.held(stage, process) as holder:
                if not holder:
                    return f"WRONG: never reached: {finished(process, out)[0]}"
                family = below(process.pid)
                elsewhere = [] if scheduler is None else [p for p in below(os.getpid()) if p not in family]
                ranks = matching([*family, *elsewhere], "cluster.rank_main")
                if cell.victim == "scheduler":
                    if scheduler is None:
                        stick.touch()
                    else:
                        scheduler.suspend()
                else:
                    dask = [psutil.Process(pid) for pid in workers(process.pid)]
                    if scheduler is not None:
                        dask = matching(elsewhere, "spawn_main")
                    choice = ranks if cell.victim == "rank" else dask
                    holding = [p for p in choice if p.pid == holder]
                    if not choice:
                        return f"WRONG: there is no {cell.victim}"
                    (holding or random.Random(seed).sample(choice, 1))[0].suspend()
            time.sleep(1.0)
            asked = time.monotonic()
            process.send_signal(signal.SIGTERM)
            try:
                code: int | None = process.wait(60.0)
            except Exception:
                code = None
            seconds = time.monotonic() - asked
            left = psutil.wait_procs([*family, *ranks], timeout=GONE_S)[1]
            said = place.with_suffix(".err").read_text()
            if code is None:
                return "WRONG: it goes on after 60 s"
            if "Traceback" in said or code not in (130, 0):
                return f"WRONG: exit code {code}: {said[-600:]}"
            if left:
                return f"WRONG: {len(left)} of its processes are left: {' '.join(left[0].cmdline())[:200]}"
            if seconds > LIMIT_S:
                return f"WRONG: it took {seconds:.1f} s"
        finally:
            for p in below(process.pid):
                with suppress(psutil.Error):
                    p.kill()
    return completed(cell, case, out, code, wanted) or f"{seconds:.1f} s, same"


def completed(cell: Cell, case: Case, out: Path, code: int, wanted: dict[str, bytes]) -> str:
    """Give the command again, on another cluster; nothing: it makes what was wanted."""
    printed = out.parent.with_suffix(".out").read_text()
    if code != 0:
        with own_cluster(out.parent / "again") if cell.cluster == "own" else nullcontext(("", None)) as (address, _):
            process = started(case_of(cell.command, out.parent.parent, address), out, again=(out / "job.toml").exists())
            why, printed = finished(process, out)
        if why:
            return f"WRONG: again: {why}"
    got = contents(case, out, printed)
    apart = sorted(name for name in got.keys() | wanted.keys() if got.get(name) != wanted.get(name))
    return f"WRONG: {len(apart)} differ, such as {apart[0]}" if apart else ""


def mapped(folder: Path) -> str:
    """Exact evaluation of a mapped store, in this process's threads and in no stage: SIGTERM, then the same again."""
    store, run = str(folder / "big"), str(folder / "big-run")
    graph = "rmat:scale=19,edge_factor=16,features=64,classes=8"
    job = ("--epochs", "1", "--fanout", "2,2", "--hidden", "64", "--batch-size", "65536", "--set", "graph=mapped")
    for words in (
        ("convert", graph, "--graph", "npy", "--features", "npy", "--out", store),
        ("run", "--dataset", store, *job, "--set", "features=mapped", "--out", run),
    ):
        if ForkedCommand(*words).wait(WAIT_S):
            return f"WRONG: {words[0]} failed"
    case = Case(("evaluate", str(folder / "big-run"), "--json"), "")
    out = folder / "big-out" / "got"
    out.parent.mkdir()
    why, printed = finished(started(case, out), out)
    if why:
        return f"WRONG: {why}"
    wanted = contents(case, out, printed)
    seconds = list[float]()
    for moment in (1.0, 2.0, 4.0):
        process = started(case, out)
        time.sleep(moment)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, took = process.wait(60.0), time.monotonic() - asked
        said = out.parent.with_suffix(".err").read_text()
        # After 4 s it may have ended.
        if code not in (130, 0) or (code == 0 and not seconds) or "Traceback" in said or took > LIMIT_S:
            return f"WRONG: exit code {code} after {took:.1f} s: {said[-600:]}"
        seconds.append(took)
    why, printed = finished(started(case, out), out)
    same = not why and contents(case, out, printed) == wanted
    return f"{max(seconds):.1f} s, same" if same else f"WRONG: {why}"


def planned(folder: Path) -> str:
    """Plans for one rank and for two, of which the process that was started last is stopped after some seconds."""
    words = ("plan", "--dataset", "sbm:nodes=60000,classes=4,degree=20,features=64", "--epochs", "30", "--ranks")
    found = list[float]()
    for ranks in (1, 2):
        for moment in (0.0, 2.0, 4.0):
            process = ForkedCommand(*words, ranks, err=(said := folder / f"plan-{ranks}-{moment:g}"))
            while len(below(process.pid)) < 2 and process.poll() is None:
                time.sleep(0.02)
            time.sleep(moment)
            if len(family := below(process.pid)) < 2:
                return f"WRONG: it has started nothing: {said.read_text()[-600:]}"
            family[-2].suspend()
            asked = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(60.0)
            found.append(time.monotonic() - asked)
            left = psutil.wait_procs(family, timeout=GONE_S)[1]
            if code != 130 or left or "Traceback" in said.read_text() or found[-1] > LIMIT_S:
                return f"WRONG: exit code {code}, {len(left)} left after {found[-1]:.1f} s: {said.read_text()[-600:]}"
    return f"at most {max(found):.1f} s"


ALONE = {"mapped": mapped, "plan": planned}
"""Trials that are no cells of the table."""


def campaign(cells: list[Cell], every_stage: bool, seed: int) -> Iterator[tuple[Cell, str, str]]:
    """Each cell, the stage in which a process was stopped, and what came of it."""
    os.environ["MILLRACE_STOP_S"] = "8.5"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, rng = Path(name), random.Random(seed)
        (folder / "points").mkdir()
        os.environ["MILLRACE_KILL"] = str(folder / "points")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "kill_points"), os.environ.get("PYTHONPATH", "")])
        points, stages, wanted = Points(folder / "points"), dict[str, list[str]](), dict[str, dict[str, bytes]]()
        tables(folder)
        needed = {"alone": "store"} | ({"bulk": "run"} if {"evaluate", "predict"} & {c.command for c in cells} else {})
        with forked_cluster():
            every = cases(folder, "")
            for what, out in needed.items():
                (folder / out).mkdir()
                if why := finished(started(every[what], folder / out / out), folder / out / out)[0]:
                    raise SystemExit(f"{what}: {why}")
            for command in dict.fromkeys(c.command for c in cells if c.command not in ALONE):
                with own_cluster(folder / f"dask-{command}") as (address, _):
                    case = case_of(command, folder, address if command in ("sample", "owners") else "")
                    out = folder / f"out-{command}" / ("got.parquet" if command == "predict" else "got")
                    out.parent.mkdir()
                    points.stages()
                    why, printed = finished(started(case, out), out)
                    if why:
                        raise SystemExit(f"{command}: {why}")
                    wanted[command], stages[command] = contents(case, out, printed), points.stages()
            for cell in cells:
                if cell.command in ALONE:
                    yield cell, "-", ALONE[cell.command](folder)
                    continue
                early = [s for s in stages[cell.command] if s not in LATE]
                if cell.victim == "rank":
                    early = [s for s in early if s.startswith(OF_RANKS)]
                for stage in early if every_stage else [rng.choice(early)]:
                    yield cell, stage, stopped(cell, stage, points, folder, wanted[cell.command], seed)


def main() -> int:
    """Entry point; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="commands, separated by commas; all by default, and mapped")
    parser.add_argument("--victims", default="worker,rank,scheduler")
    parser.add_argument("--clusters", default="here,own")
    parser.add_argument("--stages", choices=("one", "all"), default="one")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    names = args.only.split(",") if args.only else [*NAMES, *ALONE]
    victims, clusters = args.victims.split(","), args.clusters.split(",")
    cells = [c for c in all_cells() if c.command in names and c.victim in victims and c.cluster in clusters]
    cells += [Cell(name, "one", "none") for name in ALONE if name in names]
    wrong = 0
    for cell, stage, found in campaign(cells, args.stages == "all", args.seed):
        wrong += found.startswith("WRONG")
        print(f"{cell}, {stage}: {found}", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
