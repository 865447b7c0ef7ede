"""The ``millrace`` command as a process of its own that is forked, not started.

A start takes more than three seconds of a core, nearly all of them imports. They are done once, in the server that
`process_ranks` forks from. Tests of the start itself and of signals during it start a true process; those of
packages that are found then, one of `fresh_python`.
"""

import atexit
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from distributed.deploy.spec import SpecCluster

from millrace.tests.contracts.forked_cluster import (
    become_fork_server,
    enter_network,
    fork_server,
    forked_cluster,
    hide,
    serving_ranks,
)

COMMAND = "millrace.pipeline.__main__"
"""The module of ``millrace``."""
WORKER = "distributed.cli.dask_worker"
"""The module of ``dask worker``. Servers of ranks are beside it, as if a driver had started it: its ranks are forked
too."""


class ForkedCommand:
    """A running command, with the part of `subprocess.Popen` that tests use. It leads a session of its own."""

    def __init__(
        self,
        *words: str | Path | float,
        out: Path | None = None,
        err: Path | None = None,
        program: str = COMMAND,
        namespace: Path | None = None,
        hidden: Path | None = None,
        stuck_by: Path | None = None,
        forks_workers: bool = True,
        variables: Mapping[str, str | None] = {},
    ) -> None:
        """
        Args:
            words: what follows the program's name.
            out: file to which standard output is appended; None: it is lost.
            err: the same of standard error. It may be the same file.
            program: the module whose `main` is called.
            namespace: the network namespace to run in.
            hidden: a folder that it finds empty.
            stuck_by: once this file is there, the event loop of the command's client and scheduler hangs.
            forks_workers: workers and ranks, or their servers, are forked too.
            variables: environment variables that differ from this process's; None: there is none.
        """
        environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
        files = [str(file or os.devnull) for file in (out, err)]
        arguments = (program, [*map(str, words)], files, environment, namespace, hidden, stuck_by, forks_workers)
        self._process = fork_server().Process(target=_become, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; that of a signal is negative."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit status if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """The exit status, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("millrace", timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def run_forked(*words: str | Path | float, timeout: float = 240.0, **options: Any) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a command that is waited for. See `ForkedCommand`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        command = ForkedCommand(*words, out=out, err=err, **options)
        try:
            code = command.wait(timeout)
        finally:
            command.kill()
        return code, out.read_text(), err.read_text()


def _become(
    program: str,
    words: list[str],
    files: list[str],
    environment: dict[str, str],
    namespace: Path | None,
    hidden: Path | None,
    stuck_by: Path | None,
    forks_workers: bool,
) -> NoReturn:
    main = importlib.import_module(program).main
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # as the environment says
    for target, path in enumerate(files, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, target)
        os.close(file)
    if not os.path.isfile(files[0]):
        # The server's own streams are files, and believe that they can seek.
        sys.stdout, sys.stderr = (open(number, "w", closefd=False, buffering=1) for number in (1, 2))  # noqa: SIM115
    if namespace is not None:
        enter_network(namespace)
    if hidden is not None:
        hide(hidden)
    # A run that inherits an ignored SIGHUP, as under nohup, keeps ignoring it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["millrace", *words]
    if forks_workers:
        become_fork_server()
    if stuck_by is not None:
        threading.Thread(target=_stick, args=[stuck_by], daemon=True).start()
    try:
        with (
            forked_cluster() if forks_workers else nullcontext(),
            serving_ranks() if forks_workers and program == WORKER else nullcontext(),
        ):
            main()
    finally:
        atexit._run_exitfuncs()
    raise AssertionError("a command exits")


def _stick(sign: Path) -> None:
    while not sign.exists():
        time.sleep(0.02)
    for cluster in SpecCluster._instances:
        cluster.loop.add_callback(time.sleep, 1000)
