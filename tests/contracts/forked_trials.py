"""The process of a plan's trial on one rank, forked from one that has imported what it needs."""

import io
import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from millrace.tests.contracts.forked_cluster import fork_server


def forked_run(command: list[str], input: bytes, capture_output: bool) -> Any:
    """`subprocess.run` of `planning.trial.main`."""
    context = fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=_become_trial, args=(theirs, input))
    process.start()
    said = ours.recv_bytes()
    process.join()
    return SimpleNamespace(returncode=process.exitcode, stdout=said, stderr=said)


def _become_trial(answers: Connection, given: bytes) -> None:
    from millrace.pipeline.planning import trial

    sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(given)), io.StringIO()
    try:
        trial.main()
        answers.send_bytes(sys.stdout.getvalue().encode())
    except BaseException as e:
        answers.send_bytes(f"{type(e).__name__}: {e}".encode())
        raise
