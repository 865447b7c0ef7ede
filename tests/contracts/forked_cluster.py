"""Dask workers and servers of ranks that are forked from a process that has imported what they need.

Started from scratch, as users' are, a worker that samples and a server of ranks take three seconds of a core each,
nearly all of them imports. Here they have the environment, folder and command line that they would have then.
"""

import ctypes
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NoReturn

import dask.config
import distributed.utils
import pytest
from distributed.nanny import WorkerProcess

from millrace.pipeline.cluster import rank_server
from millrace.pipeline.cluster.signals import leave_signals_to_driver
from millrace.pipeline.config.schema import ClusterOptions
from millrace.pipeline.machine.malloc import allocator

PRETENDED = "MILLRACE_TESTS_PRETENDED_GPU"
"""Environment variable of ranks that have the pretended device, and talk over the stand-in for NCCL."""
COMPILES = "MILLRACE_TESTS_COMPILE_KERNELS"
"""Environment variable of a fork server that compiles the kernels which it does not find."""
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
MS_REC, MS_SLAVE = 0x4000, 0x80000


def enter_network(namespace: Path) -> None:
    """Move this thread, and those that it starts, to a network namespace. Raises OSError if it cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def hide(folder: Path) -> None:
    """Give this process, and those that it starts, mounts of their own, with an empty folder in place of this one.

    Raises OSError if it cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(CLONE_NEWNS)
        or libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
        or libc.mount(b"none", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), None)
    ):
        raise OSError(ctypes.get_errno(), f"cannot hide {folder}")


def fork_server() -> ForkServerContext:
    """The context of `multiprocessing` whose processes are forked from one that has imported `preloaded`."""
    context = multiprocessing.get_context("forkserver")
    # It has this process's flags, but not what `bytecode` has made of them.
    context.set_forkserver_preload([f"millrace.tests.contracts.{name}" for name in ("bytecode", "preloaded")])
    forkserver.ensure_running()  # now: later it might be started with signals blocked, and so would all its processes
    return context


def become_fork_server(without: Sequence[int] = ()) -> None:
    """Fork a fork server from this process, so that what it forks is below this process. There must be no threads.

    Args:
        without: open files that it must not keep open.
    """
    server: Any = forkserver._forkserver
    address = f"\0millrace-fork-server-{os.getpid()}"
    alive, ours = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        pid = os.fork()
        if pid == 0:
            try:
                for file in (ours, *without):
                    os.close(file)
                leave_signals_to_driver()
                forkserver.main(os.dup(listener.fileno()), alive, [])
            finally:
                os._exit(0)
    os.close(alive)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, ours, pid


@contextmanager
def forked_cluster() -> Iterator[None]:
    """Context in which workers and servers of ranks of clusters that are started here are forked."""
    fork_server()
    start = WorkerProcess.start

    async def start_as_spawned(process: WorkerProcess) -> Any:
        process.env = {**os.environ, **process.pre_spawn_env, **process.env}
        return await start(process)

    with (
        pytest.MonkeyPatch.context() as patch,
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
    ):
        patch.setattr(distributed.utils, "_forkserver_preload_set", True)
        patch.setattr(WorkerProcess, "start", start_as_spawned)
        patch.setattr(WorkerProcess, "_run", staticmethod(_become_worker))
        patch.setattr(rank_server, "_start", _ForkedServer)
        yield


def serving_ranks(*variables: Mapping[str, str]) -> AbstractContextManager[None]:
    """Context in which ranks of workers that are started here are forked, from servers with the two environments that
    ranks have; `variables` are those of workers."""
    of_ranks = [{}, allocator(ClusterOptions().keep_freed_bytes)]
    return rank_server.serving(*({**given, **more} for given in variables or [{}] for more in of_ranks))


def _become_worker(**options: Any) -> None:
    rank_server._show_as([sys.executable, "-c", "from multiprocessing.spawn import spawn_main"])
    os.environ.clear()
    WorkerProcess._run(**options)


class _ForkedServer:
    """A server of ranks, with the part of `subprocess.Popen` that `rank_server.serving` uses."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        context = fork_server()
        lifeline, self.stdin = context.Pipe(duplex=False)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, lifeline:
            listener.bind(rank_server._address(environment))
            listener.listen(128)
            self._process = context.Process(target=_become_server, args=(listener, lifeline, dict(environment)))
            self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        self._process.join()


def _become_server(listener: socket.socket, lifeline: Connection, environment: dict[str, str]) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, file in enumerate((lifeline.fileno(), nothing, nothing)):
        os.dup2(file, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  not the one that `multiprocessing` has put there
    if PRETENDED in environment:
        from millrace.tests.contracts import nccl

        nccl.install_for_good()
    sys.argv = ["rank_server", str(listener.fileno()), environment[rank_server.PLACE]]
    rank_server._show_as([sys.executable, "-m", rank_server.__name__, *sys.argv[1:]])
    rank_server.main()
