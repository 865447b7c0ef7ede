"""The process that forks a plan's trials on one rank, itself forked from one that has imported what it needs."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.forked_cluster import fork_server


class ForkedTrials:
    """`subprocess.Popen` of `planning.trial_server.serve`."""

    on_device: ClassVar[bool] = False
    """True if the processes have the pretended device."""

    def __init__(self, command: list[str], **options: Any) -> None:
        context = fork_server()
        theirs_in, ours_out = context.Pipe(duplex=False)
        ours_in, theirs_out = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(theirs_in, theirs_out, self.on_device))
        self._process.start()
        self.pid = self._process.pid
        self.stdin, self.stdout = (
            os.fdopen(os.dup(ours_out.fileno()), "wb", 0),
            os.fdopen(os.dup(ours_in.fileno()), "rb"),
        )

    def __enter__(self) -> "ForkedTrials":
        return self

    def __exit__(self, *error: object) -> None:
        self.stdin.close()
        self.stdout.close()
        self._process.join()


class TrialsOnDevice(ForkedTrials):
    """The same with the pretended device."""

    on_device = True


def _serve(asked: Any, answers: Any, on_device: bool) -> None:
    from millrace.pipeline.planning import trial_server

    if on_device:
        pretended_device.install_for_good()
    os.setpgid(0, 0)
    for stream, pipe in enumerate((asked, answers)):
        os.dup2(pipe.fileno(), stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  not the server's
    trial_server.serve()


def without_base(patch: pytest.MonkeyPatch) -> list[str]:
    """Leave out the runs whose memory is a plan's base, which is next to nothing then. Returns the systems that are
    asked for."""
    from millrace.pipeline.planning.trial_setup import Trials

    asked: list[str] = []

    def base(self: Trials, system: str) -> dict[str, list[int]]:
        asked.append(system)
        return {"peak_rss_bytes": [1], "own_bytes": [1], "peak_device_bytes": [0]}

    patch.setattr(Trials, "_run_base", base)
    return asked


def sizes_of_files() -> list[int]:
    """KiB of resident pages of files: of a process that has read a file of 16 MiB, of one that it forks, and of that
    once it has read these pages."""
    context = fork_server()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_say_sizes, args=(theirs,))
    process.start()
    theirs.close()
    told = ours.recv()
    process.join()
    return told


def _say_sizes(answers: Any) -> None:
    from millrace.pipeline.planning.trial_server import read_pages, resident_pages

    with tempfile.NamedTemporaryFile() as file:
        np.ones(16 << 20, np.uint8).tofile(file.name)
        kept = np.memmap(file.name, mode="r")
        assert kept.all()
        pages, sizes = list(resident_pages()), [_of_files()]
    if (pid := os.fork()) == 0:
        sizes.append(_of_files())
        read_pages(pages)
        answers.send([*sizes, _of_files()])
        os._exit(0)
    os.waitpid(pid, 0)


def _of_files() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))
