"""The process that runs a plan's trials, forked from one that has imported what it needs."""

import os
from collections.abc import Mapping
from multiprocessing import reduction
from typing import IO, Any

from millrace.tests.contracts.forked_cluster import fork_server


class ForkedTrials:
    """With the part of `subprocess.Popen` that `planning.trial.TrialProcess` uses."""

    def __init__(self, command: list[str], *, stderr: IO[str], env: Mapping[str, str], **_: Any) -> None:
        files = [_File(number) for number in (int(command[-1]), stderr.fileno())]
        self._process = fork_server().Process(target=_become, args=(*files, dict(env)))
        self._process.start()
        self.pid = self._process.pid

    def wait(self) -> int | None:
        """The exit status, once it has ended."""
        self._process.join()
        return self._process.exitcode


class _File:
    """An open file that is passed to a new process, where it is a number again."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self._number),)


def _received(file: Any) -> int:
    return file.detach()


def _become(pipe: int, errors: int, environment: dict[str, str]) -> None:
    from millrace.pipeline.planning import trial

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for target in (1, 2):
        os.dup2(errors, target)
    trial.main(pipe)
