"""A process that has imported what ranks need, and forks ranks for the Dask workers of this machine.

Most of a rank's start is imports, which are the same for all ranks. The driver starts a server beside its cluster, and
keeps it for a while after a run, for the next one of a notebook; a worker asks it for a rank and passes the rank's
pipes along. Only ranks that differ in nothing else are forked: same interpreter, folder, cores, namespaces and
environment. All others, those on GPUs among them, are processes that start from scratch, and so is every rank where the
server fails, or where an import has started a thread, which a fork would lose. Linux only.
"""

import ctypes
import gc
import hashlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn

import dask.config

from ..machine.deadline import remove_at_end
from .signals import kept_from_children, leave_signals_to_driver

PLACE = "MILLRACE_RANK_SERVERS"
"""Environment variable of workers: the folder of the servers' sockets, which only their user can open."""
LINGER_S = 60.0
"""Time that a server waits for another run of its driver."""
ANSWER_S, ASK_S = 180.0, 5.0
"""Longest wait of a worker for a server that is still importing; of a server for what a worker asks."""
TRIM = "MALLOC_TRIM_THRESHOLD_"
OF_ITS_OWN = ("__DASK_PARENT_PID", "COLUMNS", "LINES")
"""Variables that say nothing to a rank: the number of a Dask process, and the size of a terminal, which an interactive
Python gives its children alone."""
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
RANK_MAIN = f"{__package__}.rank_main"
IMPORTED = (
    "..custom.user_code",
    "..machine.gpus",
    "..setup.open_queue",
    "..setup.prepare",
    "..setup.shared_dataset",
    "..telemetry.heartbeat",
    "..training.trainer",
    "...stages.comm.nccl",
    "...stages.comm.survivors",
    "...stages.kernels.aggregation.cpu.backend",
    "...stages.kernels.sampling.cpu.backend",
    ".rank_main",
    ".rendezvous",
)
"""Modules that a server imports. A rank imports whatever is missing here."""


def own_environment() -> dict[str, str]:
    """Environment of this process without `OF_ITS_OWN` and the allocator setting that Dask gives its workers.

    With that setting every tensor above 128 KiB is mapped anew and unmapped when it is freed: epochs of a tenth of a
    second take 1.1 to 1.4 times as long, to save 2 % of a rank's memory. A value set by the user stays.

    Torch sets the folder of its compiler once it is imported: unless that is the user's, ranks choose the same one, and
    those of workers that are started before and after do not differ.
    """
    environment = {name: value for name, value in os.environ.items() if name not in OF_ITS_OWN}
    of_dask = dask.config.get("distributed.nanny.pre-spawn-environ", {}).get(TRIM)
    if of_dask is not None and environment.get(TRIM) == str(of_dask):
        del environment[TRIM]
    if environment.get(INDUCTOR, "").startswith(os.path.join(tempfile.gettempdir(), "torchinductor_")):
        del environment[INDUCTOR]
    return environment


# In the driver


@contextmanager
def serving(*variables: Mapping[str, str]) -> Iterator[None]:
    """Context in which Dask workers that are started here have their ranks forked.

    Args:
        variables: environment variables of ranks beside those of their workers; one server for each.
    """
    if sys.platform != "linux":
        yield
        return
    before = os.environ.pop(PLACE, None)
    environments = [{**_of_workers(), **given} for given in variables]
    servers = _taken(environments) or _Servers(environments)
    os.environ[PLACE] = servers.folder
    try:
        yield
    finally:
        _keep(servers)
        os.environ.pop(PLACE, None)
        if before is not None:
            os.environ[PLACE] = before


