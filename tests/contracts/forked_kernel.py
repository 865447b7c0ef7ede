"""Kernels of notebooks, forked like the commands of `forked_command`, as are workers and servers of ranks they start.

A kernel takes three seconds of a core to import what notebooks use, and each of its runs on two ranks nine.
"""

import os
import sys
import time
from typing import Any

from millrace.tests.contracts.forked_command import ForkedCommand


class ForkedKernel(ForkedCommand):
    """A running kernel, with the part of `subprocess.Popen` that `jupyter_client` uses."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], *, env: dict[str, str], cwd: str | None = None, **options: Any) -> None:
        """
        Args:
            command: what would start it, ``python -m ipykernel_launcher WORDS``.
            env: environment variables.
            cwd: its folder.
            options: how `subprocess.Popen` would make it, which does not matter here.
        """
        words = command[command.index("ipykernel_launcher") + 1 :]
        super().__init__(os.fspath(cwd or os.getcwd()), *words, program=__name__, variables=env)
        # Signals go to its group, which must not be this process's.
        while self.poll() is None and os.getpgid(self.pid) != self.pid:
            time.sleep(0.01)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended."""
        self._process.join(timeout)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()


def main() -> None:
    """Be a kernel. Arguments: its folder, and what follows ``ipykernel_launcher``."""
    from ipykernel import kernelapp

    _, folder, *words = sys.argv
    os.chdir(folder)
    sys.argv = ["ipykernel_launcher", *words]
    kernelapp.launch_new_instance()
    sys.exit()
