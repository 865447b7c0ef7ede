"""The ``millrace`` command as a process of its own that is forked, not started.

A start takes more than three seconds of a core, nearly all of them imports. They are done once, in the server that
`process_ranks` forks from. Tests of the start itself, of signals during it, and of packages that are found then, start
a true process.
"""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from millrace.tests.contracts.forked_cluster import become_fork_server, fork_server, forked_cluster


class ForkedCommand:
    """A running command, with the part of `subprocess.Popen` that tests use. It leads a session of its own."""

    def __init__(self, *words: str | Path | float, out: Path | None = None, err: Path | None = None) -> None:
        """
        Args:
            words: what follows ``millrace``.
            out: file to which standard output is appended; None: it is lost.
            err: the same of standard error. It may be the same file.
        """
        environment = dict(os.environ)
        files = [str(file or os.devnull) for file in (out, err)]
        self._process = fork_server().Process(target=_become, args=([*map(str, words)], files, environment))
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


def run_forked(*words: str | Path | float, timeout: float = 240.0) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a command that is waited for. See `ForkedCommand`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        command = ForkedCommand(*words, out=out, err=err)
        try:
            code = command.wait(timeout)
        finally:
            command.kill()
        return code, out.read_text(), err.read_text()


def _become(words: list[str], files: list[str], environment: dict[str, str]) -> NoReturn:
    from millrace.pipeline.__main__ import main

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for target, path in enumerate(files, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, target)
        os.close(file)
    # A run that inherits an ignored SIGHUP, as under nohup, keeps ignoring it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["millrace", *words]
    become_fork_server()
    try:
        with forked_cluster():
            main()
    finally:
        atexit._run_exitfuncs()
    raise AssertionError("a command exits")