class _Servers:
    """Servers for the ranks of a run, and of runs after it that are alike."""

    def __init__(self, environments: list[dict[str, str]]) -> None:
        """
        Args:
            environments: of the ranks of each server.
        """
        self.serve = [_taken_over(e) for e in environments]
        self._folder = tempfile.TemporaryDirectory(prefix="millrace-ranks-", ignore_cleanup_errors=True)
        remove_at_end(self._folder.name)
        self.folder = self._folder.name
        self._processes = [_start({**e, PLACE: self.folder}) for e in environments]
        self.timer: threading.Timer | None = None
        """Ends them."""

    @property
    def alive(self) -> bool:
        """True if all servers are there."""
        return all(process is not None and process.poll() is None for process in self._processes)

    def end(self) -> None:
        """End the servers, with their ranks, and remove their folder."""
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()
                # pyrefly: ignore[missing-attribute]
                process.stdin.close()
        self._folder.cleanup()


_KEPT: list[_Servers] = []
"""Servers that wait for another run: those of the last one."""
_LOCK = threading.Lock()


def _taken(environments: list[dict[str, str]]) -> _Servers | None:
    """Take the servers that wait, if they serve such ranks; end them if they do not."""
    with _LOCK:
        servers = _KEPT.pop() if _KEPT else None
    if servers is None:
        return None
    if servers.timer is not None:
        servers.timer.cancel()
    if servers.alive and servers.serve == [_taken_over(e) for e in environments]:
        return servers
    servers.end()
    return None


def _keep(servers: _Servers) -> None:
    """Let servers wait for another run, unless others wait already or one of them has ended."""
    with _LOCK:
        kept = not _KEPT and servers.alive and LINGER_S > 0
        if kept:
            _KEPT.append(servers)
            servers.timer = threading.Timer(LINGER_S, _forget, [servers])
            servers.timer.daemon = True
            servers.timer.start()
    if not kept:
        servers.end()


def _forget(servers: _Servers) -> None:
    """End servers that still wait."""
    with _LOCK:
        if servers in _KEPT:
            _KEPT.remove(servers)
            servers.end()


def _of_workers() -> dict[str, str]:
    """The `own_environment` of a worker that Dask's nanny starts in this process."""
    import distributed  # noqa: F401  its defaults

    environment = own_environment()
    given = {
        **dask.config.get("distributed.nanny.pre-spawn-environ", {}),
        **dask.config.get("distributed.nanny.environ", {}),
    }
    given.pop(TRIM, None)
    for name, value in given.items():
        if value is not None:
            environment.setdefault(name, str(value))
    if environment.get("PYTHONHASHSEED") in (None, "0"):
        environment["PYTHONHASHSEED"] = "6640"  # as the nanny does, for equal hashes in all workers
    return environment


def _start(environment: dict[str, str]) -> subprocess.Popen[bytes] | None:
    """Start a server for ranks with this environment. It ends when its standard input does: with this process."""
    # Workers may call while the server is still importing: the socket is there, and they wait.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, kept_from_children():
        listener.bind(_address(environment))
        listener.listen(128)
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.rank_server", str(listener.fileno()), environment[PLACE]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[listener.fileno()],
        )
    return None


def _address(environment: Mapping[str, str]) -> str:
    """The socket of the server whose ranks have this environment, and all else that they take from their worker."""
    return str(Path(environment[PLACE], hashlib.sha256(_taken_over(environment).encode()).hexdigest()[:16]))


def _taken_over(environment: Mapping[str, str]) -> str:
    """Text of all that ranks with this environment take over from the process that starts them."""
    here = Path("/proc/self")
    return json.dumps(
        [
            sys.executable,
            os.getcwd(),
            sorted(os.sched_getaffinity(0)),
            sorted(os.readlink(name) for name in (here / "ns").iterdir()),
            (here / "cgroup").read_text(),
            sorted(environment.items()),
        ]
    )


# In the worker


