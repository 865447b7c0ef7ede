"""Folder for PATH whose ``millrace``, ``python`` and ``dask-worker`` are forked, not started (`forked_command`), for
scripts that call them."""

import json
import select
import shlex
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.tests.contracts import fresh_python
from millrace.tests.contracts.forked_command import COMMAND, ForkedCommand, fork_server

PROGRAMS = {
    "millrace": (COMMAND, True),
    "python": (fresh_python.__name__, False),
    "dask-worker": ("distributed.cli.dask_worker", True),
}
"""Module of each, and whether its workers are forked too."""
CALL = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps([os.getpid(), {name!r}, sys.argv[1:], dict(os.environ)]).encode() + b"\\n")
    sys.exit(int(server.makefile().read()))
"""


@contextmanager
def forked_path() -> Iterator[Path]:
    """Context with the folder."""
    fork_server()
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/socket")
        listener.listen()
        for name in PROGRAMS:
            file = Path(place, name)
            file.write_text(CALL.format(python=shlex.quote(sys.executable), address=f"{place}/socket", name=name))
            file.chmod(0o755)
        threading.Thread(target=_serve, args=[listener], daemon=True).start()
        yield Path(place)
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_run, args=[connection], daemon=True).start()


def _run(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        pid, name, words, environment = json.loads(connection.makefile().readline())
        program, forks_workers = PROGRAMS[name]
        # Opened anew by the process that is forked: they are pipes or files.
        out, err = (Path(f"/proc/{pid}/fd/{number}") for number in (1, 2))
        options = {"program": program, "forks_workers": forks_workers, "variables": environment}
        command = ForkedCommand(*words, out=out, err=err, **options)
        while command.poll() is None:
            if select.select([connection], [], [], 0.02)[0]:  # its caller was killed
                command.send_signal(signal.SIGTERM)
                break
        connection.sendall(str(command.wait(60) & 255).encode())
