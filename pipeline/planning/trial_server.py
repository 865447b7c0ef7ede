"""The server of trials on one rank: a process that has imported what they need, and forks one for each trial.

Most of a start is imports. A trial's process is as large as that of a user's run: it reads the pages of libraries that
were resident in the server, which a fork leaves out.
"""

import ctypes
import gc
import mmap
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...stages.kernels import aggregation_backend, sampling_backend
from ...stages.kernels.runtime.jit import prepare_numba
from ...storage.array_kinds import IdArray
from ...storage.dataset import Dataset
from ...storage.errors import RunError
from ..config.load import Job
from ..datasets import ReadOptions
from ..run import run
from ..setup.open_data import open_data
from ..telemetry.events import silent
from ..training.dynamo import leave_compiler_out

AS_SPLIT: dict[str, Any] = {"split": None, "read": ReadOptions()}
"""Keys of a job whose dataset is read and split already."""
Pages = list[tuple[int, IdArray]]
"""Addresses of mapped files, and the numbers of those of their pages that are resident."""


class TrialServer:
    """Runs jobs of one rank, each in a process that is forked from the server."""

    def __init__(self, exits: ExitStack) -> None:
        """
        Args:
            exits: ends the server and the trial under way.
        """
        command = [sys.executable, "-c", f"import {__name__} as server; server.serve()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = exits.enter_context(subprocess.Popen(command, bufsize=0, process_group=0, **pipes))
        exits.callback(os.killpg, self._process.pid, signal.SIGKILL)

    def run(self, job: Job, out: Path, seeds: int | None) -> None:
        """Run a job into a new folder; on so many train nodes; None: all. Raises RunError if it fails."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None, "pipes"
        with suppress(BrokenPipeError):
            pickle.dump((job, out, seeds), asked)
        status = answers.readline().decode().strip() or "none: the server of trials has ended"
        if status != "0":
            log = _log(out).read_text(errors="replace") if _log(out).exists() else ""
            said = log.strip().splitlines()[-1:] or [f"status {status}"]
            raise RunError(f"the trial of system '{job.system}' failed: {said[0]}")


def _log(out: Path) -> Path:
    return out.with_suffix(".log")


def serve() -> None:
    """Fork a process for each run that standard input describes, and print its exit status."""
    leave_compiler_out()
    aggregation_backend()
    sampling_backend()
    prepare_numba()
    gc.freeze()  # so that a collection does not copy all of it
    pages = list(resident_pages())
    with suppress(EOFError):
        while True:
            given = pickle.load(sys.stdin.buffer)
            if (pid := os.fork()) == 0:
                _become_run(pages, *given)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become_run(pages: Pages, job: Job, out: Path, seeds: int | None) -> NoReturn:
    status = 1
    try:
        with _log(out).open("w") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        read_pages(pages)
        data = None
        if seeds is not None:
            data, job = shortened(open_data(job, None, silent), seeds), job.model_copy(update=AS_SPLIT)
        run(data, config=job, out=out, emit=silent)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def shortened(data: Dataset, seeds: int) -> Dataset:
    """The dataset with at most `seeds` train nodes."""
    kept = spread(data.split.train, seeds)
    return data if kept is data.split.train else replace(data, split=replace(data.split, train=kept))


def spread(train: IdArray, seeds: int) -> IdArray:
    """At most `seeds` train nodes, evenly spaced since neighbouring ids may be alike."""
    return train if seeds >= len(train) else train[np.linspace(0, len(train) - 1, seeds).astype(np.int64)]


def resident_pages() -> Iterator[tuple[int, IdArray]]:
    """Pages of files that this process has mapped and used. None where the system does not say."""
    with suppress(OSError), open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as table:
        for line in maps:
            place, access, *_, name = line.split()
            if access.startswith("r") and name.startswith("/"):
                start, end = (int(address, 16) for address in place.split("-"))
                table.seek(start // mmap.PAGESIZE * 8)
                entries = np.frombuffer(table.read((end - start) // mmap.PAGESIZE * 8), np.int64)
                yield start, np.flatnonzero(entries < 0)  # the highest bit: present


def read_pages(pages: Pages) -> None:
    """Make pages resident."""
    for start, numbers in pages:
        if len(numbers):
            size = (int(numbers[-1]) + 1) * mmap.PAGESIZE
            np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))[numbers * mmap.PAGESIZE].sum()
