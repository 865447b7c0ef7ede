"""Executes the cells of docs/support.py that say yes: four epochs of a small job; the same killed by SIGKILL after a
checkpoint, and gone on with to the same parameters.

    python -m millrace.tests.contracts.support_cells [--only WORD] [--lacking] [--minutes M] [--processes 2]

``make support`` runs all of them. Each that ends as it should is noted at once, with the day, in docs/support.json,
which the page shows: ``--lacking`` goes on with those that are not noted.
"""

import argparse
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import millrace as mr
from millrace.pipeline.telemetry.events import StepDone
from millrace.stages.comm.base import Group
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.forked_cluster import fork_server
from millrace.tests.contracts.process_ranks import run_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "support.py"
OPTIONS: dict[str, Any] = {"epochs": 4, "threads": 1, "checkpoint": {"every_steps": 2}, "verbose": False}
"""Of each job; a full batch takes one step an epoch."""


@cache
def page() -> ModuleType:
    """The module of the support table."""
    spec = importlib.util.spec_from_file_location("docs_support", PAGE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def execute(name: str) -> None:
    """Run a cell, kill it by SIGKILL, go on with it and compare.

    Raises:
        AssertionError: it was not killed in the middle, began anew, or ended with other parameters.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        with _device(name):
            whole, steps = _run(name, out / "whole")
            assert run_ranks(_killed, 1, name, out / "killed", mortal=(0,)) == [None]
            assert list((out / "killed" / "checkpoints").glob("step-*")) and not (out / "killed/result.json").exists()
            again, left = _run(name, out / "killed", resume=True)
        assert 0 < left < steps, f"{left} of {steps} steps were taken after the kill"
        assert again.epochs == whole.epochs and again.parameters_sha256 == whole.parameters_sha256, name


def _run(name: str, out: Path, **more: Any) -> tuple[mr.Result, int]:
    """The result of a cell's job, and the steps that it took."""
    events: list[Any] = []
    cell = next(cell for cell in page().asked() if cell.name == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mr.run(cell.dataset, out=out, emit=events.append, **cell.arguments | OPTIONS | more)
    return result, sum(isinstance(event, StepDone) for event in events)


def _killed(group: Group, name: str, out: Path) -> None:
    """Run a cell in a process of its own until its first checkpoint is there."""
    checkpoints = out / "checkpoints"
    with _device(name):
        _run(name, out, stop=lambda: any(checkpoints.glob("step-*")) and os.kill(os.getpid(), signal.SIGKILL))


@contextmanager
def _device(name: str) -> Iterator[None]:
    """A GPU, pretended where there is none, if a cell runs on one."""
    cell = next(cell for cell in page().asked() if cell.name == name)
    with pytest.MonkeyPatch.context() as patch:
        if cell.on_device:
            pretended_device.install(patch)
        yield


def _timed(name: str) -> tuple[float, str]:
    """Seconds of a cell, and what went wrong."""
    start = time.perf_counter()
    try:
        execute(name)
    except Exception as e:
        return time.perf_counter() - start, f"{type(e).__name__}: {e}"
    return time.perf_counter() - start, ""


def noted() -> dict[str, str]:
    """The day of each cell that ended as it should under this torch, on this device."""
    record = json.loads(page().RECORD.read_text())
    return record["cells"] if record["torch"] == torch.__version__ and record["device"] == _gpus() else {}


def _gpus() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "GPUs pretended"


def main() -> int:
    """Execute cells; 1 if one did not end as it should."""
    parser = argparse.ArgumentParser(description="Execute the cells of the support table that say yes.")
    parser.add_argument("--only", default="", help="cells with this word in their names")
    parser.add_argument("--lacking", action="store_true", help="cells that docs/support.json does not note")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell later")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    cells, accepted = noted(), page().accepted()
    todo = [name for name in accepted if args.only in name and not (args.lacking and name in cells)]
    start, wrong, done = time.monotonic(), 0, 0
    with ProcessPoolExecutor(args.processes, fork_server()) as pool:
        running = dict[Future[tuple[float, str]], str]()
        while running or (todo and time.monotonic() - start < 60 * args.minutes):
            while todo and len(running) < args.processes and time.monotonic() - start < 60 * args.minutes:
                name = todo.pop(0)
                running[pool.submit(_timed, name)] = name
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                name, (seconds, said) = running.pop(ended), ended.result()
                print(f"{name}: {said or 'ok'}, {seconds:.1f} s", flush=True)
                done, wrong = done + 1, wrong + bool(said)
                cells.pop(name, None)
                if not said:
                    cells[name] = datetime.now(UTC).date().isoformat()
                kept = {name: cells[name] for name in accepted if name in cells}
                record = {"torch": torch.__version__, "device": _gpus(), "cells": kept}
                page().RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"{done - wrong} of {done} cells ended as they should; {len(todo)} are left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
