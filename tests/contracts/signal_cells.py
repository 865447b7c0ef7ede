"""Runs that get a signal: which one, to whom, at what moment, under which system; the promised outcome; and a covering
table of cases."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil

from millrace.tests.contracts.forked_command import ForkedCommand

SIGNALS = ("TERM", "INT", "HUP", "USR1")
TARGETS = ("driver", "rank", "worker", "tree")
MOMENTS = ("imports", "opening", "partitioning", "sampling", "training", "checkpoint", "evaluation", "end")
SYSTEMS = ("bulk", "grappa", "retexo", "sar")
LIMIT_S = 10.0
"""Seconds within which an interrupted command ends, on an otherwise idle machine."""
FLAGS = (
    "--dataset", "sbm:nodes=1500,classes=3,degree=8,features=5,train=0.5", "--hidden", "8", "--seed", "3", "--dtype",
    "float64",
    "--set=threads=1", "--set=checkpoint.every_s=1000",
)  # fmt: skip
MINIBATCHES = ("--batch-size", "25", "--fanout", "4,3")
OF_SYSTEM = {
    "bulk": (*MINIBATCHES, "--epochs", "6", "--set=queue.kind=zarr", "--set=queue.bulk_size=4"),
    "grappa": (*MINIBATCHES, "--epochs", "8", "--set=grappa.repartition_every=2"),
    "retexo": ("--epochs", "40"),
    "sar": ("--epochs", "60"),
}
SEEN = {
    "partitioning": r'"StageStarted".*"stage": "partition"',
    "sampling": r'"StageStarted".*"stage": "train"',
    "training": r'"StepDone"',
    "evaluation": r'"StageStarted".*"stage": "evaluate"',
}
"""Pattern of the line in the metrics file that marks the moment."""


@dataclass(frozen=True, order=True)
class Cell:
    """One case. `ranks` is 1 only if neither a rank nor a worker gets the signal."""

    system: str
    target: str
    signal: str
    moment: str
    ranks: int = 2

    @property
    def is_possible(self) -> bool:
        """True if there is such a moment, and then such a target."""
        cuts, samples = self.system != "bulk", self.system in ("bulk", "grappa")
        there = {"partitioning": cuts, "sampling": samples, "imports": True}.get(self.moment, True)
        return there and not (
            self.target in ("rank", "worker")
            and (self.moment in ("imports", "opening", "partitioning") or self.ranks == 1)
        )

    @property
    def stops(self) -> bool:
        """True if the run is asked to end."""
        return self.signal != "USR1" and self.target in ("driver", "tree")

    def __str__(self) -> str:
        return f"{self.system}x{self.ranks}-{self.moment}-{self.signal}-{self.target}"


@dataclass
class Outcome:
    """Outcome of a cell."""

    cell: Cell
    sent: int = 0
    """Processes that got the signal."""
    code: int | None = None
    seconds: float = 0.0
    """Seconds from the signal to the end, of runs that were asked to end."""
    saved: bool = False
    """True if the signal led to a new checkpoint."""
    left: list[str] = field(default_factory=list)
    """Remaining processes, by command."""
    parameters: str | None = None
    """Digest of the final parameters, after a resume if the run was ended."""
    resumed: str | None = None
    """Error of the resume, if it failed."""
    log: str = ""

    def row(self) -> str:
        """A line of the table."""
        end = f"exit {self.code}" + (f" after {self.seconds:4.1f} s" if self.cell.stops else "         ")
        return (
            f"{self.cell!s:<44} {end:<22} {'new checkpoint' if self.saved else '':<15} {(self.parameters or '-')[:12]}"
        )


def run_cell(cell: Cell, folder: Path, resume: bool = True, scheduler: str | None = None) -> Outcome:
    """Start the command, send the signal at the moment, wait for the end, and resume if it was ended, on a cluster that
    is there already if its address is given."""
    shutil.rmtree(folder, ignore_errors=True)
    out, outcome = folder / "run", Outcome(cell)
    folder.mkdir(parents=True)
    words = [
        "run",
        *FLAGS,
        "--system",
        cell.system,
        *OF_SYSTEM[cell.system],
        *(("--ranks", "2", "--set=cluster.dashboard_port=0") if cell.ranks == 2 else ()),
        "--out",
        str(out),
    ]
    with (folder / "log").open("w") as log:
        imports = cell.moment in ("imports", "opening")
        process = _command(words, log) if imports else ForkedCommand(*words, out=folder / "log", err=folder / "log")
        _wait_for(cell, process, out)
        family = _family(process.pid)
        before = _checkpoints(out)
        asked = time.monotonic()
        for victim in _targets(cell.target, family):
            with suppress(psutil.Error):  # it has just ended
                victim.send_signal(getattr(signal, f"SIG{cell.signal}"))
                outcome.sent += 1
        try:
            outcome.code = process.wait(240)
        except subprocess.TimeoutExpired:
            process.kill()
        outcome.seconds = time.monotonic() - asked
        _, alive = psutil.wait_procs(family, timeout=60)
        for p in alive:
            outcome.left.append(" ".join(p.cmdline()))
            p.kill()
        outcome.saved = bool(_checkpoints(out) - before)
        if cell.stops and outcome.code == 130 and resume:
            words = [*words, "--resume"] if (out / "job.toml").exists() else words
            words += ["--scheduler", scheduler] if cell.ranks == 2 and scheduler is not None else []
            code = ForkedCommand(*words, out=folder / "log", err=folder / "log").wait(240)
            outcome.resumed = None if code == 0 else f"exit {code}"
    outcome.log = (folder / "log").read_text()
    if (out / "result.json").exists():
        result = json.loads((out / "result.json").read_text())
        outcome.parameters = result["parameters_sha256"] if result["status"] == "done" else None
    return outcome


def check(outcome: Outcome) -> None:
    """Check the promises for every cell, except the time limit, which holds on an idle machine."""
    cell = outcome.cell
    assert "Traceback" not in outcome.log, outcome.log
    # Towards the end they may be gone already.
    assert outcome.sent or cell.moment in ("checkpoint", "evaluation", "end"), f"there is no {cell.target}"
    assert outcome.left == [], outcome.log
    assert outcome.resumed is None, outcome.log
    if cell.stops:
        # A command that was about to end anyway may have ended normally.
        assert outcome.code == 130 or (outcome.code == 0 and cell.moment in ("evaluation", "end", "checkpoint")), (
            outcome.log
        )
    else:
        assert outcome.code == 0, outcome.log
        assert outcome.parameters is not None
    if cell.signal == "USR1" and cell.target in ("driver", "tree") and cell.moment == "training":
        assert outcome.saved
    if cell.stops and outcome.code == 130 and cell.moment == "training":
        assert outcome.saved or cell.system != "bulk", outcome.log
        assert "a checkpoint was written" in outcome.log


def table(at_least: int = 64) -> list[Cell]:
    """Cells with every possible pair of values, and more at random up to that many."""
    possible = sorted(
        c for c in itertools.starmap(Cell, itertools.product(SYSTEMS, TARGETS, SIGNALS, MOMENTS)) if c.is_possible
    )
    rng = random.Random(1)
    rng.shuffle(possible)
    missing = {pair for c in possible for pair in _pairs(c)}
    chosen: list[Cell] = []
    while missing:
        best = max(possible, key=lambda c: len(missing & _pairs(c)))
        missing -= _pairs(best)
        chosen.append(best)
    return sorted([*chosen, *[c for c in possible if c not in chosen][: max(0, at_least - len(chosen))]])


def _pairs(cell: Cell) -> set[tuple[str, ...]]:
    return set(itertools.combinations((cell.system, cell.target, cell.signal, cell.moment), 2))


def _command(words: list[str], log: TextIO) -> subprocess.Popen:
    # A run that inherits an ignored SIGHUP, as under nohup, keeps ignoring it.
    command = [sys.executable, "-m", "millrace.pipeline", *words]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, preexec_fn=_heed_hangups)


def _heed_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _wait_for(cell: Cell, process: subprocess.Popen | ForkedCommand, out: Path) -> None:
    """Wait until the moment has come, or the run has ended."""
    deadline = time.monotonic() + 240
    if cell.moment in ("imports", "opening"):
        # Before its first statement an interpreter does as it likes.
        while process.poll() is None and time.monotonic() < deadline and not _heeds(process.pid, signal.SIGTERM):
            time.sleep(0.005)
        time.sleep(0.1 if cell.moment == "imports" else 1.7)
        return
    while process.poll() is None and time.monotonic() < deadline:
        if cell.moment == "end":
            come = (out / "result.json").exists()
        elif cell.moment == "checkpoint":
            come = bool(_checkpoints(out))
        else:
            metrics = out / "metrics.jsonl"
            come = metrics.exists() and re.search(f"{SEEN[cell.moment]}.*\n", metrics.read_text())
        if come:
            return
        time.sleep(0.02)


def _heeds(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal."""
    with suppress(OSError):
        caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (number - 1) & 1)
    return False


def _checkpoints(out: Path) -> set[str]:
    folder = out / "checkpoints"
    # Unfinished ones have another name.
    return {p for p in os.listdir(folder) if p.startswith("step-")} if folder.exists() else set()


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _targets(target: str, family: list[psutil.Process]) -> list[psutil.Process]:
    if target in ("driver", "tree"):
        return family[: 1 if target == "driver" else None]
    mark = "cluster.rank_main" if target == "rank" else "spawn_main"
    found = []
    for p in family[1:]:
        try:
            if mark in " ".join(p.cmdline()):
                found.append(p)
        except psutil.Error:
            continue
    return found[:1]
