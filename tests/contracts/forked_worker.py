"""Processes of pytest-xdist that are forked from one that has imported what tests need.

Started from scratch, each takes seven seconds of a core to import it, and as many for the server from which its own
commands and ranks are forked.
"""

import os
import socket
import sys
import threading
from multiprocessing import connection, process, resource_tracker
from types import ModuleType
from typing import Any

import execnet.gateway_io
import pytest
from execnet.gateway_base import Popen2IO

from millrace.tests.contracts.forked_cluster import COMPILES, become_fork_server, fork_server


class ForkedWorker(execnet.gateway_io.Popen2IOMaster):
    """A process that has been started, and a socket to it, for `execnet`.

    The socket ends with the process, even if another process that was forked from it still has its end.
    """

    def __init__(self, args: list[str], execmodel: Any) -> None:
        """
        Args:
            args: what would start it.
            execmodel: see `execnet`.
        """
        context = fork_server()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.popen = context.Process(target=_become, args=(theirs, args[-1], dict(os.environ)))
            self.popen.start()
        files = (os.fdopen(os.dup(self._socket.fileno()), mode) for mode in ("wb", "rb"))
        Popen2IO.__init__(self, *files, execmodel=execmodel)
        threading.Thread(target=self._end_with_process, daemon=True).start()

    def _end_with_process(self) -> None:
        connection.wait([self.popen.sentinel])
        self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self) -> int | None:
        """The exit status, once it has ended."""
        self.popen.join()
        return self.popen.exitcode


def _become(files: socket.socket, code: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    # What its tests leave is not for the process that gives out files to complain about.
    tracker: Any = resource_tracker._resource_tracker
    os.close(tracker._fd)
    tracker._fd = None
    with files:
        become_fork_server(without=[files.fileno()])
        for target in (0, 1):
            os.dup2(files.fileno(), target)
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
