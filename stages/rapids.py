"""Checks that RAPIDS 26.10 can be used, counts its GPUs, and starts a cluster of one process per GPU, unless the user's
own is there."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from ..storage.errors import InputError, MissingExtraError, install

NEEDED = ("cupy", "cudf", "cugraph", "pylibcugraph")
NEEDED_BY_SEVERAL = ("dask_cuda", "dask_cudf", "raft_dask")
BY_SCHEDULER = ("raft_dask",)
TO_SAMPLE = ("cupy", "pylibcugraph")
TO_READ = ("cupy", "cudf", "dask_cuda")


_named: ContextVar[Any] = ContextVar("_named", default=None)


@contextmanager
def named_cluster(client: object) -> Iterator[None]:
    """Context in which `count_gpus` and `gpu_cluster` take the cluster of a Dask client, if dask-cuda has made it: each
    of its workers has RAPIDS and a GPU of its own."""
    before = _named.set(client)
    try:
        yield
    finally:
        _named.reset(before)


def is_named(client: Any) -> bool:
    """True if the client is of the user's own cluster, whose processes go on when the work is done."""
    return client is _named.get()


def gpus_named(needed: tuple[str, ...]) -> int:
    """GPUs of the named cluster; 0 if there is none, or it has others than workers with these modules and a GPU
    each."""
    if (client := _named.get()) is None:
        return 0
    found = [*client.run(_own_gpu, needed).values()]
    return len(found) if None not in found and len({*found}) == len(found) else 0


def _own_gpu(needed: tuple[str, ...]) -> tuple[str, str] | None:
    """Host and GPU of this process, which dask-cuda names first; None without RAPIDS, or a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible or any(find_spec(m) is None for m in needed):
        return None
    import cupy

    runtime = cupy.cuda.runtime
    try:
        return (socket.gethostname(), visible.split(",")[0]) if runtime.getDeviceCount() else None
    except runtime.CUDARuntimeError:
        return None


def count_gpus(what: str, instead: str, needed: tuple[str, ...]) -> int:
    """Number of GPUs that RAPIDS can use on the named cluster, or on this machine; at least one. To cut or read on
    several of a cluster's, this process needs a GPU of its own, too.

    Args:
        what: the feature that needs them, for the message.
        instead: an alternative that needs none, for the message.
        needed: modules that the feature imports; with several GPUs, `NEEDED_BY_SEVERAL` too.

    Raises:
        MissingExtraError: a module is not installed.
        InputError: there is no GPU, or no driver.
    """
    named = gpus_named(needed)
    if named > 1:
        _check_has((*needed, *NEEDED_BY_SEVERAL), what, instead)
        _check_processes(needed, what, instead)
    if named == 1 or (named and needed == TO_SAMPLE):
        return named
    _check_has(needed, what, instead)
    import cupy

    runtime = cupy.cuda.runtime
    try:
        gpus = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as e:
        raise InputError(
            f"{what} needs an NVIDIA GPU, but CUDA says {e}; use {instead}, or a machine with a GPU and its driver"
        ) from None
    if gpus < 1:
        raise InputError(
            f"{what} needs an NVIDIA GPU, but there is none; use {instead}, or a machine with a GPU and its driver"
        )
    if not named and gpus > 1:
        _check_has(NEEDED_BY_SEVERAL, what, instead)
    return named or gpus


def _lacking(modules: tuple[str, ...]) -> list[str]:
    return [m for m in modules if find_spec(m) is None]


def _check_processes(needed: tuple[str, ...], what: str, instead: str) -> None:
    """Check the other processes of a named cluster of several GPUs: its workers, and for cuGraph its scheduler, which
    makes the id by which NCCL connects the workers."""
    client = _named.get()
    found = {f"the worker {at}": lacking for at, lacking in client.run(_lacking, NEEDED_BY_SEVERAL).items()}
    if "cugraph" in needed:
        found["the scheduler"] = client.run_on_scheduler(_lacking, BY_SCHEDULER)
    for process, lacking in found.items():
        if lacking:
            raise MissingExtraError(
                f"{what} on several GPUs needs RAPIDS in each process of the cluster, but {process} cannot find "
                f"{', '.join(lacking)}; use {instead}, or {install('gpu')} there too"
            )


def _check_has(modules: tuple[str, ...], what: str, instead: str) -> None:
    if lacking := _lacking(modules):
        raise MissingExtraError(
            f"{what} needs an NVIDIA GPU and RAPIDS, but {', '.join(lacking)} cannot be found; use {instead}, "
            f"or {install('gpu')}, where there is a GPU"
        )


@contextmanager
def gpu_cluster(gpus: int) -> Iterator[Any]:
    """A Dask client of a cluster with one process for each of `gpus` GPUs: the named one, or one on this machine, whose
    processes end with the block and free the memory of the GPUs. Dask's dataframes and cuGraph use it too, whatever
    other clients the caller has.

    Args:
        gpus: from `count_gpus`.
    """
    if gpus_named(()) == gpus:
        with (client := _named.get()).as_current():
            yield client
        return
    from dask_cuda import LocalCUDACluster
    from distributed import Client, Security

    # Every user of this machine reaches a port on loopback, and could run code as its owner. Without an address the
    # scheduler's pages would be open to other machines.
    secured = {"protocol": "tls", "security": Security.temporary(), "host": "127.0.0.1"}
    with (
        _environment_as_it_was(),
        LocalCUDACluster(n_workers=gpus, dashboard_address="127.0.0.1:0", **secured) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _environment_as_it_was() -> Iterator[None]:
    """Restore this process's environment: Dask and dask-cuda leave settings for their workers there, which ranks would
    inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