class ForkedRank:
    """A rank that a server has forked, with the part of `subprocess.Popen` that its worker uses."""

    def __init__(self, pid: int, server: socket.socket, to_rank: IO[str], from_rank: IO[str]) -> None:
        self.pid, self.stdin, self.stdout = pid, to_rank, from_rank
        self._server, self._lock = server, threading.Lock()
        self._status: int | None = None

    def wait(self) -> int:
        """The exit status, once the process has ended. A rank whose server is gone is killed, since nobody would see
        its end."""
        with self._lock:
            if self._status is None:
                said = b""
                with suppress(OSError):
                    said = self._server.recv(64)
                if not said:
                    with suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)
                self._status = int(said) if said else -signal.SIGKILL
                self._server.close()
            return self._status

    def poll(self) -> int | None:
        """The exit status if `wait` has seen it."""
        return self._status

    def kill(self) -> None:
        """Kill the process."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def forked(host: str, environment: Mapping[str, str], errors: IO[str]) -> ForkedRank | None:
    """A rank that a server of this machine has forked; None if none does.

    Args:
        host: the rank's argument.
        environment: of the rank.
        errors: its standard error.
    """
    if PLACE not in environment:
        return None
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (its_in, to_rank), (from_rank, its_out) = os.pipe(), os.pipe()
    pid = b""
    try:
        server.settimeout(ANSWER_S)
        server.connect(_address(environment))
        socket.send_fds(server, [host.encode()], [its_in, its_out, errors.fileno()])
        pid = server.recv(64)
    except OSError:
        pass
    finally:
        os.close(its_in)
        os.close(its_out)
    if not pid:
        server.close()
        os.close(to_rank)
        os.close(from_rank)
        return None
    server.settimeout(None)
    return ForkedRank(int(pid), server, os.fdopen(to_rank, "w"), os.fdopen(from_rank))


# In the server


def _import_all() -> None:
    """Import what ranks need."""
    gc.disable()  # what is imported stays: looking at it again and again takes half a second
    for name in IMPORTED:
        importlib.import_module(name, __package__)
    from ...stages.kernels.runtime.jit import prepare_numba

    prepare_numba()
    gc.freeze()  # so that a rank's first collection does not copy all of it
    gc.enable()


def main() -> NoReturn:
    """Import, then fork a rank for each worker that asks. Arguments: the socket that they call, and its folder."""
    leave_signals_to_driver()
    listener = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)
    _serve(listener)


def _serve(listener: socket.socket) -> NoReturn:
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    workers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, ended], [], [])
        if 0 in ready:
            # The driver is gone; killed, it has left its folder behind.
            shutil.rmtree(sys.argv[2], ignore_errors=True)
            os._exit(0)
        if ended in ready:
            os.read(ended, 1 << 12)
            _report_ends(workers)
        if listener in ready:
            worker, _ = listener.accept()
            with suppress(OSError):
                worker.settimeout(ASK_S)
                pid = _fork(worker, [ended, wake, listener.fileno(), *(w.fileno() for w in workers.values())])
                workers[pid] = worker
                worker.send(str(pid).encode())


def _fork(worker: socket.socket, others: list[int]) -> int:
    """Fork the rank that a worker asks for; `others` are files that it must not inherit."""
    host, files, _, _ = socket.recv_fds(worker, 1 << 12, 3)
    try:
        pid = os.fork() if len(files) == 3 else None
        if pid == 0:
            try:
                _become_rank(host.decode(), files, [*others, worker.fileno()])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
    finally:
        for file in files:
            os.close(file)
    if pid is None:
        raise OSError("not a worker")
    return pid


def _become_rank(host: str, files: list[int], others: list[int]) -> NoReturn:
    import numpy as np

    from . import rank_main

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for file in others:
        os.close(file)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    np.random.seed()  # noqa: NPY002  a user's own code may draw from it
    _show_as([sys.executable, "-m", RANK_MAIN, host])
    sys.argv[1:] = [host]
    rank_main.main()


def _show_as(command: list[str]) -> None:
    """Show the process under this command line, if it is not longer than the present one."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(numbers[45]), int(numbers[46])
    shown = b"".join(os.fsencode(word) + b"\0" for word in command)
    if len(shown) <= end - start:
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _report_ends(workers: dict[int, socket.socket]) -> None:
    """Tell workers the exit statuses of ranks that have ended."""
    while workers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with workers.pop(pid) as worker, suppress(OSError):  # the worker may be gone
            worker.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    main()
