"""Runs whose Dask scheduler freezes: they end in time, by themselves or when they are asked to, leave nothing behind,
and can be resumed to the same parameters."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from millrace.tests.contracts.forked_command import ForkedCommand, run_forked

SYSTEMS = {
    "bulk": ("--batch-size", "25", "--fanout", "4,3", "--epochs", "6", "--set=queue.kind=zarr"),
    "grappa": ("--batch-size", "25", "--fanout", "4,3", "--epochs", "10", "--set=grappa.repartition_every=2"),
    "retexo": ("--epochs", "100"),
    "sar": ("--epochs", "100"),
}
FLAGS = (
    "--dataset", "sbm:nodes=1500,classes=3,degree=8,features=5,train=0.5", "--hidden", "8", "--seed", "3",
    "--ranks", "2", "--set=threads=1", "--set=cluster.dashboard_port=0", "--set=checkpoint.every_steps=15", "--json",
    "--set=cluster.slow_peer_warning_s=1",
)  # fmt: skip
LIMIT_S, GONE_S, PATIENCE_S = 10.0, 120.0, 240.0
"""`cluster.silence_limit_s`, longer than a scheduler on a busy machine is silent; time after which nothing of a command
is left; longest wait for a command."""


@dataclass(frozen=True)
class Cell:
    """One run. Without a signal, the silence limit ends it."""

    system: str
    is_own: bool
    """The scheduler is part of the driver; otherwise it is a process of its own."""
    signal: str | None

    def __str__(self) -> str:
        return f"{self.system}-{'own' if self.is_own else 'external'}-{self.signal or 'limit'}"


FEW = [
    Cell("bulk", False, None),
    Cell("bulk", True, "TERM"),
]
ALL = [Cell(system, own, sig) for system in SYSTEMS for own in (False, True) for sig in (None, "INT", "TERM")]


@contextmanager
def external_cluster(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of a scheduler that has two workers."""
    told = folder / "scheduler.json"
    with ExitStack() as stack:

        def start(module: str, *words: str) -> psutil.Process:
            process = ForkedCommand(*words, "--no-dashboard", program=f"distributed.cli.{module}")
            stack.callback(end, process)
            return psutil.Process(process.pid)

        scheduler = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(told))
        until(told.exists, "no scheduler")
        for _ in range(2):
            start("dask_worker", "--scheduler-file", str(told), "--nthreads", "4", "--local-directory", str(folder))
        yield json.loads(told.read_text())["address"], scheduler


def end(process: ForkedCommand) -> None:
    """Kill a process and all that it has started."""
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    process.kill()
    process.wait(PATIENCE_S)


def until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


def steps_taken(out: Path) -> int:
    """Steps that the run has told of."""
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count('"StepDone"') if metrics.exists() else 0


def ranks_of(out: Path) -> list[psutil.Process]:
    """Processes of a run's ranks, whoever started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_rank = "millrace.pipeline.cluster.rank_main" in process.cmdline()
            if is_rank and any(str(out) in file.path for file in process.open_files()):
                found.append(process)
    return found


def run_cell(cell: Cell, folder: Path, scheduler: str) -> tuple[str, float, str]:
    """Start a run, freeze its scheduler, wait for the end, and resume on another scheduler.

    Returns:
        Its parameters, seconds from the freeze or the signal to the end of the command, and what it said then.
    """
    folder.mkdir()
    out, sign, log = folder / "run", folder / "stick", folder / "log"
    words = ["run", "--system", cell.system, *SYSTEMS[cell.system], *FLAGS, "--out", str(out)]
    limit = f"--set=cluster.silence_limit_s={LIMIT_S if cell.signal is None else 600}"
    with ExitStack() as stack:
        if not cell.is_own:
            address, frozen = stack.enter_context(external_cluster(folder))
            words += ["--scheduler", address]
        process = ForkedCommand(*words, limit, out=log, err=log, stuck_by=sign)
        stack.callback(end, process)
        until(lambda: steps_taken(out) > 2 or process.poll() is not None, "no step")
        assert process.poll() is None, log.read_text()
        left = [*psutil.Process(process.pid).children(recursive=True), *ranks_of(out)]
        if cell.is_own:
            sign.touch()
        else:
            frozen.suspend()
        asked = time.monotonic()
        if cell.signal is not None:
            time.sleep(1.0)
            asked = time.monotonic()
            process.send_signal(getattr(signal, f"SIG{cell.signal}"))
        code = process.wait(PATIENCE_S)
        seconds = time.monotonic() - asked
        said = log.read_text()
        assert code == (3 if cell.signal is None else 130), said
        assert "Traceback" not in said
        assert not psutil.wait_procs(left, timeout=GONE_S)[1], "processes outlive the command"
    return parameters_of(cell.system, out, scheduler, "--resume"), seconds, said


@pytest.mark.timeout(3600)
def test_a_run_whose_scheduler_freezes_ends_and_can_be_resumed(request, tmp_path, capsys, scheduler):
    wanted = request.config.getoption("--signal-cells")
    everything = wanted != "few"
    cells = [c for c in ALL if wanted == "all" or wanted in str(c)] if everything else FEW
    if not cells:
        pytest.skip(f"no cell has {wanted} in its name")
    with ThreadPoolExecutor(1 if everything else 2) as pool:
        undisturbed = {
            s: pool.submit(parameters_of, s, tmp_path / s, scheduler) for s in sorted({c.system for c in cells})
        }
        futures = {cell: pool.submit(run_cell, cell, tmp_path / str(cell), scheduler) for cell in cells}
        for cell, future in futures.items():
            parameters, seconds, said = future.result()
            if everything:
                with capsys.disabled():
                    print(f"\n{cell!s:<24} {seconds:5.1f} s", end="")
            assert parameters == undisturbed[cell.system].result(), cell
            said = said.replace("\n", " ")
            if cell.signal is None:
                again = "" if cell.is_own else "start it again, then "
                ended = (
                    rf"the Dask scheduler no longer answers \(no sign of life for \d+ s\); {again}resume with --resume"
                )
                assert re.search(ended, said)
            # Several cells at once, beside other tests, take longer.
            assert seconds < (10.0 if everything else 180.0) + (LIMIT_S if cell.signal is None else 0.0)


def parameters_of(system: str, out: Path, scheduler: str, *words: str) -> str:
    """Parameters of a run that is not disturbed, on a scheduler that is there already."""
    flags = (*SYSTEMS[system], *FLAGS, "--scheduler", scheduler, *words)
    code, said, err = run_forked("run", "--system", system, *flags, "--out", out, timeout=PATIENCE_S)
    assert code == 0, err
    return json.loads(said)["parameters_sha256"]
