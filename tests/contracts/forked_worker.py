"""Processes of pytest-xdist that are forked from one that has imported what tests need.

Started from scratch, each takes seven seconds of a core to import it, and as many for the server from which its own
commands and ranks are forked.
"""

import os
import sys
from multiprocessing import process, resource_tracker
from types import ModuleType
from typing import Any

import execnet.gateway_io
import pytest
from execnet.gateway_base import Popen2IO

from millrace.tests.contracts.forked_cluster import COMPILES, become_fork_server, fork_server


class ForkedWorker(execnet.gateway_io.Popen2IOMaster):
    """A process that has been started, and pipes to it, for `execnet`."""

    def __init__(self, args: list[str], execmodel: Any) -> None:
        """
        Args:
            args: what would start it.
            execmodel: see `execnet`.
        """
        context = fork_server()
        theirs_in, ours_out = context.Pipe(duplex=False)
        ours_in, theirs_out = context.Pipe(duplex=False)
        self.popen = context.Process(target=_become, args=(theirs_in, theirs_out, args[-1], dict(os.environ)))
        self.popen.start()
        files = os.fdopen(os.dup(ours_out.fileno()), "wb"), os.fdopen(os.dup(ours_in.fileno()), "rb")
        for pipe in (theirs_in, theirs_out, ours_in, ours_out):
            pipe.close()
        Popen2IO.__init__(self, *files, execmodel=execmodel)

    def wait(self) -> int | None:
        """The exit status, once it has ended."""
        self.popen.join()
        return self.popen.exitcode


def _become(given: Any, told: Any, code: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    # What its tests leave is not for the process that gives out files to complain about.
    tracker: Any = resource_tracker._resource_tracker
    os.close(tracker._fd)
    tracker._fd = None
    become_fork_server(without=(given.fileno(), told.fileno()))
    for target, pipe in enumerate((given, told)):
        os.dup2(pipe.fileno(), target)
        pipe.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  not the server's
    # As `python -c` has them: what it spawns imports no script again.
    process._parent_process, process.current_process().name = None, "MainProcess"
    sys.argv, sys.modules["__main__"] = ["-c"], ModuleType("__main__")
    exec(code, vars(sys.modules["__main__"]))


def install(compiles: bool) -> None:
    """Let processes of pytest-xdist be forked from now on.

    Args:
        compiles: common kernels that are not in the cache are compiled first.
    """
    with pytest.MonkeyPatch.context() as patch:
        if compiles:
            patch.setenv(COMPILES, "1")
        fork_server()
    execnet.gateway_io.Popen2IOMaster = ForkedWorker
